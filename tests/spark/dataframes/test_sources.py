"""What sources of each format give the steps, on a real Spark session (spec 6.2, 6.5, 6.6)."""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort.records import Record
from kohort.spark import Pipeline, reconcile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
FIELDS: list[dict[str, Any]] = [{"name": "id", "type": "long"}]
V1: dict[str, Any] = {"type": "record", "name": "R", "fields": FIELDS}
V2 = {**V1, "fields": [*FIELDS, {"name": "city", "type": ["null", "string"], "default": None}]}


def dead_letters(
    spark: SparkSession, cluster: Cluster, topic: str
) -> list[tuple[bytes, dict[str, bytes]]]:
    """The values in a dead-letter topic, byte for byte, with their headers."""
    rows = (
        spark.read.format("kohort")
        .options(**{"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic})
        .option("includeHeaders", "true")
        .load()
        .collect()
    )
    return [(bytes(r.value), {h.key: bytes(h.value or b"") for h in r.headers}) for r in rows]


@pytest.mark.extended
def test_formats_of_one_stage_are_decoded_where_they_are_fetched(
    spark: SparkSession,
    cluster: Cluster,
    topic: Callable[..., str],
    produce: Callable[..., None],
    tmp_path: Path,
) -> None:
    """Avro by a registry, change events with tombstones and JSON with rescued fields, side by
    side; what does not decode is a dead letter with its bytes and its reason.
    """
    pytest.importorskip("kohort.spark.formats._avro")
    from kohort.serdes import AvroSerde, SchemaRegistry
    from tests.serdes.fake_registry import running

    avro, changed, plain = (topic(1, name=n) for n in ("avro", "changed", "plain"))
    with running() as registry:
        client = SchemaRegistry(registry.url)
        produce(
            avro,
            (0, None, AvroSerde(client, V1).serialize(avro, {"id": 1})),
            (0, None, AvroSerde(client, V2).serialize(avro, {"id": 2, "city": "A"})),
            (0, b"k", b"bad"),
        )
        after = {"before": None, "after": {"id": 3, "city": "B"}, "op": "c"}
        produce(changed, (0, None, json.dumps(after).encode()), (0, None, None))
        produce(plain, (0, None, b'{"id": 4, "m": {"x": 1}, "more": 5}'), (0, None, None))
        p = Pipeline(
            f"p-{avro}",
            store=f"sqlite:///{tmp_path / 'db.sqlite'}",
            retries="none",
            bootstrap_servers=cluster.bootstrap,
            checkpoint=tmp_path / "checkpoint",
        )

        @p.setup
        def tables(store: Any) -> None:
            store.run("CREATE TABLE IF NOT EXISTS cities (id INTEGER, city TEXT, rest TEXT)")

        p.source(avro, name="avro", format="avro", schema_registry=registry.url)
        p.source(changed, name="changed", format="debezium", schema="id INT, city STRING")
        p.source(
            plain, name="plain", schema="id INT, m MAP<STRING, INT>", schema_evolution="rescue"
        )

        @p.table("cities")
        def cities(avro: Any, changed: Any, plain: Any) -> str:
            return (
                "SELECT id, city, null AS rest FROM avro UNION ALL "
                "SELECT after.id, after.city, op FROM changed UNION ALL "
                "SELECT id, CAST(m['x'] AS STRING), _rescued FROM plain"
            )

        p.run("available_now", spark=spark, max_restarts=0)
    store = p.open_store()
    try:
        assert store.query("SELECT * FROM cities ORDER BY id") == [
            (1, None, None),
            (2, "A", None),
            (3, "B", "c"),
            (4, "1", '{"more": 5}'),
        ]
    finally:
        store.close()
    books = reconcile(p)
    assert books.exact, books.to_json()
    events = books.of(changed)  # a tombstone is an input, and no row
    assert (events.inputs, events.handled, events.loaded, events.filtered) == (2, 2, 1, 1)
    assert [books.of(t).failed for t in (avro, changed, plain)] == [
        {"undecodable": 1},
        {},
        {"undecodable": 1},
    ]
    ((value, headers),) = dead_letters(spark, cluster, p.topics[avro].dead_letter)
    assert value == b"bad"
    assert any(b"a schema registry's format" in text for text in headers.values())


def test_a_reference_leaves_out_what_does_not_decode(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest of it is there, the latest row of each key; the log says how many are missing."""
    from kohort.spark.dataframes.graph import Reference, ValueFormat
    from kohort.spark.dataframes.references import ReferenceTable
    from kohort.spark.formats import RowFormat
    from kohort.spark.plans.logical import local_frame

    values = ValueFormat.of("prices", "t", {"schema": "item STRING, price INT"})
    assert values.decoded is not None
    reference = Reference("prices", "t", values, ("item",), 1 << 20)
    table = ReferenceTable(reference, RowFormat.of(values.decoded), {})
    for number, value in enumerate(
        [b'{"item": "a", "price": 1}', b"bad", b'{"item": "a", "price": 2}', b'{"item": 1}']
    ):
        table._take(Record("t", 0, number, value=value))
    with caplog.at_level("WARNING", "kohort.spark"):
        rows = local_frame(spark, table._latest()).collect()
    assert [tuple(row) for row in rows] == [("a", 2)]
    assert "prices: 2 rows of topic t do not decode and are left out" in caplog.text


def test_times_keep_their_microseconds(spark: SparkSession) -> None:
    """On the way to a step that keeps state, and in topics; with a time zone and without."""
    from kohort.spark.dataframes.columns import as_records, forwarded, taken_up

    time = "'2026-01-02 03:04:05.123456'"
    frame = spark.sql(f"SELECT TIMESTAMP_NTZ {time} AS local, TIMESTAMP {time} AS at")
    assert taken_up(forwarded(frame), frame.schema).collect() == frame.collect()
    (record,) = as_records(frame, ()).collect()
    assert record.value.count("05.123456") == 2
