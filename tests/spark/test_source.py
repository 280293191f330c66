"""`format("kohort")` on a real Spark session and a real broker (spec 6.1, 6.4)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

Make = Callable[..., str]
Send = Callable[..., None]


def committed(cluster: Cluster, group: str, topic: str, partitions: int = 2) -> list[int | None]:
    """The group's committed offset of each partition."""
    from kohort.client.consumer.consumer import Consumer

    with Consumer(bootstrap_servers=cluster.bootstrap, group_id=group) as consumer:
        found = consumer.committed([(topic, p) for p in range(partitions)])
        return [o.offset if o else None for _, o in sorted(found.items())]


def test_batch_read_has_the_connectors_rows(
    spark: SparkSession, cluster: Cluster, topic: Make, produce: Send
) -> None:
    """Spec 6.7: columns, types and order of the JVM connector; ranges by JSON."""
    name = topic()
    produce(
        name,
        (0, b"a", b"1", [("h", b"x"), ("h", None)]),
        (0, None, b"2"),
        (1, b"c", None),
        (0, b"d", b"4"),
    )
    reader = (
        spark.read.format("kohort")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("subscribe", name)
    )
    frame = reader.option("includeHeaders", "true").load()
    assert [f"{f.name} {f.dataType.simpleString()}" for f in frame.schema] == [
        "key binary",
        "value binary",
        "topic string",
        "partition int",
        "offset bigint",
        "timestamp timestamp",
        "timestampType int",
        "headers array<struct<key:string,value:binary>>",
    ]
    rows = sorted(frame.collect(), key=lambda r: (r.partition, r.offset))
    assert [(r.key, r.value, r.partition, r.offset) for r in rows] == [
        (b"a", b"1", 0, 0),
        (None, b"2", 0, 1),
        (b"d", b"4", 0, 2),
        (b"c", None, 1, 0),
    ]
    assert [(h.key, h.value) for h in rows[0].headers] == [("h", b"x"), ("h", None)]
    assert [r.headers for r in rows[1:]] == [None] * 3, "null, not empty, where there are none"
    assert {r.topic for r in rows} == {name}
    part = (
        reader.option("columns", "value,offset")
        .option("startingOffsets", f'{{"{name}": {{"0": 1, "1": -2}}}}')
        .option("endingOffsets", f'{{"{name}": {{"0": 2, "1": -1}}}}')
        .load()
    )
    assert sorted((r.offset, r.value) for r in part.collect()) == [(0, None), (1, b"2")]


def test_stream_resumes_and_publishes_its_progress(
    spark: SparkSession, cluster: Cluster, topic: Make, produce: Send, tmp_path: Path
) -> None:
    """Spec 6.7: the group shows progress; a restart goes on."""
    name = topic()
    group = f"g-{name}"
    seen: list[tuple[int, list[Any]]] = []

    def run() -> None:
        seen.clear()
        stream = (
            spark.readStream.format("kohort")
            .option("kafka.bootstrap.servers", cluster.bootstrap)
            .option("subscribe", name)
            .option("group.id", group)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "40")
            .load()
        )
        query = (
            stream.writeStream.foreachBatch(
                lambda df, n: seen.append((n, [(r.partition, r.offset) for r in df.collect()]))
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(int(2 * PATIENCE_S))
        assert query.exception() is None

    produce(name, *((n % 2, None, b"v") for n in range(100)))
    run()
    rows = [row for _, batch in seen for row in batch]
    assert len(seen) == 3
    assert sorted(rows) == sorted((p, o) for p in range(2) for o in range(50))
    assert committed(cluster, group, name) == [50, 50]
    produce(name, (1, None, b"new"))
    run()
    assert [row for _, batch in seen for row in batch] == [(1, 50)]
    assert committed(cluster, group, name) == [50, 51]
    run()
    assert [row for _, batch in seen for row in batch] == []


@pytest.mark.extended
def test_records_that_are_gone_are_an_error_or_a_gap(
    spark: SparkSession, cluster: Cluster, topic: Make, produce: Send
) -> None:
    """Spec 6.7: loss is a log start past what is wanted; failOnDataLoss decides."""
    from kohort.client.admin.admin import Admin
    from kohort.client.common.types import TopicPartition

    name = topic(1)
    produce(name, *((0, None, b"%d" % n) for n in range(10)))
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.delete_records({TopicPartition(name, 0): 4})
    wanted = {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "subscribe": name,
        "startingOffsets": f'{{"{name}": {{"0": 0}}}}',
    }
    with pytest.raises(Exception, match="records 0 to 3 are gone"):
        spark.read.format("kohort").options(**wanted).load().collect()
    lenient = spark.read.format("kohort").options(**wanted, failOnDataLoss="false").load()
    assert sorted(int(r.value) for r in lenient.collect()) == [4, 5, 6, 7, 8, 9]


def test_write_and_read_back(
    spark: SparkSession, cluster: Cluster, topic: Make, produce: Send
) -> None:
    """Spec 6.1: the sink writes Arrow batches to the brokers, at least once."""
    name = topic()
    frame = spark.range(500).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS key", "CAST('v' AS BINARY) AS value"
    )
    (
        frame.write.format("kohort")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("topic", name)
        .mode("append")
        .save()
    )
    rows = (
        spark.read.format("kohort")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("subscribe", name)
        .load()
        .collect()
    )
    assert sorted(int(r.key) for r in rows) == list(range(500))


def test_refusals_reach_the_user(spark: SparkSession, cluster: Cluster) -> None:
    """Issue 2, "Bad input": unknown options name the nearest; an unknown topic is named."""
    servers = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": "nowhere"}
    with pytest.raises(Exception, match="did you mean 'startingOffsets'"):
        spark.read.format("kohort").options(**servers, startingOfset="earliest").load()
    with pytest.raises(Exception, match="no topic nowhere"):
        spark.read.format("kohort").options(**servers).load().collect()


@pytest.mark.extended
def test_spark_finds_the_source_by_its_module_name() -> None:
    """`pyspark_kohort` holds the `DefaultSource`."""
    pytest.importorskip("pyspark")
    import pyspark_kohort

    assert pyspark_kohort.DefaultSource.name() == "kohort"


@pytest.mark.extended
def test_a_start_at_the_end_survives_a_crash_in_batch_0(
    spark: SparkSession, cluster: Cluster, topic: Make, produce: Send, tmp_path: Path
) -> None:
    """Spec 6.7: -1 without a group: what came before the crash is read after it, and once."""
    name = topic()
    seen: list[list[tuple[int, int]]] = []

    def run(*, crash: bool) -> Exception | None:
        def each(frame: Any, number: int) -> None:
            seen.append(sorted((r.partition, r.offset) for r in frame.collect()))
            if crash:
                produce(name, (0, None, b"later"))
                raise ValueError("the first batch fails")

        stream = spark.readStream.format("kohort").options(
            subscribe=name,
            startingOffsets=f'{{"{name}": {{"0": -1, "1": 1}}}}',
            **{"kafka.bootstrap.servers": cluster.bootstrap},
        )
        query = (
            stream.load()
            .writeStream.foreachBatch(each)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(int(2 * PATIENCE_S))
        except Exception as error:
            return error
        return None

    produce(name, *((n % 2, None, b"v") for n in range(6)))
    assert "the first batch fails" in str(run(crash=True))
    assert run(crash=False) is None
    assert seen == [[(1, 1), (1, 2)], [(1, 1), (1, 2)], [(0, 3)]]


def test_what_spark_refuses_and_what_we_refuse(
    spark: SparkSession, cluster: Cluster, topic: Make, tmp_path: Path
) -> None:
    """docs/spark.md has the words and the ways round."""
    name = topic()
    servers = {"kafka.bootstrap.servers": cluster.bootstrap}
    frame = spark.read.format("kohort").options(subscribe=name, **servers).load()
    with pytest.raises(Exception, match='cannot be written in the "ErrorIfExists" mode'):
        frame.write.format("kohort").options(topic=name, **servers).save()
    with pytest.raises(Exception, match=r'write with mode\("append"\)'):
        frame.write.format("kohort").options(topic=name, **servers).mode("overwrite").save()
    other = spark.read.format("kohort").schema("a INT").options(subscribe=name, **servers).load()
    with pytest.raises(Exception, match=r"leave \.schema\(\.\.\.\) out"):
        other.count()
    with pytest.raises(Exception, match=f"no topic {name}s.*did you mean '{name}'"):
        spark.read.format("kohort").options(subscribe=f"{name},{name}s", **servers).load().count()
    stream = spark.readStream.format("kohort").options(subscribe=name, **servers).load()
    writer = stream.writeStream.format("kohort").options(
        topic=name, checkpointLocation=str(tmp_path / "c"), **servers
    )
    with pytest.raises(Exception, match="kohort does not support Update mode"):
        writer.outputMode("update").trigger(availableNow=True).start().awaitTermination(
            int(PATIENCE_S)
        )
