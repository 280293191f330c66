"""Group requests on the fast path: the same bytes as on the slow path, and as durable."""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from kohort.acl import ANYBODY, WILDCARD, Acl, Operation, Pattern, Permission, Resource
from kohort.broker.coordinator.group_coordinator import Groups
from kohort.broker.coordinator.shard_host import build_batch
from kohort.broker.fast_path import fast_path as lane_module
from kohort.broker.log.files import MemoryFiles
from kohort.broker.node.node import Node
from kohort.errors import ErrorCode
from kohort.group.assignors.protocol import encode_subscription
from kohort.group.coordinator.state.effects import GroupRecord
from kohort.records import stamp
from kohort.wire import Message, decode_response
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from kohort.wire.messages.join_group_response import JoinGroupResponse
from kohort.wire.messages.leave_group_request import LeaveGroupRequest
from kohort.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kohort.wire.messages.offset_commit_response import OffsetCommitResponse
from kohort.wire.messages.offset_fetch_request import OffsetFetchRequest
from kohort.wire.messages.sync_group_request import SyncGroupRequest
from tests.broker.fast_path.test_fast_path import Served, frame_of, state
from tests.broker.harness import WALL_MS, Harness
from tests.wire.test_fuzz import mutated

pytestmark = pytest.mark.skipif(lane_module.FAST_PATH != "cython", reason="there is no fast path")

CONFIG: dict[str, Any] = {
    "group_min_session_timeout_ms": 10,
    "group_initial_rebalance_delay_ms": 0,
    "group_consumer_min_session_timeout_ms": 10,
    "offset_metadata_max_bytes": 20,
    "offsets_topic_num_partitions": 2,
}
SUBSCRIPTION = encode_subscription(["t"], None, {}, -1, None)
TOPIC_IDS_FROM = 10
ANSWERS: dict[type[Message], type[Message]] = {
    JoinGroupRequest: JoinGroupResponse,
    HeartbeatRequest: HeartbeatResponse,
    ConsumerGroupHeartbeatRequest: ConsumerGroupHeartbeatResponse,
    OffsetCommitRequest: OffsetCommitResponse,
}
SEEN = {
    ErrorCode.NONE,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
}


REFUSED = {ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def served(
    connections: int, durability: str = "fsync", *, on_fast_path: bool = True, acls: bool = False
) -> Served:
    """`acls`: with rights for all but one of the groups and one of the topics."""
    rights: dict[str, Any] = {"acls": True, "allow_everyone_if_no_acl_found": True} if acls else {}
    harness = Harness(MemoryFiles(), durability=durability, **CONFIG, **rights)
    for name in ("t", "u"):
        harness.state.topics.create(name, 2, {})
    for resource, name in ((Resource.GROUP, "b"), (Resource.TOPIC, "u")) if acls else ():
        denied = Acl(
            resource, name, Pattern.LITERAL, ANYBODY, WILDCARD, Operation.READ, Permission.DENY
        )
        harness.state.acls.change(add=[denied])
    return Served(harness, connections, on_fast_path=on_fast_path)


@dataclass
class Known:
    """What the client has heard of a group."""

    members: dict[str, int] = field(default_factory=dict[str, int])
    """Generations or epochs by member."""


class Client:
    """Random requests of groups, many of them as they should not be."""

    def __init__(self, seed: int, ids: list[bytes]) -> None:
        self.pick = random.Random(seed)
        self.ids = ids
        self.sent: dict[int, tuple[type[Message], int, str]] = {}
        self.groups = {name: Known() for name in ("a", "b", "s", "k", "l")}
        self.codes: set[int] = set()

    def frame(self) -> bytes:
        pick = self.pick
        make = pick.choice(
            [
                self.beat,
                self.beat,
                self.beat_of_two,
                self.beat_of_two,
                self.commit,
                self.commit,
                self.commit,
                self.other,
            ]
        )
        group = pick.choice([*self.groups, *self.groups, "absent", "", "ä"])
        message, version = make(group)
        number = len(self.sent)
        self.sent[number] = (ANSWERS.get(type(message), Message), version, group)
        frame = frame_of(message, version, number)
        return mutated(frame, pick) if pick.random() < 0.02 else frame

    def member(self, group: str) -> tuple[str, int]:
        """A member and its epoch, mostly one that there is."""
        known = self.groups.get(group)
        if known is None or not known.members or self.pick.random() < 0.1:
            return self.pick.choice((("nobody", 1), ("", -1), ("", 0)))
        member_id = self.pick.choice(list(known.members))
        epoch = known.members[member_id]
        return member_id, epoch + self.pick.choice((0, 0, 0, 0, 0, 0, 0, -1, 1))

    def instance(self) -> str | None:
        return self.pick.choice((None, None, None, None, "i", "j"))

    def beat(self, group: str) -> tuple[Message, int]:
        member_id, epoch = self.member(group)
        version = self.pick.choice((0, 2, 3, 4, 4, 4))
        request = HeartbeatRequest(group_id=group, generation_id=epoch, member_id=member_id)
        if version >= 3:
            request.group_instance_id = self.instance()
        return request, version

    def beat_of_two(self, group: str) -> tuple[Message, int]:
        """Of KIP-848."""
        member_id, epoch = self.member(group)
        request = ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=member_id, member_epoch=epoch
        )
        if self.pick.random() < 0.3:
            request.member_id = self.pick.choice(("x", "y", "z"))
            request.member_epoch = self.pick.choice((0, 0, 0, -1, -2))
            request.rebalance_timeout_ms = 5_000
            request.subscribed_topic_names = self.pick.choice((["t"], ["t", "u"]))
            request.topic_partitions = []
            request.instance_id = self.instance()
        if self.pick.random() < 0.05:
            request.rack_id = "r"
        return request, self.pick.choice((0, 1, 1))

    def commit(self, group: str) -> tuple[Message, int]:
        pick = self.pick
        member_id, epoch = self.member(group)
        version = pick.choice((2, 5, 6, 7, 8, 8, 9, 9, 9, 10, 10))
        topics: list[OffsetCommitRequestTopic] = []
        for _ in range(pick.choice((1, 1, 1, 2, 0))):
            topic = OffsetCommitRequestTopic(name=pick.choice(("t", "t", "u", "u", "absent")))
            if version >= TOPIC_IDS_FROM:
                topic.name = ""
                topic.topic_id = pick.choice([*self.ids * 3, bytes(range(16))])
            topic.partitions = [
                OffsetCommitRequestPartition(
                    partition_index=pick.choice((0, 0, 0, 1, 1, 2, -1)),
                    committed_offset=pick.randrange(1 << 40),
                    committed_leader_epoch=pick.choice((-1, 3)) if version >= 6 else -1,
                    committed_metadata=pick.choice((None, "", "", "note", "ä", "x" * 21)),
                )
                for _ in range(pick.choice((1, 1, 1, 2, 3, 0)))
            ]
            topics.append(topic)
        request = OffsetCommitRequest(
            group_id=group, member_id=member_id, generation_id_or_member_epoch=epoch, topics=topics
        )
        if version >= 7 and pick.random() < 0.2:
            request.group_instance_id = self.instance()
        if version < 5:
            request.retention_time_ms = pick.choice((-1, 60_000))
        return request, version

    def other(self, group: str) -> tuple[Message, int]:
        """What makes groups, and has them rebalance or end."""
        member_id, epoch = self.member(group)
        kind = self.pick.randrange(5)
        if kind < 2:
            protocol = JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)
            join = JoinGroupRequest(
                group_id=group,
                session_timeout_ms=8_000,
                rebalance_timeout_ms=3_000,
                protocol_type="consumer",
                protocols=[protocol],
                member_id=self.pick.choice((member_id, "")),
            )
            if self.pick.random() < 0.3:
                join.group_instance_id = "i"
            return join, 5 if join.group_instance_id else 3
        if kind == 2:
            return SyncGroupRequest(group_id=group, member_id=member_id, generation_id=epoch), 3
        if kind == 3:
            return LeaveGroupRequest(group_id=group, member_id=member_id), 1
        return OffsetFetchRequest(group_id=group, topics=None, require_stable=False), 7

    def hear(self, answer: bytes) -> None:
        number = int.from_bytes(answer[4:8], "big", signed=True)
        kind, version, group = self.sent.get(number, (Message, 0, ""))
        if kind is Message:
            return
        response: Any = decode_response(kind, version, answer[4:])[1]
        if kind is OffsetCommitResponse:
            self.codes |= {p.error_code for t in response.topics for p in t.partitions}
            return
        self.codes.add(response.error_code)
        known = self.groups.get(group)
        if response.error_code or known is None or kind is HeartbeatResponse:
            return
        epoch = getattr(response, "generation_id", getattr(response, "member_epoch", 0))
        known.members[response.member_id] = epoch
        if len(known.members) > 3:
            del known.members[next(iter(known.members))]


@pytest.mark.rows(2)
@pytest.mark.parametrize("seed", range(8))
def test_the_lane_and_the_general_way_do_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers, errors too, logs, and which connections are read or closed; with rights, too."""
    taken: list[bool] = []
    try_fast = Groups.try_fast

    def counted(self: Groups, asked: Any) -> bool:
        taken.append(try_fast(self, asked))
        return taken[-1]

    monkeypatch.setattr(Groups, "try_fast", counted)
    durability = ("fsync", "memory")[seed % 2]
    acls = seed % 4 > 1
    quick = served(5, durability, acls=acls)
    plain = served(5, durability, acls=acls, on_fast_path=False)
    client = Client(seed, [topic.topic_id for topic in quick.harness.state.topics])
    for _ in range(150):
        frames = [(client.pick.randrange(5), client.frame()) for _ in range(12)]
        hold, ms = client.pick.random() < 0.3, client.pick.choice((0, 0, 5, 900, 4_000))
        for one in (quick, plain):
            one.harness.env.hold_flushes = hold
            for at, frame in frames:
                if one.lines[at].reading and not one.lines[at].is_closed:
                    one.peers[at].frame_received(one.lines[at], memoryview(frame))
            one.harness.env.settle()
            one.harness.env.hold_flushes = False
            one.harness.env.run_flushes()
            one.harness.env.settle()
            one.harness.env.advance(ms)
        for ours, theirs in zip(quick.lines, plain.lines, strict=True):
            assert ours.sent == theirs.sent
            assert (ours.is_closed, ours.reading) == (theirs.is_closed, theirs.reading)
            for answer in ours.sent:
                client.hear(answer)
            ours.sent.clear()
            theirs.sent.clear()
        if any(line.is_closed for line in quick.lines):
            quick, plain = Served(quick.harness, 5), Served(plain.harness, 5, on_fast_path=False)
    assert taken.count(True) > 100
    assert client.codes >= (REFUSED if acls else SEEN)
    for one in (quick, plain):
        one.harness.state.close()
    assert state(quick) == state(plain), "logs"


def joined(one: Served) -> tuple[str, int]:
    """A classic group "g" of one stable member."""
    protocol = JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)
    join = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=3_000,
        protocol_type="consumer",
        protocols=[protocol],
    )
    one.turn([(0, frame_of(join, 3))])
    one.harness.env.advance(10)
    response = decode_response(JoinGroupResponse, 3, one.lines[0].sent[-1][4:])[1]
    who = response.member_id, response.generation_id
    sync = SyncGroupRequest(group_id="g", member_id=who[0], generation_id=who[1])
    one.turn([(0, frame_of(sync, 3))])
    one.lines[0].sent.clear()
    return who


def commit_of(who: tuple[str, int], offset: int = 7, topic: str = "t") -> OffsetCommitRequest:
    part = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    return OffsetCommitRequest(
        group_id="g",
        member_id=who[0],
        generation_id_or_member_epoch=who[1],
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[part])],
    )


def codes(one: Served, at: int) -> list[int]:
    return [
        decode_response(OffsetCommitResponse, 8, sent[4:])[1].topics[0].partitions[0].error_code
        for sent in one.lines[at].sent
    ]


def test_usual_requests_are_served_without_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    one = served(2)
    who = joined(one)

    def never(*args: Any) -> None:
        raise AssertionError("the general way")

    monkeypatch.setattr(Node, "serve", never)
    beat = HeartbeatRequest(group_id="g", member_id=who[0], generation_id=who[1])
    for version in range(5):
        one.turn([(0, frame_of(beat, version))])
    assert len(one.lines[0].sent) == 5
    for version in range(6, 10):
        one.turn([(1, frame_of(commit_of(who), version))])
    assert len(one.lines[1].sent) == 4


def test_commits_of_a_turn_share_a_write_and_wait_for_its_flush() -> None:
    """G9, L1: nobody is answered before what the answer rests upon is durable; nor are heartbeats
    behind it."""
    one = served(4)
    who, env = joined(one), one.harness.env
    env.hold_flushes = True
    beat = HeartbeatRequest(group_id="g", member_id=who[0], generation_id=who[1])
    commits = [(at, frame_of(commit_of(who, at), 8)) for at in range(3)]
    one.turn([*commits, (3, frame_of(beat, 4)), (0, frame_of(beat, 4))])
    assert [line.sent for line in one.lines] == [[], [], [], []]
    assert len(env.flushes) == 1
    env.run_flushes()
    assert [len(line.sent) for line in one.lines] == [2, 1, 1, 1]


def test_commits_that_come_during_a_flush_share_the_next_one() -> None:
    """They could not be durable sooner; each has its answer when they are."""
    one = served(3)
    who, env = joined(one), one.harness.env
    log = one.harness.node.groups.partition_of("g").log
    assert log is not None
    env.hold_flushes = True
    for turn in range(5):
        one.turn([(at, frame_of(commit_of(who, at), 8)) for at in range(3)])
        assert len(env.flushes) == 1, turn
    began = log.high.offset
    env.run_flushes()
    assert [len(line.sent) for line in one.lines] == [1, 1, 1]
    assert len(env.flushes) == 1
    env.run_flushes()
    assert [len(line.sent) for line in one.lines] == [5, 5, 5]
    assert [h.last_offset_delta + 1 for h, _ in log.batches(began)][-2:] == [3, 12]
    assert not env.flushes


def test_a_turns_records_are_the_batch_that_the_builder_makes() -> None:
    """Byte for byte, tombstones too."""
    for records in (
        [GroupRecord(b"k", b"v")],
        [GroupRecord(b"", None), GroupRecord(b"x" * 200, b"y" * 70), GroupRecord(b"z", b"")],
        [GroupRecord(b"%d" % i * (i % 90), b"v" * i) for i in range(300)],
    ):
        run = lane_module.Gathered(records, WALL_MS)
        built = build_batch(records, None, WALL_MS)
        stamp(built, 0, 77, 3)
        assert b"".join(run.stamped(77, 5, 3)) == bytes(built)
        assert run.marks == [(76 + len(records), 5, len(built), WALL_MS)]


def test_a_commit_whose_flush_fails_is_refused_as_the_general_way_does() -> None:
    """L9, G9: a heartbeat tells nothing that a crash could take back."""
    answers: list[list[Any]] = []
    for on_fast_path in (True, False):
        one = served(2, on_fast_path=on_fast_path)
        who, env = joined(one), one.harness.env
        env.hold_flushes, env.flush_error = True, OSError(errno.EIO, "no")
        large = commit_of(who)
        large.topics[0].partitions[0].committed_metadata = "x" * 30
        beat = HeartbeatRequest(group_id="g", member_id=who[0], generation_id=who[1])
        one.turn(
            [
                (0, frame_of(commit_of(who), 8)),
                (0, frame_of(large, 8)),
                (1, frame_of(beat, 4)),
            ]
        )
        env.run_flushes()
        assert codes(one, 0) == [
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ]
        response = decode_response(HeartbeatResponse, 4, one.lines[1].sent[0][4:])[1]
        assert response.error_code == ErrorCode.NONE
        answers.append([line.sent for line in one.lines])
    assert answers[0] == answers[1]


def test_answers_keep_the_order_of_the_requests() -> None:
    """A heartbeat behind a commit of another group, which waits for its flush, waits too."""
    one = served(1)
    who, env = joined(one), one.harness.env
    other = "h"  # another partition of __consumer_offsets, so nothing of its own holds it back
    assert one.harness.node.groups.partition_of("g") is not (
        one.harness.node.groups.partition_of(other)
    )
    one.turn([(0, frame_of(HeartbeatRequest(group_id=other, member_id="m"), 4, 5))])
    one.lines[0].sent.clear()
    env.hold_flushes = True
    beat = HeartbeatRequest(group_id=other, member_id="m", generation_id=1)
    one.turn([(0, frame_of(commit_of(who), 8, 6)), (0, frame_of(beat, 4, 7))])
    assert one.lines[0].sent == []
    env.run_flushes()
    assert [sent[4:8] for sent in one.lines[0].sent] == [b"\0\0\0\6", b"\0\0\0\7"]


def test_a_client_that_does_not_read_its_answers_is_not_read_on() -> None:
    one = served(1)
    who = joined(one)
    beat = frame_of(HeartbeatRequest(group_id="g", member_id=who[0], generation_id=who[1]), 4)
    one.lines[0].queued_bytes = one.harness.config.connection_max_unsent_bytes + 1
    one.turn([(0, beat)])
    assert not one.lines[0].reading
    one.lines[0].queued_bytes = 0
    one.peers[0].drained(one.lines[0])
    assert one.lines[0].reading
