"""A model of database, Kafka and Spark's commit log, in which a driver can die between any two
effects.

Records are (input, try): a task that runs again for the same input makes another record of it, as a
handler that looks something up may. So a batch whose table and topic come from different tries
shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kohort.client.common.types import TopicPartition
from kohort.client.producer.plan.transaction_requests import Identity
from kohort.client.shared.transaction import EncodedBatch, TransactionLostError
from kohort.spark.outputs.fence import Batch, Fence, FencePolicy
from kohort.spark.outputs.protocol import (
    Attempt,
    Committer,
    Outcome,
    Step,
    Stored,
    Topics,
    Written,
)

BATCHES = 3
Record = tuple[int, int]


class Died(BaseException):
    """The driver was killed."""


@dataclass
class Kafka:
    """One transactional id and one topic."""

    epoch: int = 0
    open: bool = False
    expired: bool = False
    added: bool = False
    written: list[Record] = field(default_factory=list[Record])
    pending: Fence | None = None
    committed: list[Record] = field(default_factory=list[Record])
    fence: Fence | None = None
    ended_epoch: int = -1

    def expire(self) -> None:
        """The coordinator's time-out."""
        if self.open:
            self.abort()
            self.epoch += 1
            self.expired = True

    def abort(self) -> None:
        self.open, self.written, self.pending, self.added = False, [], None, False


@dataclass
class World:
    """Everything that outlives a driver."""

    kafka: Kafka = field(default_factory=Kafka)
    stored: Stored | None = None
    table: list[Record] = field(default_factory=list[Record])
    staged: dict[int, list[Record]] = field(default_factory=dict[int, list[Record]])
    outbox: dict[int, list[Record]] = field(default_factory=dict[int, list[Record]])
    commit_log: int = 0
    effects: int = 0
    tries: int = 0
    dies_at: frozenset[int] = frozenset()
    """Numbers of effects at which the driver dies: odd ones before it, even ones after it."""

    def may_die(self) -> None:
        self.effects += 1
        if self.effects in self.dies_at:
            raise Died

    def driver(
        self, *, table: bool, topic: bool, reached: Callable[[Step], None] | None = None
    ) -> Driver:
        return Driver(self, table, topic, reached or (lambda _: None))


class TableModel:
    """The `Database` port."""

    def __init__(self, world: World) -> None:
        self.world = world

    def fence(self) -> Stored | None:
        self.world.may_die()
        return self.world.stored

    def commit(
        self,
        batch: Batch,
        expected: Stored | None,
        written: Written,
        identity: Identity | None,
        topics: Topics | None,
    ) -> str:
        world = self.world
        world.may_die()
        if (world.stored and world.stored.fence) != (expected and expected.fence):
            return "another driver was faster"
        for attempt in written.staged:
            rows = world.staged.get(attempt.id, [])
            if len(rows) != attempt.rows:
                return "staged rows are gone"
        world.table += [r for a in written.staged for r in world.staged[a.id]]
        fence = Fence(batch.batch_id, batch.checkpoint)
        world.stored = Stored(fence, identity, tuple(written.outbox), identity is None)
        world.may_die()
        return ""

    def ended(self, batch: Batch) -> None:
        world = self.world
        world.may_die()
        if world.stored is not None and world.stored.fence.covers(batch):
            world.stored = replace(world.stored, ended=True)
            world.outbox.clear()
        world.may_die()

    def outbox(self, attempts: Sequence[int]) -> Iterable[EncodedBatch]:
        for attempt in attempts:
            for record in self.world.outbox[attempt]:
                yield EncodedBatch("t", record[0] % 2, 1, repr(record).encode())


class TopicModel:
    """The `Topics` port."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.kafka = world.kafka
        self.latest: Identity | None = None
        self.partitions = {"t": 2}

    def _lost(self) -> TransactionLostError:
        return TransactionLostError("over", expired=self.kafka.expired)

    def _check(self, identity: Identity) -> None:
        self.world.may_die()
        if identity.epoch != self.kafka.epoch or not self.kafka.open:
            raise self._lost()

    def init(self) -> Identity:
        self.world.may_die()
        kafka = self.kafka
        mine = self.latest
        if mine is not None and mine.epoch != kafka.epoch and not kafka.expired:
            raise self._lost()
        kafka.abort()
        kafka.epoch += 1
        kafka.expired = False
        self.latest = Identity("q", 1, kafka.epoch)
        self.world.may_die()
        return self.latest

    def fence(self) -> Fence | None:
        self.world.may_die()
        return self.kafka.fence

    def add(self, identity: Identity) -> None:
        self.world.may_die()
        if identity.epoch != self.kafka.epoch:
            raise self._lost()
        self.kafka.open = self.kafka.added = True
        self.world.may_die()

    def write(
        self,
        identity: Identity,
        batches: Iterable[EncodedBatch],
        after: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        for batch in batches:
            self.append(identity, eval(bytes(batch.payload)))

    def append(self, identity: Identity, record: Record) -> None:
        self._check(identity)
        self.kafka.written.append(record)
        self.world.may_die()

    def set_fence(self, identity: Identity, batch: Batch) -> None:
        self._check(identity)
        self.kafka.pending = Fence(batch.batch_id, batch.checkpoint)
        self.world.may_die()

    def end(self, identity: Identity, *, commit: bool) -> None:
        self.world.may_die()
        kafka = self.kafka
        if identity.epoch != kafka.epoch:
            raise self._lost()
        if not kafka.open:
            if commit and kafka.ended_epoch == identity.epoch:
                return
            raise self._lost()
        if commit:
            kafka.committed += kafka.written
            kafka.fence = kafka.pending or kafka.fence
            kafka.ended_epoch = identity.epoch
        kafka.abort()
        self.world.may_die()


class WorkModel:
    """The `Work` port: two inputs a batch, one task each."""

    def __init__(self, driver: Driver, batch: Batch, taints: Iterable[str] = ()) -> None:
        self.driver = driver
        self.batch = batch
        self.taints = list(taints)

    def run(self, identity: Identity | None) -> Written:
        driver, world = self.driver, self.driver.world
        world.tries += 1
        result = Written()
        for task in range(2):
            record = (2 * self.batch.batch_id + task, world.tries)
            attempt = 10 * world.tries + task
            if driver.table is not None:
                world.may_die()
                world.staged[attempt] = [record]
                result.staged.append(Attempt("table", attempt, 1))
            if identity is not None and driver.topic is not None:
                driver.topic.append(identity, record)
                if driver.table is not None:
                    world.outbox[attempt] = [record]
                    result.outbox.append(attempt)
        result.tainted = self.taints.pop(0) if self.taints else ""
        return result


class Driver:
    """One life of a driver: connections of its own over the world."""

    def __init__(
        self, world: World, table: bool, topic: bool, reached: Callable[[Step], None]
    ) -> None:
        self.world = world
        self.table = TableModel(world) if table else None
        self.topic = TopicModel(world) if topic else None
        policy = FencePolicy("q", 0, "the place", "the remedy")
        self.committer = Committer(policy, self.table, self.topic, reached)

    def run(self, batch_id: int, taints: Iterable[str] = ()) -> Outcome:
        batch = Batch("q", batch_id, "c1")
        return self.committer.run(batch, WorkModel(self, batch, taints))

    def run_all(self) -> None:
        """As Spark does: from the commit log on, noting each batch that is done."""
        while self.world.commit_log < BATCHES:
            self.run(self.world.commit_log)
            self.world.may_die()
            self.world.commit_log += 1


def check(world: World, *, table: bool, topic: bool, batches: int = BATCHES) -> None:
    """Every input is in every output, once; with both outputs from the same try."""
    inputs = Counter(dict.fromkeys(range(2 * batches), 1))
    if table:
        assert Counter(i for i, _ in world.table) == inputs
    if topic:
        assert Counter(i for i, _ in world.kafka.committed) == inputs
    if table and topic:
        assert sorted(world.table) == sorted(world.kafka.committed)
        owed = {a for a in world.outbox if world.stored and a in world.stored.outbox}
        assert not owed, "what is committed needs no outbox; of others it is swept with the next"
