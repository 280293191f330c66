"""The product's default sequence on the embedded broker, in virtual time (spec 5.3, R4, R6).

Real messages, real logs, real gates and offsets, and the app as it is run by users; broker and app
are on one clock and in one thread, so that every time is told to the millisecond.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from kohort import Admin, App, Producer
from kohort.group.coordinator.state.rebalance_history import Trigger
from kohort.retry import Temporary
from kohort.retry import headers as h
from kohort.retry.cluster_port import ClusterPort
from kohort.retry.policy import DEFAULT_RETRIES, RetryPolicy
from kohort.testing import Cluster, VirtualClock
from kohort.testing.clock import QUIET
from tests.known import known

PARTITIONS = 2
LATE_MS = QUIET["fetch_max_wait_ms"]


@pytest.mark.extended
@pytest.mark.parametrize(
    "on_failure", ["pass", pytest.param("hold_key", marks=pytest.mark.nightly)]
)
def test_each_attempt_exactly_when_due(on_failure: str) -> None:
    """Never early, late by at most a fetch; six retries, then the dead-letter topic."""
    tried: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    with (
        VirtualClock() as clock,
        Cluster(clock=clock, group_initial_rebalance_delay_ms=0) as cluster,
    ):
        cluster.create_topic("orders", PARTITIONS)
        with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=0) as producer:
            for n in range(6):
                producer.send("orders", b"%d" % n, b"k%d" % n, n % PARTITIONS)
        app = App(
            "billing", bootstrap_servers=cluster.bootstrap, retries=DEFAULT_RETRIES, clock_skew=0
        )

        @app.handler("orders", on_failure=on_failure)
        def handle(record) -> None:
            number = int(record.value)
            appended = record._source.timestamp
            tried[number].append((record.attempt, appended, clock.wall_ms()))
            if number < 4 and record.attempt >= number + 3:
                return
            raise Temporary("down")

        ended = clock.run_app(app, until=lambda: sum(map(len, tried.values())) == 36)
        assert ended.clean
        hours = clock.elapsed_s / 3600
        port = ClusterPort({"bootstrap_servers": cluster.bootstrap})
        failed = failures(port, app.topics["orders"].dead_letter)
        port.close()
    check(tried, failed)
    assert hours > 2.5


def failures(port: ClusterPort, topic: str) -> list[int]:
    found = [r for n in range(PARTITIONS) for page in port.read((topic, n), 0) for r in page]
    assert {h.parse(r.headers).disposition for r in found} == {"exhausted"}
    return sorted(int(known(r.value)) for r in found)


def check(tried: dict[int, list[tuple[int, int, int]]], failed: list[int]) -> None:
    policy = RetryPolicy.parse(DEFAULT_RETRIES)
    assert failed == [4, 5]
    for number, attempts in tried.items():
        last = number + 3 if number < 4 else policy.retries
        assert [attempt for attempt, _, _ in attempts] == list(range(last + 1))
        for attempt, appended_ms, at_ms in attempts[1:]:
            due_ms = appended_ms + policy.delays_ms[attempt - 1]
            assert due_ms <= at_ms <= due_ms + LATE_MS, f"{number}: {at_ms - due_ms} ms after due"


def test_a_wait_beyond_the_poll_interval_ends_no_membership_and_delays_nobody() -> None:
    """Spec 5.5, R10: polls and heartbeats continue, and other partitions are read meanwhile."""
    called: list[tuple[bytes, int, float]] = []
    with (
        VirtualClock() as clock,
        Cluster(clock=clock, group_initial_rebalance_delay_ms=0) as cluster,
    ):
        cluster.create_topic("orders", PARTITIONS)
        with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=0) as producer:
            producer.send("orders", b"waits", partition=0)
            producer.send("orders", b"another", partition=1)
        app = App("billing", bootstrap_servers=cluster.bootstrap, retries="10m", clock_skew=0)

        @app.handler("orders")
        def handle(record) -> None:
            called.append((known(record.value), record.attempt, clock.elapsed_s))
            if record.value == b"waits" and record.attempt == 0:
                raise Temporary("down")

        assert clock.run_app(app, until=lambda: len(called) == 3).clean
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            rebalances = admin.group_timeline("billing") or []
    assert [(value, attempt) for value, attempt, _ in called[2:]] == [(b"waits", 1)]
    first, second, last = (at_s for _, _, at_s in called)
    assert max(first, second) < 60
    assert last >= 600
    triggers = [cause.trigger for each in rebalances for cause in each.causes]
    assert triggers.count(Trigger.JOINED.value) == 1, "it never had to join again"
    assert set(triggers) <= {Trigger.JOINED.value, Trigger.LEFT.value, Trigger.GONE.value}
