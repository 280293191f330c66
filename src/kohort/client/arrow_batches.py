"""Columns of one or several partitions as one `pyarrow.RecordBatch`. Needs pyarrow, an extra."""

# pyarrow carries no complete types, so strict checking would only speak of it.
# pyright: basic
from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from kohort.records import Columns


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
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
