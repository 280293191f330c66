"""How long a group takes to settle over real sockets: `python -m benchmarks.bench_rebalance`.

An embedded broker in a process of its own; members are raw connections of one asyncio loop that
speak the classic protocol and heartbeat every 100 ms, so that what is measured is the coordinator
and not a client. A group of 10, 100 and 1,000 members; then one joins, then one leaves: the time
until every member has its assignment in the new generation (median of five).

Beside it, ten of our own consumers with default settings, in both protocols.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from typing import Any

from kohort.group.assignors.protocol import encode_subscription
from kohort.wire import Message, decode_response, encode_request
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from kohort.wire.messages.join_group_response import JoinGroupResponse
from kohort.wire.messages.leave_group_request import LeaveGroupRequest, MemberIdentity
from kohort.wire.messages.leave_group_response import LeaveGroupResponse
from kohort.wire.messages.sync_group_request import SyncGroupRequest, SyncGroupRequestAssignment
from kohort.wire.messages.sync_group_response import SyncGroupResponse

BEAT_S = 0.1
ROUNDS = 5
PATIENCE_S = 60
MEMBER_ID_REQUIRED = 79
JOIN, SYNC, BEAT, LEAVE = 7, 5, 4, 5


class Group:
    """Who has synced in which generation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: set[Member] = set()
        self.changed = asyncio.Condition()

    async def tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def settled(self, size: int, after: int) -> int:
        """Wait until `size` members share one generation above `after`; that generation."""

        def same() -> bool:
            generations = {member.synced for member in self.members}
            return len(self.members) == size and len(generations) == 1 and min(generations) > after

        async with self.changed:
            await self.changed.wait_for(same)
        return next(iter(self.members)).synced


class Member:
    """One connection that joins, syncs and heartbeats."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.member_id, self.generation, self.synced = "", -1, -1
        self._number = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection(host, port)
        self.group.members.add(self)
        self._task = asyncio.create_task(self._live())

    async def leave(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._writer.close()
        self._reader, self._writer = await asyncio.open_connection(
            *self._writer.get_extra_info("peername")
        )
        who = MemberIdentity(member_id=self.member_id)
        self.group.members.discard(self)
        await self._ask(
            LeaveGroupRequest(group_id=self.group.name, members=[who]), LEAVE, LeaveGroupResponse
        )
        self._writer.close()

    async def _ask(self, request: Message, version: int, kind: type[Any]) -> Any:
        self._number += 1
        self._writer.write(b"".join(encode_request(request, version, self._number, "bench")))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        return decode_response(kind, version, await self._reader.readexactly(size))[1]

    async def _live(self) -> None:
        while True:
            await self._join()
            while True:
                await asyncio.sleep(BEAT_S)
                beat = HeartbeatRequest(
                    group_id=self.group.name, generation_id=self.generation,
                    member_id=self.member_id,
                )  # fmt: skip
                if (await self._ask(beat, BEAT, HeartbeatResponse)).error_code:
                    break

    async def _join(self) -> None:
        metadata = encode_subscription(["t"], None, {}, -1, None)
        request = JoinGroupRequest(
            group_id=self.group.name, session_timeout_ms=30_000, rebalance_timeout_ms=60_000,
            member_id=self.member_id, protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )  # fmt: skip
        while True:
            request.member_id = self.member_id
            joined: JoinGroupResponse = await self._ask(request, JOIN, JoinGroupResponse)
            self.member_id = joined.member_id or self.member_id
            if joined.error_code == MEMBER_ID_REQUIRED:
                continue
            if joined.error_code:
                self.member_id = ""
                continue
            self.generation = joined.generation_id
            plan = [
                SyncGroupRequestAssignment(member_id=each.member_id, assignment=b"x" * 40)
                for each in joined.members
            ]
            sync = SyncGroupRequest(
                group_id=self.group.name, generation_id=self.generation, member_id=self.member_id,
                protocol_type="consumer", protocol_name="range", assignments=plan,
            )  # fmt: skip
            if not (await self._ask(sync, SYNC, SyncGroupResponse)).error_code:
                self.synced = self.generation
                await self.group.tell()
                return


async def raw(size: int, host: str, port: int) -> tuple[float, float]:
    """Milliseconds to settle with one member more, and with one less."""
    group = Group(f"g{size}-{time.time_ns()}")
    for start in range(0, size, 50):
        await asyncio.gather(
            *(Member(group).start(host, port) for _ in range(min(50, size - start)))
        )
    generation = await group.settled(size, -1)
    more, less = [], []
    for _ in range(ROUNDS):
        extra = Member(group)
        began = time.perf_counter()
        await extra.start(host, port)
        generation = await group.settled(size + 1, generation)
        more.append(time.perf_counter() - began)
        began = time.perf_counter()
        await extra.leave()
        generation = await group.settled(size, generation)
        less.append(time.perf_counter() - began)
    for member in list(group.members):
        assert member._task is not None
        member._task.cancel()
        member._writer.close()
    return statistics.median(more) * 1e3, statistics.median(less) * 1e3


def real(protocol: str, bootstrap: str) -> tuple[float, float]:
    """The same with ten of our consumers and default settings."""
    from kohort import Consumer

    topic, group = f"t-{protocol}", f"real-{protocol}-{time.time_ns()}"

    def make() -> Consumer:
        consumer = Consumer(
            bootstrap_servers=bootstrap, group_id=group, group_protocol=protocol,
            auto_offset_reset="earliest",
        )  # fmt: skip
        consumer.subscribe([topic])
        return consumer

    def settle(consumers: list[Consumer], began: float) -> float:
        while True:
            for consumer in consumers:
                consumer.poll(0.001)
            owned = [consumer.assignment() for consumer in consumers]
            whole = sum(map(len, owned)) == 22 and len(set[Any]().union(*owned)) == 22
            if whole and all(len(each) in (2, 3) for each in owned):
                return time.perf_counter() - began

    consumers = [make() for _ in range(10)]
    settle(consumers, 0)
    more, less = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        consumers.append(make())
        more.append(settle(consumers, began))
        began = time.perf_counter()
        consumers.pop().close()
        less.append(settle(consumers, began))
    for consumer in consumers:
        consumer.close()
    return statistics.median(more) * 1e3, statistics.median(less) * 1e3


def serve() -> None:
    """A broker until stdin ends."""
    from kohort.testing import Cluster

    with Cluster(group_initial_rebalance_delay_ms=0, max_connections=4_000) as cluster:
        for protocol in ("classic", "consumer"):
            cluster.create_topic(f"t-{protocol}", partitions=22)
        print(cluster.bootstrap, flush=True)
        sys.stdin.read()


def main() -> None:
    """Run all sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true")
    if parser.parse_args().serve:
        serve()
        return
    broker = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bench_rebalance", "--serve"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert broker.stdout is not None
    assert broker.stdin is not None
    bootstrap = broker.stdout.readline().strip()
    host, _, port = bootstrap.rpartition(":")
    print(f"{'':<40} {'+1 member, ms':>14} {'-1 member, ms':>14}")
    for size in (10, 100, 1_000):
        name = f"raw, heartbeat 100 ms, {size} members"
        try:
            more, less = asyncio.run(asyncio.wait_for(raw(size, host, int(port)), PATIENCE_S))
        except TimeoutError:
            print(f"{name:<40} not settled in {PATIENCE_S} s: the members share this machine")
            continue
        print(f"{name:<40} {more:>14.0f} {less:>14.0f}", flush=True)
    for protocol in ("classic", "consumer"):
        more, less = real(protocol, bootstrap)
        print(f"{f'ten of our consumers, {protocol}, defaults':<40} {more:>14.0f} {less:>14.0f}")
    broker.stdin.close()
    broker.wait(10)


if __name__ == "__main__":
    main()
