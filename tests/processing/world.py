"""A whole life of the engine without sockets: topics, commits, workers, crashes, virtual time.

Topics are lists with the broker's append time; reading goes through the real DueSchedule's rule
(what is due by append time), paused partitions are not read, and a crash forgets everything but
topics and commits. Workers finish in any order. Nothing here knows how the engine works inside.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kohort.errors import KohortError
from kohort.processing.engine.dispatcher import Order
from kohort.processing.engine.engine import NOT_BEGUN, Done, Engine, Outcome
from kohort.processing.engine.key_holds import Scanned, waiting_in
from kohort.processing.engine.partition_state import Item, OnFailure, Route
from kohort.processing.engine.state import Limits
from kohort.records import Record
from kohort.retry.classify import Classifier
from kohort.retry.policy import RetryPolicy, RetryTopics

SKEW_MS = 0
TP = tuple[str, int]
Handler = Callable[[Record, int], None]


def route(topic: str = "orders", retries: str = "5m 5m 30m 30m 30m 1h", **more: Any) -> Route:
    return Route(RetryTopics(topic, "billing", RetryPolicy.parse(retries)), **more)


@dataclass
class Run:
    """One time that a handler was called."""

    at_ms: int
    origin: tuple[str, int, int]
    key: bytes | None
    attempt: int
    ok: bool


@dataclass
class World:
    routes: Sequence[Route]
    handler: Handler
    partitions: int = 3
    seed: int = 0
    limits: Limits | None = None
    now_ms: int = 1_700_000_000_000
    logs: dict[TP, list[Record]] = field(default_factory=lambda: defaultdict(list))
    commits: dict[TP, tuple[int, str]] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    outputs: list[object] = field(default_factory=list)
    refuse: Callable[[str, int], bool | None] = lambda topic, size: None
    crash_guard: bool = True
    lives: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.working: list[list[Item]] = []
        self.begin()

    # -- life

    def begin(self) -> None:
        self.lives += 1
        self.engine = Engine(
            self.routes, self.limits, skew_ms=SKEW_MS, crash_guard=self.crash_guard
        )
        self.position: dict[TP, int] = {}
        self.working = []
        for topic in self.engine.topics:
            for number in range(self.partitions):
                self.assign((topic, number))

    def assign(self, key: TP) -> None:
        self.epoch += 1
        committed, metadata = self.commits.get(key, (0, ""))
        self.engine.assigned(key, self.epoch, committed, metadata, now_ms=self.now_ms)
        self.position[key] = committed

    def crash(self) -> None:
        self.begin()

    def produce(self, topic: str, number: int, key: bytes | None, value: bytes) -> None:
        self.append(topic, number, key, value, ())

    def append(self, topic, number, key, value, headers) -> None:
        log = self.logs[topic, number]
        log.append(
            Record(
                topic,
                number,
                len(log),
                timestamp=self.now_ms,
                key=key,
                value=value,
                headers=headers,
                timestamp_type=1,
            )
        )

    # -- what the shell does

    def poll(self, most: int = 50) -> None:
        paused = self.engine.paused(self.now_ms)
        delays = self.engine.delays_ms
        for key in list(self.engine.partitions):
            if key in paused:
                continue
            start = self.position[key]
            found = self.logs[key][start : start + most]
            found = [r for r in found if r.timestamp + delays.get(key[0], 0) <= self.now_ms]
            if found:
                self.position[key] = start + len(found)
                self.engine.polled(key, found, self.position[key], self.now_ms)

    def work(self, most: int = 4) -> None:
        """Some worker takes something, or some worker ends."""
        if self.working and self.chance.random() < 0.5:
            items = self.working.pop(self.chance.randrange(len(self.working)))
            self.engine.finished(items, self.outcomes(items), self.now_ms)
            return
        items = self.engine.take("threads", self.chance.randint(1, most), self.now_ms)
        if items:
            self.working.append(items)

    def outcomes(self, items: Sequence[Item]) -> list[Outcome]:
        found: list[Outcome] = []
        failed: set[object] = set()
        for item in items:
            if item.lane in failed:
                found.append(NOT_BEGUN)
                continue
            attempt = item.attempt
            number = attempt.number if attempt else 0
            origin = attempt.origin if attempt else item.record
            try:
                self.handler(item.record, number)
                outcome: Outcome = None
            except Exception as error:
                outcome = Classifier().classify(error)
                if item.partition.route.stops_lane and item.lane is not None:
                    failed.add(item.lane)
            place = (origin.topic, origin.partition, origin.offset)
            self.runs.append(Run(self.now_ms, place, item.record.key, number, outcome is None))
            found.append(outcome)
        return found

    def publish(self) -> None:
        for publication in self.engine.publications():
            size = sum(
                len(o.value or b"") + sum(len(v or b"") for _, v in o.headers)
                for o in publication.outputs
            )
            refused = self.refuse(publication.outputs[0].topic, size)
            if refused is None:
                for o in publication.outputs:
                    number = (o.partition or 0) % self.partitions
                    self.append(o.topic, number, o.key, o.value, o.headers)
            error = None if refused is None else KohortError("refused")
            self.engine.published(publication, self.now_ms, error, unfit=bool(refused))

    def commit(self) -> None:
        commits = self.engine.commits()
        for key, commit in commits.items():
            old = self.commits.get(key, (0, ""))[0]
            assert commit.offset >= old, f"{key} goes back from {old} to {commit.offset}"
            self.commits[key] = (commit.offset, commit.metadata)
        self.engine.committed(commits, self.now_ms)

    def scan(self) -> None:
        """Read retry topics to their end, as far as there is room, for the keys that are held."""
        for key, start, epoch in self.engine.scans():
            found = waiting_in(self.logs[key][start:], "billing")
            most = self.engine.holds.most
            self.engine.scanned(Scanned(key, epoch, found[:most], len(found) <= most), self.now_ms)

    def step(self) -> None:
        self.engine.tick(self.now_ms)
        self.scan()
        self.poll()
        self.work()
        self.publish()

    def live(self, chance: random.Random, steps: int) -> None:
        """Commits, crashes, partitions that are taken away and come back, and time that passes."""
        for _ in range(steps):
            self.step()
            act = chance.random()
            if act < 0.15:
                self.commit()
            elif act < 0.17:
                self.crash()
            elif act < 0.2:
                key = chance.choice(list(self.engine.partitions))
                self.engine.draining([key])
                self.commit()
                self.engine.removed([key])
                self.assign(key)
            elif act < 0.3:
                self.now_ms += chance.choice([100, 1_000, 10_000])

    def settle(self) -> None:
        """Run everything that can run at the present time."""
        for _ in range(10_000):
            self.step()
            self.commit()
            engine = self.engine
            busy = (
                self.working or engine.ready("threads") or engine.in_flight or engine.commit_urgent
            )
            if not busy and not engine._outbox:
                return

    def next_due(self) -> int | None:
        """When something more can happen: a deadline, or a retry topic's next record."""
        found = [d for d in (self.engine.next_deadline(),) if d is not None]
        for key, position in self.position.items():
            log = self.logs[key]
            if position < len(log) and key not in self.engine.paused(self.now_ms):
                delay = self.engine.delays_ms.get(key[0], 0)
                found.append(log[position].timestamp + delay)
        return min(found, default=None)

    def run_out(self, most: int = 10_000) -> None:
        """Let time pass until nothing is left to do."""
        for _ in range(most):
            self.settle()
            due = self.next_due()
            if due is None:
                return
            self.now_ms = max(self.now_ms, due)
        raise AssertionError("it never ends")

    # -- what came of it

    def failed(self, topic: str = "orders") -> list[Record]:
        name = self.routes[0].topics.dead_letter
        return [r for n in range(self.partitions) for r in self.logs[name, n]]

    def times(self, origin: tuple[str, int, int]) -> list[int]:
        return [r.at_ms for r in self.runs if r.origin == origin]

    def done(self) -> Counter[tuple[str, int, int]]:
        return Counter(r.origin for r in self.runs if r.ok)


__all__ = ["Done", "OnFailure", "Order", "Run", "World", "route"]
