"""Checks of consumer groups (KIP-848): G1-G6, G8 on their records, answers and memory."""

from __future__ import annotations

from collections.abc import Mapping

from kohort.group.coordinator.state.consumer_group import ConsumerGroup
from kohort.group.coordinator.state.consumer_records import (
    ConsumerEntry,
    Current,
    Field,
    GroupMetadata,
)
from kohort.group.coordinator.state.consumer_table import ConsumerState, MemberState
from kohort.simulator.checks.plans import g14_plan_is_level
from kohort.simulator.checks.violation import demand
from kohort.simulator.views import MemberLook
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse

DEFAULT_ASSIGNOR = "uniform"
"""`group.consumer.assignors`, the first of them."""
Owners = dict[tuple[bytes, int], str]


def g1_one_owner(group: ConsumerGroup) -> Owners:
    """G1: a partition is assigned to, or still to be given up by, at most one member."""
    owners: Owners = {}
    for member_id, current in group.currents.items():
        for held in (current.assigned, current.pending):
            for topic_id, numbers in held.items():
                for number in numbers:
                    other = owners.setdefault((topic_id, number), member_id)
                    demand(
                        other == member_id,
                        "G1",
                        f"group {group.group_id}: partition {number} of topic "
                        f"{topic_id.hex()[-4:]} is granted to {other} and to {member_id}",
                    )
    return owners


def g2_target_is_legal(group: ConsumerGroup, names: Mapping[bytes, str]) -> None:
    """G2: a target gives each partition once, and only to a subscriber."""
    if group.epoch != group.target_epoch:
        return
    owners: Owners = {}
    for member_id, target in group.targets.items():
        member = group.members.get(member_id)
        for topic_id, numbers in target.items():
            name = names.get(topic_id, "?")
            demand(
                member is None or name in group.topics_of(member),
                "G2",
                f"group {group.group_id}, epoch {group.epoch}: {member_id} is to have {name}, "
                "which it does not subscribe to",
            )
            for number in numbers:
                other = owners.setdefault((topic_id, number), member_id)
                demand(
                    other == member_id,
                    "G2",
                    f"group {group.group_id}, epoch {group.epoch}: {name}-{number} is to be "
                    f"{other}'s and {member_id}'s",
                )


def g14_target_is_level(group: ConsumerGroup, default: str) -> None:
    """G14: the target is level, as far as members agree on who makes it."""
    if group.epoch != group.target_epoch or not group.members:
        return
    assignors = {m.server_assignor or default for m in group.members.values()}
    if len(assignors) == 1:
        reads = [group.topics_of(member) for member in group.members.values()]
        gets = {
            member_id: {
                topic.hex()[-4:]: numbers for topic, numbers in group.target(member_id).items()
            }
            for member_id in group.members
        }
        name = f"group {group.group_id}, epoch {group.epoch}"
        g14_plan_is_level(name, assignors.pop(), reads, gets)


def g3_epochs_rise(entry: ConsumerEntry, before: ConsumerGroup | None) -> None:
    """G3: the group epoch never falls; a member's epoch falls only to 0, -1 or -2."""
    if before is None:
        return
    if entry.field is Field.GROUP and isinstance(entry.value, GroupMetadata):
        demand(
            entry.value.epoch >= before.epoch,
            "G3",
            f"group {entry.group_id}: epoch {entry.value.epoch} was written after {before.epoch}",
        )
    if entry.field is Field.CURRENT and isinstance(entry.value, Current):
        old = before.currents.get(entry.key)
        demand(
            old is None or entry.value.epoch >= old.epoch or entry.value.epoch <= 0,
            "G3",
            f"group {entry.group_id}: {entry.key} falls from epoch "
            f"{old.epoch if old else '-'} to {entry.value.epoch}",
        )


def g4_owners_are_known(group: ConsumerGroup, owners: Owners) -> None:
    """G4: the coordinator's book of owners says what the members' assignments say."""
    booked = {(t, n): who for t, numbers in group.owners.items() for n, who in numbers.items()}
    demand(booked == owners, "G4", f"group {group.group_id}: its book of owners is wrong")


def g5_stable_means_done(group: ConsumerGroup) -> None:
    """G5: Stable: all members stable in the group's epoch, nothing pending, assigned == target."""
    if group.state() is not ConsumerState.STABLE:
        return
    name = f"group {group.group_id} is stable in epoch {group.epoch}"
    demand(group.epoch == group.target_epoch, "G5", f"{name}; its target is {group.target_epoch}")
    for member_id, member in group.members.items():
        current = group.current(member_id)
        held = {topic: tuple(sorted(numbers)) for topic, numbers in current.assigned.items()}
        demand(
            current.state is MemberState.STABLE and not current.pending,
            "G5",
            f"{name}, and {member_id} is {current.state.name} with {current.pending} pending",
        )
        if member.classic is None:
            demand(
                held == dict(group.target(member_id)),
                "G5",
                f"{name}, and {member_id} has {held} instead of {dict(group.target(member_id))}",
            )


def g6_epoch_is_current(
    group_id: str, request: ConsumerGroupHeartbeatRequest, known: MemberLook | None
) -> None:
    """G6: a heartbeat is accepted in the member's epoch, or in the one before it."""
    if request.member_epoch <= 0:
        return
    who = f"group {group_id}: a heartbeat of {request.member_id}, epoch {request.member_epoch}"
    demand(known is not None, "G6", f"{who}, was accepted from a stranger")
    if known is not None:
        demand(request.member_epoch in known.epochs, "G6", f"{who}, was accepted in {known.epochs}")


def g8_one_per_instance(group: ConsumerGroup) -> None:
    """G8: at most one member has an instance id."""
    named = [m.instance_id for m in group.members.values() if m.instance_id is not None]
    demand(len(set(named)) == len(named), "G8", f"group {group.group_id}: two members of {named}")


def check_group(group: ConsumerGroup, names: Mapping[bytes, str]) -> None:
    """All that must hold of a consumer group at any time."""
    g4_owners_are_known(group, g1_one_owner(group))
    g2_target_is_legal(group, names)
    g14_target_is_level(group, DEFAULT_ASSIGNOR)
    g5_stable_means_done(group)
    g8_one_per_instance(group)


def answered_epoch(response: ConsumerGroupHeartbeatResponse) -> int | None:
    """The member epoch that an answer tells; None for a refusal or a farewell."""
    return response.member_epoch if not response.error_code and response.member_epoch > 0 else None
