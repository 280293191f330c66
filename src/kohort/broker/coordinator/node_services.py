"""The port of APIs and the fault gate: one node with its coordinators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kohort.broker.coordinator.services import HostServices

if TYPE_CHECKING:
    from kohort.broker.coordinator.group_coordinator import Groups
    from kohort.broker.coordinator.transaction_coordinator import Transactions


class NodeServices(HostServices, Protocol):
    """One node, as the APIs that it serves see it; `node.Node` fills it in."""

    @property
    def groups(self) -> Groups: ...

    @property
    def transactions(self) -> Transactions: ...
