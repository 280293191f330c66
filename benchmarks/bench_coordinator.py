"""The coordinator as a pure machine, one core: heartbeats, commits, rebalances, loading.

Each figure covers `handle` and, where there are records, their `replay`: what a broker does for a
request between decoding it and the log, in CPU time. Peers have no comparable figure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import count
from time import process_time

from kohort.group.coordinator.shard import GroupShard
from kohort.group.coordinator.state.config import GroupConfig
from kohort.group.coordinator.state.effects import Effects, GroupRecord, RequestContext
from kohort.wire import Message
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from kohort.wire.messages.join_group_response import JoinGroupResponse
from kohort.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kohort.wire.messages.sync_group_request import SyncGroupRequest, SyncGroupRequestAssignment

CONTEXT = RequestContext(0, 9, "bench", "/127.0.0.1")
GROUPS, MEMBERS = 20, 50


class Machine:
    """A shard with a log in memory and a clock that stands still."""

    def __init__(self) -> None:
        ids = count()
        config = GroupConfig(group_initial_rebalance_delay_ms=0)
        self.shard = GroupShard(0, config, lambda: f"{next(ids):036}")
        self.log: list[GroupRecord] = []
        self.shard.loaded(0)

    def took(self, effects: Effects) -> Effects:
        for record in effects.records:
            self.shard.replay(record, len(self.log))
            self.log.append(record)
        return effects

    def send(self, request: Message) -> Effects:
        return self.took(self.shard.handle(request, CONTEXT, 0))

    def form(self, group_id: str, members: int) -> list[str]:
        """A stable group."""
        ids: list[str] = []
        for _ in range(members):
            answer = self.send(join(group_id)).replies[0].response
            assert isinstance(answer, JoinGroupResponse)
            ids.append(answer.member_id)
        for member_id in ids:
            self.send(join(group_id, member_id))
        self.took(self.shard.tick(0))
        self.rebalanced(group_id, ids)
        return ids

    def rebalanced(self, group_id: str, ids: list[str]) -> None:
        """Everybody syncs."""
        generation = self.shard.durable.groups[group_id].generation
        for member_id in reversed(ids):
            request = SyncGroupRequest(
                group_id=group_id,
                generation_id=generation,
                member_id=member_id,
                protocol_type="consumer",
                protocol_name="range",
            )
            if member_id == ids[0]:
                request.assignments = [
                    SyncGroupRequestAssignment(member_id=m, assignment=bytes(60)) for m in ids
                ]
            self.send(request)


def join(group_id: str, member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(60))],
    )


def commit(group_id: str, member_id: str, partitions: int) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=1,
        member_id=member_id,
        topics=[
            OffsetCommitRequestTopic(
                name="flights",
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=p, committed_offset=123_456, committed_metadata=""
                    )
                    for p in range(partitions)
                ],
            )
        ],
    )


def rate(send: Callable[[Message], object], requests: Iterable[Message], rounds: int) -> float:
    """Requests a second, the best of three."""
    asked = list(requests)
    best = 0.0
    for _ in range(3):
        begin = process_time()
        for _ in range(rounds):
            for request in asked:
                send(request)
        best = max(best, rounds * len(asked) / (process_time() - begin))
    return best


def main() -> int:
    machine = Machine()
    members = {f"group-{g}": machine.form(f"group-{g}", MEMBERS) for g in range(GROUPS)}
    everybody = [(group, member) for group, ids in members.items() for member in ids]
    print(f"{GROUPS} groups of {MEMBERS} members, one core")

    beats = [HeartbeatRequest(group_id=g, generation_id=1, member_id=m) for g, m in everybody]
    done = rate(lambda r: machine.shard.handle(r, CONTEXT, 0), beats, 100)
    print(f"  heartbeats            {done:12,.0f} /s   {1e6 / done:8.2f} µs each (aim: under 5)")

    for partitions in (1, 10, 100):
        commits = [commit(g, m, partitions) for g, m in everybody[:200]]
        done = rate(machine.send, commits, max(1, 20 // partitions))
        print(
            f"  commits of {partitions:3} offsets {done:12,.0f} /s   "
            f"{done * partitions:12,.0f} offsets/s"
        )
        machine.log.clear()

    for size in (10, 100, 1_000):
        fresh = Machine()
        ids = fresh.form("g", size)
        fresh.log.clear()
        begin = process_time()
        for member_id in ids:
            fresh.send(join("g", member_id))
        fresh.rebalanced("g", ids)
        seconds = process_time() - begin
        print(f"  rebalance of {size:5} members {seconds * 1e3:9.2f} ms")

    load()
    return 0


def load() -> None:
    """How fast a shard comes up from its log."""
    machine = Machine()
    (member,) = machine.form("g", 1)
    for _ in range(1_000):
        machine.send(commit("g", member, 100))
    shard = GroupShard(0, GroupConfig(), str)
    begin = process_time()
    for offset, record in enumerate(machine.log):
        shard.replay(record, offset)
    shard.loaded(0)
    seconds = process_time() - begin
    print(f"  loading               {len(machine.log) / seconds:12,.0f} records/s")


if __name__ == "__main__":
    sys.exit(main())
