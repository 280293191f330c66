"""Small values that all faces of the client share.

`TopicPartition` and `OffsetAndMetadata` are tuples because they are keys and values of the hottest
dictionaries: hashing and comparing them runs in C.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

V = TypeVar("V")


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


ByPartition = Mapping[TopicPartition, V] | Mapping[tuple[str, int], V]
"""Values by partition, as calls take them; a plain tuple of topic and number will do."""


class OffsetAndMetadata(NamedTuple):
    """A position to commit: the offset of the next record to read.

    `metadata` is the committer's own text (a broker keeps up to 4 KiB). `leader_epoch` is the epoch
    of the last record read, -1 when unknown; with it a truncated log is noticed (KIP-320).
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after an asked time: its offset, its timestamp (ms), its epoch."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


class GroupMetadata(NamedTuple):
    """Who this consumer is in its group; without membership generation -1 and no member id.

    With `group_protocol=consumer` the generation is the member epoch.
    """

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None


class RecordMetadata(NamedTuple):
    """Where a produced record was stored.

    `offset` is -1 with `acks=0`. `timestamp_ms` is the broker's time when the topic keeps append
    time, else the record's own.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
