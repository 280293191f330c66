"""One record on its way through the workers: specification, and fallback where `_items.pyx` is not
compiled.

Rules:
- An item is made for each record that is read: what makes them does so for many at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kohort.processing.partition import Partition
    from kohort.records import Record
    from kohort.retry.copies import Attempt


class Item:
    """One record on its way through the workers."""

    __slots__ = ("attempt", "lane", "offset", "partition", "record", "settled", "tries")

    def __init__(
        self,
        record: Record,
        partition: Partition,
        lane: Hashable | None,
        attempt: Attempt | None = None,
    ) -> None:
        self.record = record
        self.offset = record.offset
        """The offset that this copy was read at."""
        self.partition = partition
        self.lane = lane
        self.attempt = attempt
        """What its headers say, for a record of a retry topic; made on failure for the others."""
        self.tries = 0
        """How often it was tried in place, without leaving memory."""
        self.settled = False
        """Exactly once: what becomes of it is decided and waits for a transaction."""

    def __repr__(self) -> str:
        return f"Item({self.record!r}, tries={self.tries})"


def offsets_and_size(records: Sequence[Record]) -> tuple[list[int], int]:
    """Every record's offset, and how many bytes they are together."""
    return [record.offset for record in records], sum([record.size for record in records])


def in_one_lane(
    records: Sequence[Record], partition: Partition, lane: Hashable | None
) -> list[Item]:
    """An item for each record, all of one lane (None: of none)."""
    return [Item(record, partition, lane) for record in records]


def by_key(records: Sequence[Record], partition: Partition, topic: str) -> list[Item]:
    """An item for each record; its lane is (topic, key), or none for a null key."""
    return [
        Item(record, partition, None if (key := record.key) is None else (topic, key))
        for record in records
    ]


def offsets_of(items: Sequence[Item]) -> tuple[list[int], int]:
    """Every item's offset, and how many bytes their records are together."""
    return [item.offset for item in items], sum([item.record.size for item in items])


def lanes_of(items: Sequence[Item]) -> set[Hashable | None]:
    """The lanes that they are of."""
    return {item.lane for item in items}
