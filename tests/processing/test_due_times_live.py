"""The product's default sequence, scaled down, with a clock that nobody holds (spec 5.3, R3, R4).

The same as `test_due_times`, where hours pass in virtual time; this one also runs against Apache
Kafka (`make interop`), whose log answers which offset is due by its own time index.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from kohort import Temporary
from kohort.processing.runner import LONGEST_POLL_S
from kohort.retry import headers as h
from kohort.retry.policy import DEFAULT_RETRIES, RetryPolicy

from .conftest import Until
from .test_exact import read_committed, wait_for

SCALE = 1_000  # the default's 5 min are 300 ms here, its 1 h is 3.6 s
RECORDS = 12
STALLED = 4
"""How often one attempt may meet a stall of the machine: broker, gate, poll, worker."""


class Stalls:
    """How long the machine leaves a thread alone that only wants to be woken."""

    def __init__(self) -> None:
        self.worst_ms = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Stalls:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._over.wait(0.02):
            now = time.monotonic()
            self.worst_ms = max(self.worst_ms, (now - before - 0.02) * 1_000)
            before = now


def test_each_attempt_when_due(cluster, topic, produce, app, start) -> None:
    """Never early, late by at most the poll interval; six retries, then the failed topic."""
    default = RetryPolicy.parse(DEFAULT_RETRIES)
    scaled = " ".join(f"{delay // SCALE}ms" for delay in default.delays_ms)
    policy = RetryPolicy.parse(scaled)
    assert [d * SCALE for d in policy.delays_ms] == list(default.delays_ms)
    program = app(retries=scaled)
    tried: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    until = Until(sum(tries(n, policy) for n in range(RECORDS)))

    @program.handler(topic)
    def handle(record) -> None:
        at_ms, number = time.time_ns() // 1_000_000, int(record.value)
        tried[number].append((record.attempt, record._source.timestamp, at_ms))
        until.count()
        if record.attempt + 1 < tries(number, policy) or number % 4 == 3:
            raise Temporary("down")

    produce(RECORDS)
    with Stalls() as stalls:
        running = start(program)
        until.wait()
    topics = program.topics[topic]
    assert len(topics.delays_ms) == len(set(default.delays_ms)) + 1, (
        "a topic a delay, and the entry"
    )
    hopeless = [n for n in range(RECORDS) if n % 4 == 3]
    wait_for(lambda: len(read_committed(cluster.bootstrap, topics.failed)) == len(hopeless), "end")
    running.stop()
    assert running.error is None
    failed = read_committed(cluster.bootstrap, topics.failed)
    assert sorted(int(r.value) for r in failed) == hopeless
    assert {h.parse(r.headers).disposition for r in failed} == {"exhausted"}
    bound_ms = LONGEST_POLL_S * 1_000 + STALLED * stalls.worst_ms
    for number, attempts in tried.items():
        assert [a for a, _, _ in attempts] == list(range(tries(number, policy)))
        for attempt, appended_ms, at_ms in attempts[1:]:
            late_ms = at_ms - appended_ms - policy.delays_ms[attempt - 1]
            assert 0 <= late_ms <= bound_ms, f"record {number}, attempt {attempt}: {late_ms} ms"


def tries(number: int, policy: RetryPolicy) -> int:
    """How often a record is tried: every fourth never succeeds, the others at 3, 4 or 5 tries."""
    return policy.retries + 1 if number % 4 == 3 else number % 4 + 3
