"""A topic as its producer sees it: where each record goes. Used behind the producer's lock."""

from __future__ import annotations

from kohort.client.accumulator import PartitionQueue
from kohort.client.front_implementation import TopicSlots
from kohort.client.partitioner import Sticky


class Route(TopicSlots):
    """A topic: its partitions' queues, and the one for records without a key."""

    __slots__ = ("_adaptive", "_chooser")

    def __init__(self, queues: list[PartitionQueue], chooser: Sticky, adaptive: bool) -> None:
        super().__init__()
        self.slots = queues
        self._chooser = chooser
        self._adaptive = adaptive
        self.sticky = chooser.partition

    def move_on(self, full: int) -> None:
        """A batch of partition `full` is full: records without a key go to another one now."""
        queues: list[PartitionQueue] = self.slots

        def in_line(partition: int) -> int:
            return len(queues[partition].closed)

        self._chooser.move_on(full, in_line if self._adaptive else None)
        self.sticky = self._chooser.partition

    def offer(self, available: list[int]) -> None:
        """The partitions that have a leader now."""
        self._chooser.available = available
