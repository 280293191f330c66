"""A pipeline's connections end with its run. The fixture `database` counts those that are left."""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort.spark import Pipeline
from kohort.spark.dataframes.stage import StageFunction
from kohort.spark.outputs.protocol import Step
from kohort.spark.stages import PipelineStages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(600)]


@pytest.mark.rows(1)
@pytest.mark.parametrize("cut_off", [False, True], ids=["ended", "in a batch"])
def test_no_connection_outlives_a_run(
    spark: SparkSession,
    cluster: Cluster,
    topic: Callable[..., str],
    produce: Callable[..., None],
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cut_off: bool,
) -> None:
    """Also where a batch is still in a call when the stages are closed: it closes its own."""
    name = topic(name="rows")
    p = Pipeline(
        f"p-{name}",
        store=database,
        retries="none",
        bootstrap_servers=cluster.bootstrap,
        checkpoint=tmp_path / "checkpoint",
        trigger="50ms",
    )

    @p.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS rows (value TEXT)")

    p.source(name, name="rows", format="text")

    @p.table("rows")
    def loaded(rows: Any) -> Any:
        return rows.select("value")

    if cut_off:
        functions: list[StageFunction] = []
        monkeypatch.setattr(PipelineStages, "close", lambda _: None)
        init = StageFunction.__init__
        monkeypatch.setattr(
            StageFunction, "__init__", lambda f, *args: (functions.append(f), init(f, *args))[1]
        )

        def reached(step: Step) -> None:
            if step is Step.AFTER_MERGE:
                functions[0].release()

        p.reached = reached
    produce(name, (0, None, b"a"), (1, None, b"b"))
    p.run("available_now", spark=spark, max_restarts=0)
    store = p.open_store()
    assert store.query("SELECT value FROM rows ORDER BY 1") == [("a",), ("b",)]
    store.close()
