"""Groups of real clients, one make and mixed, over joins, leaves and kills (issue 2, spec 3.5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clusters import Cluster
from tests.e2e.group_run import GroupRun
from tests.e2e.makes import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, KOHORT, MAKES, fresh
from tests.effort import chiefly

PARTITIONS = 6


@pytest.fixture
def group(cluster: Cluster, tmp_path: Path):
    """Makes a group over a new topic."""
    made: list[GroupRun] = []

    def make(strategy: str) -> GroupRun:
        topic = fresh("shared")
        cluster.create_topic(topic, partitions=PARTITIONS)
        name = fresh("group")
        made.append(GroupRun(cluster.bootstrap, topic, name, strategy, PARTITIONS, tmp_path))
        return made[-1]

    yield make
    for run in made:
        run.__exit__()


RESUMED_BY: dict[str, str] = dict(zip(MAKES, MAKES[1:] + MAKES[:1], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("make", chiefly([KOHORT], MAKES))
def test_three_one_joins_one_is_killed(group, make: str) -> None:
    """Issue 2: consume in three while one joins and one is killed, commit, resume elsewhere."""
    run: GroupRun = group("range")
    first, *_ = [run.start(make) for _ in range(3)]
    run.produce(200)
    run.await_stable()
    run.produce(100)
    run.start(make)
    run.produce(100)
    run.await_stable()
    run.produce(100)
    run.kill(first)
    run.produce(100)
    run.await_stable()
    run.await_consumed()
    run.stop(*list(run.members))
    run.produce(100)
    run.start(RESUMED_BY[make])
    run.await_stable()
    run.await_consumed()


ONE_OF_EACH = {
    "range": MAKES,
    "roundrobin": MAKES,
    "sticky": (AIOKAFKA, KAFKA_PYTHON, KOHORT),  # librdkafka has none
    "cooperative-sticky": (CONFLUENT, KAFKA_PYTHON, KOHORT),  # aiokafka has none
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    chiefly(["range"], ["range", "roundrobin", "sticky", "cooperative-sticky"]),
)
def test_one_of_each_make_shares_a_topic(group, strategy: str) -> None:
    """Issue 2: no overlap, no gap, whoever leads, joins, leaves or is killed."""
    run: GroupRun = group(strategy)
    makes = ONE_OF_EACH[strategy]
    run.produce(100)
    for make in makes[:2]:
        run.start(make, make)
    run.await_stable()
    for make in makes[2:]:
        run.start(make, make)
    run.produce(100)
    run.await_stable()
    run.stop(makes[0])
    run.produce(100)
    run.await_stable()
    run.start(makes[0], f"{makes[0]} again")
    run.kill(makes[1])
    run.produce(100)
    run.await_stable()
    run.await_consumed()
