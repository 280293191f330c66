"""A live classic group becomes a consumer group: a first member of the newer protocol joins it.

Rules:
- Nobody's partitions move by it. Epochs continue from the generation; each member keeps what the
  last generation assigned, and from now on is a member that uses the classic protocol.
- A member may still hold more than that: its last JoinGroup said so (KIP-429). Those partitions are
  not free before it has joined again (G1). In Apache Kafka they would be.
- A member that waits for an answer of the classic group is asked to join again.
- Refused with GROUP_ID_NOT_FOUND and the reason, as in Kafka: by the configuration's
  `group.consumer.migration.policy`, a group that is no consumer's, one that is too large, and one
  whose assignments carry data of an assignor of its own, which the broker cannot continue. With
  one of Kafka's four such data means nothing (librdkafka's leaders send back the claims they got);
  Apache Kafka refuses that too.
"""

from __future__ import annotations

from kohort.errors import BrokerError, DecodeError, ErrorCode
from kohort.group.assignors import BUILT_IN
from kohort.group.assignors.base import MemberView
from kohort.group.assignors.protocol import decode_assignment, decode_subscription
from kohort.group.coordinator.handlers.classic_rebalance import CONSUMER_PROTOCOL_TYPE, drop_pending
from kohort.group.coordinator.state import consumer_timers
from kohort.group.coordinator.state.classic_group import JOIN, SYNC, Group, Member
from kohort.group.coordinator.state.classic_records import group_tombstone
from kohort.group.coordinator.state.classic_table import GroupState
from kohort.group.coordinator.state.consumer_group import ConsumerGroup
from kohort.group.coordinator.state.consumer_records import (
    ClassicMetadata,
    Current,
    Epochs,
    MemberMetadata,
    current_record,
    decode_consumer_record,
    epoch_record,
    member_record,
    target_epoch_record,
    target_record,
)
from kohort.group.coordinator.state.consumer_table import MemberState
from kohort.group.coordinator.state.context import Workspace, refuse_parked
from kohort.group.coordinator.state.effects import Effects, GroupRecord
from kohort.group.coordinator.state.topics_image import TopicsImage, metadata_hash
from kohort.wire import record_type

Named = dict[str, tuple[int, ...]]


def upgraded(ws: Workspace, classic: Group, out: Effects) -> ConsumerGroup:
    """The consumer group that is to be; its records, and the classic group's tombstone, are in
    `out`. Raises BrokerError."""
    _check(ws, classic)
    group_id, generation = classic.group_id, ws.generation(classic)
    views, held = _holdings(ws, classic)
    topics = frozenset[str]().union(*(view.topics for view in views.values()))
    members = classic.members
    records: list[GroupRecord] = [
        member_record(group_id, m, _metadata(members[m], views[m])) for m in members
    ]
    records.append(epoch_record(group_id, generation, metadata_hash(ws.topics, topics)))
    currents = _currents(ws.topics, held, generation)
    for member_id in members:
        target = {t: tuple(sorted(n)) for t, n in currents[member_id].assigned.items()}
        records.append(target_record(group_id, member_id, target))
    records.append(target_epoch_record(group_id, generation))
    records += [current_record(group_id, m, currents[m]) for m in members]
    group = ConsumerGroup(group_id)
    for record in records:
        group.apply(decode_consumer_record(record_type(record.key), record))
    out.records.append(group_tombstone(group_id))
    out.records += records
    return group


def retire(ws: Workspace, classic: Group, now_ms: int, out: Effects) -> None:
    """The classic group has become a consumer group: send its members to join again."""
    for member in classic.members.values():
        refuse_parked(classic, member, ErrorCode.REBALANCE_IN_PROGRESS, out)
        ws.timers.cancel(member.timer_key)
        key = (consumer_timers.SESSION, classic.group_id, member.member_id)
        ws.timers.arm(key, now_ms + member.session_timeout_ms)
    forget(ws, classic)


def forget(ws: Workspace, classic: Group) -> None:
    """Drop the state of a classic group that has become a consumer group."""
    for member_id in list(classic.pending_join):
        drop_pending(ws, classic, member_id)
    for kind in (JOIN, SYNC):
        ws.timers.cancel((kind, classic.group_id, ""))
    ws.groups.pop(classic.group_id, None)


def _check(ws: Workspace, classic: Group) -> None:
    why = ""
    if not ws.config.upgrade_enabled:
        why = "group.consumer.migration.policy does not allow it"
    elif classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        why = f"its members speak {classic.protocol_type!r}, which is no consumer's protocol"
    elif len(classic.members) > ws.config.group_consumer_max_size:
        why = f"it has more than group.consumer.max.size={ws.config.group_consumer_max_size}"
    if why:
        raise _refused(classic, why)


def _refused(classic: Group, why: str) -> BrokerError:
    return BrokerError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Classic group {classic.group_id} cannot become a consumer group: {why}.",
    )


def _holdings(
    ws: Workspace, classic: Group
) -> tuple[dict[str, MemberView], dict[str, tuple[Named, Named]]]:
    """Each member's own report, its assignment, and the partitions it claims beyond that."""
    stored = ws.stored(classic)
    views: dict[str, MemberView] = {}
    held: dict[str, tuple[Named, Named]] = {}
    try:
        for member in classic.members.values():
            view = decode_subscription(member.member_id, _subscription(member, stored.protocol))
            kept = stored.members.get(member.member_id)
            assigned, user_data = decode_assignment(kept.assignment if kept else b"")
            if user_data and stored.protocol not in BUILT_IN:
                raise _refused(classic, "its assignor has data of its own in the assignments")
            if classic.state is GroupState.PREPARING and member.parked_join is not None:
                assigned = {}  # it has joined again: its subscription names what it still has
            views[member.member_id] = view
            held[member.member_id] = (dict(assigned), dict(view.owned))
    except DecodeError as error:
        raise _refused(classic, f"what a member wrote cannot be read: {error}") from error
    return views, held


def _subscription(member: Member, protocol: str | None) -> bytes:
    """For the chosen protocol, or the member's first when none has been chosen yet."""
    return member.metadata(protocol) or member.protocols[0][1]


def _metadata(member: Member, view: MemberView) -> MemberMetadata:
    return MemberMetadata(
        instance_id=member.instance_id,
        rack_id=view.rack,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(view.topics)),
        regex="",
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=None,
        classic=ClassicMetadata(member.session_timeout_ms, member.protocols),
    )


def _currents(
    topics: TopicsImage, held: dict[str, tuple[Named, Named]], generation: int
) -> dict[str, Current]:
    """Assignments first; then, of what nobody was assigned, what members still claim."""
    taken: set[tuple[bytes, int]] = set()
    assigned = {m: _take(topics, mine, generation, taken) for m, (mine, _) in held.items()}
    claimed = {m: _take(topics, claims, generation, taken) for m, (_, claims) in held.items()}
    return {
        m: Current(
            generation,
            generation,
            MemberState.UNREVOKED if claimed[m] else MemberState.STABLE,
            assigned[m],
            claimed[m],
        )
        for m in held
    }


def _take(topics: TopicsImage, named: Named, epoch: int, taken: set[tuple[bytes, int]]) -> Epochs:
    """These partitions by topic id, without those that are gone or taken already."""
    epochs: dict[bytes, dict[int, int]] = {}
    for name, numbers in named.items():
        topic = topics.by_name.get(name)
        if topic is None:
            continue
        mine = [n for n in numbers if n < topic.partitions and (topic.topic_id, n) not in taken]
        taken.update((topic.topic_id, n) for n in mine)
        if mine:
            epochs[topic.topic_id] = dict.fromkeys(mine, epoch)
    return epochs
