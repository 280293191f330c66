"""OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete (spec 2.7, 4.5; KIP-211, 447, 709).

Rules:
- A commit is acknowledged only together with its record (spec 2.12, O7).
- A commit of a member needs its present generation; without one only a group without members takes
  commits. Too long metadata refuses its own partition alone.
- Everything is decided and recorded in one step: between the check of a transactional commit and
  its record nothing can happen (KAFKA-15784).
- The broker has checked topics and rights and filled in names for topic ids; ids are copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from kohort.errors import ErrorCode
from kohort.group.coordinator.handlers import consumer_offsets
from kohort.group.coordinator.handlers.classic_rebalance import CONSUMER_PROTOCOL_TYPE
from kohort.group.coordinator.handlers.error_responses import committed
from kohort.group.coordinator.state.classic_group import Group
from kohort.group.coordinator.state.classic_records import (
    NO_EXPIRY,
    StoredOffset,
    TopicPartition,
    offset_record,
    offset_tombstone,
)
from kohort.group.coordinator.state.classic_table import GroupState, RequestKind, Step, answer
from kohort.group.coordinator.state.context import MAX_ID_BYTES, Workspace
from kohort.group.coordinator.state.effects import (
    Effects,
    GroupRecord,
    Producer,
    Reply,
    RequestContext,
)
from kohort.lean import quick
from kohort.wire.messages.offset_commit_request import OffsetCommitRequest
from kohort.wire.messages.offset_delete_request import OffsetDeleteRequest
from kohort.wire.messages.offset_delete_response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kohort.wire.messages.offset_fetch_request import OffsetFetchRequest
from kohort.wire.messages.offset_fetch_response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kohort.wire.messages.txn_offset_commit_request import TxnOffsetCommitRequest
from kohort.wire.messages.txn_offset_commit_response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

GROUP_ID_NOT_FOUND_FROM = 9
BATCH_FETCH_FROM = 8
_COMMIT_ROWS = (RequestKind.COMMIT_SIMPLE, RequestKind.COMMIT_MEMBER)
_TXN_COMMIT_ROWS = (RequestKind.TXN_COMMIT_SIMPLE, RequestKind.TXN_COMMIT_MEMBER)
INT64_MAX = 2**63 - 1
NO_OFFSET = StoredOffset(-1, -1, "", -1)
E = TypeVar("E", OffsetFetchResponsePartition, OffsetFetchResponsePartitions)


Offset = tuple[str, int, int, int, str | None]
"""What a commit says of one partition: topic, partition, offset, leader epoch, metadata."""


class Committing(Protocol):
    """What an OffsetCommit says."""

    @property
    def group_id(self) -> str: ...
    @property
    def member_id(self) -> str: ...
    @property
    def instance_id(self) -> str | None: ...
    @property
    def epoch(self) -> int:
        """The generation, or the member's epoch."""
        ...

    @property
    def api_version(self) -> int: ...
    @property
    def offsets(self) -> Sequence[Offset]: ...


class Commit(NamedTuple):
    """The same as data."""

    group_id: str
    member_id: str
    instance_id: str | None
    epoch: int
    api_version: int
    offsets: Sequence[Offset]


def commit(
    ws: Workspace, request: OffsetCommitRequest, context: RequestContext, now_ms: int, out: Effects
) -> None:
    """Store offsets, or refuse all of them with one error."""
    commit_request = Commit(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        context.api_version,
        [
            (
                t.name,
                p.partition_index,
                p.committed_offset,
                p.committed_leader_epoch,
                p.committed_metadata,
            )
            for t in request.topics
            for p in t.partitions
        ],
    )
    codes = store(ws, commit_request, now_ms, out.records, request.retention_time_ms)
    out.replies.append(quick(Reply, (context.token, committed(request, codes))))


def store(
    ws: Workspace,
    commit: Committing,
    now_ms: int,
    records: list[GroupRecord],
    retention_ms: int = -1,
) -> list[int]:
    """Record what a commit has, unless it is refused; the code of each offset, in their order."""
    group_id, member_id, generation = commit.group_id, commit.member_id, commit.epoch
    group, consumer = ws.groups.get(group_id), ws.durable.consumer_groups.get(group_id)
    member = None if group is None else group.members.get(member_id)
    if consumer is not None:
        code = consumer_offsets.fault_of_commit(
            ws,
            consumer,
            generation,
            member_id,
            commit.instance_id,
            ((topic, partition) for topic, partition, *_ in commit.offsets),
            api_version=commit.api_version,
        )
    elif (
        member is not None
        and group is not None
        and group.state is GroupState.STABLE
        and commit.instance_id is None
        and generation == ws.generation(group)
    ):
        code = ErrorCode.NONE  # the usual commit; `_fault_of_commit` would say the same
    else:
        code = _fault_of_commit(
            ws,
            group,
            generation,
            member_id,
            commit.instance_id,
            rows=_COMMIT_ROWS,
            not_found=commit.api_version >= GROUP_ID_NOT_FOUND_FROM,
        )
    if group is None and not code and not _has_group(ws, group_id):
        code = ErrorCode.POLICY_VIOLATION
    if code:
        return [int(code)] * len(commit.offsets)
    wall_ms, max_metadata = now_ms + ws.wall_offset_ms, ws.config.offset_metadata_max_bytes
    expire_ms = min(wall_ms + retention_ms, INT64_MAX) if retention_ms >= 0 else NO_EXPIRY
    codes: list[int] = []
    for offset in commit.offsets:  # mostly one: a comprehension would cost a call more
        codes.append(_store(records, group_id, offset, wall_ms, expire_ms, max_metadata))
    if member is not None:
        ws.timers.arm(member.timer_key, now_ms + member.session_timeout_ms)
    return codes


def txn_commit(
    ws: Workspace,
    request: TxnOffsetCommitRequest,
    context: RequestContext,
    now_ms: int,
    out: Effects,
) -> None:
    """Stage a transaction's offsets until its marker."""
    group = ws.groups.get(request.group_id)
    consumer = ws.durable.consumer_groups.get(request.group_id)
    if not request.group_id:
        code = ErrorCode.INVALID_GROUP_ID
    elif consumer is not None:
        code = consumer_offsets.fault_of_txn_commit(
            ws,
            consumer,
            request.generation_id,
            request.member_id,
            request.group_instance_id,
            ((t.name, p.partition_index) for t in request.topics for p in t.partitions),
        )
    else:
        code = _fault_of_commit(
            ws,
            group,
            request.generation_id,
            request.member_id,
            request.group_instance_id,
            rows=_TXN_COMMIT_ROWS,
            not_found=False,
        )
    if not code and group is None and not _has_group(ws, request.group_id):
        code = ErrorCode.POLICY_VIOLATION
    wall_ms, refused = ws.wall_ms(now_ms), int(code)
    max_metadata = ws.config.offset_metadata_max_bytes
    response = TxnOffsetCommitResponse()
    for topic in request.topics:
        partitions = [
            TxnOffsetCommitResponsePartition(
                partition_index=p.partition_index,
                error_code=refused
                or _store(
                    out.records,
                    request.group_id,
                    (
                        topic.name,
                        p.partition_index,
                        p.committed_offset,
                        p.committed_leader_epoch,
                        p.committed_metadata,
                    ),
                    wall_ms,
                    NO_EXPIRY,
                    max_metadata,
                ),
            )
            for p in topic.partitions
        ]
        response.topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions))
    if out.records:
        out.producer = Producer(request.producer_id, request.producer_epoch)
    out.replies.append(Reply(context.token, response))


def _fault_of_commit(
    ws: Workspace,
    group: Group | None,
    generation: int,
    member_id: str,
    instance_id: str | None,
    *,
    rows: tuple[RequestKind, RequestKind],
    not_found: bool,
) -> ErrorCode:
    """NONE when the commit may be stored.

    Without a generation it comes from a simple consumer or an administrator, whatever ids it
    carries while the group has no members (KAFKA-14201).
    """
    simple, of_member = rows
    state = group.state if group else None
    is_anonymous = generation < 0 and not member_id and instance_id is None
    is_simple = is_anonymous or (generation < 0 and state in (None, GroupState.EMPTY))
    step = answer(simple if is_simple else of_member, state)
    if group is not None and group.state is not GroupState.DEAD and not is_simple:
        fault = group.fault_of(member_id, instance_id)
        if fault:
            return fault
        if generation != ws.generation(group):
            return ErrorCode.ILLEGAL_GENERATION
    if step is Step.ILLEGAL_GENERATION_OR_GROUP_ID_NOT_FOUND:
        return ErrorCode.GROUP_ID_NOT_FOUND if not_found else ErrorCode.ILLEGAL_GENERATION
    return step if isinstance(step, ErrorCode) else ErrorCode.NONE


def _has_group(ws: Workspace, group_id: str) -> bool:
    """A commit may bring a group without members into being, if the shard has room for it."""
    if group_id in ws.durable.consumer_groups:
        return True
    return len(group_id.encode()) <= MAX_ID_BYTES and ws.create_group(group_id) is not None


def _store(
    records: list[GroupRecord],
    group_id: str,
    commit_request: Offset,
    wall_ms: int,
    expire_ms: int,
    max_metadata: int,
) -> int:
    """Record one partition's offset; its error code."""
    topic, partition, offset, leader_epoch, metadata = commit_request
    if metadata is None:
        metadata = ""
    elif len(metadata) > max_metadata:
        return int(ErrorCode.OFFSET_METADATA_TOO_LARGE)
    value: StoredOffset = quick(
        StoredOffset, (offset, leader_epoch, metadata, wall_ms, expire_ms, -1)
    )
    records.append(offset_record(group_id, (topic, partition), value))
    return 0


# OffsetFetch


class _Found:
    """What is known of one partition's committed offset, ready for either form of the answer."""

    __slots__ = ("code", "leader_epoch", "metadata", "offset")

    def __init__(self, stored: StoredOffset | None, unstable: bool) -> None:
        known = NO_OFFSET if stored is None or unstable else stored
        self.offset, self.leader_epoch, self.metadata = known[:3]
        self.code = int(ErrorCode.UNSTABLE_OFFSET_COMMIT if unstable else ErrorCode.NONE)


def fetch(
    ws: Workspace, request: OffsetFetchRequest, context: RequestContext, now_ms: int, out: Effects
) -> None:
    """Answer with committed offsets: of one group up to v7, of several since v8."""
    del now_ms  # reading does not depend on the time
    response = OffsetFetchResponse()
    stable = request.require_stable
    if context.api_version >= BATCH_FETCH_FROM:
        for group_request in request.groups:
            group_response = OffsetFetchResponseGroup(group_id=group_request.group_id)
            consumer = ws.durable.consumer_groups.get(group_request.group_id)
            if consumer is not None:
                code = consumer_offsets.fault_of_fetch(
                    consumer, group_request.member_epoch, group_request.member_id
                )
                group_response.error_code = int(code)
            if group_response.error_code:
                pass  # the error covers all its topics
            elif group_request.topics is None:
                for name, partitions in _all_partitions(ws, group_request.group_id):
                    entries = _entries(
                        OffsetFetchResponsePartitions,
                        ws,
                        group_request.group_id,
                        name,
                        partitions,
                        stable,
                    )
                    group_response.topics.append(
                        OffsetFetchResponseTopics(name=name, partitions=entries)
                    )
            else:
                for topic in group_request.topics:
                    entries = _entries(
                        OffsetFetchResponsePartitions,
                        ws,
                        group_request.group_id,
                        topic.name,
                        topic.partition_indexes,
                        stable,
                    )
                    group_response.topics.append(
                        OffsetFetchResponseTopics(
                            name=topic.name, topic_id=topic.topic_id, partitions=entries
                        )
                    )
            response.groups.append(group_response)
    else:
        requested: Iterable[tuple[str, Sequence[int]]]
        if request.topics is None:
            requested = _all_partitions(ws, request.group_id)
        else:
            requested = [(t.name, t.partition_indexes) for t in request.topics]
        for name, partitions in requested:
            single = _entries(
                OffsetFetchResponsePartition, ws, request.group_id, name, partitions, stable
            )
            response.topics.append(OffsetFetchResponseTopic(name=name, partitions=single))
    out.replies.append(Reply(context.token, response))


def _all_partitions(ws: Workspace, group_id: str) -> list[tuple[str, list[int]]]:
    """Every topic that the group has committed to, with its partitions."""
    topics: dict[str, list[int]] = {}
    for topic, partition in ws.durable.offsets.get(group_id, {}):
        topics.setdefault(topic, []).append(partition)
    return list(topics.items())


def _find(ws: Workspace, group_id: str, topic: str, partition: int, require_stable: bool) -> _Found:
    where = (topic, partition)
    unstable = require_stable and ws.durable.is_pending(group_id, where)
    return _Found(ws.durable.offsets.get(group_id, {}).get(where), unstable)


def _entries(
    kind: type[E],
    ws: Workspace,
    group_id: str,
    topic: str,
    partitions: Sequence[int],
    require_stable: bool,
) -> list[E]:
    entries: list[E] = []
    for partition in partitions:
        entry = _find(ws, group_id, topic, partition, require_stable)
        entries.append(
            kind(
                partition_index=partition,
                committed_offset=entry.offset,
                committed_leader_epoch=entry.leader_epoch,
                metadata=entry.metadata,
                error_code=entry.code,
            )
        )
    return entries


# OffsetDelete


def delete_offsets(
    ws: Workspace, request: OffsetDeleteRequest, context: RequestContext, now_ms: int, out: Effects
) -> None:
    """Remove committed offsets of topics that the group does not subscribe to (KIP-496)."""
    del now_ms
    response = OffsetDeleteResponse()
    out.replies.append(Reply(context.token, response))
    group = ws.groups.get(request.group_id)
    if not request.group_id:
        response.error_code = int(ErrorCode.INVALID_GROUP_ID)
        return
    subscribed: frozenset[str] = frozenset()
    consumer = ws.durable.consumer_groups.get(request.group_id)
    if consumer is not None:
        step, subscribed = Step.DELETE, consumer.subscribed_topics()
    else:
        step = answer(RequestKind.OFFSET_DELETE, group.state if group else None)
    if isinstance(step, ErrorCode):
        response.error_code = int(step)
        return
    if step is Step.DELETE_UNSUBSCRIBED:
        assert group is not None
        if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            response.error_code = int(ErrorCode.NON_EMPTY_GROUP)
            return
        subscribed = group.subscribed_topics or frozenset()
    for topic in request.topics:
        refused = topic.name in subscribed
        partitions: list[OffsetDeleteResponsePartition] = []
        for p in topic.partitions:
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if refused else ErrorCode.NONE
            partitions.append(
                OffsetDeleteResponsePartition(
                    partition_index=p.partition_index, error_code=int(code)
                )
            )
            if not refused:
                _delete(ws, request.group_id, (topic.name, p.partition_index), out)
        response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))


def _delete(ws: Workspace, group_id: str, partition: TopicPartition, out: Effects) -> None:
    stored = ws.durable.offsets.get(group_id, {})
    if partition in stored or ws.durable.is_pending(group_id, partition):
        out.records.append(offset_tombstone(group_id, partition))
