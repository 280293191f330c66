"""Ranges as they are fetched by a task, on a real broker, without Spark (spec 6.1, 6.7)."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from kohort.client.common.types import TopicPartition

if TYPE_CHECKING:
    from kohort.testing import Cluster

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")


def options(cluster: Cluster, **source_options: str) -> Any:
    from kohort.spark.options import parse_source

    where = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": "any"}
    return parse_source({**where, **source_options}, streaming=True)


def test_a_pipelines_source_gives_its_ranges_and_the_sink_fetches_them(
    cluster: Cluster, topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    """Payloads do not cross the JVM: what Spark hands on are markers. Of each partition the records
    of the range come in order, so many at a time.
    """
    from kohort.spark import arrow
    from kohort.spark.fetch import read_ranges, read_records
    from kohort.spark.offsets import Range

    name = topic(2)
    produce(name, *((n % 2, None, b"%d" % n) for n in range(20)))
    spans = [Range(name, 0, 2, 9, "id", True, 5), Range(name, 1, 0, 4, "id", False, 5)]
    (batch,) = read_ranges(options(cluster, rangeMarkers="true"), spans, tuple(arrow.TYPES))
    assert arrow.read_markers(batch) == spans
    found: dict[int, list[int]] = defaultdict(list)
    for records in read_records(options(cluster), spans, 3):
        assert len(records) <= 3
        assert len({r.partition for r in records}) == 1
        found[records[0].partition] += [r.offset for r in records]
    assert found == {0: list(range(2, 9)), 1: list(range(4))}
    assert not list(read_ranges(options(cluster, rangeMarkers="true"), [], tuple(arrow.TYPES)))


def test_a_query_gets_the_rows_of_its_ranges(
    cluster: Cluster, topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    from kohort.spark.fetch import read_ranges
    from kohort.spark.offsets import Range

    name = topic(1)
    produce(name, *((0, None, b"%d" % n) for n in range(10)))
    columns = ("value", "offset")
    spans = [Range(name, 0, 6, 8), Range(name, 0, 1, 3)]  # one partition twice: one after the other
    batches = read_ranges(options(cluster, batchRows="2"), spans, columns)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["offset"], row["value"]) for row in rows] == [(n, b"%d" % n) for n in (6, 7, 1, 2)]


@pytest.mark.parametrize(
    "setting", ["max.partition.fetch.bytes", "allow.auto.create.topics", "fetch.max.bytes"]
)
def test_a_setting_of_the_consumer_may_be_one_that_has_another_default_here(
    setting: str, cluster: Cluster, topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    """Spec 6.7: options of Spark's connector are taken, in Java's spelling."""
    from kohort.spark.fetch import read_ranges
    from kohort.spark.offsets import Range

    name = topic(1)
    produce(name, (0, None, b"v"))
    value = "false" if setting.startswith("allow") else "1000"
    asked = options(cluster, **{f"kafka.{setting}": value})
    (batch,) = read_ranges(asked, [Range(name, 0, 0, 1)], ("value",))
    assert batch.to_pylist() == [{"value": b"v"}]


class Counting:
    """A consumer of many partitions, each with one batch of records; counts what it is asked."""

    def __init__(self, partitions: int) -> None:
        self.at_hand = [[n] for n in range(partitions)]
        self.read: set[int] = set()
        self.asked = 0

    def assign(self, partitions: list[TopicPartition]) -> None: ...
    def limit(self, partition: TopicPartition, end: int) -> None: ...
    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    def position(self, partition: TopicPartition) -> int:
        self.asked += 1
        return int(partition.partition in self.read)

    def take(self, timeout_s: float) -> list[int]:
        found = self.at_hand.pop() if self.at_hand else []
        self.read |= set(found)
        return found


def test_positions_are_asked_for_once_a_partition_and_not_after_every_poll() -> None:
    """Issue 17: the cost of a record is the same with 1 and with 500 partitions."""
    from kohort.spark import fetch
    from kohort.spark.offsets import Range
    from kohort.spark.options import SourceOptions

    consumer: Any = Counting(500)
    spans = [Range("t", n, 0, 1) for n in range(500)]
    polled = fetch._polled(consumer, SourceOptions({}), spans, lambda _, s: consumer.take(s), None)
    assert sorted(n for batch in polled for n in batch) == list(range(500))
    assert consumer.asked == 500


def test_a_worker_imports_no_pandas_to_read() -> None:
    """Half a second of processor time for every process that Spark starts."""
    program = (
        "import sys, kohort.spark.fetch, kohort.spark.source\n"
        "from kohort.client.consumer.arrow import empty_batch\n"
        "empty_batch(['topic', 'value', 'headers'])\n"
        "sys.exit('pandas' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
