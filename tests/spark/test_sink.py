"""`format("kohort")` as Spark users write it: checkpoints, options, any frame (spec 6.7)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import types

from kohort.errors import ConfigError
from kohort.spark.options import parse_sink, parse_source
from kohort.spark.sink import check_types
from tests.pages import ROOT
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from kohort.testing import Cluster

BYTES = types.BinaryType()
Make = Callable[..., str]
Send = Callable[..., None]
Starter = Callable[["SparkSession", "DataStreamWriter", str, str], "StreamingQuery"]


def read(spark: SparkSession, cluster: Cluster, **options: str) -> DataFrame:
    servers = {"kafka.bootstrap.servers": cluster.bootstrap}
    return spark.read.format("kohort").options(**servers, **options).load()


def by_option(
    spark: SparkSession, writer: DataStreamWriter, place: str, name: str
) -> StreamingQuery:
    return writer.option("checkpointLocation", place).queryName(name).start()


def by_argument(
    spark: SparkSession, writer: DataStreamWriter, place: str, name: str
) -> StreamingQuery:
    return writer.start(checkpointLocation=place, queryName=name, outputMode="append")


def by_options(
    spark: SparkSession, writer: DataStreamWriter, place: str, name: str
) -> StreamingQuery:
    return writer.options(checkpointLocation=place, queryName=name).start("/a/path")


def by_session(
    spark: SparkSession, writer: DataStreamWriter, place: str, name: str
) -> StreamingQuery:
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(Path(place).parent))
    try:
        return writer.queryName(Path(place).name).start()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


@pytest.mark.rows(1)
@pytest.mark.parametrize("start", [by_option, by_argument, by_options, by_session])
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_stream_is_written_however_its_checkpoint_is_set(
    spark: SparkSession,
    cluster: Cluster,
    topic: Make,
    produce: Send,
    tmp_path: Path,
    start: Starter,
) -> None:
    """A topic is mirrored, with all its columns, and goes on from the checkpoint."""
    source, copy = topic(), topic()
    place = tmp_path / f"checkpoint-{source}"

    def run() -> None:
        stream = (
            spark.readStream.format("kohort")
            .option("kafka.bootstrap.servers", cluster.bootstrap)
            .options(subscribe=source, startingOffsets="earliest", includeHeaders="true")
            .load()
        )
        writer = (
            stream.writeStream.format("kohort")
            .option("kafka.bootstrap.servers", cluster.bootstrap)
            .option("topic", copy)
            .trigger(availableNow=True)
        )
        query = start(spark, writer, str(place), f"mirror-{source}")
        assert query.awaitTermination(int(2 * PATIENCE_S))
        assert query.exception() is None

    produce(source, (0, b"a", b"1", [("h", b"x")]), (1, b"b", b"2"))
    run()
    assert (place / "commits").is_dir()
    produce(source, (1, b"c", b"3"))
    run()
    rows = read(spark, cluster, subscribe=copy, includeHeaders="true").collect()
    assert sorted((r.partition, r.key, r.value) for r in rows) == [
        (0, b"a", b"1"),
        (1, b"b", b"2"),
        (1, b"c", b"3"),
    ]
    assert {r.key: r.headers for r in rows if r.headers} == {b"a": [("h", b"x")]}


def _json(name: str, **partitions: int) -> str:
    inner = ", ".join(f'"{key[1:]}": {value}' for key, value in partitions.items())
    return f'{{"{name}": {{{inner}}}}}'


# By option: what is set beside it, and the (partition, offset) that are read of eight records.
READS: dict[str, tuple[Callable[[str], dict[str, str]], list[tuple[int, int]]]] = {}
ALL = [(p, o) for p in range(2) for o in range(4)]


def _reads(
    name: str, options: Callable[[str], dict[str, str]], rows: list[tuple[int, int]] = ALL
) -> None:
    READS[name] = (options, rows)


_reads("subscribe", lambda t: {"subscribe": t})
_reads("subscribePattern", lambda t: {"subscribePattern": f"{t}|none"})
_reads("assign", lambda t: {"assign": f'{{"{t}": [1]}}'}, [(1, o) for o in range(4)])
_reads(
    "startingOffsets",
    lambda t: {"subscribe": t, "startingOffsets": _json(t, p0=3, p1=-2)},
    [(0, 3), *((1, o) for o in range(4))],
)
_reads(
    "endingOffsets",
    lambda t: {"subscribe": t, "endingOffsets": _json(t, p0=1, p1=-1)},
    [(0, 0), *((1, o) for o in range(4))],
)
_reads("startingTimestamp", lambda t: {"subscribe": t, "startingTimestamp": "0"})
_reads("endingTimestamp", lambda t: {"subscribe": t, "endingTimestamp": "1"}, [])
_reads("group.id", lambda t: {"subscribe": t, "group.id": f"g-{t}"})
_reads("minPartitions", lambda t: {"subscribe": t, "minPartitions": "8"})
_reads("maxRecordsPerPartition", lambda t: {"subscribe": t, "maxRecordsPerPartition": "1"})
_reads(
    "minRecordsPerPartition",
    lambda t: {"subscribe": t, "minPartitions": "8", "minRecordsPerPartition": "4"},
)
_reads("columns", lambda t: {"subscribe": t, "columns": "partition,offset"})
_reads("includeHeaders", lambda t: {"subscribe": t, "includeHeaders": "true"})
_reads("failOnDataLoss", lambda t: {"subscribe": t, "failOnDataLoss": "false"})
_reads("kafka.*", lambda t: {"subscribe": t, "kafka.fetch.max.bytes": "1000000"})


@pytest.mark.rows(5)
@pytest.mark.parametrize("option", READS)
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_every_option_of_a_batch_read_works_through_spark(
    spark: SparkSession, cluster: Cluster, topic: Make, produce: Send, option: str
) -> None:
    name = topic()
    produce(name, *((p, None, b"v") for p, _ in ALL))
    options, expected = READS[option]
    frame = read(spark, cluster, **options(name))
    assert sorted((r.partition, r.offset) for r in frame.collect()) == expected
    if option in ("minPartitions", "maxRecordsPerPartition"):
        assert frame.rdd.getNumPartitions() == 8
    if option == "minRecordsPerPartition":
        assert frame.rdd.getNumPartitions() == 2
    if option == "columns":
        assert frame.columns == ["partition", "offset"]
    if option == "includeHeaders":
        assert frame.columns[-1] == "headers"


def test_every_option_that_is_read_with_is_documented() -> None:
    page = (ROOT / "docs" / "spark.md").read_text()
    documented = set(re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE))
    assert READS.keys() <= documented


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_any_frame_is_written_and_overwrite_is_refused(
    spark: SparkSession, cluster: Cluster, topic: Make
) -> None:
    """Columns that the sink does not know are left out; so it is with the JVM connector."""
    name = topic()
    frame = spark.range(4).selectExpr(
        "CAST(id AS STRING) AS key",
        "'v' AS value",
        "id AS number",
        "named_struct('x', 1) AS more",
        f"'{name}' AS topic",
        "array(named_struct('key', 'h', 'value', X'01')) AS headers",
    )
    servers = {"kafka.bootstrap.servers": cluster.bootstrap}
    frame.write.format("kohort").options(**servers).mode("append").save("/ignored")
    rows = read(spark, cluster, subscribe=name, includeHeaders="true").collect()
    assert sorted(int(r.key) for r in rows) == [0, 1, 2, 3]
    assert {h.key for r in rows for h in r.headers} == {"h"}
    bare = frame.write.format("kohort").options(**servers, includeHeaders="false", topic=name)
    bare.mode("append").save()
    later = read(spark, cluster, subscribe=name, includeHeaders="true").collect()
    assert sum(r.headers is None for r in later) == 4
    with pytest.raises(Exception, match='mode\\("append"\\)'):
        frame.write.format("kohort").options(**servers).mode("overwrite").save()


SPARKS_OWN: dict[str, Any] = {
    "checkpointlocation": "/c",
    "queryname": "q",
    "path": "/p",
    "paths": '["/p"]',
    "asyncprogresstrackingenabled": "false",
}


def test_options_that_spark_hands_over_are_accepted_and_typing_errors_are_not() -> None:
    base = {"kafka.bootstrap.servers": "b:1", **SPARKS_OWN}
    assert parse_sink({**base, "topic": "t"}).topic == "t"
    assert parse_source({**base, "subscribe": "t"}, streaming=False).topics == ("t",)
    with pytest.raises(ConfigError, match="unknown option 'checkpointlocatio'"):
        parse_sink({**base, "topic": "t", "checkpointlocatio": "/c"})


def headers(key: str = "key") -> types.ArrayType:
    fields = [types.StructField(key, types.StringType()), types.StructField("value", BYTES)]
    return types.ArrayType(types.StructType(fields))


@pytest.mark.parametrize(
    ("column", "type_", "message"),
    [
        ("value", types.IntegerType(), "is of type int, and must be string or binary"),
        ("key", types.DoubleType(), "is of type double, and must be string or binary"),
        ("partition", types.StringType(), "is of type string, and must be int"),
        ("topic", BYTES, "is of type binary, and must be string"),
        ("headers", types.MapType(types.StringType(), BYTES), "is of type map<string,binary>"),
        ("headers", headers("name"), "is of type array<struct<name:string,value:binary>>"),
    ],
)
def test_a_column_of_another_type_is_refused_before_anything_is_written(
    column: str, type_: types.DataType, message: str
) -> None:
    """Spec 6.7: as by the JVM connector, which converts nothing either."""
    schema = types.StructType([types.StructField(column, type_)])
    with pytest.raises(ConfigError, match=re.escape(f"column {column} {message}")):
        check_types(schema)


def test_the_connectors_types_are_taken() -> None:
    taken = {
        "key": types.StringType(),
        "value": BYTES,
        "topic": types.StringType(),
        "partition": types.IntegerType(),
        "headers": headers(),
        "other": types.DoubleType(),
    }
    check_types(types.StructType([types.StructField(name, t) for name, t in taken.items()]))
