"""The coordinators on all nodes: which partition a group lives in, and what they must learn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kohort.broker.coordinator.shard_host import ShardHost
from kohort.broker.node.node import Node
from kohort.broker.node.offset_deletion import OffsetDeletion
from kohort.broker.state.partition import Partition
from kohort.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from kohort.broker.coordinator.group_shard_host import GroupHost
    from kohort.broker.state.broker_state import BrokerState


class Coordinators:
    """Passes changes of the cluster and transactions' markers to the coordinators concerned."""

    def __init__(self, state: BrokerState, running: Mapping[int, Node]) -> None:
        self._state = state
        self._running = running

    def _nodes(self) -> list[Node]:
        return list(self._running.values())

    def partition_of(self, group_id: str) -> Partition:
        """The partition of `__consumer_offsets` that a group lives in. Raises BrokerError."""
        for node in self._nodes():
            return node.groups.partition_of(group_id)
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no node runs")

    def takes_markers(self, partition: Partition) -> bool:
        """Whether a transaction's marker may be written to a partition of an internal topic now.

        Not while its shard is being loaded: that might replay the marker twice, or never.
        """
        host = self._shard_at(partition)
        return host is None or host.takes_marker()

    def marker_written(self, partition: Partition, producer_id: int, committed: bool) -> None:
        """A transaction's marker was appended to a partition: a live shard there must know."""
        host = self._shard_at(partition)
        if host is not None:
            host.marker_written(producer_id, committed)

    def _shard_at(self, partition: Partition) -> ShardHost[Any] | None:
        node = self._running.get(partition.leader)
        for shards in node.hosted if node is not None else ():
            if shards.topic == partition.topic.name:
                return shards.host_at(partition.index)
        return None

    def topics_changed(self) -> None:
        """Topics were made, deleted or grown."""
        for node in self._nodes():
            node.groups.topics_changed()

    def groups_configured(self) -> None:
        """Groups have another configuration of their own."""
        for node in self._nodes():
            node.groups.configured()

    def access_changed(self) -> None:
        """Who may do what has changed."""
        for node in self._nodes():
            node.groups.access_changed()

    def topics_deleted(self, names: Iterable[str], done: Callable[[], None]) -> None:
        """Committed offsets of deleted topics go too; `done` is called when that is durable."""
        OffsetDeletion(
            self._state.topics, self._state.env, self._groups_at, sorted(names), done
        ).begin()

    def _groups_at(self, partition: Partition) -> GroupHost | None:
        node = self._running.get(partition.leader)
        return None if node is None else node.groups.host_at(partition.index)

    def set_wall_offset(self, offset_ms: int) -> None:
        """The wall clock may have been set."""
        for node in self._nodes():
            for shards in node.hosted:
                shards.set_wall_offset(offset_ms)
