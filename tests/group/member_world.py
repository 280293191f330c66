"""A seeded world: members and their callers against the real coordinator, with faults.

One heap of events in virtual time. A request takes a random time there and back and may be lost
with its connection at either end; requests of one member arrive in order. The node of the
coordinator fails over to another that replays the log. Callers poll at random, are sometimes too
slow, run their steps in order, and check C1, C6; after every event G1 is checked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from kohort.errors import ConnectionFailedError, ErrorCode, FencedError
from kohort.group.assignors import TopicView, make_assignors
from kohort.group.assignors.base import Partitions
from kohort.group.coordinator.shard import GroupShard
from kohort.group.coordinator.state.config import GroupConfig
from kohort.group.coordinator.state.effects import Effects, GroupRecord, RequestContext
from kohort.group.member.classic import ClassicMember
from kohort.group.member.classic_table import State
from kohort.group.member.config import MemberConfig
from kohort.group.member.effects import Assign, Effect, Fatal, FindCoordinator, Revoke, Send
from kohort.wire import Message

SESSION_MS, POLL_MS, BEAT_MS = 6_000, 20_000, 1_000


@dataclass
class Caller:
    """One consumer: its machine, the steps its poll has to run, and what it holds."""

    name: str
    member: ClassicMember
    topics: set[str]
    steps: list[Revoke | Assign] = field(default_factory=list)
    holds: set[tuple[str, int]] = field(default_factory=set)
    taken_in: int = -1
    connection: int = 0
    arrived_ms: int = 0
    alive: bool = True
    polling: bool = True
    timer_ms: int | None = None


class World:
    """Everything, from one seed."""

    def __init__(self, seed: int, protocol: str, *, static: bool = False) -> None:
        self.static = static
        self.chance = random.Random(seed)
        self.protocol = protocol
        self.now = 0
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.serial = count()
        self.faults = True
        self.topics = {"a": 4, "b": 3}
        self.log: list[GroupRecord] = []
        self.node = 0
        self.parked: dict[Hashable, Callable[[Message], None]] = {}
        self.callers: list[Caller] = []
        self.generations: dict[str, int] = {}
        self.twins = 0
        self.shard = self.load()

    # -- events --------------------------------------------------------------------------------

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        heappush(self.events, (self.now + delay_ms, next(self.serial), action))

    def run(self, until_ms: int) -> None:
        while self.events and self.events[0][0] <= until_ms:
            self.now, _, action = heappop(self.events)
            action()
            self.check()
        self.now = until_ms

    # -- the coordinator -----------------------------------------------------------------------

    def load(self) -> GroupShard:
        shard = GroupShard(
            0, GroupConfig(group_initial_rebalance_delay_ms=0), lambda: f"id{next(self.serial)}"
        )
        for offset, record in enumerate(self.log):
            shard.replay(record, offset)
        self.shard = shard
        self.took(shard, shard.loaded(self.now))
        return shard

    def took(self, shard: GroupShard, effects: Effects) -> None:
        for record in effects.records:
            self.log.append(record)
            shard.replay(record, len(self.log) - 1)
        for reply in effects.replies:
            answer = self.parked.pop(reply.token, None)
            if answer is not None:
                answer(reply.response)
        due = shard.next_deadline()
        if due is not None:
            self.at(max(0, due - self.now), lambda: self.tick(shard))

    def tick(self, shard: GroupShard) -> None:
        due = shard.next_deadline()
        if shard is self.shard and due is not None and due <= self.now:
            self.took(shard, shard.tick(self.now))

    def failover(self) -> None:
        """The node dies: connections break, another replays the log."""
        self.node += 1
        self.parked.clear()
        for caller in self.callers:
            self.cut(caller)
        self.load()

    # -- the network ---------------------------------------------------------------------------

    def cut(self, caller: Caller) -> None:
        caller.connection += 1
        self.at(self.chance.randint(0, 50), lambda: self.lost(caller))

    def lost(self, caller: Caller) -> None:
        if caller.alive:
            self.do(caller, caller.member.coordinator_lost(self.now))

    def send(self, caller: Caller, effect: Send) -> None:
        connection, node = caller.connection, self.node
        caller.arrived_ms = max(self.now + self.chance.randint(1, 20), caller.arrived_ms)
        if effect.node_id != node:
            self.at(5, lambda: self.fail(caller, effect.token))
            return

        def arrive() -> None:
            if caller.connection != connection or node != self.node:
                return
            token = next(self.serial)
            self.parked[token] = lambda response: self.at(
                self.chance.randint(1, 20), lambda: back(response)
            )
            context = RequestContext(token, 5, caller.name, "/h")
            if type(effect.message).MAX_VERSION != 5:
                context = context._replace(api_version=type(effect.message).MAX_VERSION)
            self.took(self.shard, self.shard.handle(effect.message, context, self.now))

        def back(response: Message) -> None:
            if caller.connection == connection and caller.alive:
                self.do(caller, caller.member.answered(effect.token, response, self.now))

        self.at(caller.arrived_ms - self.now, arrive)
        self.at(effect.timeout_ms, lambda: self.fail(caller, effect.token))

    def fail(self, caller: Caller, token: int) -> None:
        if caller.alive:
            error = ConnectionFailedError("lost")
            self.do(caller, caller.member.answered(token, error, self.now))

    # -- the members ---------------------------------------------------------------------------

    def start(self, instance_id: str | None = None) -> Caller:
        name = f"c{len(self.callers)}"
        config = MemberConfig(
            group_id="g",
            group_instance_id=instance_id,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=BEAT_MS,
            max_poll_interval_ms=POLL_MS,
        )
        assignors = make_assignors(self.protocol)
        caller = Caller(name, ClassicMember(config, assignors, self.chance.random), {"a", "b"})
        self.callers.append(caller)
        self.do(caller, caller.member.topics_changed(self.seen(), self.now))
        self.do(caller, caller.member.subscribe(caller.topics, self.now))
        self.at(1, lambda: self.poll(caller))
        return caller

    def seen(self) -> dict[str, TopicView | None]:
        return {topic: TopicView(size) for topic, size in self.topics.items()}

    def grow(self) -> None:
        topic = self.chance.choice(sorted(self.topics))
        self.topics[topic] += 1
        for caller in self.callers:
            if caller.alive:
                delay = self.chance.randint(0, 3_000)
                self.at(delay, lambda c=caller: self.look(c))

    def look(self, caller: Caller) -> None:
        """The member's metadata is refreshed."""
        self.do(caller, caller.member.topics_changed(self.seen(), self.now))

    def do(self, caller: Caller, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self.send(caller, effect)
            elif isinstance(effect, FindCoordinator):
                self.find(caller, self.node)
            elif isinstance(effect, Revoke | Assign):
                caller.steps.append(effect)
            elif isinstance(effect, Fatal):
                # Only a twin with the same instance id can do this to a member.
                assert isinstance(effect.error, FencedError), effect
                assert self.twins > 0
                self.crash(caller)
        due = caller.member.next_deadline()
        if due is not None and (caller.timer_ms is None or due < caller.timer_ms):
            caller.timer_ms = max(due, self.now)
            self.at(caller.timer_ms - self.now, lambda: self.wake(caller))

    def find(self, caller: Caller, node: int) -> None:
        """Whom a broker names may be gone by the time the answer is there."""
        delay = self.chance.randint(1, 30)
        self.at(delay, lambda: self.do(caller, caller.member.coordinator_found(node, self.now)))

    def wake(self, caller: Caller) -> None:
        caller.timer_ms = None
        if caller.alive:
            self.do(caller, caller.member.tick(self.now))

    def poll(self, caller: Caller) -> None:
        if not caller.alive:
            return
        if caller.polling or not self.faults:
            self.do(caller, caller.member.polled(self.now))
            while caller.steps:
                self.step(caller, caller.steps.pop(0))
        self.at(self.chance.randint(50, 800), lambda: self.poll(caller))

    def step(self, caller: Caller, step: Revoke | Assign) -> None:
        """C6: what is revoked was held, what is added was not, and the whole adds up."""
        if isinstance(step, Revoke):
            gone = flat(step.partitions)
            assert gone <= caller.holds
            caller.holds -= gone
            self.do(caller, caller.member.revoked(step.token, self.now))
            return
        added = flat(step.added)
        assert not added & caller.holds
        caller.holds |= added
        assert caller.holds == flat(step.assignment)
        caller.taken_in = step.generation
        self.do(caller, caller.member.assigned(step.token, self.now))

    def crash(self, caller: Caller) -> None:
        caller.alive = False
        caller.connection += 1

    def come_back(self, caller: Caller, *, crash: bool) -> None:
        """KIP-345: the same instance again, in place of the old process or beside it."""
        if crash:
            self.crash(caller)
        else:
            self.twins += 1
        self.start(caller.member.group_instance_id)

    def close(self, caller: Caller) -> None:
        self.do(caller, caller.member.close(self.now))

    # -- what must hold ------------------------------------------------------------------------

    def check(self) -> None:
        """G1, C1: nobody whom the coordinator still counts in holds what another one holds."""
        group, stored = self.shard.groups.get("g"), self.shard.durable.groups.get("g")
        if group is None or stored is None:
            return
        holder: dict[tuple[str, int], str] = {}
        for caller in self.callers:
            if not caller.alive or caller.member.member_id not in group.members:
                continue
            if caller.steps and caller.member.generation < 0:
                continue
            if self.static and caller.member.generation != stored.generation:
                # Kafka keeps a static member that misses a rebalance, with the claims of its last
                # join; what it holds beyond them is fenced by its generation alone.
                continue
            for partition in caller.holds:
                other = holder.setdefault(partition, caller.name)
                assert other == caller.name, (self.now, partition, other, caller.name)

    def settled(self) -> None:
        """GL1, GL2, GL5 (as far as owning goes): all in, all stable, all partitions owned once."""
        live = [each for each in self.callers if each.alive and each.member.state is not State.LEFT]
        for caller in live:
            assert caller.member.state is State.STABLE, (caller.name, caller.member.state)
        owned = [partition for caller in live for partition in caller.holds]
        wanted = {(topic, n) for topic, size in self.topics.items() for n in range(size)}
        assert sorted(owned) == sorted(wanted if live else [])
        if live and "range" not in self.protocol:
            sizes = [len(caller.holds) for caller in live]
            assert max(sizes) - min(sizes) <= 1
        assert len({caller.member.generation for caller in live}) <= 1


def flat(partitions: Partitions) -> set[tuple[str, int]]:
    return {(topic, n) for topic, numbers in partitions.items() for n in numbers}


def fault(world: World) -> None:
    """One random thing goes wrong, or changes."""
    chance = world.chance
    live = [c for c in world.callers if c.alive and c.member.state is not State.LEFT]
    kind = chance.choice(
        ["cut", "cut", "failover", "join", "close", "crash", "slow", "grow", "ask"]
    )
    if kind == "failover":
        world.failover()
    elif kind == "join" and len(live) < 6:
        world.start(f"i{len(world.callers)}" if world.static else None)
    elif kind == "grow" and sum(world.topics.values()) < 14:
        world.grow()
    elif live:
        caller = chance.choice(live)
        if kind == "cut":
            world.cut(caller)
        elif kind == "close" and len(live) > 1:
            world.close(caller)
        elif kind == "crash" and len(live) > 1:
            world.crash(caller)
        elif kind in {"back", "twin"}:
            world.come_back(caller, crash=kind == "back")
        elif kind == "slow":
            caller.polling = not caller.polling
        elif kind == "ask":
            code = chance.choice([ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS])
            generation = caller.member.generation
            world.do(caller, caller.member.commit_refused(code, generation, world.now))


def story(seed: int, protocol: str, faults: int = 25, *, static: bool = False) -> World:
    """A world that goes wrong for a while, then is left in peace and must come to rest."""
    world = World(seed, protocol, static=static)
    for number in range(world.chance.randint(1, 4)):
        world.start(f"i{number}" if static else None)
    for _ in range(faults):
        world.run(world.now + world.chance.choice([10, 100, 1_000, 5_000]))
        fault(world)
    world.faults = False
    world.run(world.now + 2 * (POLL_MS + SESSION_MS) + 10_000)
    world.settled()
    return world
