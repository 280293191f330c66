"""Groups of the Java client and others, in both protocols, on our broker and on Apache Kafka.

Issue 3, 4: no partition with two owners, none without, nothing lost, no commit going back, whoever
leads, joins, leaves or is killed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clusters import APACHE, Cluster
from tests.e2e.conftest import SESSIONS
from tests.e2e.group_run import GroupRun
from tests.e2e.makes import CONFLUENT, KOHORT, fresh
from tests.interop.java import needs_java
from tests.interop.java_member import JAVA, STRATEGIES

pytestmark = [needs_java, pytest.mark.slow, pytest.mark.java]
PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster():
    sessions = {k: v for k, v in SESSIONS.items() if not (APACHE and "consumer" in k)}
    with Cluster(**sessions) as running:
        yield running


@pytest.fixture
def group(cluster, tmp_path: Path):
    made: list[GroupRun] = []

    def make(strategy: str) -> GroupRun:
        topic = fresh("shared")
        cluster.create_topic(topic, partitions=PARTITIONS)
        made.append(
            GroupRun(cluster.bootstrap, topic, fresh("group"), strategy, PARTITIONS, tmp_path)
        )
        return made[-1]

    yield make
    for run in made:
        run.__exit__()


def churn(run: GroupRun, makes: tuple[str, ...], protocol: str) -> None:
    """Members come one after the other, the first is killed, one leaves, a new one comes."""
    run.produce(100)
    names = [run.start(make, protocol=protocol) for make in makes[:2]]
    run.await_stable()
    names += [run.start(make, protocol=protocol) for make in makes[2:]]
    run.produce(100)
    run.await_stable()
    run.kill(names[0])
    run.produce(100)
    run.await_stable()
    run.stop(names[1])
    run.start(makes[0], protocol=protocol)
    run.produce(100)
    run.await_stable()
    run.await_consumed()
    run.stop(*list(run.members))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_classic_with_the_java_client(group, strategy: str) -> None:
    peers = (JAVA, KOHORT) if strategy == "sticky" else (JAVA, KOHORT, CONFLUENT)
    churn(group(strategy), (*peers, KOHORT), "classic")


def test_the_consumer_protocol_with_the_java_client(group) -> None:
    churn(group("uniform"), (JAVA, KOHORT, CONFLUENT), "consumer")


def test_java_upgrades_our_group_and_we_go_back(group) -> None:
    """Online migration with the Java client on the new side (KIP-848)."""
    run: GroupRun = group("cooperative-sticky")
    run.produce(100)
    old = [run.start(KOHORT), run.start(KOHORT)]
    run.await_stable()
    new = [run.start(JAVA, protocol="consumer")]
    run.produce(100)
    run.await_stable()
    run.stop(old[0])
    new.append(run.start(KOHORT, protocol="consumer"))
    run.produce(100)
    run.await_stable()
    run.stop(*new)
    run.produce(100)
    run.await_stable()
    run.await_consumed()
