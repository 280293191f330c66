"""Spark's own Kafka connector, in the JVM, reads and writes through the embedded broker (issue 5),
and `format("kohort")` reads the same rows from the same topics.

The connector is the newest on Maven Central, behind pyspark's own version
(`tools/java/spark/pom.xml` says which, and why).
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kohort import Admin, Producer, TopicPartition
from tests.clusters import Embedded as Cluster
from tests.patience import PATIENCE_S

COLUMNS = ("topic", "partition", "offset", "key", "value", "timestamp", "timestampType", "headers")
RECEIVED_MS = 60_000

pytestmark = [
    pytest.mark.java,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def spark(connectors: Any) -> Any:
    """A session whose JVM was launched with the connector."""
    return connectors


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic of two partitions."""
    return new_topic(cluster)


def new_topic(cluster: Cluster, name: str = "spark", partitions: int = 2) -> str:
    made = f"{name}-{next(_numbers)}"
    cluster.create_topic(made, partitions=partitions)
    return made


def fill(cluster: Cluster, topic: str, *values: str, partition: int = 0, **settings: Any) -> None:
    """Records without keys; their timestamps count from 1,000 ms on by their place here."""
    with Producer(bootstrap_servers=cluster.bootstrap, **settings) as producer:
        for n, value in enumerate(values):
            producer.send(topic, value.encode(), None, partition, 1_000 + n)


def reader(spark: Any, make: str, cluster: Cluster, **options: Any) -> Any:
    """A batch reader of the connector ("kafka") or of ours ("kohort")."""
    options = {"kafka.bootstrap.servers": cluster.bootstrap, **options}
    return spark.read.format(make).options(**options).load()


def rows(frame: Any) -> list[tuple[Any, ...]]:
    """Every column of every row, by topic, partition and offset."""
    names = [name for name in COLUMNS if name in frame.columns]
    found = [tuple(plain(row[name]) for name in names) for row in frame.collect()]
    return sorted(found, key=lambda row: row[:3])


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [(h.key, None if h.value is None else bytes(h.value)) for h in value]
    return bytes(value) if isinstance(value, bytearray) else value


def both(spark: Any, cluster: Cluster, **options: Any) -> list[tuple[Any, ...]]:
    """What the connector reads, once it is known that ours reads the same, schema and rows."""
    frames = [reader(spark, make, cluster, **options) for make in ("kafka", "kohort")]
    theirs, ours = frames
    assert [(f.name, f.dataType) for f in ours.schema] == [
        (f.name, f.dataType) for f in theirs.schema
    ]
    found = rows(theirs)
    assert rows(ours) == found
    return found


def values(found: list[tuple[Any, ...]]) -> list[str]:
    return [row[4].decode() for row in found]


def by_offset(topic: str, *offsets: int) -> str:
    return json.dumps({topic: {str(n): offset for n, offset in enumerate(offsets)}})


def test_batch_written_is_read_back(spark: Any, cluster: Cluster, topic: str) -> None:
    """Keys, values, headers and the partition asked for, of both connectors alike."""
    schema = (
        "key binary, value binary, partition int, headers array<struct<key:string,value:binary>>"
    )
    written = [
        (b"a", b"1", 0, [("h", b"x"), ("h", None), ("", b"")]),
        (None, b"2", 0, None),
        (b"c", None, 1, []),
        (b"", b"", 1, [("only", b"\x00\xff")]),
    ]
    (
        spark.createDataFrame(written, schema)
        .coalesce(1)
        .write.format("kafka")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("includeHeaders", "true")
        .option("topic", topic)
        .save()
    )
    found = both(spark, cluster, subscribe=topic, includeHeaders="true")
    assert [(r[3], r[4], r[1], r[7]) for r in found] == [
        (b"a", b"1", 0, [("h", b"x"), ("h", None), ("", b"")]),
        (None, b"2", 0, None),
        (b"c", None, 1, None),
        (b"", b"", 1, [("only", b"\x00\xff")]),
    ]
    assert [r[2] for r in found] == [0, 1, 0, 1]


def test_batch_written_to_topics_of_its_rows(spark: Any, cluster: Cluster) -> None:
    """Rows name their topic; without a partition, Java's partitioner chooses by key as ours."""
    topics = [new_topic(cluster, partitions=3) for _ in range(2)]
    keys = [f"k{n}" for n in range(40)]
    frame = spark.createDataFrame(
        [(topics[n % 2], k, k) for n, k in enumerate(keys)],
        "topic string, key string, value string",
    )
    (
        frame.write.format("kafka")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("kafka.compression.type", "zstd")
        .save()
    )
    found = both(spark, cluster, subscribe=",".join(topics))
    assert sorted(values(found)) == sorted(keys)
    ours = new_topic(cluster, partitions=3)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        futures = {k: producer.send(ours, b"", k.encode()) for k in keys}
        placed = {k: future.result(PATIENCE_S).partition for k, future in futures.items()}
    assert {row[3].decode(): row[1] for row in found} == placed


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_ours_compressed(spark: Any, cluster: Cluster, topic: str, codec: str) -> None:
    wanted = [f"{n:03} {'x' * 50}" for n in range(200)]
    fill(cluster, topic, *wanted, compression_type=codec)
    assert values(both(spark, cluster, subscribe=topic)) == wanted


def test_ranges_by_offset_and_by_time(spark: Any, cluster: Cluster, topic: str) -> None:
    """startingOffsets and endingOffsets of each partition; timestamps of all and of each."""
    for partition in (0, 1):
        fill(cluster, topic, *(f"{partition}{n}" for n in range(6)), partition=partition)
    found = both(
        spark,
        cluster,
        subscribe=topic,
        startingOffsets=by_offset(topic, 2, -2),
        endingOffsets=by_offset(topic, 4, 3),
    )
    assert values(found) == ["02", "03", "10", "11", "12"]
    assigned = both(spark, cluster, assign=json.dumps({topic: [1]}))
    assert values(assigned) == [f"1{n}" for n in range(6)]
    found = both(spark, cluster, subscribe=topic, startingTimestamp="1001", endingTimestamp="1003")
    assert values(found) == ["01", "02", "11", "12"]
    each = reader(
        spark,
        "kafka",
        cluster,
        subscribe=topic,
        startingOffsetsByTimestamp=by_offset(topic, 1_004, 1_005),
        endingOffsetsByTimestamp=by_offset(topic, 9_999, 9_999),
    )
    assert values(rows(each)) == ["04", "05", "15"]


def test_partitions_are_divided(spark: Any, cluster: Cluster, topic: str) -> None:
    """minPartitions: a topic partition is read by several tasks, each record once."""
    wanted = [str(n) for n in range(100)]
    fill(cluster, topic, *wanted)
    frame = reader(spark, "kafka", cluster, subscribe=topic, minPartitions="5")
    assert frame.rdd.getNumPartitions() >= 5
    assert values(rows(frame)) == wanted
    assert values(both(spark, cluster, subscribe=topic, minPartitions="5")) == wanted


def test_committed_records_only(spark: Any, cluster: Cluster, topic: str) -> None:
    """read_committed ends at an open transaction and leaves out an aborted one."""
    committed = {"subscribe": topic, "kafka.isolation.level": "read_committed"}
    with Producer(bootstrap_servers=cluster.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        for value, end in (
            ("kept", producer.commit_transaction),
            ("dropped", producer.abort_transaction),
        ):
            producer.begin_transaction()
            producer.send(topic, value.encode(), partition=0)
            producer.flush()  # an abort drops what was not sent
            end()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0)
        producer.flush()
        fill(cluster, topic, "plain, after the open one")
        assert values(both(spark, cluster, **committed)) == ["kept"]
        everything = values(both(spark, cluster, subscribe=topic))
        assert everything == ["kept", "dropped", "open", "plain, after the open one"]
        producer.commit_transaction()
    assert values(both(spark, cluster, **committed)) == [
        "kept",
        "open",
        "plain, after the open one",
    ]


def copying(
    spark: Any, cluster: Cluster, source: str, target: str, checkpoint: Path, **options: str
) -> Any:
    """A query that copies a topic, ten records at a time."""
    read = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "10")
        .options(**options)
        .load()
    )
    return (
        read.select("key", "value", "partition")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("topic", target)
        .option("checkpointLocation", str(checkpoint))
    )


def test_stream_from_topic_to_topic(
    spark: Any, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """Stopped and started again from its checkpoint: nothing lost, nothing twice."""
    target = new_topic(cluster)
    wanted: list[str] = []
    for start in (0, 35, 70):
        more = [f"{n:03}" for n in range(start, start + 35)]
        fill(cluster, topic, *more)
        fill(cluster, topic, *(f"1{value}" for value in more), partition=1)
        wanted += more
        query = copying(spark, cluster, topic, target, tmp_path).start()
        query.processAllAvailable()
        query.stop()
        assert query.exception() is None
        found = both(spark, cluster, subscribe=target)
        assert values(found) == wanted + [f"1{value}" for value in wanted]
    (
        copying(spark, cluster, topic, target, tmp_path)
        .trigger(availableNow=True)
        .start()
        .awaitTermination(RECEIVED_MS // 1_000)
    )
    assert len(both(spark, cluster, subscribe=target)) == 210


def test_stopped_in_the_midst(spark: Any, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """Nothing is lost, and no more than the batch under way is written again."""
    target = new_topic(cluster)
    wanted = [f"{n:03}" for n in range(150)]
    fill(cluster, topic, *wanted)
    query = copying(spark, cluster, topic, target, tmp_path).start()
    wait_until(lambda: end_of(cluster, target) > 0)
    query.stop()
    assert 0 < end_of(cluster, target) < len(wanted), "it was stopped before its end"
    again = copying(spark, cluster, topic, target, tmp_path).start()
    again.processAllAvailable()
    again.stop()
    found = values(both(spark, cluster, subscribe=target))
    assert sorted(set(found)) == wanted
    assert len(found) - len(wanted) <= 10


def end_of(cluster: Cluster, topic: str) -> int:
    """The offset after the last record of partition 0."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        return admin.list_offsets({TopicPartition(topic, 0): "latest"})[
            TopicPartition(topic, 0)
        ].offset


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it does not come to be"


def test_topics_added_to_a_pattern_while_it_runs(spark: Any, cluster: Cluster) -> None:
    """A topic that fits is read from its start on, without a restart."""
    first = new_topic(cluster, "pattern", partitions=1)
    fill(cluster, first, "a", "b")
    query = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("subscribePattern", "pattern-.*")
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.format("memory")
        .queryName("added")
        .start()
    )
    query.processAllAvailable()
    assert values(rows(spark.table("added"))) == ["a", "b"]
    second = new_topic(cluster, "pattern", partitions=2)
    fill(cluster, second, "c", partition=1)
    fill(cluster, first, "d")
    query.processAllAvailable()
    query.stop()
    assert sorted(values(rows(spark.table("added")))) == ["a", "b", "c", "d"]
    assert values(both(spark, cluster, subscribePattern="pattern-.*")) == ["a", "b", "d", "c"]


def test_deleted_records(spark: Any, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """failOnDataLoss: records deleted under a checkpoint fail the query, or are left out."""
    from pyspark.errors import StreamingQueryException

    target = new_topic(cluster)
    fill(cluster, topic, *(str(n) for n in range(5)))
    first = copying(spark, cluster, topic, target, tmp_path).start()
    first.processAllAvailable()
    first.stop()
    fill(cluster, topic, *(str(n) for n in range(5, 12)))
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert admin.delete_records({(topic, 0): 9})[TopicPartition(topic, 0)] == 9
    failing = copying(spark, cluster, topic, target, tmp_path).start()
    with pytest.raises(StreamingQueryException, match=r"(?i)data may have been lost|some data"):
        failing.processAllAvailable()
    failing.stop()
    after = copying(spark, cluster, topic, target, tmp_path, failOnDataLoss="false").start()
    after.processAllAvailable()
    after.stop()
    copied = values(both(spark, cluster, subscribe=target))
    assert copied == ["0", "1", "2", "3", "4", "9", "10", "11"]
    assert both(spark, cluster, subscribe=topic)[0][2] == 9, "earliest is the log's start"
    lenient = both(
        spark,
        cluster,
        subscribe=topic,
        failOnDataLoss="false",
        startingOffsets=by_offset(topic, 3, 0),
        endingOffsets="latest",
    )
    assert values(lenient) == ["9", "10", "11"]
