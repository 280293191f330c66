"""Columns of records to and from pyarrow, without copying a value.

Rules:
- pyarrow is imported here and nowhere else in this package; importing `kohort.records` does not.
- The Arrow arrays hold the buffers; they stay valid when the chunk and the fetch are gone (C13).
- The columns and their order are `COLUMN_NAMES`, as Spark's Kafka source has them in our words.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import sys
from array import array
from collections.abc import Collection
from functools import lru_cache
from typing import Any

import pyarrow as pa

from kohort.errors import UsageError
from kohort.records.columns import (
    COLUMN_NAMES,
    DEFAULT_COLUMNS,
    BinaryColumn,
    Columns,
    HeaderColumn,
)
from kohort.records.compression import Compression
from kohort.records.implementation import BatchBuilder, Lent
from kohort.records.layout import Readable

Layout = tuple[int, int, int, tuple[Readable | None, ...], tuple["Layout", ...]]
"""Of an array: rows, nulls, first row, buffers, what is below it."""

HEADERS_TYPE: Any = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIMESTAMP_TYPE: Any = pa.timestamp("ms", tz="UTC")
_TYPES: dict[str, Any] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP_TYPE,
    "timestamp_type": pa.int8(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS_TYPE,
}


def record_batch_schema(columns: Collection[str] = DEFAULT_COLUMNS) -> Any:
    """The schema of `to_record_batch` for these columns, always in the order of `COLUMN_NAMES`."""
    return _schema(frozenset(columns))


@lru_cache(maxsize=64)
def _schema(columns: frozenset[str]) -> Any:
    for name in columns:
        if name not in _TYPES:
            raise UsageError(f"there is no column {name!r}; choose from {', '.join(COLUMN_NAMES)}")
    return pa.schema([(name, _TYPES[name]) for name in COLUMN_NAMES if name in columns])


def to_record_batch(columns: Columns, names: Collection[str] = DEFAULT_COLUMNS) -> Any:
    """A `pyarrow.RecordBatch` over the buffers of `columns`; only topic and partition are made.

    `UsageError` when a column is asked for that `columns` was read without.
    """
    schema, ordered = _ordered(frozenset(names))
    rows = columns.rows
    layouts = tuple([_layout(columns, name, rows) for name in ordered])
    if Lent is not None:
        lent = Lent((rows, 0, 0, (None,), layouts))
        return pa.RecordBatch._import_from_c(lent.address, schema)
    arrays = [_built(layout, field.type) for layout, field in zip(layouts, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@lru_cache(maxsize=64)
def _ordered(columns: frozenset[str]) -> tuple[Any, tuple[str, ...]]:
    schema = _schema(columns)
    return schema, tuple(schema.names)


def _layout(columns: Columns, name: str, rows: int) -> Layout:
    if name == "topic":
        return _repeated(columns.topic.encode(), rows)
    if name == "partition":
        raw = columns.partition.to_bytes(4, sys.byteorder, signed=True) * rows
        return rows, 0, 0, (None, raw), ()
    content: Any = getattr(columns, name)
    if content is None:
        raise UsageError(f"the columns were read without {name!r}; ask for it in next_columns")
    kind = type(content)
    if kind is BinaryColumn:
        return _binary(content, rows)
    if kind is HeaderColumn:
        return _headers(content, rows)
    return rows, 0, 0, (None, content), ()


def _repeated(value: bytes, rows: int) -> Layout:
    """The same string in every row: offsets are multiples of its length."""
    offsets = _multiples(len(value), 1 << rows.bit_length())
    return rows, 0, 0, (None, offsets, value * rows), ()


@lru_cache(maxsize=16)
def _multiples(step: int, count: int) -> bytes:
    """0, step, 2 * step …; `count` is a power of two, so that few are ever made."""
    return array("i", range(0, step * count, step) if step else bytes(count)).tobytes()


def _binary(column: BinaryColumn, rows: int) -> Layout:
    validity, offsets, data, nulls, first = column
    return rows, nulls, first, (validity, offsets, data), ()


def _headers(column: HeaderColumn, rows: int) -> Layout:
    total = memoryview(column.offsets).cast("B").cast("i")[column.first + rows]
    pairs = (total, 0, 0, (None,), (_binary(column.keys, total), _binary(column.values, total)))
    return rows, 0, column.first, (None, column.offsets), (pairs,)


def _built(layout: Layout, kind: Any) -> Any:
    """The array of a layout, buffer by buffer: what `Lent` does at once."""
    rows, nulls, first, buffers, children = layout
    wrapped = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    below = [_built(child, kind.field(i).type) for i, child in enumerate(children)]
    return pa.Array.from_buffers(kind, rows, wrapped, nulls, first, children=below or None)


class ArrowSource:
    """Columns of a `pyarrow.RecordBatch`, ready for `BatchBuilder.extend_columns`.

    `value` and `key` may be binary or string (a key column may be missing); `timestamp` any
    timestamp type or int64 milliseconds; `headers` as `HEADERS_TYPE`. Other columns are left alone.
    A missing or null timestamp becomes `default_timestamp_ms`. `UsageError` for a value or key of
    another type.
    """

    def __init__(self, batch: Any, default_timestamp_ms: int) -> None:
        names = set(batch.schema.names)
        self.rows: int = batch.num_rows
        self.key = _encodable(batch, "key") if "key" in names else None
        self.value = _encodable(batch, "value") if "value" in names else None
        self.timestamps: int | Readable = default_timestamp_ms
        if "timestamp" in names:
            self.timestamps = _milliseconds(batch.column("timestamp"), default_timestamp_ms)
        self.headers = _encodable_headers(batch) if "headers" in names else None

    def extend(self, builder: BatchBuilder, start: int, rows: memoryview | None = None) -> int:
        """Appends rows from `start` on until `builder` is full; returns how many it took.

        `rows`, int32, names the rows that are meant; `start` counts in it then.
        """
        return builder.extend_columns(
            self.timestamps,
            self.key,
            self.value,
            self.headers,
            start=start,
            stop=self.rows if rows is None else len(rows),
            rows=rows,
            of=self.rows,
        )


def encode_record_batch(
    batch: Any,
    default_timestamp_ms: int,
    *,
    compression: int = Compression.NONE,
    level: int | None = None,
    max_bytes: int = 1024 * 1024,
) -> list[bytes]:
    """A `pyarrow.RecordBatch` as record batches of at most about `max_bytes` each."""
    source = ArrowSource(batch, default_timestamp_ms)
    builder = BatchBuilder(compression, max_bytes, level=level)
    out: list[bytes] = []
    row = 0
    while row < source.rows:
        row += source.extend(builder, row)
        out.append(builder.build())
        builder.clear()
    return out


def _strings(array: Any) -> BinaryColumn:
    validity, offsets, data = array.buffers()
    return BinaryColumn(
        None if validity is None else memoryview(validity),
        memoryview(offsets) if offsets is not None else bytes(4 * (array.offset + 1)),
        memoryview(data) if data is not None else b"",
        array.null_count,
        array.offset,
    )


def _encodable(batch: Any, name: str) -> BinaryColumn | None:
    array = batch.column(name)
    kinds = pa.types
    if kinds.is_null(array.type):
        return None
    wide = (
        kinds.is_large_binary,
        kinds.is_large_string,
        kinds.is_binary_view,
        kinds.is_string_view,
    )
    if any(is_kind(array.type) for is_kind in wide):
        array = array.cast(pa.binary())
    elif kinds.is_dictionary(array.type):
        array = array.dictionary_decode().cast(pa.binary())
    if not (kinds.is_binary(array.type) or kinds.is_string(array.type)):
        raise UsageError(
            f"column {name!r} has type {array.type}; records need binary or string, so serialise it"
        )
    return _strings(array)


def _milliseconds(array: Any, default_ms: int) -> Readable:
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms"), safe=False).view(pa.int64())
    elif not pa.types.is_int64(array.type):
        raise UsageError(f"column 'timestamp' has type {array.type}; give timestamps or int64 ms")
    if array.null_count:
        array = array.fill_null(default_ms)
    _, data = array.buffers()
    return b"" if data is None else memoryview(data)[array.offset * 8 :]


def _encodable_headers(batch: Any) -> HeaderColumn | None:
    array = batch.column("headers")
    if pa.types.is_null(array.type):
        return None
    if array.type != HEADERS_TYPE:
        try:
            array = array.cast(HEADERS_TYPE)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UsageError(
                f"column 'headers' has type {array.type}; give {HEADERS_TYPE}"
            ) from error
    if array.null_count:
        # A null list may still span entries; rebuilt, it is empty.
        array = pa.array(array.to_pylist(), HEADERS_TYPE).fill_null([])
    pairs = array.values
    if pairs.null_count:
        raise UsageError("column 'headers' has a null among its headers")
    _, offsets = array.buffers()[:2]
    keys, values = _child(pairs, 0), _child(pairs, 1)
    if keys.nulls:
        raise UsageError("column 'headers' has a header without a name")
    return HeaderColumn(
        memoryview(offsets) if offsets is not None else bytes(4), keys, values, array.offset
    )


def _child(pairs: Any, index: int) -> BinaryColumn:
    """A field of a struct array, with the struct's own offset applied."""
    return _strings(pairs.field(index))
