"""What the coordinators of a simulated system hold, and in which older versions it was written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from kohort.client.common.types import TopicPartition
from kohort.group.coordinator.state.classic_table import GroupState
from kohort.group.coordinator.state.consumer_table import ConsumerState
from kohort.simulator.system.history import Operation
from kohort.simulator.system.process import BrokerProcess
from kohort.simulator.system.releases import CHANGES, OLDER_FILES, OLDER_VALUES
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
    groups = {f"group {state.name.lower()}" for state in (*GroupState, *ConsumerState)}
    transactions = {f"transaction {state.value}" for state in TransactionState}
    older = {f"wrote {name}" for name in (*OLDER_VALUES, *OLDER_FILES)}
    return groups | transactions | older | set(CHANGES)


def last_offsets(
    broker: BrokerProcess, operations: Iterable[Operation]
) -> dict[str, dict[TopicPartition, int | None]]:
    """What each group has committed of the partitions that its clients asked about; without those
    of which a transaction is open."""
    places: dict[str, set[TopicPartition]] = defaultdict(set)
    for one in operations:
        places[one.group].update(one.offsets)
    found: dict[str, dict[TopicPartition, int | None]] = {}
    for node in broker.nodes:
        for host in node.groups.hosts():
            for group in places if host.loaded else ():
                if not group or host.partition is not node.groups.partition_of(group):
                    continue
                durable = host.shard.durable
                kept = durable.offsets.get(group, {})
                found[group] = {
                    place: kept[place].offset if place in kept else None
                    for place in sorted(places[group])
                    if not durable.is_pending(group, place)
                }
    return found
