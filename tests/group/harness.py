"""A shard with its log and a virtual clock, as a shell would run it, and what a test wants to ask.

After every event the harness checks G9: live durable state == replay(log) == replay(compacted log).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import count
from typing import Any, NamedTuple

from kohort.errors import ErrorCode
from kohort.group.coordinator.shard import GroupShard
from kohort.group.coordinator.state.classic_group import Group
from kohort.group.coordinator.state.classic_records import (
    GroupEntry,
    OffsetEntry,
    Skipped,
    StoredGroup,
    decode_record,
)
from kohort.group.coordinator.state.classic_table import GroupState
from kohort.group.coordinator.state.config import GroupConfig
from kohort.group.coordinator.state.consumer_records import ConsumerEntry
from kohort.group.coordinator.state.durable_state import DurableState
from kohort.group.coordinator.state.effects import Effects, GroupRecord, RequestContext
from kohort.group.explain.timeline import describe
from kohort.wire import Message, decode, encode, encode_versioned
from kohort.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from kohort.wire.messages.join_group_response import JoinGroupResponse
from kohort.wire.messages.leave_group_request import LeaveGroupRequest, MemberIdentity
from kohort.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kohort.wire.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kohort.wire.messages.sync_group_request import SyncGroupRequest, SyncGroupRequestAssignment
from kohort.wire.messages.sync_group_response import SyncGroupResponse
from kohort.wire.messages.txn_offset_commit_request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

GROUP, SESSION_MS, REBALANCE_MS, DELAY_MS = "g", 10_000, 60_000, 3_000
RANGE = (("range", b"r"),)
WALL_MS = 1_700_000_000_000


class Logged(NamedTuple):
    """What stands at one place of the log: a record, or a marker (`record` is None)."""

    offset: int
    record: GroupRecord | None
    producer_id: int = -1
    committed: bool = False


def subscription(*topics: str) -> bytes:
    """Consumer-protocol metadata that subscribes to `topics`."""
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), 1)


def consumer(*topics: str) -> tuple[tuple[str, bytes], ...]:
    """Protocols of a consumer with the range assignor."""
    return (("range", subscription(*topics)),)


class Bench:
    """One `__consumer_offsets` partition: `shard`, `log`, `now_ms`, and `answers` by token."""

    def __init__(self, *, log: Iterable[Logged] = (), now_ms: int = 0, **config: Any) -> None:
        self.config = GroupConfig(**config)
        self.now_ms = now_ms
        self.log: list[Logged] = list(log)
        self.answers: dict[Hashable, Any] = {}
        self.last = Effects()
        self.check = True
        self._tokens, self._ids = count(1), count(1)
        self.shard = self.load()

    # Running

    def new_shard(self) -> GroupShard:
        """An empty shard, loading."""
        return GroupShard(0, self.config, self._new_id, wall_offset_ms=WALL_MS)

    def load(self, log: Iterable[Logged] | None = None) -> GroupShard:
        """A shard out of the log (or another one), loaded."""
        self.shard = self.new_shard()
        replay(self.shard, self.log if log is None else log)
        self.took(self.shard.loaded(self.now_ms))
        return self.shard

    def failover(self) -> Effects:
        """The node dies or moves: everybody parked is told, a new shard loads."""
        gone = self.shard.unload()
        self.answers.update((reply.token, reply.response) for reply in gone.replies)
        self.load()
        return gone

    def _new_id(self) -> str:
        return f"id{next(self._ids)}"

    def took(self, effects: Effects) -> Effects:
        """Append, replay, answer: what a shell does."""
        producer_id = effects.producer.producer_id if effects.producer else -1
        for record in effects.records:
            self.log.append(Logged(self.end, record, producer_id))
            self.shard.replay(record, self.log[-1].offset, producer_id)
        for reply in effects.replies:
            assert reply.token not in self.answers, f"request {reply.token} is answered twice"
            self.answers[reply.token] = reply.response
            self._check_answer(reply.response)
        self.last = effects
        if self.check and effects.records:
            self.check_log()
        return effects

    def _check_answer(self, answer: Message) -> None:
        """Spec 2.6: nobody is told a generation or an assignment that is not in the log."""
        stored = self.shard.durable.groups.values()
        if isinstance(answer, JoinGroupResponse) and not answer.error_code:
            assert any(
                g.generation == answer.generation_id and answer.member_id in g.members
                for g in stored
            )
        if isinstance(answer, SyncGroupResponse) and not answer.error_code:
            assert any(
                m.assignment == answer.assignment for g in stored for m in g.members.values()
            )

    @property
    def end(self) -> int:
        return self.log[-1].offset + 1 if self.log else 0

    def check_log(self) -> None:
        """G9, and that memory agrees with the log about every group."""
        for entries in (self.log, *compactions(self.log)):
            shard = self.new_shard()
            replay(shard, entries)
            assert shard.durable == self.shard.durable
        for group in self.shard.groups.values():
            check_group(group, self.shard.durable)
        for entry in self.shard._ws.history.of(GROUP)[-1:]:
            rebalance = describe(entry)  # any entry can be described
            needed = (rebalance.needed or 0) + (rebalance.not_needed or 0)
            assert rebalance.moved in {None, needed}
        pending = [i for g in self.shard.groups.values() for i in g.pending_join]
        assert self.shard._ws.pending_join_bytes == sum(len(i.encode()) for i in pending)

    def send(self, request: Message, version: int, client: str = "c") -> int:
        """Hand a request to the shard; returns its token."""
        token = next(self._tokens)
        context = RequestContext(token, version, client, "/127.0.0.1")
        wired = decode(type(request), version, encode(request, version))
        self.took(self.shard.handle(wired, context, self.now_ms))
        answer = self.answers.get(token)
        if answer is not None:
            encode(answer, version)  # every answer fits its version
        return token

    def ask(self, request: Message, version: int, client: str = "c") -> Any:
        """Hand a request to the shard that must be answered at once."""
        return self.answers[self.send(request, version, client)]

    def marker(self, producer_id: int, *, committed: bool) -> None:
        """The end of a transaction."""
        self.log.append(Logged(self.end, None, producer_id, committed))
        self.shard.replay_marker(producer_id, committed)
        self.check_log()

    def advance(self, ms: int) -> list[GroupRecord]:
        """Let time pass, firing every timer at its time; returns the records written meanwhile."""
        until, records = self.now_ms + ms, list[GroupRecord]()
        for due in self._due(until):
            self.now_ms = max(self.now_ms, due)
            records += self.took(self.shard.tick(self.now_ms)).records
        self.now_ms = until
        return records

    def _due(self, until: int) -> Iterator[int]:
        while (due := self.shard.next_deadline()) is not None and due <= until:
            yield due

    # Asking

    @property
    def group(self) -> Group:
        return self.shard.groups[GROUP]

    @property
    def state(self) -> GroupState | None:
        group = self.shard.groups.get(GROUP)
        return group.state if group else None

    @property
    def stored(self) -> StoredGroup:
        return self.shard.durable.groups[GROUP]

    def code(self, token: int) -> ErrorCode | None:
        """The error code that a request was answered with; None while it waits."""
        answer = self.answers.get(token)
        return None if answer is None else ErrorCode(answer.error_code)

    # Requests

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: Iterable[tuple[str, bytes]] = RANGE,
        version: int = 9,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        protocol_type: str = "consumer",
        group: str = GROUP,
        client: str = "c",
    ) -> int:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=n, metadata=m) for n, m in protocols],
        )
        return self.send(request, version, client)

    def new_member_id(self, **options: Any) -> str:
        """A member id, as MEMBER_ID_REQUIRED gives it."""
        answer = self.answers[self.join(**options)]
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return answer.member_id

    def sync(
        self,
        member_id: str,
        generation: int | None = None,
        plan: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        version: int = 5,
        protocol_type: str | None = "consumer",
        protocol: str | None = "range",
    ) -> int:
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.stored.generation if generation is None else generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=m, assignment=a)
                for m, a in (plan or {}).items()
            ],
        )
        return self.send(request, version)

    def heartbeat(
        self, member_id: str, generation: int | None = None, instance: str | None = None
    ) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=self.stored.generation if generation is None else generation,
            member_id=member_id,
            group_instance_id=instance,
        )
        return ErrorCode(self.ask(request, 4).error_code)

    def leave(self, *members: str | tuple[str, str]) -> list[ErrorCode]:
        """Members by id, or by (id, instance id)."""
        who = [(m, None) if isinstance(m, str) else m for m in members]
        identities = [MemberIdentity(member_id=m, group_instance_id=i) for m, i in who]
        answer = self.ask(LeaveGroupRequest(group_id=GROUP, members=identities), 5)
        assert answer.error_code == 0
        return [ErrorCode(m.error_code) for m in answer.members]

    def commit(
        self,
        offset: int,
        member_id: str = "",
        generation: int = -1,
        *,
        instance: str | None = None,
        topic: str = "t",
        partition: int = 0,
        group: str = GROUP,
        metadata: str | None = "m",
        version: int = 9,
        retention_ms: int = -1,
    ) -> ErrorCode:
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=7 if version >= 6 else -1,
                            committed_metadata=metadata,
                        )
                    ],
                )
            ],
        )
        return ErrorCode(self.ask(request, version).topics[0].partitions[0].error_code)

    def txn_commit(
        self,
        offset: int,
        producer_id: int,
        member_id: str = "",
        generation: int = -1,
        *,
        topic: str = "t",
        partition: int = 0,
        group: str = GROUP,
        instance: str | None = None,
    ) -> ErrorCode:
        request = TxnOffsetCommitRequest(
            transactional_id=f"txn{producer_id}",
            group_id=group,
            producer_id=producer_id,
            producer_epoch=1,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset
                        )
                    ],
                )
            ],
        )
        return ErrorCode(self.ask(request, 3).topics[0].partitions[0].error_code)

    def fetch(
        self,
        topic: str = "t",
        partition: int = 0,
        *,
        group: str = GROUP,
        require_stable: bool = False,
    ) -> tuple[int, ErrorCode]:
        """One partition's committed offset and error code."""
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id=group,
                    topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])],
                )
            ],
            require_stable=require_stable,
        )
        found = self.ask(request, 8).groups[0].topics[0].partitions[0]
        return found.committed_offset, ErrorCode(found.error_code)

    # Whole groups

    def form(self, members: int = 1, **options: Any) -> list[str]:
        """A group in CompletingRebalance with that many dynamic members, the leader first."""
        ids = [self.new_member_id(**options) for _ in range(members)]
        tokens = [self.join(member_id, **options) for member_id in ids]
        while self.code(tokens[-1]) is None:
            due = self.shard.next_deadline()
            assert due is not None
            self.advance(due - self.now_ms)
        assert self.state is GroupState.COMPLETING
        return ids

    def settle(self, ids: list[str]) -> None:
        """The leader's plan, and everybody's sync: from CompletingRebalance to Stable."""
        leader = self.group.leader
        plan = {m: f"a-{m}".encode() for m in ids}
        kind = self.group.protocol_type
        tokens = [self.sync(m, protocol_type=kind) for m in ids if m != leader]
        tokens.append(self.sync(leader or "", plan=plan, protocol_type=kind))
        assert all(self.code(t) == ErrorCode.NONE for t in tokens)
        assert self.state is GroupState.STABLE

    def stable(self, members: int = 1, **options: Any) -> list[str]:
        """A Stable group with that many dynamic members, the leader first."""
        ids = self.form(members, **options)
        self.settle(ids)
        return ids


def replay(shard: GroupShard, log: Iterable[Logged]) -> None:
    """Feed a log to a shard."""
    for entry in log:
        if entry.record is None:
            shard.replay_marker(entry.producer_id, entry.committed)
        else:
            shard.replay(entry.record, entry.offset, entry.producer_id)


def check_group(group: Group, durable: DurableState) -> None:
    """What memory and log must agree about (spec 2.6), and the group's own bookkeeping."""
    stored = durable.groups.get(group.group_id)
    members = group.members.values()
    assert group.awaiting_join == sum(m.parked_join is not None for m in members)
    assert group.static_members == {
        m.instance_id: m.member_id for m in members if m.instance_id is not None
    }
    assert group.members_bytes == sum(m.stored_bytes() for m in members)
    assert (group.leader is None) == (not group.members)
    assert group.leader is None or group.leader in group.members
    if group.state in (GroupState.COMPLETING, GroupState.STABLE):
        assert stored is not None
        assert stored.members.keys() == group.members.keys()
        assert stored.leader == group.leader
        assert stored.protocol_type == group.protocol_type
        for member in members:
            kept = stored.members[member.member_id]
            assert kept.instance_id == member.instance_id
            assert kept.subscription == member.metadata(stored.protocol)
            assert kept.session_timeout_ms == member.session_timeout_ms
            assert kept.rebalance_timeout_ms == member.rebalance_timeout_ms
    if group.state is GroupState.COMPLETING:
        assert stored is not None
        assert stored.lacks_assignment()
    if group.state is GroupState.EMPTY:
        assert not group.members
        assert stored is None or not stored.members


def compactions(log: list[Logged], seed: int = 0) -> Iterator[list[Logged]]:
    """Logs that Kafka's cleaner may have made of this one.

    It goes no further than the first record of an open transaction, drops what aborted
    transactions wrote, keeps the last record of each key and every marker, and drops tombstones
    when they are old enough: all of them, or some.
    """
    chance = random.Random(seed ^ len(log))
    stable = _last_stable_offset(log)
    aborted = _aborted(log)
    for bound, keep_tombstone in (
        (stable, lambda: True),
        (stable, lambda: False),
        (chance.randint(0, stable), lambda: chance.random() < 0.5),
    ):
        yield _compact(log, bound, aborted, keep_tombstone)


def _compact(
    log: list[Logged], bound: int, aborted: set[int], keep_tombstone: Callable[[], bool]
) -> list[Logged]:
    last: dict[bytes, int] = {}
    for entry in log:
        if entry.record is not None and entry.offset < bound and entry.offset not in aborted:
            last[entry.record.key] = entry.offset
    kept: list[Logged] = []
    for entry in log:
        if entry.record is None or entry.offset >= bound:
            keep = True
        else:
            keep = last.get(entry.record.key) == entry.offset
            keep = keep and (entry.record.value is not None or keep_tombstone())
        if keep:
            kept.append(entry)
    return kept


def _last_stable_offset(log: list[Logged]) -> int:
    open_since: dict[int, int] = {}
    for entry in log:
        if entry.record is None:
            open_since.pop(entry.producer_id, None)
        elif entry.producer_id >= 0:
            open_since.setdefault(entry.producer_id, entry.offset)
    end = log[-1].offset + 1 if log else 0
    return min(open_since.values(), default=end)


def _aborted(log: list[Logged]) -> set[int]:
    staged: dict[int, list[int]] = {}
    aborted: set[int] = set()
    for entry in log:
        if entry.record is None:
            offsets = staged.pop(entry.producer_id, [])
            if not entry.committed:
                aborted.update(offsets)
        elif entry.producer_id >= 0:
            staged.setdefault(entry.producer_id, []).append(entry.offset)
    return aborted


def decoded(effects: Effects) -> list[GroupEntry | OffsetEntry | ConsumerEntry | Skipped]:
    """The records of effects, decoded."""
    return [decode_record(record, -1) for record in effects.records]
