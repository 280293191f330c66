"""Columns of one or several partitions as one `pyarrow.RecordBatch`. Needs pyarrow, an extra."""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from kohort.errors import UsageError
from kohort.records import COLUMN_NAMES, Columns

_ALL = frozenset(COLUMN_NAMES)


def require_pyarrow(call: str) -> None:
    """Raise UsageError where pyarrow is not installed, before anything is taken or sent."""
    try:
        import pyarrow  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{call} needs pyarrow, which is not installed: pip install 'kohort[arrow]'"
        ) from error


def checked(columns: Collection[str]) -> frozenset[str]:
    """The names of columns. Raises UsageError for one that there is not."""
    one = isinstance(columns, str)
    if not one and not isinstance(columns, Iterable):
        raise UsageError(f"poll_arrow(): columns are a list of names, not {columns!r}")
    names = frozenset((columns,) if one else columns)
    if any(not isinstance(each, str) for each in names):
        raise UsageError(f"poll_arrow(): columns are a list of names, not {columns!r}")
    if unknown := names - _ALL:
        raise UsageError(
            f"there is no column {min(unknown)!r}; choose from {', '.join(COLUMN_NAMES)}"
        )
    return names


def record_batch(pieces: Sequence[Columns], names: Collection[str]) -> Any:
    """One batch of these pieces, in their order; several are copied together, one is not."""
    import pyarrow as pa

    from kohort.records.arrow import to_record_batch

    batches = [to_record_batch(piece, names) for piece in pieces]
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def empty_batch(names: Collection[str]) -> Any:
    """A batch without rows."""
    import pyarrow as pa

    from kohort.records.arrow import record_batch_schema

    schema = record_batch_schema(names)
    # `pa.array([])` would import pandas, where it is installed: half a second for an empty poll.
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
