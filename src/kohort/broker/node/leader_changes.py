"""Changes of partitions' leaders and replicas, and how the nodes carry them out.

A change is kept in the registry of topics first. Then, partition by partition, the old leader's
shard resigns before the new one's is made (G11), and waiting readers of the partition look again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kohort.broker.base.config import OFFSETS_TOPIC
from kohort.broker.node.coordinators import Coordinators
from kohort.broker.node.node import Node
from kohort.broker.state.leadership import Change
from kohort.errors import BrokerError

if TYPE_CHECKING:
    from kohort.broker.state.broker_state import BrokerState

log = logging.getLogger("kohort.broker")


class LeaderChanges:
    """Moves leaders and replicas of partitions between the running nodes."""

    def __init__(
        self, state: BrokerState, running: Mapping[int, Node], coordinators: Coordinators
    ) -> None:
        self._state = state
        self._running = running
        self._coordinators = coordinators

    def move(self, topic: str, partition: int, to: int | None) -> int:
        """Let a node (None: the next) lead a partition; returns its id. Raises BrokerError."""
        change = self._state.leadership.move(topic, partition, to)
        self.apply([change])
        return change.leader

    def move_coordinator(self, group_id: str, to: int | None) -> int:
        """Let a node (None: the next) coordinate a group; returns its id. Raises BrokerError."""
        return self.move(OFFSETS_TOPIC, self._coordinators.partition_of(group_id).index, to)

    def elect_preferred(self, partitions: Iterable[tuple[str, int]] | None = None) -> list[Change]:
        """Let preferred leaders lead again, where they live; of some partitions, or of all."""
        changes = self._state.leadership.prefer(partitions)
        self.apply(changes)
        return changes

    def place(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Give a partition that is there other replicas. Raises BrokerError."""
        existing = self._state.topics.get(topic)
        assert existing is not None, "the caller has looked"
        leadership = self._state.leadership
        before = leadership.at(topic, partition)
        if before.replicas == tuple(replicas):
            return
        change = leadership.place(topic, partition, replicas)
        try:
            self._state.topics.placed_otherwise(existing)
        except BrokerError:
            leadership.put_back(topic, partition, before)
            raise
        if change is not None:
            self.apply([change])

    def apply(self, changes: Sequence[Change]) -> None:
        """Keep the changes, then carry them out."""
        if not changes:
            return
        topics = self._state.topics
        named = [topics.get(name) for name in {change.topic for change in changes}]
        try:
            topics.led_otherwise(topic for topic in named if topic is not None)
        except BrokerError as error:
            # The live nodes must continue; a crash now may use these epochs a second time.
            log.error("could not store which node leads which partition: %s", error)
        for change in changes:
            self._carry_out(change)

    def _carry_out(self, change: Change) -> None:
        partition = self._state.topics.partition(change.topic, change.partition)
        if partition is None:
            return
        partition.follow(self._state.leadership.at(change.topic, change.partition))
        for node in list(self._running.values()):
            if node.node_id != change.leader:
                node.resigned(partition)
        new = self._running.get(change.leader)
        if new is not None:
            new.elected(partition)
        partition.wake()
