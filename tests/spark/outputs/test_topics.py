"""Which partition a row goes to, and how rows become record batches (spec 6.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from kohort.client.producer.plan.partitioner import for_key
from kohort.client.shared.transaction import EncodedBatch
from kohort.errors import ConfigError, UsageError
from kohort.records import Chunk, Record
from kohort.spark.outputs.topics import Encoder, TopicOutput, owners

CLIENT = {"bootstrap_servers": "localhost:9092"}


def encode(output: TopicOutput, partitions: dict[str, int], *batches: Any) -> list[EncodedBatch]:
    encoder = Encoder(output, partitions, 1_000)
    found = [e for batch in batches for e in encoder.encode(batch)]
    return found + list(encoder.rest())


def records(batches: Sequence[EncodedBatch]) -> dict[tuple[str, int], list[Record]]:
    found: dict[tuple[str, int], list[Record]] = {}
    for batch in batches:
        read = Chunk(batch.topic, batch.partition, batch.payload, 0).next_records(1_000_000)
        assert len(read) == batch.records
        found.setdefault((batch.topic, batch.partition), []).extend(read)
    return found


def rows(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


def test_keys_go_where_every_kafka_client_puts_them() -> None:
    keys = [b"k%d" % n for n in range(500)]
    batch = rows(key=keys, value=[str(n) for n in range(500)])
    output = TopicOutput("t", (), CLIENT)
    found = records(encode(output, {"t": 7}, batch.slice(0, 300), batch.slice(300)))
    assert sum(map(len, found.values())) == 500
    for (_, partition), read in found.items():
        assert {for_key(r.key or b"", 7) for r in read} == {partition}
        numbers = [int(r.value or b"") for r in read]
        assert numbers == sorted(numbers)


def test_a_partition_column_wins_and_rows_without_key_take_turns() -> None:
    output = TopicOutput("t", (), CLIENT)
    own = for_key(b"a", 3)
    others = [p for p in range(3) if p != own]
    asked = rows(
        key=[b"a"] * 4,
        value=["1", "2", "3", "4"],
        partition=pa.array([others[0], None, others[1], None], pa.int32()),
    )
    found = records(encode(output, {"t": 3}, asked))
    assert [[r.value for r in found["t", p]] for p in (own, *others)] == [
        [b"2", b"4"],
        [b"1"],
        [b"3"],
    ]
    turns = [rows(value=[str(n)]) for n in range(6)]
    found = records(encode(output, {"t": 3}, *turns))
    assert {at: len(read) for at, read in found.items()} == {("t", p): 2 for p in range(3)}


def test_a_topic_column_names_the_topic() -> None:
    output = TopicOutput(None, ("a", "b"), CLIENT)
    batch = rows(topic=["a", "b", "a"], value=["1", "2", "3"])
    found = records(encode(output, {"a": 1, "b": 1}, batch))
    assert [r.value for r in found["a", 0]] == [b"1", b"3"]
    assert [r.value for r in found["b", 0]] == [b"2"]
    with pytest.raises(UsageError, match="names topic 'c', which is not among"):
        encode(output, {"a": 1, "b": 1}, rows(topic=["c"], value=["1"]))
    with pytest.raises(UsageError, match="topic column holds null"):
        encode(output, {"a": 1}, rows(topic=pa.array([None], pa.string()), value=["1"]))


def test_what_a_row_holds_arrives() -> None:
    headers = pa.array(
        [[{"key": "h", "value": b"1"}], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    output = TopicOutput("t", (), CLIENT, compression="zstd")
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["k", None]),
            pa.array([None, b"v"], pa.binary()),
            headers,
            pa.array([5, None], pa.timestamp("ms")),
        ],
        ["key", "value", "headers", "timestamp"],
    )
    found = [r for read in records(encode(output, {"t": 1}, batch)).values() for r in read]
    assert [(r.key, r.value, list(r.headers), r.timestamp) for r in found] == [
        (b"k", None, [("h", b"1")], 5),
        (None, b"v", [], 1_000),
    ]


def test_batches_stay_below_their_size() -> None:
    output = TopicOutput("t", (), CLIENT, batch_bytes=2_000)
    found = encode(output, {"t": 1}, rows(value=["x" * 100] * 200))
    assert len(found) > 5
    assert max(len(b.payload) for b in found) <= 2_100
    assert sum(b.records for b in found) == 200
    alone = encode(output, {"t": 1}, rows(value=["x" * 50_000, "y"]))
    assert [b.records for b in alone] == [1, 1]


def test_every_partition_has_one_owner_and_tasks_share_them_evenly() -> None:
    partitions = {"a": 8, "b": 4, "c": 1}
    owner_of = owners(partitions, 4)
    load = [0] * 4
    for topic, count in partitions.items():
        for p in range(count):
            load[(owner_of[topic] + p) % 4] += 1
    assert sorted(load) == [3, 3, 3, 4]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TopicOutput(None, (), CLIENT), "name the topic"),
        (lambda: TopicOutput("a", ("b",), CLIENT), "name the topic"),
        (lambda: TopicOutput("a", (), CLIENT, compression="rar"), "unknown compression"),
        (lambda: TopicOutput("a", (), CLIENT, compression="lz4", level=99), "level 99"),
        (lambda: TopicOutput("a", (), CLIENT, batch_bytes=1), "batch_bytes"),
        (lambda: TopicOutput("a", (), CLIENT).columns(["x"]), "there must be value or key"),
        (lambda: TopicOutput(None, ("a",), CLIENT).columns(["value"]), "name the topic"),
    ],
)
def test_what_can_never_work_is_refused(make: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()


def test_other_columns_are_ignored_and_the_option_wins() -> None:
    frame = ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    assert TopicOutput("a", (), CLIENT).columns(frame) == ("key", "value", "headers", "partition")
    assert TopicOutput(None, ("a",), CLIENT, include_headers=False).columns(frame) == (
        "key",
        "value",
        "topic",
        "partition",
    )
