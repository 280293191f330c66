"""The product's default sequence, scaled down, with a clock that nobody holds (spec 5.3, R3, R4).

The same as `test_due_times`, where hours pass in virtual time; this one also runs against Apache
Kafka (`make interop`), whose log answers which offset is due by its own time index.
"""

from __future__ import annotations

import time
from collections import defaultdict

from kohort import Temporary
from kohort.retry import headers as h
from kohort.retry.policy import DEFAULT_RETRIES, RetryPolicy
from tests.known import known
from tests.processing.conftest import Until
from tests.processing.test_exact import wait_for
from tests.reading import read_committed

SCALE = 1_000  # the default's 5 min are 300 ms here, its 1 h is 3.6 s
RECORDS = 12


def test_each_attempt_when_due(cluster, topic, produce, app, start) -> None:
    """Never early; six retries, then the dead-letter topic. How late is shown in virtual time."""
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
    running = start(program)
    until.wait()
    topics = program.topics[topic]
    assert len(topics.delays_ms) == len(set(default.delays_ms)) + 1, (
        "a topic a delay, and the entry"
    )
    hopeless = [n for n in range(RECORDS) if n % 4 == 3]
    wait_for(
        lambda: len(read_committed(cluster.bootstrap, topics.dead_letter)) == len(hopeless), "end"
    )
    running.stop()
    assert running.error is None
    failed = read_committed(cluster.bootstrap, topics.dead_letter)
    assert sorted(int(known(r.value)) for r in failed) == hopeless
    assert {h.parse(r.headers).disposition for r in failed} == {"exhausted"}
    for number, attempts in tried.items():
        assert [a for a, _, _ in attempts] == list(range(tries(number, policy)))
        for attempt, appended_ms, at_ms in attempts[1:]:
            late_ms = at_ms - appended_ms - policy.delays_ms[attempt - 1]
            assert late_ms >= 0, f"record {number}, attempt {attempt}: {late_ms} ms"


def tries(number: int, policy: RetryPolicy) -> int:
    """How often a record is tried: every fourth never succeeds, the others at 3, 4 or 5 tries."""
    return policy.retries + 1 if number % 4 == 3 else number % 4 + 3
