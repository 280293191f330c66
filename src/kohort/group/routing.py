"""Which partition of `__consumer_offsets` a group lives in (spec 2.1), as Apache Kafka has it."""

from __future__ import annotations


def coordinator_partition(group_id: str, partition_count: int) -> int:
    """abs(Java's `String.hashCode`) modulo the partitions; abs of the smallest int is 0."""
    data = group_id.encode("utf-16-be", "surrogatepass")
    code = 0
    for i in range(0, len(data), 2):
        code = (31 * code + (data[i] << 8 | data[i + 1])) & 0xFFFFFFFF
    signed = code - (1 << 32) if code & 0x80000000 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % partition_count
