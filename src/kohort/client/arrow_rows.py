"""Arrow batches and tables, split by partition for the producer. Needs pyarrow.

Rules:
- Columns are `value`, `key`, `timestamp`, `partition`, `headers`; how they may be typed is
  `kohort.records.arrow.ArrowSource`'s matter. Another column is an error: dropping data in silence
  is worse.
- The partition of a row: the one asked for, else its `partition`, else by its key, else the
  producer's present one. Rows keep their order within a partition.
"""

# pyarrow carries no complete types, so strict checking would only speak of it.
# pyright: basic
from __future__ import annotations

import importlib
from array import array
from collections.abc import Callable, Iterator
from typing import Any

from kohort.errors import UsageError

_KNOWN = ("value", "key", "timestamp", "partition", "headers")


def pieces(
    data: Any, partition: int | None, for_key: Callable[[bytes], int] | None
) -> Iterator[tuple[int | None, Any]]:
    """(partition, record batch) for the rows of a record batch or table.

    `for_key` tells a key's partition; None leaves it to the producer.
    """
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
        elif (
            for_key is not None
            and "key" in names
            and batch.column("key").null_count < batch.num_rows
        ):
            yield from _split(batch, _by_key(batch.column("key"), for_key))
        else:
            yield None, batch


def _split(batch: Any, numbers: Any) -> Iterator[tuple[int | None, Any]]:
    """The rows of each partition; a null partition is left to the producer."""
    # Through importlib, because pyarrow.compute makes its functions when it is imported.
    pc: Any = importlib.import_module("pyarrow.compute")
    for number in pc.unique(numbers).to_pylist():
        if number is None:
            yield None, batch.filter(pc.is_null(numbers))
        else:
            yield number, batch.filter(pc.equal(numbers, number))


def _by_key(keys: Any, for_key: Callable[[bytes], int]) -> Any:
    """A partition for every row, null where the key is null; each key is hashed once."""
    import pyarrow as pa

    if not pa.types.is_dictionary(keys.type):
        keys = keys.cast(pa.binary()).dictionary_encode()
    chosen = array("i", [for_key(key) for key in keys.dictionary.cast(pa.binary()).to_pylist()])
    by_index = pa.Array.from_buffers(pa.int32(), len(chosen), [None, pa.py_buffer(chosen)])
    return by_index.take(keys.indices)
