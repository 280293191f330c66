"""Which partition a record goes to. Pure: the randomness is handed in.

Rules:
- With a key: murmur2 of the key, as the Java client computes it, modulo the number of partitions.
  So equal keys of all Kafka clients meet in one partition.
- Without a key: one partition until a batch of it is full or has gone, then another one, so that
  batches are large (KIP-480, KIP-794). Partitions without a leader are left out while others have
  one.
- Of the others, one with fewer batches in line is the likelier: a slow broker gets less (KIP-794,
  `partitioner.adaptive.partitioning.enable`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from operator import index
from typing import Any, Final

from kohort.errors import UsageError
from kohort.records.columns import BinaryColumn

_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_SEED: Final = 0x9747B28C
_DRAWS_MAX: Final = 100
"""Hardly ever reached."""


def murmur2(data: bytes) -> int:
    """The 32-bit hash that Kafka's Java client uses for keys, as an unsigned number."""
    size = len(data)
    h = _SEED ^ size
    whole = size & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        h = (h * _M & _MASK) ^ ((k ^ (k >> 24)) * _M & _MASK)
    if whole != size:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)


def for_key(key: bytes, partitions: int) -> int:
    """The partition of a key."""
    memoryview(key)  # TypeError for what is none
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def checked(topic: str, partition: int | None, count: int) -> int:
    """The partition, if a topic with `count` of them has it; else UsageError."""
    if type(partition) is not int and partition is not None:
        partition = _whole(topic, partition)
    if partition is None or not 0 <= partition < count:
        raise UsageError(f"topic {topic!r} has partitions 0 to {count - 1}, not {partition}")
    return partition


def _whole(topic: str, partition: Any) -> int:
    """A partition that a partitioner or a caller names by another kind of number."""
    try:
        return index(partition)
    except TypeError:
        raise UsageError(
            f"the partition of a record of topic {topic!r} is {partition!r}, which is no whole "
            "number; fix the partitioner or the argument"
        ) from None


def rows_by_key(column: BinaryColumn, rows: int, partitions: int) -> list[memoryview]:
    """The rows of a column of keys, by partition; those without a key are the last of the list.

    Each is a buffer of int32 in ascending order. UsageError when the column is none.
    """
    return rows_by(column, rows, partitions, lambda key: for_key(key, partitions))


def rows_by(
    column: BinaryColumn, rows: int, partitions: int, choose: Callable[[bytes], int]
) -> list[memoryview]:
    """The same where `choose` tells the partition; it is asked once a key."""
    offsets = memoryview(column.offsets).cast("B").cast("i")
    data, bits = memoryview(column.data).cast("B"), column.validity
    end = column.first + rows
    if rows and (len(offsets) <= end or (bits is not None and memoryview(bits).nbytes * 8 < end)):
        raise UsageError(f"a column of keys is too short for {rows} rows")
    rows_of = [array("i") for _ in range(partitions + 1)]
    chosen: dict[bytes, int] = {}
    for row in range(rows):
        at, number = column.first + row, partitions
        if bits is None or bits[at >> 3] >> (at & 7) & 1:
            if not 0 <= offsets[at] <= offsets[at + 1] <= len(data):
                raise UsageError(f"row {row} of a column has offsets outside the column's data")
            key = bytes(data[offsets[at] : offsets[at + 1]])
            if key not in chosen:
                chosen[key] = choose(key)
            number = chosen[key]
        rows_of[number].append(row)
    return [memoryview(some) for some in rows_of]


class Sticky:
    """The present partition of one topic for records without a key."""

    __slots__ = ("_uniform", "available", "partition")

    def __init__(self, available: Sequence[int], uniform: Callable[[], float]) -> None:
        self.available = available
        self._uniform = uniform
        self.partition = -1
        self.move_on(-1)

    def move_on(
        self, full: int, in_line: Callable[[int], int] | None = None, longest: int = 0
    ) -> None:
        """Choose another partition, if `full` is still the present one.

        `in_line` tells how many batches of a partition wait to be sent (None: all are alike),
        `longest` how many at the most. Partitions are drawn until one is taken, so that not all are
        looked at for each batch: one with `n` in line in `longest + 1 - n` of `longest + 1` draws.
        """
        if full != self.partition:
            return
        available, uniform = self.available, self._uniform
        for _ in range(_DRAWS_MAX if len(available) > 1 else 0):
            partition = available[int(uniform() * len(available))]
            if partition != full and (
                in_line is None
                or not longest
                or uniform() * (longest + 1) < longest + 1 - in_line(partition)
            ):
                self.partition = partition
                return
        self.partition = next((p for p in available if p != full), full)
