"""A node of the release before: its coordinators write older versions of their values.

Rules:
- A record is replaced just before it is appended, so that all that comes after reads the older one:
  the next load, compaction, the next release.
"""

from __future__ import annotations

from collections.abc import Callable

from kohort.broker.coordinator.group_coordinator import Groups
from kohort.broker.coordinator.group_shard_host import GroupHost
from kohort.broker.coordinator.services import ClusterNodes, HostServices
from kohort.broker.coordinator.shard_host import Producer
from kohort.broker.coordinator.transaction_coordinator import Transactions
from kohort.broker.coordinator.transaction_shard_host import TransactionHost
from kohort.broker.log.log import Appended
from kohort.broker.node.node import Node
from kohort.broker.state.broker_state import BrokerState
from kohort.broker.state.partition import Partition
from kohort.group.coordinator.state.effects import GroupRecord
from kohort.simulator.system.releases import (
    Release,
    older_group_record,
    older_transaction_record,
    value_name,
)

Older = Callable[[GroupRecord], GroupRecord]


def older_node(release: Release, wrote: Callable[[str], object]) -> type[Node]:
    """The class of the nodes of a release.

    Args:
        release: what it writes.
        wrote: hears of each value that it writes in an older version.
    """

    def older(topic: str, record: GroupRecord) -> GroupRecord:
        is_group = topic == Groups.topic
        written = (older_group_record if is_group else older_transaction_record)(record, release)
        if written is not record:
            wrote(value_name(topic, written))
        return written

    class OlderNode(Node):
        def __init__(
            self, state: BrokerState, nodes: ClusterNodes, node_id: int, rack: str | None
        ) -> None:
            super().__init__(state, nodes, node_id, rack)
            self.groups = _OlderGroups(self, lambda r: older(Groups.topic, r))
            self.transactions = _OlderTransactions(self, lambda r: older(Transactions.topic, r))

    return OlderNode


class _OlderGroups(Groups):
    def __init__(self, node: Node, older: Older) -> None:
        super().__init__(node)
        self._older = older

    def new_host(self, partition: Partition) -> GroupHost:
        return _OlderGroupHost(self._node, partition, self._older)


class _OlderTransactions(Transactions):
    def __init__(self, node: Node, older: Older) -> None:
        super().__init__(node)
        self._older = older

    def new_host(self, partition: Partition) -> TransactionHost:
        return _OlderTransactionHost(self._node, partition, self._older)


class _OlderGroupHost(GroupHost):
    def __init__(self, node: HostServices, partition: Partition, older: Older) -> None:
        self._older = older
        super().__init__(node, partition)

    def _append(self, records: list[GroupRecord], producer: Producer | None) -> Appended:
        return super()._append([self._older(record) for record in records], producer)


class _OlderTransactionHost(TransactionHost):
    def __init__(self, node: HostServices, partition: Partition, older: Older) -> None:
        self._older = older
        super().__init__(node, partition)

    def _append(self, records: list[GroupRecord], producer: Producer | None) -> Appended:
        return super()._append([self._older(record) for record in records], producer)
