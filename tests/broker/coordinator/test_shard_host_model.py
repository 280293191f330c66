"""The shell that the broker puts around a shard, under any order of requests, turns and failures.

The simulator runs it, too (ADR 0025). Here it gets what its worlds seldom reach: many requests in
one turn of the loop, appends that fail among them, moves, transactions and their markers. After
every turn G9 holds on the very object that serves: live state == replay(log) ==
replay(compacted log), and no replay raises; at the end, what was acknowledged is there (G10).
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.broker.base.config import OFFSETS_TOPIC
from kohort.broker.coordinator.group_shard_host import GroupHost
from kohort.broker.log.txn_index import marker_of
from kohort.broker.state.partition import Partition
from kohort.errors import BrokerError, ErrorCode
from kohort.group.coordinator.state.effects import GroupRecord
from kohort.records import Chunk
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from kohort.wire.messages.join_group_response import JoinGroupResponse
from kohort.wire.messages.leave_group_request import LeaveGroupRequest
from kohort.wire.messages.sync_group_request import SyncGroupRequest, SyncGroupRequestAssignment
from kohort.wire.messages.txn_offset_commit_request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.broker.coordinator.test_shard_host import GROUP, Nodes
from tests.broker.harness import Answer
from tests.broker.transacting import markers_request
from tests.effort import examples
from tests.group.harness import Logged, compactions, replay

MEMBERS, PRODUCER = 3, 7
WHAT = ("join", "join", "sync", "beat", "leave", "commit", "commit", "stage", "marker", "fail")
EVENTS = st.tuples(st.sampled_from((*WHAT, "move", "later")), st.integers(0, MEMBERS - 1))
TURNS = st.lists(st.lists(EVENTS, min_size=1, max_size=6), min_size=1, max_size=15)


def logged(host: GroupHost) -> Iterator[Logged]:
    """The host's partition, as it stands in the log."""
    opened = host.partition.log
    for header, batch in opened.batches() if opened is not None else ():
        if header.is_control:
            marker = marker_of(batch)
            assert marker is not None
            yield Logged(header.base_offset, None, header.producer_id, marker.committed)
            continue
        producer_id = header.producer_id if header.is_transactional else -1
        chunk = Chunk("offsets", host.partition.index, batch, header.base_offset)
        while not chunk.exhausted:
            for record in chunk.next_records(1_000):
                assert record.key is not None
                stored = GroupRecord(bytes(record.key), record.value)
                yield Logged(record.offset, stored, producer_id)


class World(Nodes):
    """A group with members that join, stage and commit, and a disk that may fail."""

    def __init__(self) -> None:
        super().__init__(group_initial_rebalance_delay_ms=0)
        self.failing = False
        self.ids = [""] * MEMBERS
        self.generations = [0] * MEMBERS
        self.joins: list[tuple[int, Answer]] = []
        self.commits: list[tuple[int, Answer]] = []
        self.asked = self.acked = 0
        assert self.commit(0) == 0

    def turn(self, events: list[tuple[str, int]]) -> None:
        """All of it in one turn of the loop."""
        opened = Partition.open

        def perhaps(partition: Partition) -> object:
            if self.failing:
                self.failing = False
                raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "no space left")
            return opened(partition)

        with patch.object(Partition, "open", perhaps), self.one_turn():
            for what, who in events:
                self.act(what, who)
        self.failing = False
        self.hear()

    def act(self, what: str, who: int) -> None:
        at, member_id, generation = self.coordinator, self.ids[who], self.generations[who]
        match what:
            case "join":
                protocols = [JoinGroupRequestProtocol(name="range", metadata=b"%d" % who)]
                request = JoinGroupRequest(
                    group_id="members",
                    session_timeout_ms=6_000,
                    rebalance_timeout_ms=2_000,
                    member_id=member_id,
                    protocol_type="consumer",
                    protocols=protocols,
                )
                self.joins.append((who, self.send(request, 3, at)))
            case "sync":
                plan = [
                    SyncGroupRequestAssignment(member_id=m, assignment=m.encode())
                    for m in self.ids
                    if m
                ]
                sync = SyncGroupRequest(
                    group_id="members",
                    generation_id=generation,
                    member_id=member_id,
                    assignments=plan,
                )
                self.send(sync, 2, at)
            case "beat":
                beat = HeartbeatRequest(
                    group_id="members", generation_id=generation, member_id=member_id
                )
                self.send(beat, 2, at)
            case "leave":
                self.send(LeaveGroupRequest(group_id="members", member_id=member_id), 2, at)
                self.ids[who] = ""
            case "commit":
                self.asked += 1
                self.commits.append((self.asked, self.begin_commit(self.asked)))
            case "stage":
                self.stage(at)
            case "marker":
                index = self.nodes.coordinators.partition_of(GROUP).index
                markers = markers_request(PRODUCER, 0, commit=who > 0)
                markers.markers[0].topics[0].name = OFFSETS_TOPIC
                markers.markers[0].topics[0].partition_indexes = [index]
                self.send(markers, 1, at)
            case "fail":
                self.failing = True
            case "move":
                self.move()
            case _:
                self.env.advance(1_000)

    def stage(self, at: int) -> None:
        part = TxnOffsetCommitRequestPartition(partition_index=1, committed_offset=self.asked)
        topic = TxnOffsetCommitRequestTopic(name="t", partitions=[part])
        request = TxnOffsetCommitRequest(
            transactional_id="tx",
            group_id=GROUP,
            producer_id=PRODUCER,
            producer_epoch=0,
            topics=[topic],
        )
        self.send(request, 2, at)

    def hear(self) -> None:
        for who, answer in self.joins:
            if answer.frame is not None:
                joined = self.read(answer, JoinGroupResponse, 3)
                self.ids[who] = joined.member_id or self.ids[who]
                if not joined.error_code:
                    self.generations[who] = joined.generation_id
        self.joins = [(who, answer) for who, answer in self.joins if not answer.done]
        for offset, answer in self.commits:
            if answer.done and self.code(answer) == 0:
                self.acked = max(self.acked, offset)
        self.commits = [(offset, answer) for offset, answer in self.commits if not answer.done]

    def check(self) -> None:
        for node in self.nodes:
            for host in node.groups.hosts():
                if host.loaded:
                    log = list(logged(host))
                    for entries in (log, *compactions(log)):
                        shard = host.new_shard()
                        replay(shard, entries)
                        assert shard.durable == host.shard.durable


@settings(max_examples=examples(60), deadline=None)
@given(TURNS)
def test_the_state_is_what_the_log_says_after_every_turn(
    turns: list[list[tuple[str, int]]],
) -> None:
    """G9, G10 on the broker's own shell."""
    world = World()
    for events in turns:
        world.turn(events)
        world.check()
    world.env.advance(2_000)
    world.hear()
    world.check()
    assert world.committed() >= world.acked
