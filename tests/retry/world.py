"""A small world for the fence: logs in memory, a clock that is moved, and kills at every step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kohort.records import Record as Fetched
from kohort.retry.copies import Attempt, Copy
from kohort.retry.due_schedule import Answer, DueSchedule, NeedProof, Opened
from kohort.retry.fenced import Loader, Report, SourceRange
from kohort.retry.handling import Handlers, HandlerSpec
from kohort.retry.ledger import Place
from kohort.retry.policy import RetryPolicy, RetryTopics
from kohort.retry.sql_statements import Effect, Execute, Insert, statements
from kohort.retry.store import Applied, Store, Transaction
from kohort.retry.stores import open_store

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS loaded (id TEXT NOT NULL, attempt INTEGER NOT NULL, "
    "small INTEGER NOT NULL CHECK (small < 1000000000))"
)


class Killed(BaseException):
    """kill -9: nothing may catch it."""


@dataclass
class Kills:
    """Names of the places where the process dies, each once."""

    at: list[str] = field(default_factory=list)

    def reach(self, place: str) -> None:
        if place in self.at:
            self.at.remove(place)
            raise Killed(place)


@dataclass
class World:
    """Everything outside of the process, and so everything that survives a kill."""

    url: str
    policy: RetryPolicy = field(default_factory=lambda: RetryPolicy.parse("2s 2s 5s"))
    now: int = 1_000_000
    behind_ms: int = 0
    slept_ms: int = 0
    logs: dict[tuple[str, int], list[Any]] = field(default_factory=lambda: defaultdict(list))
    """Records, and `Unreadable` at every offset of a batch that nobody can read."""
    checkpoint: dict[tuple[str, int], int] = field(default_factory=dict)
    open_batch: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    kills: Kills = field(default_factory=Kills)
    handle: Callable[..., object] = lambda record, store: None
    decode: object = None
    topic_id: str = "id-1"
    partitions: int = 2
    stores: list[Store] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topics = RetryTopics("in", "g", self.policy)
        self.gate = DueSchedule(self.topics.delays_ms, skew_ms=0)
        store = self.store()
        store.prepare()
        store.execute(statements([Execute(SCHEMA)]))
        for topic in self.topics.delays_ms:
            for partition in range(self.partitions):
                store.open_fence("p", topic, self.topic_id, partition, 0, self.now)
        store.close()

    def store(self) -> Store:
        self.stores.append(open_store(self.url))
        return self.stores[-1]

    def close(self) -> None:
        """Close what killed processes have left open."""
        for store in self.stores:
            store.close()

    def produce(self, partition: int, *values: bytes) -> None:
        for value in values:
            self.append(("in", partition), b"k", value, [("h", None), ("h", b"1")])

    def append(
        self,
        at: tuple[str, int],
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        *,
        timestamp_type: int = 0,
        timestamp: int | None = None,
        offset: int | None = None,
    ) -> int:
        """A record at the end of a log; its offset."""
        log = self.logs[at]
        offset = len(log) if offset is None else offset
        stamp = self.now if timestamp is None else timestamp
        log.append(
            Fetched(
                *at,
                offset,
                timestamp=stamp,
                key=key,
                value=value,
                headers=headers,
                timestamp_type=timestamp_type,
            )
        )
        return offset

    # One process

    def loader(self) -> Loader:
        spec = HandlerSpec("in", self.handle, table="loaded", decode=self.decode)  # type: ignore[arg-type]
        return Loader(
            "p", {"in": self.topics}, KillableStore(self), self, Handlers([spec]), self, 0
        )

    def publish(self, copies: Sequence[Copy]) -> list[Place]:
        self.kills.reach("before publish")
        places: list[Place] = []
        for copy in copies:
            at = (copy.topic, copy.partition_hint % self.partitions)
            offset = self.append(at, copy.key, copy.value, copy.headers, timestamp_type=1)
            places.append(Place(*at, offset))
            self.kills.reach("during publish")
        self.kills.reach("after publish")
        return places

    def now_ms(self) -> int:
        """The executors' clock; `now` is that of driver and brokers."""
        return self.now - self.behind_ms

    def sleep_ms(self, ms: int) -> None:
        self.slept_ms += ms
        self.now += ms

    # What Spark does: plan, keep the plan, run it, remember that it is done

    def span(self, topic: str, partition: int, start: int, end: int) -> SourceRange:
        delay = self.topics.delays_ms.get(topic)
        planned_ms = 0 if delay is None else self.now
        return SourceRange(
            topic, self.topic_id, partition, start, end, "in", delay, start == 0, planned_ms
        )

    def run(self, topic: str, partition: int, chunk: int = 100) -> Report | None:
        """One micro-batch of one partition; a kill inside leaves the plan open, as Spark does."""
        at = (topic, partition)
        if at not in self.open_batch:
            start = self.checkpoint.get(at, 0)
            end = self.end(topic, partition, start)
            if end == start:
                return None
            self.open_batch[at] = (start, end)
        start, end = self.open_batch[at]
        loader = self.loader()
        try:
            load = loader.open(self.span(topic, partition, start, end))
            stored = enumerate(self.logs[at][start:end], start)
            records = [] if load.done else [r for n, r in stored if r.offset == n]
            for low in range(0, len(records), chunk):
                load.load(records[low : low + chunk])
            report = load.finish()
        finally:
            loader.store.close()
        self.kills.reach("before commit log")
        self.checkpoint[at] = end
        del self.open_batch[at]
        return report

    def end(self, topic: str, partition: int, start: int) -> int:
        log = self.logs[topic, partition]
        if topic not in self.topics.delays_ms:
            return len(log)
        for q in self.gate.questions({(topic, partition): start}, self.now):
            stamps = [(r.offset, getattr(r, "timestamp", 0)) for r in log]
            offset, stamp = next(((o, t) for o, t in stamps if t >= q.target_ms), (-1, -1))
            answer = Answer(len(log), offset, stamp)
            outcome = self.gate.answer(q, answer, self.now)
            if isinstance(outcome, NeedProof):
                last = max(stamps, key=lambda e: e[1], default=(-1, -1))
                proven = Answer(
                    len(log), offset, stamp, max_offset=last[0], max_timestamp_ms=last[1]
                )
                outcome = self.gate.answer(q, proven, self.now)
            assert isinstance(outcome, Opened)
        opened = self.gate.opened((topic, partition))
        assert opened is not None
        return max(opened.end, start)

    def run_all(self, chunk: int = 100) -> None:
        """Until nothing is owed; a killed process is started again."""
        for _ in range(400):
            for topic in ("in", *self.topics.delays_ms):
                for partition in range(self.partitions):
                    self.survive(topic, partition, chunk)
            if not self.owed() and not self.open_batch:
                return
            self.now += 1_000
        raise AssertionError(f"still owed: {self.owed()}")

    def survive(self, topic: str, partition: int, chunk: int = 100) -> None:
        while True:
            try:
                self.run(topic, partition, chunk)
                return
            except Killed:
                self.gate.forget()

    # What is true

    def ask(self, sql: str) -> list[tuple[object, ...]]:
        store = self.store()
        try:
            return store.query(sql)
        finally:
            store.close()

    def owed(self) -> int:
        return int(
            str(self.ask("SELECT count(*) FROM kohort_ledger WHERE status='scheduled'")[0][0])
        )

    def loaded(self) -> list[str]:
        return sorted(str(row[0]) for row in self.ask("SELECT id FROM loaded"))

    def failed(self) -> list[str]:
        """Records whose newest row is `failed`."""
        return sorted(
            str(row[0])
            for row in self.ask(
                "SELECT retry_id FROM kohort_ledger l WHERE status = 'failed' AND NOT EXISTS ("
                "SELECT 1 FROM kohort_ledger n WHERE n.retry_id = l.retry_id "
                "AND (n.redrive_count > l.redrive_count OR (n.redrive_count = l.redrive_count "
                "AND n.retry_number > l.retry_number)))"
            )
        )

    def inputs(self) -> list[str]:
        return sorted(
            f"in/{p}/{r.offset}" for p in range(self.partitions) for r in self.logs["in", p]
        )

    def check(self) -> None:
        """Spec 6.3: each input is loaded exactly once or failed exactly once."""
        assert sorted(self.loaded() + self.failed()) == self.inputs()
        assert self.owed() == 0
        self.check_books()

    def check_books(self) -> None:
        """What the transactions have counted is what the tables hold (no handler filters here)."""
        ((read,),) = self.ask("SELECT coalesce(sum(read), 0) FROM kohort_counts WHERE topic = 'in'")
        ended = self.ask(
            "SELECT coalesce(sum(loaded), 0), coalesce(sum(filtered), 0) FROM kohort_counts"
        )
        assert read == len(self.inputs())
        assert ended == [(len(self.loaded()), 0)]


class KillableStore(Store):
    """The real store with kills around its transaction."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._real = world.store()
        super().__init__(self._real.url)

    def apply(self, change: Transaction) -> Applied:
        self._world.kills.reach("before transaction")
        applied = self._real.apply(change)
        self._world.kills.reach("after commit")
        return applied

    def __getattribute__(self, name: str) -> object:
        if name in {"apply", "_world", "_real"}:
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "_real"), name)

    _connect = _begin = _sql = _translate = lambda *a, **k: None  # type: ignore[assignment]


def row(record: object) -> list[Effect]:
    """The row that a handler of these tests loads."""
    from kohort.retry.handling import Record

    assert isinstance(record, Record)
    return [Insert("loaded", {"id": record.id, "attempt": record.attempt, "small": 1})]


__all__ = ["Attempt", "Killed", "Kills", "World", "row"]
