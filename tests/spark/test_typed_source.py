"""`format("kohort")` with valueFormat on a real Spark session and a real broker (spec 6.6)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
SCHEMA = (
    "id BIGINT, city STRING, at TIMESTAMP, total DECIMAL(10,2), tags ARRAY<STRING>, "
    "deep STRUCT<x: INT>"
)


def test_json_is_typed_columns(
    spark: SparkSession, cluster: Cluster, topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    """As `from_json` gives them, and the record that does not decode is a row with its bytes."""
    name = topic(1)
    good = (
        b'{"id": 1, "city": "A", "at": "2026-01-02T03:04:05Z", "total": 1.5, "tags": ["x", null]}',
        b'{"id": 2, "deep": {"x": 7}}',
    )
    produce(name, (0, b"k", good[0]), (0, None, b"bad"), (0, None, None), (0, None, good[1]))
    reader = spark.read.format("kohort").options(
        **{"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": name}
    )
    plain = reader.load().selectExpr(f"from_json(CAST(value AS STRING), '{SCHEMA}') AS value")
    typed = reader.options(valueFormat="json", valueSchema=SCHEMA).load()
    assert typed.schema["value"].dataType == plain.schema["value"].dataType
    assert typed.columns[-2:] == ["_error", "_raw_value"]
    rows = typed.orderBy("offset").collect()
    expected = plain.collect()
    assert [rows[0].value, rows[3].value] == [expected[0].value, expected[3].value]
    assert (rows[1].value, rows[1]._raw_value) == (None, bytearray(b"bad"))
    assert rows[1]._error.startswith("not JSON")
    assert (rows[2].value, rows[2]._error, rows[2]._raw_value) == (None, None, None)
    assert bytes(rows[0].key) == b"k"
    with pytest.raises(Exception, match=f"{name}/0: the value of record 1 does not decode"):
        reader.option("mode", "FAILFAST").load().collect()


@pytest.mark.extended
def test_avro_with_a_registry_is_typed_columns(
    spark: SparkSession, cluster: Cluster, topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    """Columns of the newest version; records of both versions."""
    pytest.importorskip("kohort.spark.formats._avro")
    from kohort.serdes import AvroSerde, SchemaRegistry
    from tests.serdes.fake_registry import running

    name = topic(1)
    fields: list[dict[str, Any]] = [{"name": "id", "type": "long"}]
    v1: dict[str, Any] = {"type": "record", "name": "R", "fields": fields}
    v2 = {**v1, "fields": [*fields, {"name": "city", "type": ["null", "string"], "default": None}]}
    with running() as registry:
        client = SchemaRegistry(registry.url)
        old = AvroSerde(client, v1).serialize(name, {"id": 1})
        new = AvroSerde(client, v2).serialize(name, {"id": 2, "city": "A"})
        produce(name, (0, None, old), (0, None, new), (0, None, b"bad"))
        rows = (
            spark.read.format("kohort")
            .options(**{"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": name})
            .options(valueFormat="avro", schemaRegistry=registry.url)
            .load()
            .select("value.*", "_error")
            .collect()
        )
    assert [(r.id, r.city) for r in rows] == [(1, None), (2, "A"), (None, None)]
    assert "does not begin as a schema registry's format" in rows[2]._error


@pytest.mark.extended
def test_protobuf_durations_are_intervals(
    spark: SparkSession, cluster: Cluster, topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    """Spark counts with them, and reads from JSON what it writes as JSON."""
    pytest.importorskip("ptars")
    from tests.spark.formats.test_protobuf import from_the_library, spans, text

    name = topic(1)
    long, at = b"\x08\x3c\x10\xe8\x07", b"\x08\x09"  # a minute and a microsecond; nine o'clock
    span = b"\x0a\x05" + long + b"\x12\x05" + long + b"\x22\x02" + at
    produce(name, (0, None, span), (0, None, b""))
    frame = (
        spark.read.format("kohort")
        .options(**{"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": name})
        .options(valueFormat="protobuf", valueMessage="s.Span")
        .option("valueSchema", text(from_the_library("duration"), *spans()))
        .load()
        .select("value.*", "_error")
    )
    kinds = dict(frame.dtypes)
    assert (kinds["long"], kinds["at"]) == ("interval day to second", "bigint")
    ddl = "long INTERVAL DAY TO SECOND, longs ARRAY<INTERVAL DAY TO SECOND>"
    again = f"from_json(to_json(struct(long, longs)), '{ddl}') AS again"
    rows = frame.selectExpr("long * 2 AS twice", "long", "longs", "at", "_error", again).collect()
    whole = timedelta(seconds=60, microseconds=1)
    first, second = rows
    assert (first._error, second._error) == (None, None)
    assert (first.twice, first.long, first.longs) == (2 * whole, whole, [whole])
    assert (first["at"], second["at"]) == (9 * 3_600_000_000, None)
    assert (first.again.long, first.again.longs) == (whole, [whole])
    assert (second.long, second.longs) == (None, [])


@pytest.mark.extended
def test_a_stream_of_typed_values_aggregates(
    spark: SparkSession,
    cluster: Cluster,
    topic: Callable[..., str],
    produce: Callable[..., None],
    tmp_path: Path,
) -> None:
    name = topic(2)
    produce(name, *((n % 2, None, b'{"id": %d, "city": "c%d"}' % (n, n % 3)) for n in range(30)))
    sums: dict[str, Any] = {}
    query = (
        spark.readStream.format("kohort")
        .options(**{"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": name})
        .options(startingOffsets="earliest", valueFormat="json", valueSchema=SCHEMA)
        .load()
        .groupBy("value.city")
        .sum("value.id")
        .writeStream.outputMode("complete")
        .foreachBatch(lambda frame, _: sums.update(frame.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(int(2 * PATIENCE_S))
    assert query.exception() is None
    assert sums == {f"c{c}": sum(range(c, 30, 3)) for c in range(3)}
