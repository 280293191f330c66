"""Groups of the consumer protocol (KIP-848): ours, librdkafka's, mixed, killed, and migrating.

On the embedded broker, or on Apache Kafka itself: see `tests.clusters`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kohort import Admin, NewTopic
from tests.clusters import APACHE, BrokerProcess, Cluster
from tests.e2e.conftest import SESSIONS
from tests.e2e.group_run import GroupRun
from tests.e2e.makes import CONFLUENT, KOHORT, fresh
from tests.effort import chiefly

PARTITIONS = 6
CONSUMER, CLASSIC = "consumer", "classic"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(**SESSIONS) as cluster:
        yield cluster


@pytest.fixture
def group(cluster: Cluster, tmp_path: Path) -> Iterator[GroupRun]:
    """A group over a new topic."""
    topic = fresh("shared")
    cluster.create_topic(topic, partitions=PARTITIONS)
    with GroupRun(
        cluster.bootstrap, topic, fresh("group"), "cooperative-sticky", PARTITIONS, tmp_path
    ) as run:
        yield run


def settles(run: GroupRun, kind: str = CONSUMER) -> None:
    """Complete and disjoint, and as the broker says; then some more records."""
    assert run.await_stable().group_type == kind
    run.produce(50)


@pytest.mark.slow
@pytest.mark.parametrize("make", chiefly([KOHORT], [KOHORT, CONFLUENT]))
def test_three_one_joins_one_is_killed(group: GroupRun, make: str) -> None:
    """Consume in three while one joins and one is killed, commit, leave, resume elsewhere."""
    first, *_ = [group.start(make, protocol=CONSUMER) for _ in range(3)]
    group.produce(100)
    settles(group)
    group.start(make, protocol=CONSUMER)
    settles(group)
    group.kill(first)
    settles(group)
    group.await_consumed()
    group.stop(*list(group.members))
    group.produce(50)
    group.start(CONFLUENT if make == KOHORT else KOHORT, protocol=CONSUMER)
    settles(group)
    group.await_consumed()


@pytest.mark.extended
@pytest.mark.slow
def test_both_makes_in_one_group_with_churn(group: GroupRun) -> None:
    """No overlap, no gap, whoever joins, leaves or is killed."""
    group.produce(100)
    ours = group.start(KOHORT, protocol=CONSUMER)
    theirs = group.start(CONFLUENT, protocol=CONSUMER)
    settles(group)
    for _ in range(2):
        group.start(KOHORT, protocol=CONSUMER)
        settles(group)
        group.stop(theirs)
        theirs = group.start(CONFLUENT, protocol=CONSUMER)
        settles(group)
        group.kill(ours)
        ours = group.start(KOHORT, protocol=CONSUMER)
        settles(group)
    group.await_consumed()


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "strategy"),
    [
        (KOHORT, "cooperative-sticky"),
        (KOHORT, "range"),
        (CONFLUENT, "range"),
        pytest.param(
            CONFLUENT,
            "cooperative-sticky",
            marks=pytest.mark.skipif(APACHE, reason="Kafka refuses what librdkafka's leader adds"),
        ),
    ],
)
def test_a_rolling_upgrade_there_and_back(group: GroupRun, make: str, strategy: str) -> None:
    """Spec 2.14: member by member, with records flowing: nothing lost, no two owners."""
    group.strategy = strategy
    members = [group.start(make) for _ in range(3)]
    group.produce(100)
    settles(group, CLASSIC)
    for to in (CONSUMER, CLASSIC):
        for n, old in enumerate(members):
            group.stop(old)
            members[n] = group.start(make, protocol=to)
            settles(group, CLASSIC if to == CLASSIC and n == 2 else CONSUMER)
    group.await_consumed()


@pytest.mark.extended
@pytest.mark.slow
def test_the_coordinator_dies_and_comes_back(tmp_path: Path) -> None:
    """Spec 2.12: the group is read back from the log; nobody is lost, and nothing goes back."""
    broker = BrokerProcess(tmp_path, **SESSIONS)
    broker.start()
    try:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics([NewTopic("t", PARTITIONS)])
        with GroupRun(broker.bootstrap, "t", "g", "range", PARTITIONS, tmp_path) as run:
            run.start(KOHORT, protocol=CONSUMER)
            run.start(CONFLUENT, protocol=CONSUMER)
            run.produce(50)
            settles(run)
            for _ in range(2):
                broker.kill()
                broker.start()
                settles(run)
            run.start(KOHORT, protocol=CONSUMER)
            settles(run)
            run.await_consumed()
    finally:
        broker.stop()
    assert broker.complaints() == []
