"""Headers and timestamps of records as Arrow columns, and back."""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from kohort.spark.formats.plain_arrays import plain_array

pc: Any = pyarrow.compute
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
Header = tuple[str, bytes | None]


def header_lists(column: pa.Array | pa.ChunkedArray) -> list[list[Header]]:
    """The headers of each row; none where they are null.

    `column.to_pylist()` makes a dict of every header: that takes three times as long.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    keys, values = column.flatten().flatten()
    headers = list(zip(keys.to_pylist(), values.to_pylist(), strict=True))
    ends = accumulate(pc.fill_null(pc.list_value_length(column), 0).to_pylist())
    start, lists = 0, list[list[Header]]()
    for end in ends:
        lists.append(headers[start:end])
        start = end
    return lists


def header_column(lists: Sequence[Sequence[Header]]) -> pa.Array:
    """The column of the headers of each row."""
    every = list(chain.from_iterable(lists))
    keys = plain_array([key for key, _ in every], pa.string())
    values = plain_array([value for _, value in every], pa.binary())
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
    ends = list(accumulate(map(len, lists), initial=0))
    return pa.ListArray.from_arrays(plain_array(ends, pa.int32()), pairs, type=HEADERS)


def milliseconds(column: pa.Array | pa.ChunkedArray) -> list[int]:
    """A column of timestamps in milliseconds since 1970; -1 where it is null."""
    micros = column.cast(TIMESTAMP).cast(pa.int64()).to_pylist()
    return [-1 if t is None else t // 1000 for t in micros]
