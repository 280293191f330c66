"""What a transaction shard wants done: records and replies as a group's, and markers.

Rules:
- All of it is data: nothing here acts. `markers` are written only when `records` are durable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kohort.group.coordinator.state.effects import Effects
from kohort.transactions.records import TopicPartition


class Markers(NamedTuple):
    """The end of one transaction, to be written as a control batch to each of its partitions."""

    transactional_id: str
    producer_id: int
    epoch: int
    committed: bool
    partitions: tuple[TopicPartition, ...]


@dataclass(slots=True)
class TransactionEffects(Effects):
    """Append `records`, replay them; once that is durable answer `replies` and write `markers`.

    The shell tells the shard by `markers_written` when every partition has its marker.
    """

    markers: list[Markers] = field(default_factory=list[Markers])
