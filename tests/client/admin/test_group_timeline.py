"""Issue 3, "explain a rebalance": what `__consumer_offsets` tells, ours and Apache Kafka's.

`make interop` runs this on Apache Kafka (KOHORT_TEST_CLUSTER=apache) as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kohort import Admin, Consumer
from kohort.client.admin.group_timeline import read_rebalances
from kohort.group.explain.timeline import Rebalance
from tests.clusters import APACHE, Cluster

CONSUMER = {"group_protocol": "consumer"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(group_initial_rebalance_delay_ms=0) as cluster:
        yield cluster


@contextmanager
def member(cluster: Cluster, group: str, name: str, **settings: Any) -> Iterator[Consumer]:
    with Consumer(
        bootstrap_servers=cluster.bootstrap,
        group_id=group,
        client_id=name,
        auto_offset_reset="earliest",
        **settings,
    ) as consumer:
        consumer.subscribe([group])
        yield consumer


def churn(cluster: Cluster, group: str, **settings: Any) -> None:
    """`first` has four partitions; `second` comes and takes two, and goes again; `first` goes."""
    cluster.create_topic(group, partitions=4)
    with member(cluster, group, "first", **settings) as first:
        share(first, 4)
        with member(cluster, group, "second", **settings) as second:
            share(first, 2, second)
        share(first, 4)


def share(first: Consumer, count: int, *others: Consumer) -> None:
    """Poll until `first` has so many partitions, and each of the others has some."""
    while len(first.assignment()) != count or not all(c.assignment() for c in others):
        for consumer in (first, *others):
            consumer.poll(0.05)


def timelines(cluster: Cluster, group: str) -> tuple[list[Rebalance] | None, list[Rebalance]]:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        settings = {"bootstrap_servers": cluster.bootstrap}
        return admin.group_timeline(group), read_rebalances(admin, group, settings)


def names(one: Rebalance, trigger: str) -> list[str]:
    return [one.names[cause.member_id] for cause in one.causes if cause.trigger == trigger]


@pytest.mark.parametrize("settings", [{}, CONSUMER], ids=["classic", "consumer"])
def test_the_log_tells_who_came_and_went_and_what_moved(
    cluster: Cluster, settings: dict[str, Any]
) -> None:
    group = f"log-{'848' if settings else 'classic'}"
    churn(cluster, group, **settings)
    _, read = timelines(cluster, group)
    came = next(one for one in read if names(one, "joined") == ["second"])
    went = next(one for one in read if names(one, "gone") == ["second"])
    assert (came.moved, came.needed, came.members) == (2, 2, 2)
    assert {m.needed for m in went.moves} <= {"owner gone", "new"}
    assert went.members == 1
    assert all(one.from_log and "causes" in one.inferred for one in read)
    assert [one.generation for one in read] == sorted({one.generation or 0 for one in read})
    for one in read:
        assert one.settling_ms is None or one.settling_ms < 60_000
    if not settings:
        assert read[0].gap == 0


@pytest.mark.parametrize("settings", [{}, CONSUMER], ids=["classic", "consumer"])
def test_a_coordinator_of_ours_remembers(cluster: Cluster, settings: dict[str, Any]) -> None:
    """Its causes are exact; log and memory agree on the rest. Apache Kafka's says nothing."""
    group = f"both-{'848' if settings else 'classic'}"
    churn(cluster, group, **settings)
    exact, read = timelines(cluster, group)
    if APACHE:
        assert exact is None
        return
    assert exact is not None
    came = next(one for one in exact if names(one, "joined") == ["second"])
    went = next(one for one in exact if names(one, "left") == ["second"])
    assert came.began_ms is not None
    assert went.settled_ms is not None
    assert came.began_ms <= went.settled_ms
    assert [(r.generation, r.moves, r.members) for r in read] == [
        (e.generation, e.moves, e.members) for e in exact
    ]
