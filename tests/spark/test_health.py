"""Lag of any query from Spark's own progress events (issue 17; spec 8.3)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kohort import Admin
from kohort.observe.spark_query import FAILED, RUNS, STOPPED, WAITS, QueryNote, note_of, why_unmoved
from kohort.spark.health import QueryHealth, after, offsets_in, unread
from kohort.spark.watching import _with_oldest
from tests.patience import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster


def test_a_record_without_a_time_has_no_age() -> None:
    query = QueryHealth("q", "1", next={("a", 0): 1, ("a", 1): 1}, ends={("a", 0): 3, ("a", 1): 3})
    found = _with_oldest(query, {("a", 0): (-1, 10), ("a", 1): (1_000, 10)})
    assert (found.bytes_behind, found.oldest_ms) == (40, None)
    assert _with_oldest(query, {("a", 0): (2_000, 1), ("a", 1): (1_000, 1)}).oldest_ms == 1_000


def progress(end: Any, latest: Any, batch: int = 3) -> dict[str, Any]:
    return {
        "batchId": batch,
        "timestamp": "2026-11-25T10:00:00.500Z",
        "numInputRows": 7,
        "processedRowsPerSecond": 3.5,
        "durationMs": {"triggerExecution": 2_000},
        "sources": [{"endOffset": end, "latestOffset": latest}],
    }


def test_what_a_progress_tells() -> None:
    """Of `format("kohort")`, whose positions hold a plan beside the offsets, and of Spark's own."""
    ours = {"t": {"0": 5, "1": 9}, "@": {"ids": {"t": "x"}, "began": {"t": {"0": 0}}, "tasks": 2}}
    for end in (ours, {"t": {"0": 5, "1": 9}}, '{"t": {"0": 5, "1": 9}}'):
        seen = after(QueryHealth("q", "id"), progress(end, {"t": {"0": 8, "1": 9}}))
        assert (seen.next, seen.behind) == ({("t", 0): 5, ("t", 1): 9}, {("t", 0): 3, ("t", 1): 0})
        assert (seen.records_behind, seen.batch_id, seen.rows, seen.batch_ms) == (3, 3, 7, 2_000)
        assert seen.at_ms == 1_795_600_800_500
        assert unread([seen]) == {("t", 0): 5}
        assert seen.seconds_behind(seen.at_ms) is None, "nobody has asked"


def test_a_query_of_handlers_counts_its_offsets() -> None:
    """Its rows are ranges, which its sink fetches: two of them here, of 4,000 records."""
    event = progress({"t": {"0": 5_000}}, {"t": {"0": 9_000}})
    event["numInputRows"] = 2
    event["sources"][0]["startOffset"] = {"t": {"0": 1_000}}
    seen = after(QueryHealth("q", "id"), event)
    assert (seen.rows, seen.rows_per_s) == (4_000, 2_000.0)


def test_what_nobody_knows_is_none() -> None:
    seen = after(QueryHealth("q", "id"), progress({"t": {"0": 5}}, None))
    assert seen.records_behind is None
    assert seen.seconds_behind(0) is None
    read = after(QueryHealth("q", "id"), progress({"t": {"0": 5}}, {"t": {"0": 5}}))
    assert (read.records_behind, read.seconds_behind(0)) == (0, 0.0)


@pytest.mark.parametrize("offset", [None, "no json", "[1]", 7, {"path": "x"}, {"t": {"a": 1}}])
def test_positions_of_other_sources(offset: Any) -> None:
    assert offsets_in(offset) == {}


def test_a_note_survives_the_broker() -> None:
    note = QueryNote(FAILED, 5_000, "standings", "x" * 9_000)
    read = note_of(str(note))
    assert read is not None
    assert (read.state, read.at_ms, read.name, len(read.words)) == (FAILED, 5_000, "standings", 500)
    for text in ("", "{}", '{"kohort.spark": 1}', '{"kohort.spark": {"state": "x", "at": 1}}'):
        assert note_of(text) is None


@pytest.mark.parametrize(
    ("state", "stands", "words"),
    [
        (RUNS, False, "began a batch from here 1m ago and has not ended it"),
        (WAITS, False, "saw too few records 1m ago, and waits for more"),
        (STOPPED, True, "Spark query q was stopped 1m ago; started again, it continues from here"),
        (FAILED, True, "Spark query q failed 1m ago: no such column. Start it again"),
    ],
)
def test_why_it_does_not_move(state: str, stands: bool, words: str) -> None:
    note = QueryNote(state, 1_000, "q", "no such column" if state == FAILED else "")
    assert why_unmoved(note, 61_000)[0] is stands
    assert words in why_unmoved(note, 61_000)[1]
    assert " ago" not in why_unmoved(note, None)[1]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_plain_query_is_watched(
    spark: SparkSession,
    cluster: Cluster,
    topic: Callable[..., str],
    produce: Callable[..., None],
    tmp_path: Path,
) -> None:
    """Two of ten records a batch, three of them: four are left; in metrics and in a group."""
    from kohort.spark import watch

    source, name = topic(1), topic(1)
    produce(source, *((0, None, b"x" * 10) for _ in range(10)))
    watching = watch(spark, bootstrap_servers=cluster.bootstrap)

    def stop_at_the_third(_: Any, batch: int) -> None:
        if batch == 3:
            raise ValueError("enough")

    query = (
        spark.readStream.format("kohort")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .options(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="2")
        .load()
        .writeStream.foreachBatch(stop_at_the_third)
        .queryName(name)
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    with pytest.raises(Exception, match="enough"):
        query.awaitTermination()

    def seen() -> QueryHealth:
        return next(q for q in watching.health() if q.name == name)

    until(lambda: any(q.name == name and not q.active for q in watching.health(look=False)))
    health = seen()
    assert (health.records_behind, health.bytes_behind) == (4, 40)
    assert health.oldest_ms is not None
    assert "enough" in health.error
    numbers = {s.family.name: s.value for s in watching.samples() if s.tags == (("query", name),)}
    assert numbers["spark_query_records_behind"] == 4
    assert numbers["spark_query_bytes_behind"] == 40
    assert numbers["spark_query_active"] == 0
    assert 0 <= numbers["spark_query_seconds_behind"] < 3_600
    watching.close()
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        committed = admin.list_group_offsets(f"spark.{name}")
    ((at, found),) = committed.items()
    assert (at.topic, found.offset) == (source, 6)
    note = note_of(found.metadata)
    assert note is not None
    assert (note.state, note.name) == (FAILED, name)
    assert "enough" in note.words or note.words


def test_an_end_that_spark_tells_of_a_query_never_seen() -> None:
    from kohort.spark.watching import QueryWatch

    session: Any = SimpleNamespace(streams=None)
    watching = QueryWatch(session, None, "spark.")
    watching.onQueryTerminated(SimpleNamespace(id="x", exception=None))
    assert watching.health() == []
