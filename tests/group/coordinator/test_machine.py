"""Many members, random events, failovers: invariants after every event (G1-G13, O1-O7, GL1-GL4).

One number makes a whole history. After each event that wrote records the harness compares live
state with replays of the log and of compactions of it (G9). A failing run names its seed.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from kohort.errors import ErrorCode
from kohort.group.coordinator.state.classic_table import GroupState
from kohort.wire.messages.delete_groups_request import DeleteGroupsRequest
from tests.group.harness import DELAY_MS, GROUP, Bench

C, S = ErrorCode, GroupState
SESSION_MS, REBALANCE_MS, NEW_MEMBER_MS = 10_000, 20_000, 60_000
PARTITIONS, MAX_SIZE = 6, 4
LOST = {C.UNKNOWN_MEMBER_ID, C.ILLEGAL_GENERATION}


class Client:
    """A consumer that mostly keeps to the protocol; its memory of the group is its own."""

    def __init__(self, world: World, name: str, instance: str | None) -> None:
        self.world, self.name, self.instance = world, name, instance
        self.alive = True
        self.member_id, self.generation = "", -1
        self.waits: tuple[str, int] | None = None  # kind and token
        self.needs_join, self.needs_sync = True, False
        self.members: list[str] = []
        self.owned: tuple[int, ...] = ()
        self.metadata = b"r"
        self.version = 9
        self.contact_ms = 0

    def step(self, rng: random.Random) -> None:
        """Do what is next, or something foolish."""
        if self.waits is not None and rng.random() < 0.95:
            return
        bench = self.world.bench
        self.contact_ms = bench.now_ms
        if self.needs_join:
            self.join()
        elif self.needs_sync:
            plan = self.plan() if self.members else None
            token = bench.sync(self.member_id, self.generation, plan, instance=self.instance)
            self.waits = ("sync", token)
        elif rng.random() < 0.6:
            code = bench.heartbeat(self.member_id, self.generation, self.instance)
            self.world.check_admission(self, code)
            self.on_code(code)
        elif rng.random() < 0.7:
            self.world.commit(self)
        else:
            if rng.random() < 0.5:
                self.metadata = bytes([rng.randrange(3)])
            self.join()

    def join(self) -> None:
        self.owned = ()  # eager: nothing is consumed while the join waits
        token = self.world.bench.join(
            self.member_id,
            instance=self.instance,
            protocols=[("range", self.metadata), ("sticky", b"s")],
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            version=self.version,
            client=self.name,
        )
        self.waits = ("join", token)

    def plan(self) -> dict[str, bytes]:
        """Deal out the partitions; the generation is in it, so that no two plans are equal."""
        shares = {m: bytes([self.generation % 256]) for m in self.members}
        for partition in range(PARTITIONS):
            shares[self.members[partition % len(self.members)]] += bytes([partition])
        return shares

    def on_code(self, code: ErrorCode | int) -> None:
        """An error code tells what to do next."""
        if code in LOST or code == C.GROUP_MAX_SIZE_REACHED:
            self.forget(keep_id=code == C.ILLEGAL_GENERATION)
        elif code == C.FENCED_INSTANCE_ID:
            self.alive = False
        elif code != C.NONE:
            self.owned, self.needs_join, self.needs_sync = (), True, False

    def forget(self, *, keep_id: bool = False) -> None:
        if not keep_id:
            self.member_id = ""
        self.generation, self.owned = -1, ()
        self.needs_join, self.needs_sync, self.waits = True, False, None

    def answered(self, kind: str, answer: Any) -> None:
        self.waits, self.contact_ms = None, self.world.bench.now_ms
        code = answer.error_code
        if kind == "join" and code == C.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif code:
            self.on_code(code)
        elif kind == "join":
            self.world.saw_generation(answer)
            self.member_id, self.generation = answer.member_id, answer.generation_id
            leads = answer.leader == answer.member_id and not answer.skip_assignment
            self.members = [m.member_id for m in answer.members] if leads else []
            self.needs_join, self.needs_sync = False, True
        else:
            self.needs_sync = False
            self.owned = self.world.saw_assignment(self, answer.assignment)


class World:
    """The shard, its clients, and what ought to be true."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.bench = Bench(
            group_max_size=MAX_SIZE,
            group_new_member_join_timeout_ms=NEW_MEMBER_MS,
            group_pending_members_max_bytes=500,
        )
        self.clients: list[Client] = []
        self.generation = 0
        self.plans: dict[int, dict[str, bytes]] = {}
        self.offsets: dict[tuple[str, int], tuple[int, int]] = {}  # value, log offset
        self.staged: dict[int, dict[tuple[str, int], tuple[int, int]]] = {}
        self.phase_since_ms = self.generation_since_ms = self.last_generation = 0
        self.state: GroupState | None = None

    # Events

    def event(self) -> None:
        rng = self.rng
        kind = rng.choices(
            ["step", "round", "time", "new", "crash", "leave", "failover", "offsets", "delete"],
            [20, 40, 18, 6, 3, 2, 3, 6, 1],
        )[0]
        alive = [c for c in self.clients if c.alive]
        if kind == "time":
            self.advance(rng.choice([1, 100, 1_000, SESSION_MS // 4, SESSION_MS // 2, DELAY_MS]))
        elif kind == "failover" and rng.random() < 0.7:
            self.failover()
        elif kind == "offsets":
            self.offset_event()
        elif kind == "delete":
            self.delete_group()
        elif kind == "new" or not alive:
            self.new_client()
        elif kind == "round":
            for client in alive:
                client.step(rng)
                self.after()
        else:
            client = rng.choice(alive)
            if kind == "crash":
                client.alive = False
            elif kind == "leave" and client.member_id:
                self.bench.leave(client.member_id)
                client.alive = False
            else:
                client.step(rng)
        self.after()

    def new_client(self) -> None:
        rng = self.rng
        if sum(c.alive for c in self.clients) > MAX_SIZE + 1:
            return
        instance = rng.choice([None, None, None, "one", "two"])
        client = Client(self, f"c{len(self.clients)}", instance)
        client.version = rng.choice([3, 8, 9, 9]) if instance is None else 9
        for other in self.clients:
            if instance and other.instance == instance:
                other.alive = rng.random() < 0.3 and other.alive  # now and then a zombie
        self.clients.append(client)

    def advance(self, ms: int) -> None:
        """Time passes; who is dropped on the way must have earned it (G13)."""
        until = self.bench.now_ms + ms
        while True:
            due = self.bench.shard.next_deadline()
            stop = until if due is None else min(max(due, self.bench.now_ms), until)
            group = self.bench.shard.groups.get(GROUP)
            before = dict(group.members) if group else {}
            unsynced = set(group.pending_sync) if group else set[str]()
            self.bench.now_ms = stop
            self.bench.took(self.bench.shard.tick(stop))
            self.check_expulsions(before, unsynced)
            self.after()
            if (due is None or due > until) and stop == until:
                return

    def check_expulsions(self, before: dict[str, Any], unsynced: set[str]) -> None:
        group, now_ms = self.bench.shard.groups.get(GROUP), self.bench.now_ms
        after = group.members if group else {}
        by_id = {c.member_id: c for c in self.clients if c.member_id}
        for member_id in before.keys() - after.keys():
            client = by_id.get(member_id)
            silent_ms = now_ms - client.contact_ms if client else SESSION_MS
            assert (
                silent_ms >= SESSION_MS
                or now_ms - self.phase_since_ms >= REBALANCE_MS
                or (member_id in unsynced and now_ms - self.generation_since_ms >= REBALANCE_MS)
                or before[member_id].is_new
            ), f"{member_id} was expelled {silent_ms} ms after its last word"

    def failover(self) -> None:
        """The node dies; sometimes its successor reads a compacted log. Soft state is gone."""
        self.bench.failover()
        self.state = None
        for client in self.clients:
            client.contact_ms = self.bench.now_ms  # sessions begin anew

    def offset_event(self) -> None:
        rng, bench = self.rng, self.bench
        group, producer = rng.choice([GROUP, "simple"]), rng.randrange(3)
        where, value = (group, rng.randrange(3)), rng.randrange(100)
        choice = rng.random()
        if choice < 0.3:
            code = bench.commit(value, group=group, partition=where[1])
            if code is C.NONE:
                self.offsets[where] = (value, bench.end - 1)
            else:
                assert bench.group.members
        elif choice < 0.6:
            assert bench.txn_commit(value, producer, group=group, partition=where[1]) is C.NONE
            self.staged.setdefault(producer, {})[where] = (value, bench.end - 1)
        elif choice < 0.9:
            committed = rng.random() < 0.6
            bench.marker(producer, committed=committed)
            for key, staged in self.staged.pop(producer, {}).items():
                if committed and staged[1] > self.offsets.get(key, (0, -1))[1]:
                    self.offsets[key] = staged
        else:
            stable = bench.fetch(group=group, partition=where[1], require_stable=True)
            pending = any(where in s for s in self.staged.values())
            assert stable[1] is (C.UNSTABLE_OFFSET_COMMIT if pending else C.NONE)

    def delete_group(self) -> None:
        request = DeleteGroupsRequest(groups_names=[GROUP])
        code = self.bench.ask(request, 2).results[0].error_code
        group = self.bench.shard.groups.get(GROUP)
        if code:
            assert code in (C.NON_EMPTY_GROUP, C.GROUP_ID_NOT_FOUND)
            assert (code == C.NON_EMPTY_GROUP) == (group is not None)
            return
        assert group is None
        self.generation = 0
        self.plans.clear()
        self.offsets = {k: v for k, v in self.offsets.items() if k[0] != GROUP}
        for staged in self.staged.values():
            for key in [k for k in staged if k[0] == GROUP]:
                del staged[key]

    def commit(self, client: Client) -> None:
        partition = self.rng.choice(client.owned or (0,))
        value = self.rng.randrange(1_000)
        code = self.bench.commit(
            value,
            client.member_id,
            client.generation,
            partition=partition,
            instance=client.instance,
        )
        if code is C.NONE:
            self.offsets[GROUP, partition] = (value, self.bench.end - 1)
            assert self.bench.fetch(partition=partition) == (value, C.NONE)  # O1
            self.check_admission(client, code)
        elif code is not C.REBALANCE_IN_PROGRESS:
            self.check_admission(client, code)
        client.on_code(code)

    # What must hold

    def after(self) -> None:
        """After every event."""
        bench = self.bench
        for client in self.clients:
            if client.waits and client.waits[1] in bench.answers:
                kind, token = client.waits
                client.answered(kind, bench.answers[token])
        group = bench.shard.groups.get(GROUP)
        if bench.state is not self.state:
            self.state = bench.state
            if self.state is S.PREPARING:
                self.phase_since_ms = bench.now_ms
        stored = bench.shard.durable.groups.get(GROUP)
        if stored and stored.generation != self.last_generation:
            self.last_generation, self.generation_since_ms = stored.generation, bench.now_ms
        if group is not None:
            if group.state in (S.COMPLETING, S.STABLE):
                assert len(group.members) <= MAX_SIZE  # G12
            pending = sum(len(i) for g in bench.shard.groups.values() for i in g.pending_join)
            assert pending <= 500
        self.check_owners()
        self.check_offsets()

    def check_owners(self) -> None:
        """G1 (and spec 2.12): in one generation no partition has two owners."""
        seen: set[tuple[int, int]] = set()
        group = self.bench.shard.groups.get(GROUP)
        holders = group.static_members if group else dict[str, str]()
        for client in self.clients:
            fenced = holders.get(client.instance or "", client.member_id) != client.member_id
            if client.alive and not fenced:
                mine = {(client.generation, p) for p in client.owned}
                assert not mine & seen
                seen |= mine

    def check_offsets(self) -> None:
        """O1-O3, O5: exactly what was committed, whoever serves it."""
        durable = self.bench.shard.durable
        found = {
            (group, partition): (stored.offset, stored.record_offset)
            for group, offsets in durable.offsets.items()
            for (_, partition), stored in offsets.items()
        }
        assert found == self.offsets

    def check_admission(self, client: Client, code: ErrorCode) -> None:
        """G6: accepted if and only if member, instance and generation are current."""
        group = self.bench.shard.groups.get(GROUP)
        accepted = code in (C.NONE, C.REBALANCE_IN_PROGRESS)
        if group is None:
            assert not accepted
            return
        generation = self.bench.shard.durable.groups[GROUP].generation
        holder = group.static_members.get(client.instance or "", client.member_id)
        current = (
            client.member_id in group.members
            and holder == client.member_id
            and client.generation == generation
        )
        assert accepted == current, (code, client.member_id, client.generation, generation)

    def saw_generation(self, answer: Any) -> None:
        """G3: no answer goes back, and what is told is the newest in the log."""
        assert answer.generation_id >= self.generation
        assert answer.generation_id == self.bench.stored.generation
        self.generation = answer.generation_id

    def saw_assignment(self, client: Client, assignment: bytes) -> tuple[int, ...]:
        """G7, G2: every answer of a generation is from one plan, which deals out everything."""
        stored = {m.member_id: m.assignment for m in self.bench.stored.members.values()}
        plan = self.plans.setdefault(client.generation, stored)
        if client.member_id in plan:
            assert assignment == plan[client.member_id]
        else:  # a static member that took its instance's place (KIP-345)
            assert client.instance is not None
            assert assignment in plan.values()
        if plan is stored and any(stored.values()):
            dealt = sorted(p for share in plan.values() for p in share[1:])
            assert dealt == list(range(PARTITIONS))
        return tuple(assignment[1:])

    # The end

    def quiesce(self) -> None:
        """Faults stop; who is alive keeps to the protocol. GL1, GL2, GL4 within a bound."""
        for producer in list(self.staged):
            self.bench.marker(producer, committed=False)
            del self.staged[producer]
        alive = [c for c in self.clients if c.alive][:MAX_SIZE]
        for client in self.clients:
            client.alive = client in alive
        polite = random.Random(1)
        polite.random = lambda: 0.5  # type: ignore[method-assign]  # no foolish steps
        bound_ms = self.bench.now_ms + NEW_MEMBER_MS + 2 * (REBALANCE_MS + SESSION_MS)
        while not self.settled(alive):
            assert self.bench.now_ms < bound_ms, [vars(c) for c in alive]
            for client in alive:
                if client.alive:
                    client.step(polite)
                    self.after()
            self.advance(1_000)
            alive = [c for c in alive if c.alive]

    def settled(self, alive: list[Client]) -> bool:
        group = self.bench.shard.groups.get(GROUP)
        if not alive:
            return group is None or group.state is S.EMPTY
        if group is None or group.state is not S.STABLE:
            return False
        current = {c.member_id for c in alive if c.generation == self.bench.stored.generation}
        return (
            current == set(group.members)
            and len(current) == len(alive)
            and (sorted(p for c in alive for p in c.owned) == list(range(PARTITIONS)))
        )


def run(seed: int, events: int) -> None:
    world = World(seed)
    for _ in range(events):
        world.event()
    world.quiesce()
    world.bench.shard.unload()


@pytest.mark.rows(3)
@pytest.mark.parametrize("seed", range(16))
def test_invariants_hold_through_random_histories(seed: int) -> None:
    run(seed, 300)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1_000, 1_400))
def test_invariants_hold_through_many_random_histories(seed: int) -> None:
    run(seed, 400)
