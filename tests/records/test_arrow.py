"""Columns as pyarrow's: types, slices, and memory that outlives the chunk (C13)."""

from __future__ import annotations

import datetime as dt
import gc
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from kohort.errors import UsageError
from kohort.records import ALL_COLUMNS, COLUMN_NAMES, Chunk, arrow
from kohort.records.arrow import (
    HEADERS_TYPE,
    ArrowSource,
    encode_record_batch,
    record_batch_schema,
    to_record_batch,
)
from kohort.records.implementation import Lent
from tests.records.conftest import batch_of, fields

VALUES = [b"a", b"bb", b"ccc"]


def read(batches: list[bytes]) -> list[Any]:
    records = [r for batch in batches for r in Chunk("t", 0, batch, 0).next_records(10_000)]
    return [(fields(r)[3], *fields(r)[5:8]) for r in records]


def test_the_schema() -> None:
    assert record_batch_schema().names == ["offset", "timestamp", "key", "value"]
    schema = record_batch_schema(ALL_COLUMNS)
    assert schema.names == list(COLUMN_NAMES)
    assert schema.field("timestamp").type == pa.timestamp("ms", tz="UTC")
    assert schema.field("headers").type == HEADERS_TYPE
    with pytest.raises(UsageError, match="no column 'nope'"):
        record_batch_schema({"nope"})


def test_arrays_outlive_their_chunk(impl: Any) -> None:
    data = bytearray(batch_of(impl, 5, [b"%07d" % i for i in range(5000)], codec=3))
    chunk = impl.Chunk("flights", 2, data, 5)
    table = to_record_batch(chunk.next_columns(columns=ALL_COLUMNS), ALL_COLUMNS)
    del chunk
    gc.collect()
    data[:] = bytes(len(data))
    for fill in range(4):
        other = impl.Chunk("x", 0, batch_of(impl, 0, [bytes([fill]) * 7] * 5000), 0)
        assert other.next_columns().rows == 5000
    table.validate(full=True)
    assert table["value"].to_pylist() == [b"%07d" % i for i in range(5000)]
    assert table["offset"].to_pylist() == list(range(5, 5005))
    assert set(table["topic"].to_pylist()) == {"flights"}
    assert set(table["partition"].to_pylist()) == {2}
    assert table["headers"].to_pylist() == [[]] * 5000


def test_lent_at_once_and_built_one_by_one_are_the_same(
    impl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = impl.BatchBuilder()
    for n in range(1000):
        headers = [("h", b"%d" % n), ("empty", None)] if n % 3 else ()
        key = None if n % 5 == 0 else b"k%d" % n
        builder.append(1_700_000_000_000 + n, key, None if n % 7 == 0 else b"v" * (n % 40), headers)
    columns = impl.Chunk("flights", 2, builder.build(), 0).next_columns(columns=ALL_COLUMNS)
    lent = to_record_batch(columns, ALL_COLUMNS)
    monkeypatch.setattr(arrow, "Lent", None)
    built = to_record_batch(columns, ALL_COLUMNS)
    lent.validate(full=True)
    built.validate(full=True)
    assert lent.equals(built)
    assert lent["headers"].to_pylist()[1] == [
        {"key": "h", "value": b"1"},
        {"key": "empty", "value": None},
    ]


@pytest.mark.skipif(Lent is None, reason="only the kernel lends")
def test_what_is_lent_comes_back_when_the_last_array_of_it_goes() -> None:
    """C13: a bytearray that somebody has a buffer of cannot be resized."""
    assert Lent is not None
    data = bytearray(8 * 4)
    schema = pa.schema([("n", pa.int64())])
    lent = Lent((4, 0, 0, (None,), ((4, 0, 0, (None, data), ()),)))
    table = pa.RecordBatch._import_from_c(lent.address, schema)
    del lent
    column = table["n"].slice(1)
    del table
    gc.collect()
    with pytest.raises(BufferError):
        data.append(0)
    assert column.to_pylist() == [0, 0, 0]
    del column
    data.append(0)


@pytest.mark.skipif(Lent is None, reason="only the kernel lends")
def test_what_nobody_took_over_and_what_could_not_be_lent_comes_back_too() -> None:
    assert Lent is not None
    data = bytearray(8)
    sound = (1, 0, 0, (None, data), ())
    lent = Lent((1, 0, 0, (None,), (sound,)))
    with pytest.raises(BufferError):
        data.append(0)
    del lent
    for wrong in ((1, 0, 0, (None, 7), ()), (1, 0, 0, (data,) * 4, ()), (1, 0, 0)):
        with pytest.raises((TypeError, ValueError, UsageError)):
            Lent((1, 0, 0, (None,), (sound, wrong)))
    data.append(0)


def test_a_column_that_was_not_read_is_named(impl: Any) -> None:
    columns = impl.Chunk("t", 0, batch_of(impl, 0, VALUES), 0).next_columns(columns={"value"})
    assert to_record_batch(columns, {"value", "topic"}).num_columns == 2
    with pytest.raises(UsageError, match="without 'key'"):
        to_record_batch(columns, {"key", "value"})


def test_topics_of_any_length_in_pieces_of_any_size(impl: Any) -> None:
    for rows in (1, 2, 3, 4, 1023, 1024, 1025, 3000):
        data = batch_of(impl, 0, [b""] * rows)
        for topic in ("t", "a-long-name", "ü"):
            columns = impl.Chunk(topic, 0, data, 0).next_columns(columns={"value"})
            table = to_record_batch(columns, {"topic"})
            table.validate(full=True)
            assert table["topic"].to_pylist() == [topic] * rows


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.string(),
        pa.large_binary(),
        pa.large_string(),
        pa.binary_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
)
def test_values_of_every_string_type(kind: Any) -> None:
    words = ["one", None, "", "four"]
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or kind == pa.binary_view()
    column = pa.array([w.encode() if w is not None and binary else w for w in words], kind)
    batch = pa.record_batch({"value": column, "key": column}).slice(1)
    want = [None if w is None else w.encode() for w in words[1:]]
    assert read(encode_record_batch(batch, 7)) == [(7, word, word, ()) for word in want]


def test_timestamps_of_every_unit_and_none() -> None:
    when = dt.datetime(2013, 1, 1, 5, 15, tzinfo=dt.UTC)
    ms = int(when.timestamp() * 1000)
    value = pa.array([b"a", b"b", b"c"])
    for kind in (pa.timestamp("s"), pa.timestamp("us", tz="America/New_York"), pa.timestamp("ns")):
        stamps = pa.array([when, None, when], pa.timestamp("us", tz="UTC")).cast(
            pa.timestamp("us", tz=kind.tz)
        )
        batch = pa.record_batch({"value": value, "timestamp": stamps.cast(kind)}).slice(1)
        assert [row[0] for row in read(encode_record_batch(batch, 7))] == [7, ms]
    plain = pa.record_batch({"value": value, "timestamp": pa.array([1, 2, 3])})
    assert [row[0] for row in read(encode_record_batch(plain, 7))] == [1, 2, 3]


def test_headers_with_null_lists_and_slices() -> None:
    lists = [[("a", b"1")], None, [], [("b", None), ("c", b"3")]]
    rows = [None if x is None else [{"key": k, "value": v} for k, v in x] for x in lists]
    batch = pa.record_batch(
        {"value": pa.array([b"x"] * 4), "headers": pa.array(rows, HEADERS_TYPE)}
    )
    for first in range(4):
        got = [row[3] for row in read(encode_record_batch(batch.slice(first), 0))]
        assert got == [tuple(x or ()) for x in lists[first:]]
    large = pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    again = pa.record_batch({"value": batch["value"], "headers": batch["headers"].cast(large)})
    assert read(encode_record_batch(again, 0)) == read(encode_record_batch(batch, 0))


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"value": pa.array([1])}, "'value' has type int64"),
        ({"value": pa.array([b""]), "timestamp": pa.array(["x"])}, "'timestamp' has type string"),
        (
            {"headers": pa.array([[{"key": None, "value": b""}]], HEADERS_TYPE)},
            "header without a name",
        ),
        ({"headers": pa.array([[None]], HEADERS_TYPE)}, "null among its headers"),
        ({"headers": pa.array([1])}, "'headers' has type int64"),
    ],
)
def test_columns_of_other_types_are_refused(columns: Any, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        ArrowSource(pa.record_batch(columns), 0)


def test_null_columns_and_empty_batches() -> None:
    batch = pa.record_batch({"value": pa.nulls(2), "key": pa.nulls(2), "headers": pa.nulls(2)})
    assert read(encode_record_batch(batch, 5)) == [(5, None, None, ())] * 2
    assert encode_record_batch(batch.slice(2), 5) == []
    empty = pa.record_batch({"value": pa.array([], pa.binary())})
    assert encode_record_batch(empty, 5) == []


def test_importing_records_is_light() -> None:
    """Neither pyarrow nor numpy, and nothing of asyncio (design: start-up time)."""
    heavy = ["pyarrow", "numpy", "asyncio", "cramjam"]
    code = f"import sys, kohort.records; print([m for m in {heavy} if m in sys.modules])"
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
