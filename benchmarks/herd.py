"""Many raw members of one group on one epoll: what it takes to be a member, and nothing else.

Each has a connection of its own, one request under way at a time, and a heartbeat in a phase of its
own. Heartbeat frames are made once a generation; answers to them are looked at in place. A member
acts on what it hears at once, as the Java client does: it joins again, or tells that it has given
partitions up, without waiting for its next heartbeat; under KIP-848 it keeps to the interval that
each answer names, counted from that answer. `verify` checks who owns what, off the clock.
"""

from __future__ import annotations

import heapq
import itertools
import random
import select
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from kohort.group.assignors.protocol import (
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from kohort.wire import Message, decode_response, encode_request
from kohort.wire.messages.consumer_group_heartbeat_request import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from kohort.wire.messages.join_group_response import JoinGroupResponse
from kohort.wire.messages.leave_group_request import LeaveGroupRequest, MemberIdentity
from kohort.wire.messages.sync_group_request import SyncGroupRequest, SyncGroupRequestAssignment
from kohort.wire.messages.sync_group_response import SyncGroupResponse

Address = tuple[str, int]
PATIENCE_S = 60.0
REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 27, 79
JOIN, SYNC, BEAT, LEAVE, CONSUMER_BEAT = 5, 3, 3, 3, 1
"""The versions that are spoken: the last ones without tagged fields, for the classic protocol."""
_beat_error = struct.Struct(">i4xh").unpack_from
_numbers = itertools.count(1)


def _frame(message: Message, version: int) -> bytes:
    return b"".join(encode_request(message, version, next(_numbers), "herd"))


class Member(ABC):
    """One connection; `round` is the generation, or epoch, whose assignment it has."""

    __slots__ = (
        "asked",
        "beat",
        "beat_s",
        "data",
        "due",
        "herd",
        "member_id",
        "round",
        "socket",
    )

    def __init__(self, herd: Herd) -> None:
        self.herd = herd
        self.socket = socket.create_connection(herd.address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.member_id, self.round = "", -1
        self.beat = b""
        self.beat_s = herd.beat_s
        self.due = 0.0
        """When it is to heartbeat next."""
        self.asked: Callable[[bytes], None] | None = None
        """What takes the answer that is awaited."""
        self.data = b""
        self.join()

    @abstractmethod
    def join(self) -> None:
        """Ask to be a member."""

    @abstractmethod
    def heard(self, answer: bytes) -> None:
        """The answer to a heartbeat."""

    @abstractmethod
    def goodbye(self) -> bytes:
        """The request that leaves."""

    @abstractmethod
    def owned(self) -> list[int]:
        """The partitions that it has."""

    def ask(self, frame: bytes, asked: Callable[[bytes], None]) -> None:
        """Send a request."""
        self.asked = asked
        sent = self.socket.send(frame)
        if sent < len(frame):  # a leader's plan of many members
            self.socket.setblocking(True)
            self.socket.sendall(frame[sent:])
            self.socket.setblocking(False)

    def tick(self) -> None:
        """Its time to heartbeat; nothing to do while it waits for something else."""
        if self.asked is None:
            self.ask(self.beat, self.heard)

    def ready(self) -> None:
        """Its socket can be read."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker closed a member's connection")
        if self.data:
            data = self.data + data
        if len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            self.data = data
            return
        self.data = b""
        asked, self.asked = self.asked, None
        assert asked is not None
        asked(data[4:])

    def settle(self, new_round: int) -> None:
        """It has its assignment of a round."""
        rounds = self.herd.rounds
        rounds[self.round] -= 1
        rounds[new_round] += 1
        self.round = new_round


class Herd(ABC):
    """The members of one group, and their heartbeats."""

    PROTOCOL: ClassVar[str]

    def __init__(self, address: Address, topic: str, partitions: int, beat_s: float) -> None:
        self.address, self.topic, self.partitions, self.beat_s = address, topic, partitions, beat_s
        self.group = f"group-{topic}"
        self.members: list[Member] = []
        self.rounds: Counter[int] = Counter()
        """How many members have their assignment of which round."""
        self._sockets: dict[int, Member] = {}
        self._poller = select.epoll()
        self._beats: list[tuple[float, int, Member]] = []
        """A heap; an entry counts while it is what its member has in `due`."""

    @abstractmethod
    def new_member(self) -> Member:
        """One more, which has asked to join."""

    def is_whole(self) -> bool:
        """Whether every partition has an owner, where being in the same round does not say so."""
        return True

    def add(self) -> None:
        """One member more."""
        member = self.new_member()
        fd = member.socket.fileno()
        self.members.append(member)
        self.rounds[member.round] += 1
        self._sockets[fd] = member
        self._poller.register(fd, select.EPOLLIN)
        self.beat_at(member, time.perf_counter() + self.beat_s)

    def beat_at(self, member: Member, due: float) -> None:
        """Let a member heartbeat next at that time."""
        member.due = due
        heapq.heappush(self._beats, (due, next(_numbers), member))

    def remove(self) -> None:
        """One member less, of those that wait for nothing."""
        while (member := next((m for m in reversed(self.members) if not m.asked), None)) is None:
            self._turn()
        self.members.remove(member)
        self.rounds[member.round] -= 1
        member.ask(member.goodbye(), lambda answer: self._gone(member))

    def _gone(self, member: Member) -> None:
        member.due = -1.0
        fd = member.socket.fileno()
        self._poller.unregister(fd)
        del self._sockets[fd]
        member.socket.close()

    def form(self, size: int) -> float:
        """The first members, a hundred at a time; returns seconds until they have settled."""
        began = time.perf_counter()
        while missing := size - len(self.members):
            self.timed(self._add_many, min(missing, 100))
        return time.perf_counter() - began

    def _add_many(self, count: int) -> None:
        for _ in range(count):
            self.add()

    def spread(self) -> None:
        """Give every member's heartbeats a phase of its own, at random."""
        now = time.perf_counter()
        self._beats.clear()
        for member in self.members:
            self.beat_at(member, now + random.uniform(0, self.beat_s))

    def timed(self, change: Callable[..., object], *args: object) -> float:
        """Seconds from a change until every member has its assignment in one later round."""
        before = max((n for n, count in self.rounds.items() if count), default=-1)
        began = time.perf_counter()
        change(*args)
        while not self._settled(before):
            if time.perf_counter() - began > PATIENCE_S:
                raise TimeoutError(f"{self.group} did not settle in {PATIENCE_S} s: {self.rounds}")
            self._turn()
        return time.perf_counter() - began

    def _settled(self, before: int) -> bool:
        last = max(self.rounds)
        return last > before and self.rounds[last] == len(self.members) and self.is_whole()

    def run_for(self, seconds: float) -> None:
        """Heartbeat on."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self._turn()

    def _turn(self) -> None:
        wait_s = self._beats[0][0] - time.perf_counter()
        for fd, _ in self._poller.poll(max(0.0, min(wait_s, 0.005))):
            self._sockets[fd].ready()
        beats, now = self._beats, time.perf_counter()
        while beats[0][0] <= now:
            due, _, member = heapq.heappop(beats)
            if member.due == due:
                member.tick()
                self.beat_at(member, max(due, now - member.beat_s) + member.beat_s)

    def verify(self) -> None:
        """Every partition has one owner, and no member has two more than another."""
        owned = [member.owned() for member in self.members]
        assert sorted(itertools.chain(*owned)) == list(range(self.partitions)), "not one owner each"
        sizes = [len(each) for each in owned]
        assert max(sizes) - min(sizes) <= 1, f"members own {min(sizes)} to {max(sizes)} partitions"

    def close(self) -> None:
        """Drop the connections."""
        for member in self._sockets.values():
            member.socket.close()
        self._poller.close()


class ClassicMember(Member):
    """Joins, syncs, heartbeats."""

    __slots__ = ("assignment", "generation")
    herd: ClassicHerd

    def join(self) -> None:
        self.herd.join.member_id = self.member_id
        self.ask(_frame(self.herd.join, JOIN), self._joined)

    def _joined(self, answer: bytes) -> None:
        joined: Any = decode_response(JoinGroupResponse, JOIN, answer)[1]
        self.member_id = joined.member_id or self.member_id
        if joined.error_code == MEMBER_ID_REQUIRED:
            self.join()
            return
        assert joined.error_code == 0, joined
        self.generation = joined.generation_id
        sync = SyncGroupRequest(
            group_id=self.herd.group,
            generation_id=self.generation,
            member_id=self.member_id,
            assignments=self.herd.plan([each.member_id for each in joined.members]),
        )
        self.ask(_frame(sync, SYNC), self._synced)

    def _synced(self, answer: bytes) -> None:
        synced: Any = decode_response(SyncGroupResponse, SYNC, answer)[1]
        if synced.error_code == REBALANCE_IN_PROGRESS:
            self.join()
            return
        assert synced.error_code == 0, synced
        self.assignment = synced.assignment
        beat = HeartbeatRequest(
            group_id=self.herd.group, generation_id=self.generation, member_id=self.member_id
        )
        self.beat = _frame(beat, BEAT)
        self.settle(self.generation)

    def heard(self, answer: bytes) -> None:
        error = _beat_error(answer)[1]
        if error:
            assert error == REBALANCE_IN_PROGRESS, error
            self.join()

    def goodbye(self) -> bytes:
        who = MemberIdentity(member_id=self.member_id)
        return _frame(LeaveGroupRequest(group_id=self.herd.group, members=[who]), LEAVE)

    def owned(self) -> list[int]:
        return list(decode_assignment(self.assignment)[0].get(self.herd.topic, ()))


class ClassicHerd(Herd):
    """A group whose leader assigns ranges."""

    PROTOCOL = "classic"

    def __init__(self, address: Address, topic: str, partitions: int, beat_s: float) -> None:
        super().__init__(address, topic, partitions, beat_s)
        metadata = encode_subscription([topic], None, {}, -1, None)
        self.join = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )

    def new_member(self) -> Member:
        return ClassicMember(self)

    def plan(self, member_ids: list[str]) -> list[SyncGroupRequestAssignment]:
        """The leader's: a range for each; nobody else is told the members."""
        found, at = [], 0
        for n, member_id in enumerate(sorted(member_ids), 1):
            end = self.partitions * n // len(member_ids)
            assignment = encode_assignment({self.topic: range(at, end)}, None)
            found.append(SyncGroupRequestAssignment(member_id=member_id, assignment=assignment))
            at = end
        return found


class ConsumerMember(Member):
    """A member of KIP-848: gives up at once what it is told to, and says so."""

    __slots__ = ("epoch", "partitions", "usual")
    herd: ConsumerHerd

    def join(self) -> None:
        self.epoch, self.partitions = 0, frozenset[int]()
        self.usual = b""
        """The answer to `beat` that says nothing new."""
        self.member_id = f"member-{next(_numbers):030d}"
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.herd.group,
            member_id=self.member_id,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=[self.herd.topic],
            topic_partitions=[],
            server_assignor="uniform",
        )
        self.ask(_frame(request, CONSUMER_BEAT), self.heard)

    def heard(self, answer: bytes) -> None:
        if answer == self.usual:
            return
        told: Any = decode_response(ConsumerGroupHeartbeatResponse, CONSUMER_BEAT, answer)[1]
        assert told.error_code == 0, told
        if told.member_epoch != self.epoch:
            self.epoch = told.member_epoch
            beat = ConsumerGroupHeartbeatRequest(
                group_id=self.herd.group, member_id=self.member_id, member_epoch=self.epoch
            )
            self.beat = _frame(beat, CONSUMER_BEAT)
        before = self.partitions
        if told.assignment is not None:
            topics = told.assignment.topic_partitions
            self.partitions = frozenset(topics[0].partitions if topics else ())
            if topics:
                self.herd.topic_id = topics[0].topic_id
        self.herd.owned_count += len(self.partitions) - len(before)
        self.settle(self.epoch)
        self.usual = b""
        beat_s = told.heartbeat_interval_ms / 1e3
        if beat_s != self.beat_s:
            self.beat_s = beat_s
            self.herd.beat_at(self, time.perf_counter() + beat_s)
        if self.partitions != before:
            self._acknowledge()
        elif told.assignment is None:
            self.usual = answer

    def _acknowledge(self) -> None:
        owned = (
            [TopicPartitions(topic_id=self.herd.topic_id, partitions=sorted(self.partitions))]
            if self.partitions
            else []
        )
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.herd.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            topic_partitions=owned,
        )
        self.ask(_frame(request, CONSUMER_BEAT), self.heard)

    def goodbye(self) -> bytes:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.herd.group, member_id=self.member_id, member_epoch=-1
        )
        self.herd.owned_count -= len(self.partitions)
        return _frame(request, CONSUMER_BEAT)

    def owned(self) -> list[int]:
        return list(self.partitions)


class ConsumerHerd(Herd):
    """A group whose broker assigns."""

    PROTOCOL = "KIP-848"

    def __init__(self, address: Address, topic: str, partitions: int, beat_s: float) -> None:
        super().__init__(address, topic, partitions, beat_s)
        self.topic_id = bytes(16)
        self.owned_count = 0
        """Partitions that members have, all together."""

    def new_member(self) -> Member:
        return ConsumerMember(self)

    def is_whole(self) -> bool:
        return self.owned_count == self.partitions
