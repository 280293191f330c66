"""Whose offsets a consumer group takes and shows (KIP-848, KIP-1251).

Rules:
- Without a member only an empty group takes offsets: from an administrator, or from a consumer that
  assigns itself. A producer that names no member at all may always stage them (KIP-447).
- A member commits in its present epoch; in an older one, too, as long as it has had all of the
  partitions since then: a commit and a heartbeat may cross each other on the way (B11).
- Errors use the codes of the member's protocol: STALE_MEMBER_EPOCH, or
  ILLEGAL_GENERATION to members that speak the classic one, and to transactions.
"""

from __future__ import annotations

from collections.abc import Iterable

from kohort.errors import ErrorCode
from kohort.group.coordinator.state.classic_records import TopicPartition
from kohort.group.coordinator.state.consumer_group import ConsumerGroup
from kohort.group.coordinator.state.consumer_records import Current
from kohort.group.coordinator.state.context import Workspace

CONSUMER_COMMIT_FROM = 9
"""OffsetCommit knows member epochs from this version on."""


def fault_of_commit(
    ws: Workspace,
    group: ConsumerGroup,
    epoch: int,
    member_id: str,
    instance_id: str | None,
    partitions: Iterable[TopicPartition],
    *,
    api_version: int,
) -> ErrorCode:
    """What is wrong with an OffsetCommit; NONE when it may be stored."""
    if epoch < 0 and not group.members:
        return ErrorCode.NONE
    member = group.members.get(member_id)
    if member is None:
        return _unknown(group, member_id, instance_id)
    if member.classic is None and api_version < CONSUMER_COMMIT_FROM:
        return ErrorCode.UNSUPPORTED_VERSION
    if may_commit(ws, group.current(member_id), epoch, partitions):
        return ErrorCode.NONE
    return _stale(group, member_id)


def fault_of_txn_commit(
    ws: Workspace,
    group: ConsumerGroup,
    epoch: int,
    member_id: str,
    instance_id: str | None,
    partitions: Iterable[TopicPartition],
) -> ErrorCode:
    """What is wrong with a TxnOffsetCommit; NONE when it may be staged."""
    if epoch < 0 and ((not member_id and instance_id is None) or not group.members):
        return ErrorCode.NONE
    if member_id not in group.members:
        return _unknown(group, member_id, instance_id)
    if may_commit(ws, group.current(member_id), epoch, partitions):
        return ErrorCode.NONE
    return ErrorCode.ILLEGAL_GENERATION


def may_commit(
    ws: Workspace, current: Current, epoch: int, partitions: Iterable[TopicPartition]
) -> bool:
    """assignment epoch of every partition <= `epoch` <= the member's epoch (G6, KIP-1251)."""
    if epoch == current.epoch:
        return True
    if not 0 <= epoch < current.epoch:
        return False
    for name, number in partitions:
        topic = ws.topics.by_name.get(name)
        if topic is None:
            return False
        held = current.assigned.get(topic.topic_id, {})
        since = held.get(number, current.pending.get(topic.topic_id, {}).get(number))
        if since is None or epoch < since:
            return False
    return True


def fault_of_fetch(group: ConsumerGroup, epoch: int, member_id: str | None) -> ErrorCode:
    """What is wrong with an OffsetFetch (it names the member since v9); NONE: it is answered."""
    if member_id is None and epoch < 0:
        return ErrorCode.NONE
    if member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if epoch != group.current(member_id).epoch:
        return _stale(group, member_id)
    return ErrorCode.NONE


def _unknown(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    """A static member that was replaced is fenced, so that it ends instead of joining again (G8).

    Apache Kafka says UNKNOWN_MEMBER_ID, and two twins then replace each other for ever.
    """
    holder = None if instance_id is None else group.static_members.get(instance_id)
    if holder is not None and holder != member_id:
        return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.UNKNOWN_MEMBER_ID


def _stale(group: ConsumerGroup, member_id: str) -> ErrorCode:
    if group.members[member_id].classic is not None:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.STALE_MEMBER_EPOCH
