"""A topic as its producer sees it: where each record goes. Used behind the producer's lock."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kohort.client.producer.plan.accumulator import PartitionQueue
from kohort.client.producer.plan.fast_send_choice import TopicSlots
from kohort.client.producer.plan.partitioner import Sticky
from kohort.errors import ErrorCode

FATAL_TOPIC_ERRORS: Final = frozenset(
    {ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
)
"""No later answer will be another."""


class Route(TopicSlots):
    """A topic: its partitions' queues, and the one for records without a key."""

    __slots__ = ("_adaptive", "_chooser", "_ready")

    def __init__(
        self,
        queues: list[PartitionQueue],
        chooser: Sticky,
        adaptive: bool,
        ready: Collection[PartitionQueue],
    ) -> None:
        """`ready` are the queues that have closed batches."""
        super().__init__()
        self._ready = ready
        self.slots = queues
        self._chooser = chooser
        self._adaptive = adaptive
        self.sticky = chooser.partition

    def move_on(self, full: int) -> None:
        """A batch of partition `full` is full: records without a key go to another one now."""
        if full != self.sticky:
            return  # `full` may even be gone: a topic comes back with fewer partitions
        queues: list[PartitionQueue] = self.slots
        topic = queues[full].topic

        def in_line(partition: int) -> int:
            return len(queues[partition].closed)

        longest = max((len(q.closed) for q in self._ready if q.topic == topic), default=0)
        self._chooser.move_on(full, in_line if self._adaptive else None, longest)
        self.sticky = self._chooser.partition
        if self.sticky != full:  # what came so fast there will come so fast here
            usual = max(queues[full].usual_bytes, queues[self.sticky].usual_bytes)
            queues[self.sticky].usual_bytes = usual

    def offer(self, available: list[int]) -> None:
        """The partitions that have a leader now."""
        self._chooser.available = available


def cure(code: int) -> str:
    """What to do about an error of a topic, as the end of a sentence."""
    if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        return ": a name has at most 249 ASCII letters, digits, '.', '_' and '-'"
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return ": this client may not; ask the cluster's administrator for the right to write"
    return ""
