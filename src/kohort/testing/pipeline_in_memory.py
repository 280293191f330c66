"""Row handlers over topics in memory, by the code that Spark's tasks run (`kohort.retry.fenced`).

Rules:
- A range of a partition is planned, loaded and noted, as Spark does it. The plan outlives a crash:
  the same range is loaded again, and the fence tells what is done.
- A retry topic is read as far as its records are due.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from kohort.records import Record
from kohort.retry.copies import Copy
from kohort.retry.fenced import Handled, Loader, Outcome, SourceRange
from kohort.retry.handling import Handlers
from kohort.retry.headers import Header
from kohort.retry.ledger import Place
from kohort.retry.store import Applied, Store, Transaction
from kohort.testing.memory_topics import MemoryTopics, TopicPartition
from kohort.testing.pipeline_engine import FailedRecord, Reach

if TYPE_CHECKING:
    from kohort.spark.pipeline import Pipeline

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
TOPIC_ID: Final = "in-memory"


class MemoryEngine:
    """One pipeline of row handlers; see `kohort.testing.pipeline_harness.Engine`."""

    def __init__(self, pipeline: Pipeline, partitions: int, reach: Reach) -> None:
        self._pipeline = pipeline
        self._reach = reach
        self._topics = MemoryTopics(partitions)
        self._plans: dict[TopicPartition, tuple[int, int]] = {}
        self._now_ms = int(START.timestamp() * 1_000)
        self._store: Store = pipeline.open_store()
        for topic in self._delays():
            for partition in range(partitions):
                self._store.open_fence(pipeline.name, topic, TOPIC_ID, partition, 0, self._now_ms)
        self._apply = self._store.apply
        self._store.apply = self._applied

    @property
    def now_ms(self) -> int:
        """The harness's clock."""
        return self._now_ms

    @property
    def moved_ms(self) -> int:
        """All of its time: none passes while handlers run."""
        return self._now_ms - int(START.timestamp() * 1_000)

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: Sequence[Header],
    ) -> None:
        """Append a record."""
        self._topics.append(topic, value, key, partition, headers, self._now_ms)

    def records(self, topic: str) -> list[Record]:
        """All records of a topic."""
        return self._topics.records(topic)

    def move_to(self, time_ms: int) -> None:
        """Let the clock show this time."""
        self._now_ms = time_ms

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def run(self) -> None:
        """Handle what is there and due."""
        try:
            while self._turn():
                continue
        except BaseException:  # a process that dies leaves no transaction open
            self._store.close()
            raise

    def _turn(self) -> bool:
        """The first partition that has something to do; whether there was one."""
        numbers = range(self._topics.partitions)
        return any(self._run_one((t, p), d) for t, d in self._delays().items() for p in numbers)

    def _delays(self) -> dict[str, int | None]:
        """Every topic that is read, with the delay of retry topics."""
        delays: dict[str, int | None] = {}
        for topic, names in self._pipeline.handler_topics.items():
            delays |= {topic: None, **names.delays_ms}
        return delays

    def _run_one(self, at: TopicPartition, delay_ms: int | None) -> bool:
        """One micro-batch of one partition; whether there was anything to do."""
        if at not in self._plans:
            fence = self._store.fence(self._pipeline.name, *at)
            assert fence is not None, "made at the start"
            end = self._end(at, fence.next_offset, delay_ms)
            if end == fence.next_offset:
                return False
            self._plans[at] = fence.next_offset, end
        start, end = self._plans[at]
        self._reach(f"before {at[0]}/{at[1]} is read from {start} to {end}")
        topics = self._pipeline.handler_topics
        base = next(t for t, names in topics.items() if at[0] in (t, *names.delays_ms))
        load = self._loader().open(
            SourceRange(
                at[0], TOPIC_ID, at[1], start, end, base, delay_ms, start == 0, self._now_ms
            )
        )
        if not load.done:
            load.load(self._topics.logs[at][start:end])
        load.finish()
        self._reach(f"before Spark notes that {at[0]}/{at[1]} is done up to {end}")
        del self._plans[at]
        return True

    def _end(self, at: TopicPartition, start: int, delay_ms: int | None) -> int:
        log = self._topics.logs[at]
        if delay_ms is None:
            return len(log)
        end = start
        while end < len(log) and log[end].timestamp + delay_ms <= self._now_ms:
            end += 1
        return end

    def next_due_ms(self, waiting: Sequence[FailedRecord]) -> int | None:
        """When the next copy in a retry topic is due."""
        del waiting
        due_ms: list[int] = []
        for fence in self._store.fences(self._pipeline.name):
            delay_ms = self._delays().get(fence.topic)
            log = self._topics.logs[fence.topic, fence.partition]
            if delay_ms is not None and fence.next_offset < len(log):
                due_ms.append(log[fence.next_offset].timestamp + delay_ms)
        return min(due_ms, default=None)

    # The ports of a loader

    def _loader(self) -> Loader:
        pipeline = self._pipeline
        return Loader(
            pipeline.name,
            pipeline.handler_topics,
            self._store,
            self,
            _Stepping(self),
            _Clock(self),
            0,
            {h.topic: (h.table, h.origin) for h in pipeline.handlers if h.table and h.origin},
        )

    def handle(self, base: str, attempts: Handled, store: Store) -> list[Outcome]:
        """The handlers, with a step before and after them."""
        self._reach(f"before {len(attempts)} of {base} are handled")
        outcomes = Handlers(self._pipeline.handlers)(base, attempts, store)
        self._reach(f"after {len(attempts)} of {base} were handled")
        return outcomes

    def publish(self, copies: Sequence[Copy]) -> list[Place]:
        """Append copies to their topics."""
        places: list[Place] = []
        for copy in copies:
            self._reach(f"before {copy.topic} gets a copy")
            partition = copy.partition_hint % self._topics.partitions
            record = self._topics.append(
                copy.topic, copy.value, copy.key, partition, copy.headers, self._now_ms
            )
            places.append(Place(copy.topic, partition, record.offset))
        return places

    def _applied(self, change: Transaction) -> Applied:
        where = f"{change.fence.topic}/{change.fence.partition}"
        self._reach(f"before the transaction of {where}")
        applied = self._apply(change)
        self._reach(f"after the transaction of {where}")
        return applied


class _Clock:
    """The `Clock` of a loader. Due records are read at once, so there is nothing to wait for."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine

    def now_ms(self) -> int:
        return self._engine.now_ms

    def sleep_ms(self, ms: int) -> None:
        self._engine.move_to(self._engine.now_ms + ms)


class _Stepping:
    """The `Handler` of a loader."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine

    def __call__(self, base: str, attempts: Handled, store: Store) -> list[Outcome]:
        return self._engine.handle(base, attempts, store)
