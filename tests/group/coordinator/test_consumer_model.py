"""Many members of both protocols, random faults: invariants after every event (G1, G3-G5, G9, GL1).

Raw clients keep partitions for as long as a real one would; answers are lost, requests come twice
or late, coordinators fail over by replay of the log or of what a cleaner may have left of it,
topics come, grow and go. One number makes a whole history; a failing run names its seed.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from kohort.errors import ErrorCode
from kohort.group.assignors.protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kohort.group.coordinator.handlers import consumer_heartbeat
from kohort.group.coordinator.state.classic_table import GroupState
from kohort.group.coordinator.state.consumer_table import ConsumerState
from kohort.group.coordinator.state.effects import Effects
from tests.group.consumer_harness import ConsumerBench, assignment_of, check_consumer_group
from tests.group.harness import GROUP, compactions, replay

C = ErrorCode
SESSION_MS, REBALANCE_MS, INTERVAL_MS = 10_000, 20_000, 1_000
TOPICS = ("t0", "t1", "t2")
Part = tuple[str, int]


class Client:
    """A consumer: who it is, what it holds, and what it has been told to give up."""

    def __init__(self, world: World, name: str, instance: str | None) -> None:
        self.world, self.instance = world, instance
        self.member_id = name
        self.alive, self.epoch = True, 0
        self.holds: set[Part] = set()
        self.gives_up: set[Part] = set()
        self.topics: list[str] = list(TOPICS)
        self.regex: str | None = None
        self.say_all = True
        self.contact_ms = 0
        self.sent: list[dict[str, Any]] = []

    def owned(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for topic, number in sorted(self.holds):
            found.setdefault(topic, []).append(number)
        return {t: n for t, n in found.items() if t in self.world.ids}

    def step(self, rng: random.Random, *, polite: bool = False) -> None:
        if self.gives_up and (polite or rng.random() < 0.5):
            self.holds -= self.gives_up
            self.gives_up.clear()
            self.say_all = self.say_all or rng.random() < 0.3
        full = self.say_all or self.epoch == 0
        options: dict[str, Any] = {"epoch": self.epoch, "instance": self.instance}
        if full:
            options |= {"topics": self.topics, "regex": self.regex or "", "owned": self.owned()}
            options |= {"rebalance_ms": REBALANCE_MS}
        elif polite or rng.random() < 0.6:
            options["owned"] = self.owned()
        if self.epoch == 0:
            self.holds.clear()
            self.gives_up.clear()
            options["owned"] = {}
        self.deliver(options, lost=not polite and rng.random() < 0.1)
        if not polite and rng.random() < 0.1:
            self.world.bench.beat(self.member_id, **options)  # it comes twice; nobody hears
            self.world.after()
        if self.epoch > 0:
            self.sent = [*self.sent[-5:], options]

    def deliver(self, options: dict[str, Any], *, lost: bool) -> None:
        answer = self.world.bench.beat(self.member_id, **options)
        self.contact_ms = self.world.bench.now_ms
        if lost:
            self.say_all = True
        else:
            self.hear(answer)
        self.world.after()

    def hear(self, answer: Any) -> None:
        code = C(answer.error_code)
        if code in (C.FENCED_MEMBER_EPOCH, C.UNKNOWN_MEMBER_ID, C.GROUP_ID_NOT_FOUND):
            self.reset()
        elif code is C.FENCED_INSTANCE_ID:
            self.die()
        elif code in (C.UNRELEASED_INSTANCE_ID, C.GROUP_MAX_SIZE_REACHED):
            pass
        else:
            assert code is C.NONE, answer
            assert answer.member_epoch >= self.epoch, "G3: a member's epoch fell"
            self.epoch, self.say_all = answer.member_epoch, False
            assigned = assignment_of(answer)
            if assigned is not None:
                has = {(t, n) for t, numbers in assigned.items() for n in numbers}
                self.holds |= has
                self.gives_up = self.holds - has

    def reset(self) -> None:
        self.epoch, self.say_all = 0, True
        self.holds.clear()
        self.gives_up.clear()
        self.sent.clear()

    def die(self) -> None:
        self.alive = False
        self.reset()

    def late(self, rng: random.Random) -> None:
        """A heartbeat of an epoch that is over comes in now."""
        old = [options for options in self.sent if 0 < options["epoch"] < self.epoch]
        if old:
            self.world.bench.beat(self.member_id, **rng.choice(old))
            self.say_all = True  # it may have said what is no longer so
            self.world.after()

    def leave(self, rng: random.Random) -> None:
        self.holds.clear()
        self.alive = False
        if rng.random() < 0.8:
            epoch = -2 if self.instance and rng.random() < 0.6 else -1
            self.world.bench.beat(self.member_id, epoch, instance=self.instance)
        self.world.after()

    def in_place(self) -> bool:
        return not self.gives_up and not self.say_all


class ClassicClient(Client):
    """A consumer of the classic protocol with an assignor of its own that deals partitions out."""

    def __init__(self, world: World, name: str, instance: str | None, *, eager: bool) -> None:
        super().__init__(world, "", instance)
        self.name, self.eager = name, eager
        self.epoch = -1
        self.waits: tuple[str, int] | None = None
        self.needs = "join"
        self.plan: dict[str, bytes] | None = None

    def protocols(self) -> list[tuple[str, bytes]]:
        held = {t: tuple(n) for t, n in self.owned().items()}
        return [("deal", encode_subscription(self.topics, None, held, self.epoch, None))]

    def step(self, rng: random.Random, *, polite: bool = False) -> None:
        bench = self.world.bench
        if self.waits is not None:
            return
        if self.gives_up:
            self.holds -= self.gives_up
            self.gives_up.clear()
            self.needs = "join"  # KIP-429: who gave up joins again
        self.contact_ms = bench.now_ms
        if self.needs == "join":
            if self.eager:
                self.holds.clear()
            token = bench.join(
                self.member_id,
                instance=self.instance,
                protocols=self.protocols(),
                session_ms=SESSION_MS,
                rebalance_ms=REBALANCE_MS,
                client=self.name,
            )
            self.waits = ("join", token)
        elif self.needs == "sync":
            token = bench.sync(
                self.member_id, self.epoch, self.plan, instance=self.instance, protocol="deal"
            )
            self.waits = ("sync", token)
        else:
            self.on_code(bench.heartbeat(self.member_id, self.epoch, self.instance))
        self.world.after()

    def on_code(self, code: ErrorCode | int) -> None:
        if code in (C.UNKNOWN_MEMBER_ID, C.ILLEGAL_GENERATION, C.GROUP_MAX_SIZE_REACHED):
            self.reset()
            if code != C.ILLEGAL_GENERATION:
                self.member_id = ""
        elif code == C.FENCED_INSTANCE_ID:
            self.die()
        elif code == C.MEMBER_ID_REQUIRED or code == C.REBALANCE_IN_PROGRESS:
            self.needs = "join"
        else:
            assert code in (C.NONE, C.NOT_COORDINATOR), code
            self.needs = "join" if code else self.needs

    def reset(self) -> None:
        super().reset()
        self.epoch, self.needs, self.waits = -1, "join", None

    def answered(self, kind: str, answer: Any) -> None:
        self.waits, self.contact_ms = None, self.world.bench.now_ms
        code = C(answer.error_code)
        if kind == "join" and answer.member_id and code is C.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        if code:
            self.on_code(code)
        elif kind == "join":
            assert answer.generation_id >= self.epoch, "G3"
            self.member_id, self.epoch = answer.member_id, answer.generation_id
            leads = answer.leader == answer.member_id and not answer.skip_assignment
            self.plan = self.deal(answer) if leads else None
            self.needs = "sync"
        else:
            self.needs = "beat"
            parts, _ = decode_assignment(answer.assignment)
            has = {(t, n) for t, numbers in parts.items() for n in numbers}
            self.holds |= has
            self.gives_up = self.holds - has

    def deal(self, answer: Any) -> dict[str, bytes]:
        """Who owns keeps; what nobody owns is dealt out; what is too much is given up first."""
        members = sorted(m.member_id for m in answer.members)
        views = {m.member_id: decode_subscription(m.member_id, m.metadata) for m in answer.members}
        every = [(t, n) for t in TOPICS for n in range(self.world.ids.get(t, 0))]
        owner = {
            (t, n): m for m in members for t, numbers in views[m].owned.items() for n in numbers
        }
        shares: dict[str, dict[str, list[int]]] = {m: {} for m in members}
        for at, (topic, number) in enumerate(every):
            due = members[at % len(members)]
            if owner.get((topic, number), due) == due:
                shares[due].setdefault(topic, []).append(number)
        return {m: encode_assignment(share) for m, share in shares.items()}

    def late(self, rng: random.Random) -> None:
        del rng

    def leave(self, rng: random.Random) -> None:
        self.holds.clear()
        self.alive = False
        if self.member_id and rng.random() < 0.8:
            self.world.bench.leave(self.member_id)
        self.world.after()

    def in_place(self) -> bool:
        return self.needs == "beat" and not self.gives_up and self.waits is None


class World:
    """The shard, its clients, and what ought to be true."""

    def __init__(self, seed: int, *, migrate: bool) -> None:
        self.rng, self.migrate = random.Random(seed), migrate
        self.ids = {"t0": 4, "t1": 3, "t2": 1}
        self.bench = ConsumerBench(
            topics=self.ids,
            group_consumer_min_session_timeout_ms=1_000,
            group_consumer_session_timeout_ms=SESSION_MS,
            group_consumer_min_heartbeat_interval_ms=100,
            group_consumer_heartbeat_interval_ms=INTERVAL_MS,
            group_initial_rebalance_delay_ms=500,
            group_consumer_max_size=6,
        )
        self.bench.check = False
        self.clients: list[Client] = []
        self.kind, self.kinds = "consumer", 0

    def event(self) -> None:
        rng = self.rng
        kind = rng.choices(
            ["round", "step", "time", "new", "crash", "leave", "late", "failover", "topic", "want"],
            [40, 30, 20, 8, 2, 3, 4, 2, 2, 3],
        )[0]
        alive = [c for c in self.clients if c.alive]
        if kind == "time":
            self.advance(rng.choice([100, 1_000, 3_000, SESSION_MS // 2, SESSION_MS]))
        elif kind == "failover":
            self.failover()
        elif kind == "topic":
            self.change_topics()
        elif kind == "new" or not alive:
            self.new_client()
        elif kind == "round":
            for client in alive:
                client.step(rng)
        else:
            client = rng.choice(alive)
            match kind:
                case "crash":
                    client.die()
                case "leave":
                    client.leave(rng)
                case "late":
                    client.late(rng)
                case "want":
                    client.topics = rng.sample(TOPICS, rng.randrange(1, 4))
                    client.say_all = True
                    client.regex = rng.choice([None, None, "t[01]", "t.*"])
                case _:
                    client.step(rng)
        self.after()

    def new_client(self) -> None:
        rng = self.rng
        if sum(c.alive for c in self.clients) > 6:
            return
        instance = rng.choice([None, None, None, "one", "two"])
        for other in self.clients:
            if instance and other.instance == instance:
                other.die()
        name = f"c{len(self.clients)}"
        if self.migrate and rng.random() < 0.5:
            classic = ClassicClient(self, name, instance, eager=rng.random() < 0.5)
            self.clients.append(classic)
        else:
            self.clients.append(Client(self, name, instance))

    def change_topics(self) -> None:
        rng, name = self.rng, self.rng.choice(TOPICS)
        if name in self.ids and rng.random() < 0.3:
            del self.ids[name]
            self.bench.drop(name)
            for client in self.clients:  # the partitions are no more; clients learn of it
                client.holds = {p for p in client.holds if p[0] != name}
                client.gives_up = {p for p in client.gives_up if p[0] != name}
        else:
            self.ids[name] = min(self.ids.get(name, 0) + rng.randrange(1, 3), 6)
            self.bench.make(name, self.ids[name])

    def advance(self, ms: int) -> None:
        until = self.bench.now_ms + ms
        while (due := self.bench.shard.next_deadline()) is not None and due <= until:
            self.bench.now_ms = max(due, self.bench.now_ms)
            before = dict(self.bench.shard.consumer_groups.get(GROUP, _NOBODY).members)
            self.bench.took(self.bench.shard.tick(self.bench.now_ms))
            self.check_expulsions(before)
            self.after()
        self.bench.now_ms = until

    def check_expulsions(self, before: dict[str, Any]) -> None:
        """G13: who is dropped was silent, or did not give up what it was told to in time."""
        group = self.bench.shard.consumer_groups.get(GROUP)
        if group is None:
            return  # converted; the same members go on
        by_id = {c.member_id: c for c in self.clients}
        for member_id in before.keys() - group.members.keys():
            client = by_id.get(member_id)
            if client is not None and client.alive:
                silent_ms = self.bench.now_ms - client.contact_ms
                assert silent_ms >= SESSION_MS or self.bench.now_ms >= REBALANCE_MS

    def failover(self) -> None:
        """A new coordinator reads the log, or what a cleaner left of it."""
        self.check_log()
        gone = self.bench.shard.unload()
        self.bench.answers.update((reply.token, reply.response) for reply in gone.replies)
        logs = [self.bench.log, *compactions(self.bench.log, self.rng.randrange(1_000))]
        self.bench.load(self.rng.choice(logs))
        for client in self.clients:
            client.contact_ms = self.bench.now_ms  # sessions begin anew

    # What must hold

    def check_log(self) -> None:
        """G9: every legal compaction, one that was read while it was made too."""
        log = self.bench.log
        whole = list(compactions(log, self.rng.randrange(1_000)))
        cut = self.rng.randrange(len(log) + 1)
        torn = [e for e in log if e.offset < cut] + [e for e in whole[0] if e.offset >= cut]
        for entries in (log, *whole, torn):
            shard = self.bench.new_shard()
            replay(shard, entries)
            shard.durable.settle()
            assert shard.durable == self.bench.shard.durable
            for mine in shard.consumer_groups.values():
                check_consumer_group(mine)

    def after(self) -> None:
        """After every event."""
        bench = self.bench
        for client in self.clients:
            if isinstance(client, ClassicClient) and client.waits is not None:
                kind, token = client.waits
                if token in bench.answers:
                    client.answered(kind, bench.answers[token])
        group, classic = bench.shard.consumer_groups.get(GROUP), bench.shard.groups.get(GROUP)
        assert group is None or classic is None or not classic.members
        members = group.members.keys() if group else classic.members.keys() if classic else ()
        self.kind = "classic" if group is None else "consumer"
        if group is not None:
            self.kinds |= 1
            assert len(group.members) <= 6, "G12"
        elif classic is not None and classic.members:
            self.kinds |= 2
        self.check_owners(set(members))

    def check_owners(self, members: set[str]) -> None:
        """G1: of the clients that are members no two hold one partition."""
        holders: dict[tuple[int, Part], str] = {}
        for client in self.clients:
            if client.alive and client.member_id in members:
                # A classic group's static member may miss a generation; commits fence it then.
                generation = client.epoch if self.kind == "classic" else 0
                for part in client.holds:
                    place = (generation, part)
                    assert place not in holders, f"G1: {place}: {holders[place]}, {vars(client)}"
                    holders[place] = client.member_id

    # The end

    def quiesce(self) -> None:
        """Faults stop: within a bound everybody has its part of everything (GL1, GL2, G2)."""
        rng = random.Random(1)
        for client in [c for c in self.clients if c.alive][6:]:
            client.die()
        for client in self.clients:
            client.say_all = True
        bound_ms = self.bench.now_ms + 2 * (REBALANCE_MS + SESSION_MS)
        while not self.settled():
            assert self.bench.now_ms < bound_ms, [vars(c) for c in self.clients if c.alive]
            for client in self.clients:
                if client.alive:
                    client.step(rng, polite=True)
            self.after()
            self.advance(INTERVAL_MS // 2)
        self.check_log()

    def settled(self) -> bool:
        alive = [c for c in self.clients if c.alive]
        group, classic = (
            self.bench.shard.consumer_groups.get(GROUP),
            self.bench.shard.groups.get(GROUP),
        )
        if not alive:
            return (group is None or not group.members) and (classic is None or not classic.members)
        if group is not None:
            if group.state() is not ConsumerState.STABLE:
                return False
            members, reads = group.members.keys(), group.subscribed_topics()
        elif classic is not None and classic.state is GroupState.STABLE:
            members, reads = classic.members.keys(), frozenset(TOPICS)
        else:
            return False
        if members != {c.member_id for c in alive} or not all(c.in_place() for c in alive):
            return False
        held = sorted(p for c in alive for p in c.holds)
        return held == sorted((t, n) for t in reads if t in self.ids for n in range(self.ids[t]))


class _Nobody:
    members: dict[str, Any] = {}  # noqa: RUF012  # nobody writes to it


_NOBODY: Any = _Nobody()


def run(seed: int, events: int, *, migrate: bool) -> int:
    world = World(seed, migrate=migrate)
    for _ in range(events):
        world.event()
    world.quiesce()
    world.bench.shard.unload()
    return world.kinds


@pytest.mark.rows(2)
@pytest.mark.parametrize("seed", range(8))
def test_invariants_hold_through_random_histories(seed: int) -> None:
    run(seed, 200, migrate=False)


def test_invariants_hold_while_groups_migrate() -> None:
    kinds = [run(seed, 200, migrate=True) for seed in range(100, 110)]
    assert 3 in kinds, "no history had both kinds of group"


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1_000, 1_300))
def test_invariants_hold_through_many_random_histories(seed: int) -> None:
    run(seed, 400, migrate=seed % 2 == 0)


def test_a_heartbeat_without_news_is_answered_as_the_long_way_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The short way of `consumer_heartbeat` decides nothing of its own, whatever came before."""
    short, taken = consumer_heartbeat._unchanged, 0

    def both(ws: Any, request: Any, context: Any, now_ms: int) -> Any:
        nonlocal taken
        answer = short(ws, request, context, now_ms)
        if answer is not None:
            taken += 1
            deadline, out = ws.timers.next_deadline(), Effects()
            consumer_heartbeat._check(ws, request, context.api_version)
            long = consumer_heartbeat._heartbeat(ws, request, context, now_ms, out)
            assert (answer, out, deadline) == (long, Effects(), ws.timers.next_deadline())
        return answer

    monkeypatch.setattr(consumer_heartbeat, "_unchanged", both)
    for seed in range(12):
        run(seed, 150, migrate=seed % 3 == 0)
    assert taken > 100, taken
