"""The leader's work: read the members' subscriptions, run the assignor, write everybody's part.

Rules:
- A member whose metadata cannot be read is given nothing and named in a warning: one broken client
  must not bring down leader after leader.
- Every member has an entry, an empty one too, or it would be answered without an assignment (B37).
- A cooperative plan assigns no partition that another member still owns: it is held back until its
  owner (see `claims`) has given it up and rejoined. That is phase one; phase two is an ordinary
  rebalance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kohort.errors import DecodeError
from kohort.group.assignors.base import (
    Assignor,
    AssignorError,
    GroupView,
    MemberView,
    Plan,
    TopicView,
    checked,
    generation_by,
)
from kohort.group.assignors.claims import Claim, Ownership
from kohort.group.assignors.protocol import ProtocolReader, ProtocolWriter
from kohort.lean import dataclass
from kohort.wire.messages.describe_groups_response import DescribedGroupMember
from kohort.wire.messages.join_group_response import JoinGroupResponseMember
from kohort.wire.messages.sync_group_request import SyncGroupRequestAssignment


@dataclass(frozen=True, slots=True)
class Reading:
    """The members as their metadata describes them, and what could not be read."""

    members: Mapping[str, MemberView]
    topics: frozenset[str]
    warnings: Sequence[str]


def read_members(members: Iterable[JoinGroupResponseMember]) -> Reading:
    """Decode what the leader's join was answered with."""
    views: dict[str, MemberView] = {}
    warnings: list[str] = []
    reader = ProtocolReader()
    for each in members:
        try:
            view = reader.subscription(each.member_id, each.metadata, each.group_instance_id)
        except DecodeError as error:
            view = MemberView(each.member_id, frozenset(), each.group_instance_id)
            warnings.append(
                f"member {each.member_id!r} sent metadata that cannot be read and is given no "
                f"partitions: {error}"
            )
        views[each.member_id] = view
    topics = frozenset[str]().union(*{view.topics for view in views.values()})
    return Reading(views, topics, warnings)


def make_plan(assignor: Assignor, group: GroupView) -> Plan:
    """The assignor's plan, checked, and with its cooperative phase one applied.

    Raises AssignorError when the assignor raises or breaks its contract.
    """
    plan = planned_by(assignor, group)
    if not assignor.cooperative:
        return plan
    claims = [
        Claim(member.member_id, member.owned, generation_by(assignor, member))
        for member in group.members.values()
    ]
    return hold_back(plan, claims, group.topics)


def planned_by(assignor: Assignor, group: GroupView) -> Plan:
    """The assignor's plan, checked; raises AssignorError."""
    try:
        plan = assignor.assign(group)
    except Exception as error:  # a user's own code: any error is named and fatal
        raise AssignorError(
            f"assignor {assignor.name!r} failed with {type(error).__name__}: {error}. The member "
            f"leaves the group; mend the assignor's assign()"
        ) from error
    return checked(assignor.name, plan, group, "the member leaves the group")


def encode_plan(plan: Plan, members: Iterable[str]) -> list[SyncGroupRequestAssignment]:
    """An entry for each member, in order of id."""
    writer = ProtocolWriter()
    assignments: list[SyncGroupRequestAssignment] = []
    for member_id in sorted(members):
        parts = plan.assignments.get(member_id, {})
        data = writer.assignment(parts, plan.user_data.get(member_id))
        assignments.append(SyncGroupRequestAssignment(member_id=member_id, assignment=data))
    return assignments


def hold_back(plan: Plan, claims: Sequence[Claim], topics: Mapping[str, TopicView]) -> Plan:
    """Phase one of KIP-429: a claimed partition goes to its undisputed owner, or waits."""
    owned = Ownership(topics, claims)
    held = {
        claim.member_id: owned.may_have(who, plan.assignments.get(claim.member_id, {}))
        for who, claim in enumerate(claims)
    }
    return Plan(held, plan.user_data)


def planned_topics(
    members: Iterable[DescribedGroupMember], topics: Iterable[str]
) -> dict[str, TopicView | None]:
    """What a plan was made for, from what it gave out; None for a topic it gave nothing of."""
    assigned: dict[str, set[int]] = {}
    reader = ProtocolReader()
    for member in members:
        try:
            partitions, _ = reader.assignment(member.member_assignment)
        except DecodeError:
            continue
        for topic, numbers in partitions.items():
            assigned.setdefault(topic, set()).update(numbers)
    return {
        topic: TopicView(len(assigned[topic])) if topic in assigned else None for topic in topics
    }


def changed_topics(
    before: Mapping[str, TopicView | None], now: Mapping[str, TopicView | None]
) -> list[str]:
    """The change of the topics that a plan was made for, as text; empty if there is none.

    Only the number of partitions counts: racks come and go while brokers restart, and a rebalance
    for each would be a storm (librdkafka #4742).
    """
    changes: list[str] = []
    for topic, then in sorted(before.items()):
        if topic not in now:
            continue
        seen = now[topic]
        old, new = (then.partitions if then else 0), (seen.partitions if seen else 0)
        if old != new:
            changes.append(f"topic {topic!r} went from {old} to {new} partitions")
    return changes
