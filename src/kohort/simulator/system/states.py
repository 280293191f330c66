"""Which states of the coordinators a run has reached, for the report of coverage."""

from __future__ import annotations

from collections.abc import Iterator

from kohort.group.coordinator.state.classic_table import GroupState
from kohort.simulator.system.process import BrokerProcess
from kohort.simulator.views import group_ids, look_at
from kohort.transactions.states import TransactionState


def coordinator_states(broker: BrokerProcess) -> Iterator[str]:
    """One name for each group and transactional id that a live coordinator holds."""
    if not broker.alive:
        return
    for node in broker.nodes:
        for host in node.groups.hosts():
            if not host.loaded:
                yield "coordinator loading"
                continue
            for group_id in group_ids(host.shard):
                look = look_at(host.shard, group_id)
                if look is not None:
                    yield f"group {look.state}"
        for host in node.transactions.hosts():
            if host.loaded:
                for transaction in host.shard.durable.values():
                    yield f"transaction {transaction.state.value}"


def all_states() -> set[str]:
    """Every state that a run could reach."""
    groups = {f"group {state.value}" for state in GroupState}
    return groups | {f"transaction {state.value}" for state in TransactionState}
