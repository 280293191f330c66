"""Arrow batches and tables, as the producer takes them apart. Needs pyarrow.

Rules:
- Columns are `value`, `key`, `timestamp`, `partition`, `headers`; how they may be typed is
  `kohort.records.arrow.ArrowSource`'s matter. Another column is an error: dropping data in silence
  is worse.
- The partition of a row: the one asked for, else its `partition`, else by its key, else the
  producer's present one. Rows keep their order within a partition.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kohort.errors import UsageError
from kohort.records.arrow import ArrowSource
from kohort.records.columns import BinaryColumn

_KNOWN = ("value", "key", "timestamp", "partition", "headers")
ByKey = Callable[[BinaryColumn, int], list[memoryview]]
"""The rows of a column of keys by partition; the last are those without a key."""


class Piece(NamedTuple):
    """Rows of one partition (None: the producer's present one); `rows` None for all of them."""

    partition: int | None
    source: ArrowSource
    rows: memoryview | None


def pieces(
    data: Any, partition: int | None, default_ms: int, by_key: ByKey | None
) -> Iterator[Piece]:
    """The rows of a record batch or table; `by_key` None leaves those with keys to the producer."""
    for number, batch in _by_column(data, partition):
        source = ArrowSource(batch, default_ms)
        if number is not None or by_key is None or source.key is None:
            yield Piece(number, source, None)
            continue
        *with_key, without = by_key(source.key, source.rows)
        for number, rows in enumerate(with_key):
            if len(rows):
                yield Piece(number, source, rows)
        if len(without):
            yield Piece(None, source, without)


def require_rows(data: Any) -> None:
    """Raise UsageError for what has no columns, before anything is asked or sent."""
    import pyarrow as pa

    if not isinstance(data, pa.RecordBatch | pa.Table):
        kind = f"{type(data).__module__}.{type(data).__qualname__}"
        raise UsageError(
            f"produce_arrow takes a pyarrow.RecordBatch or pyarrow.Table, not a {kind}; "
            "pa.Table.from_pylist and from_pandas make one"
        )


def _by_column(data: Any, partition: int | None) -> Iterator[tuple[int | None, Any]]:
    """Record batches with the partition that was asked for, by argument or column."""
    import pyarrow as pa

    names = set(data.schema.names)
    unknown = names.difference(_KNOWN)
    if unknown or not names & {"value", "key"}:
        raise UsageError(
            f"Arrow columns {data.schema.names} cannot be produced; there must be value or key, "
            f"and besides only timestamp, partition, headers"
        )
    batches: list[Any] = data.to_batches() if isinstance(data, pa.Table) else [data]
    for batch in batches:
        if not batch.num_rows:
            continue
        if partition is not None:
            yield partition, batch
        elif "partition" in names:
            yield from _split(batch, batch.column("partition").cast(pa.int32()))
        else:
            yield None, batch


def _split(batch: Any, numbers: Any) -> Iterator[tuple[int | None, Any]]:
    """The rows of each partition; the key chooses where a row names none."""
    # Through importlib, because pyarrow.compute makes its functions when it is imported.
    pc: Any = importlib.import_module("pyarrow.compute")
    for number in pc.unique(numbers).to_pylist():
        if number is None:
            yield None, batch.filter(pc.is_null(numbers))
        else:
            yield number, batch.filter(pc.equal(numbers, number))
