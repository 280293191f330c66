"""Who leads a partition, as answers say it beside NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH:
a client then need not ask for metadata first (KIP-951)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kohort.broker.state.leadership import NO_NODE
from kohort.errors import ErrorCode

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices
    from kohort.broker.state.partition import Partition

HINTED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""The errors that come with a hint."""


class Leaders:
    """The leaders that an answer names; their addresses go with it, each once."""

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self.named: set[int] = set()

    def of(self, partition: Partition) -> tuple[int, int]:
        """`(leader, leader epoch)`."""
        if partition.leader != NO_NODE:
            self.named.add(partition.leader)
        return partition.leader, partition.leader_epoch

    def addresses(self) -> list[tuple[int, str, int, str | None]]:
        """`(id, host, port, rack)` of those that were named."""
        nodes = self._node.nodes
        return [nodes.address(node_id) for node_id in sorted(self.named)]
