"""The world of `world.py` with exactly-once engines: real transactors over logs in memory.

Producers, commits and rebalances are simulated; a store is a real SQLite file. A process can be
killed at every step of a transaction, refused by the cluster, or left behind by its group and go on
working (a zombie), while another one has taken over.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

from kohort.client.common.types import GroupMetadata, OffsetAndMetadata
from kohort.errors import (
    AbortableTransactionError,
    BrokerError,
    ErrorCode,
    FencedError,
    KafkaTimeoutError,
    KohortError,
    RecordTooLargeError,
)
from kohort.processing.engine.engine import Done, Outcome
from kohort.processing.engine.exactly_once_engine import Batch, ExactEngine
from kohort.processing.engine.output import Output
from kohort.processing.engine.partition_state import Item
from kohort.processing.runtime.kafka_transactor import KafkaTransactor
from kohort.processing.runtime.runner import Start
from kohort.processing.runtime.store_transactor import StoreTransactor
from kohort.processing.runtime.transactor import Transactor
from kohort.retry.sql_statements import Execute, Insert, statements
from kohort.retry.store import Store
from kohort.retry.stores import open_store
from tests.known import fake
from tests.processing.world import SKEW_MS, TP, World

OUT = "out"
TABLE = "CREATE TABLE IF NOT EXISTS loaded (id TEXT NOT NULL, value TEXT NOT NULL)"


class Killed(BaseException):
    """kill -9: nothing may catch it."""


class Sent:
    """A record that was sent."""

    def __init__(self, where=None, refused: KohortError | None = None) -> None:
        self.where, self.refused, self.done = where, refused, True

    def error(self):
        return self.refused

    def add_done_callback(self, fn) -> None:
        """Nobody is told of the clocks of this world."""

    def result(self):
        if self.refused:
            raise self.refused
        return self.where


@dataclass
class Life:
    """One process: what is lost when it is killed."""

    engine: ExactEngine
    transactor: Transactor
    generation: int
    working: list[list[Item]] = field(default_factory=list)
    position: dict[TP, int] = field(default_factory=dict)


class Trouble:
    """What goes wrong: by chance, or at places that were asked for."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.kill_at: list[str] = []
        self.rate = 0.0
        self.kill_rate = 0.0

    def reach(self, place: str) -> None:
        if place in self.kill_at:
            self.kill_at.remove(place)
            raise Killed(place)
        if self.kill_rate and self.chance.random() < self.kill_rate:
            raise Killed(place)

    def happens(self) -> bool:
        return bool(self.rate) and self.chance.random() < self.rate


class Transactional:
    """A transactional producer over the world's logs."""

    def __init__(self, world: ExactWorld, generation: int) -> None:
        self.world, self.generation = world, generation
        self.records: list[tuple] = []
        self.offsets: dict = {}

    def init_transactions(self, timeout_s: float | None = None) -> None:
        self.world.trouble.reach("init")

    def begin_transaction(self) -> None:
        self.records, self.offsets, self.broken = [], {}, False

    def send(self, topic, value, key, partition, *, headers=()):
        self.world.trouble.reach("sending")
        refused = self.world.refusal(topic, value, headers)
        if refused is not None:
            if self.world.chance.random() < 0.5:
                raise refused
            self.broken = True
            return Sent(refused=refused)
        self.records.append((topic, partition or 0, key, value, headers))
        return Sent()

    def send_offsets_to_transaction(
        self, offsets, member: GroupMetadata, timeout_s: float | None = None
    ) -> None:
        self.world.trouble.reach("offsets")
        if member.generation != self.world.generation or self.world.trouble.happens():
            raise AbortableTransactionError("the member was left behind")
        self.offsets = offsets

    def commit_transaction(self, timeout_s: float | None = None) -> None:
        world = self.world
        world.trouble.reach("before commit")
        if self.broken or world.trouble.happens():
            raise AbortableTransactionError("aborted by the coordinator")
        if world.trouble.happens():
            raise FencedError(ErrorCode.PRODUCER_FENCED, "it took too long, and was aborted")
        if world.trouble.happens():
            raise KafkaTimeoutError("no answer in time; the same call again waits")
        lost = world.trouble.happens()
        if not (lost and world.chance.random() < 0.5):
            self.apply()
        world.trouble.reach("after commit")
        if lost:
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "the answer was lost")

    def apply(self) -> None:
        world = self.world
        for topic, number, key, value, headers in self.records:
            world.append(topic, number % world.partitions, key, value, headers)
        for tp, at in self.offsets.items():
            world.commits[tp.topic, tp.partition] = (at.offset, at.metadata)
        self.records, self.offsets = [], {}

    def abort_transaction(self, timeout_s: float | None = None) -> None:
        self.records, self.offsets = [], {}

    def close(self, timeout_s: float | None = None) -> None:
        self.records, self.offsets = [], {}


class Plain:
    """An idempotent producer over the world's logs."""

    def __init__(self, world: ExactWorld) -> None:
        self.world = world

    def send(self, topic, value, key, partition, *, headers=()):
        world = self.world
        world.trouble.reach("publishing")
        refused = world.refusal(topic, value, headers)
        if refused is not None:
            return Sent(refused=refused)
        number = (partition or 0) % world.partitions
        world.append(topic, number, key, value, headers)
        return Sent(
            SimpleNamespace(
                topic=topic, partition=number, offset=len(world.logs[topic, number]) - 1
            )
        )


opened: list[Store] = []
"""The stores of all lives, also of those that were killed; a fixture closes them."""


@dataclass
class ExactWorld(World):
    """`url` None: exactly once into Kafka; else into this store.

    `members` 2: one has the source topic, the other one all retry topics, and they take turns.
    """

    url: str | None = None
    members: int = 1

    def __post_init__(self) -> None:
        self.trouble = Trouble(random.Random(self.seed + 1))
        self.chance = random.Random(self.seed)
        self.generation = 0
        self.too_large = 1 << 30
        self.zombies: list[Life] = []
        self.fate: dict[bytes, int] = {}
        if self.url is not None:
            store = self.store()
            store.prepare()
            store.execute(statements([Execute(TABLE)]))
            store.close()
        super().__post_init__()

    def store(self) -> Store:
        assert self.url is not None
        opened.append(open_store(self.url))
        return opened[-1]

    def close(self) -> None:
        """Whoever still lives closes what it has open."""
        for life in (*self.present, *self.zombies):
            life.transactor._close()

    def refusal(self, topic, value, headers) -> KohortError | None:
        size = len(value or b"") + sum(len(v or b"") for _, v in headers)
        if size > self.too_large:
            return RecordTooLargeError(f"{size} bytes")
        if self.trouble.happens():
            return BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, topic)
        return None

    # -- lives

    def begin(self) -> None:
        """A new member takes everything over; whoever was there before may not know it."""
        self.lives += 1
        self.generation += 1
        self.nested = False
        self.present = [self.member(number) for number in range(self.members)]
        self.turn(0)

    def turn(self, number: int) -> None:
        """Let one of the members act."""
        self.life = life = self.present[number]
        self.engine, self.working, self.position = life.engine, life.working, life.position

    def other_acts(self, commits: bool) -> None:
        """The other member goes on in the midst of what this one does."""
        if self.members == 1 or self.nested or self.life not in self.present:
            return
        self.nested, number = True, self.present.index(self.life)
        self.turn(1 - number)
        for _ in range(10):
            self.step()
        if commits:
            self.commit_of(self.life)
        self.turn(number)
        self.nested = False

    def member(self, number: int) -> Life:
        # Without the guard, which takes records that were about whenever we kill for the killers.
        engine = ExactEngine(
            self.routes,
            self.limits,
            skew_ms=SKEW_MS,
            crash_guard=False,
            judged=self.url is not None,
        )
        self.life = life = Life(engine, self.make_transactor(), self.generation)
        self.engine, self.working, self.position = engine, life.working, life.position
        for topic in engine.topics:
            if self.members == 1 or number == (topic in engine.delays_ms):
                for at in range(self.partitions):
                    self.assign((topic, at))
        return life

    def make_transactor(self) -> Transactor:
        generation = self.generation
        if self.url is not None:
            return StoreTransactor(
                "billing",
                self.store(),
                fake(Plain(self)),
                lambda topic: self.partitions,
                {},
                lambda: self.now_ms,
                now_s=lambda: self.now_ms / 1_000,
            )

        def committed(
            partitions: Sequence[TP],
        ) -> dict[TP, OffsetAndMetadata | None]:
            return {
                tp: OffsetAndMetadata(*self.commits[tp]) for tp in partitions if tp in self.commits
            }

        return KafkaTransactor(
            lambda: fake(Transactional(self, generation)),
            lambda topic: self.partitions,
            committed,
            now_s=lambda: self.now_ms / 1_000,
        )

    def assign(self, key: TP) -> None:
        self.epoch += 1
        offset, metadata = self.commits.get(key, (0, ""))
        start = self.life.transactor._take_over({key: Start(offset, metadata)})[key]
        self.engine.assigned(key, self.epoch, start.offset, start.snapshot, now_ms=self.now_ms)
        self.position[key] = start.offset or 0

    def crash(self) -> None:
        for life in self.present:
            life.transactor._close()
        self.begin()

    def leave_behind(self) -> None:
        """A rebalance that the present process does not hear of."""
        self.zombies += self.present
        self.begin()

    # -- what the shell does

    def outcomes(self, items: Sequence[Item]) -> list[Outcome]:
        found = super().outcomes(items)
        for index, (item, outcome) in enumerate(zip(items, found, strict=True)):
            if outcome is None:
                value = item.record.value or b""
                if self.url is None:
                    found[index] = Done([Output(OUT, value)])
                else:
                    origin = item.attempt.origin.retry_id if item.attempt else ""
                    row = {"id": origin, "value": value.decode()}
                    found[index] = Done((), [Insert("loaded", row)])
        return found

    def publish(self) -> None:
        assert not self.engine.publications()
        while items := self.engine.unjudged(7):
            judgement = self.life.transactor._judge(items)
            self.engine.judged(judgement.items, judgement.owed, judgement.elsewhere, self.now_ms)

    def commit(self) -> None:
        try:
            self.commit_of(self.life)
        except Killed:
            self.crash()

    def commit_of(self, life: Life) -> bool:
        batch: Batch | None = life.engine.batch(self.now_ms, self.chance.choice([3, 5_000]))
        if batch is None:
            return False
        member = GroupMetadata("billing", life.generation, f"m{life.generation}", None)
        verdict = life.transactor._commit_batch(batch, member)
        if verdict.error is None:
            life.engine.transaction_committed(batch, self.now_ms)
        else:
            life.engine.transaction_aborted(verdict, self.now_ms)
        return verdict.error is None

    def zombie_acts(self) -> None:
        """A member that was left behind finishes something and tries to commit it."""
        life = self.chance.choice(self.zombies)
        while life.working:
            items = life.working.pop()
            life.engine.finished(items, self.outcomes(items), self.now_ms)
        try:
            self.commit_of(life)
        except Killed:
            life.transactor._close()
            self.zombies.remove(life)

    def settle(self) -> None:
        idle = 0
        for _ in range(3_000):
            self.turn(self.chance.randrange(self.members))
            self.step()
            self.commit()
            idle = idle + 1 if not any(self.busy(life.engine) for life in self.present) else 0
            if idle > 8 * (self.members - 1):
                return
        raise AssertionError("it never settles")

    def busy(self, engine: ExactEngine) -> bool:
        owes = any(p.wait_until_ms <= self.now_ms for p in engine._settled) or engine._plain
        return bool(engine.ready("threads") or engine.in_flight or owes or engine._unjudged)

    def next_due(self) -> int | None:
        found: list[int] = []
        for number, life in enumerate(self.present):
            self.turn(number)
            found += [p.wait_until_ms for p in life.engine._settled]
            due = super().next_due()
            found += [] if due is None else [due]
        return min(found, default=None)

    # -- what came of it

    def results(self) -> Counter[str]:
        """Every result that somebody who reads committed data sees."""
        if self.url is None:
            return Counter(
                (r.value or b"").decode() for n in range(self.partitions) for r in self.logs[OUT, n]
            )
        return Counter(str(row[0]) for row in self.ask("SELECT value FROM loaded"))

    def failures(self) -> Counter[str]:
        """Every record that has failed for good, by its value."""
        if self.url is None:
            return Counter((r.value or b"").decode() for r in self.failed())
        places = self.ask(
            "SELECT origin_partition, origin_offset FROM kohort_ledger l WHERE status = 'failed' "
            "AND origin_topic = 'orders'"
        )
        return Counter((self.logs["orders", p][o].value or b"").decode() for p, o in places)

    def ask(self, sql: str) -> list[tuple]:
        store = self.store()
        try:
            return store.query(sql)
        finally:
            store.close()
