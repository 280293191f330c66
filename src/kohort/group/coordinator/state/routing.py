"""Which partition of `__consumer_offsets` a group lives in (spec 2.1), as Apache Kafka has it."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_KEPT_CHARS_MAX: Final = 128
"""Ids come again with every request: the hashes of shorter ones are kept."""


def coordinator_partition(group_id: str, partition_count: int) -> int:
    """abs(Java's `String.hashCode`) modulo the partitions; abs of the smallest int is 0."""
    hashed = _kept_hash(group_id) if len(group_id) <= _KEPT_CHARS_MAX else _hash(group_id)
    return hashed % partition_count


def _hash(text: str) -> int:
    data = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for i in range(0, len(data), 2):
        code = (31 * code + (data[i] << 8 | data[i + 1])) & 0xFFFFFFFF
    signed = code - (1 << 32) if code & 0x80000000 else code
    return 0 if signed == -(1 << 31) else abs(signed)


_kept_hash = lru_cache(maxsize=16_384)(_hash)
