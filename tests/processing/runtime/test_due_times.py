"""The product's default sequence on the embedded broker, in virtual time (spec 5.3, R4, R6).

Real messages, real logs, real gates and offsets; broker, clients and the app's shell are on one
clock and in one thread, so that hours pass in seconds and every time is told to the millisecond.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import pytest

from kohort import Consumer, Producer
from kohort.client.common.config import ConsumerConfig
from kohort.processing.engine.engine import Engine
from kohort.processing.engine.partition_state import OnFailure
from kohort.processing.runtime import retry_topic_poller as gatekeeper
from kohort.processing.runtime.publishing import Publisher
from kohort.processing.runtime.retry_topic_poller import Gatekeeper
from kohort.processing.runtime.runner import Runner
from kohort.processing.workers.handlers import HandlerSpec, Invoker
from kohort.processing.workers.worker_pools import Finished
from kohort.retry import Temporary
from kohort.retry import headers as h
from kohort.retry.cluster_port import ClusterPort
from kohort.retry.policy import DEFAULT_RETRIES, RetryPolicy
from kohort.retry.preparing import ensure_topics
from kohort.testing import Cluster, VirtualClock
from tests.processing.world import route

PARTITIONS = 2
POLL_MS = 10_000


class Here:
    """A pool whose only worker is this thread."""

    name, workers = "threads", 1

    def __init__(self, invoker: Invoker) -> None:
        self._invoker = invoker

    def start(self, report) -> None:
        self._report = report

    def submit(self, items) -> None:
        self._report(Finished(self.name, items, self._invoker.run(items), 0.001))

    def stop(self, timeout_s: float) -> bool:
        return True


class GateHere(Gatekeeper):
    """A gatekeeper without a thread: it asks when it is told of positions and something is due."""

    asked_ms = 0

    def start(self) -> None:
        return

    def watch(self, starts: Mapping[tuple[str, int], int]) -> None:
        super().watch(starts)
        self.asked_ms = 0

    def moved(self, positions) -> None:
        super().moved(positions)
        now_ms = self._now_ms()
        if now_ms >= self.asked_ms:
            self._new.clear()
            self._scan_all()
            self.asked_ms = now_ms + self._ask(dict(self._starts))


@pytest.mark.parametrize(
    "on_failure", ["pass", pytest.param("hold_key", marks=pytest.mark.nightly)]
)
def test_each_attempt_exactly_when_due(on_failure: str, monkeypatch) -> None:
    """Never early, late by at most the poll interval; six retries, then the dead-letter topic."""
    monkeypatch.setattr(gatekeeper, "ENTRY_CHECK_MS", 60_000)  # nobody redrives anything
    tried: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    quick = {"group_initial_rebalance_delay_ms": 0}
    with VirtualClock() as clock, Cluster(clock=clock, **quick) as cluster:
        kept = route(retries=DEFAULT_RETRIES, on_failure=OnFailure(on_failure))
        cluster.create_topic("orders", PARTITIONS)
        way = {"bootstrap_servers": cluster.bootstrap}
        port = ClusterPort(way)
        ensure_topics("the test", {"orders": kept.topics}, port, bootstrap=cluster.bootstrap)
        with Producer(**way, linger_ms=0) as producer:
            for n in range(6):
                producer.send("orders", b"%d" % n, b"k%d" % n, n % PARTITIONS)

        def handle(record) -> None:
            number = int(record.value)
            appended = record._source.timestamp
            tried[number].append((record.attempt, appended, clock.wall_ms()))
            if number < 4 and record.attempt >= number + 3:
                return
            raise Temporary("down")

        engine = Engine([kept], skew_ms=0)
        config = ConsumerConfig.from_mapping(
            {
                **way, "group_id": "billing", "enable_auto_commit": False,
                "auto_offset_reset": "earliest", "heartbeat_interval_ms": 10_000,
                "fetch_max_wait_ms": POLL_MS, "partition_assignment_strategy": "range",
            }
        )  # fmt: skip
        with Consumer(config) as consumer, Producer(**way, linger_ms=0, acks="all") as producer:
            pool = Here(Invoker({"orders": HandlerSpec("orders", handle)}))
            runner = Runner(engine, consumer, [pool], now_ms=clock.wall_ms)
            gate = GateHere(
                engine.delays_ms, 0, port, clock.wall_ms, runner.opened,
                group="billing", scanned=runner.tell,
            )  # fmt: skip
            publisher = Publisher(producer, lambda topic: PARTITIONS, runner.tell)
            # The gate's thread would ring when its next question is due.
            runner._wait_s = lambda now_ms: min(POLL_MS, max(50, gate.asked_ms - now_ms)) / 1000
            turn = runner._turn

            def watched() -> None:
                turn()
                if engine.idle and sum(map(len, tried.values())) == 36:
                    runner.stop()

            runner._turn = watched
            runner.run(publisher, gate)
        hours = clock.elapsed_s / 3600
        failed = failures(port, kept.topics.dead_letter)
        port.close()
    check(tried, failed)
    assert hours > 2.5


def failures(port: ClusterPort, topic: str) -> list[int]:
    found = [r for n in range(PARTITIONS) for page in port.read((topic, n), 0) for r in page]
    assert {h.parse(r.headers).disposition for r in found} == {"exhausted"}
    return sorted(int(r.value) for r in found)


def check(tried: dict[int, list[tuple[int, int, int]]], failed: list[int]) -> None:
    policy = RetryPolicy.parse(DEFAULT_RETRIES)
    assert failed == [4, 5]
    for number, attempts in tried.items():
        last = number + 3 if number < 4 else policy.retries
        assert [attempt for attempt, _, _ in attempts] == list(range(last + 1))
        for attempt, appended_ms, at_ms in attempts[1:]:
            due_ms = appended_ms + policy.delays_ms[attempt - 1]
            assert due_ms <= at_ms <= due_ms + POLL_MS, f"{number}: {at_ms - due_ms} ms after due"
