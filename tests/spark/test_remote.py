"""A pipeline is seen and drained from elsewhere (issue 18, item 5)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort.errors import ConfigError
from kohort.remote import Action, Process, RemoteControl
from kohort.remote.pipelines import look_at
from kohort.spark import Pipeline, Progress
from tests.spark.test_pipeline import Job, Make, Send
from tests.spark.test_pipeline import job as job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster

__all__ = ["Make", "Send"]


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_pipeline_is_seen_and_drained(spark: SparkSession, job: Job, cluster: Cluster) -> None:
    """It ends without an interrupt; what it has loaded stays loaded."""
    job.price("nut")
    job.order("nut", "nut")
    job.pipeline.remote = "fleet"
    drained, ended = threading.Event(), threading.Event()
    seen: list[Process] = []
    with RemoteControl("fleet", {"bootstrap_servers": cluster.bootstrap}) as control:

        def command() -> None:
            while not seen and not ended.wait(0.2):
                try:
                    found = control.processes()
                except Exception:  # the topic is made by the pipeline
                    continue
                seen.extend(p for p in found if p.status.figures.get("done") == 3)
            if seen:
                control.send(job.pipeline.name, Action.DRAIN)
            drained.set()

        thread = threading.Thread(target=command)
        thread.start()
        try:
            last = job.pipeline.run("continuous", spark=spark)
        finally:
            ended.set()
            thread.join()
    assert last.done == 3
    (process,) = seen
    assert (process.status.kind, process.status.state) == ("pipeline", "running")
    assert process.status.actions == (Action.STATUS, Action.DRAIN)
    assert job.query("SELECT count(*) FROM orders") == [(2,)]


def test_what_is_shown_of_a_pipeline(tmp_path: Path) -> None:
    made: Any = Pipeline("p", store=f"sqlite:///{tmp_path}/p.db", remote="fleet")
    assert look_at(made, None).state == "starting"
    progress = Progress(10, 7, 2, 1, 4, {("t", 1): 5, ("t", 0): 3})
    look = look_at(made, progress)
    assert (look.state, look.figures["lag"], look.figures["retries_waiting"]) == ("running", 3, 2)
    assert [row["position"] for row in look.partitions] == [3, 5]
    made.stop()
    assert look_at(made, progress).state == "draining"
    with pytest.raises(ConfigError, match="begins the names"):
        Pipeline("p", store=f"sqlite:///{tmp_path}/p.db", remote="no spaces")
