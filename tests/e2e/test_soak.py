"""Minutes of churn in groups of several makes, in both protocols (issue 3): `make soak`.

Members of all makes that speak the protocol join, leave in order and are killed, at random from a
seed, while records are produced. All along no committed offset goes back and no record is handed
out of turn; every time the group has settled, each partition has exactly one owner; at the end
everything was seen and committed. With Apache Kafka's jars (`make interop`) the Java client joins
in. `KOHORT_SOAK_S` is how long each group lives (default 150), `KOHORT_SOAK_SEED` decides the rest.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.clusters import Cluster
from tests.e2e.conftest import SESSIONS
from tests.e2e.group_run import GroupRun
from tests.e2e.makes import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, KOHORT, fresh
from tests.interop.java import JARS

LIFE_S = float(os.environ.get("KOHORT_SOAK_S", "150"))
SEED = int(os.environ.get("KOHORT_SOAK_SEED", "1"))
PARTITIONS, FEWEST, MOST = 8, 2, 5
JAVA = ("java",) if (JARS / "pom.xml").exists() else ()
GROUPS = {
    "classic range": ("classic", "range", (KOHORT, CONFLUENT, AIOKAFKA, KAFKA_PYTHON, *JAVA)),
    "classic cooperative-sticky": ("classic", "cooperative-sticky", (KOHORT, CONFLUENT, *JAVA)),
    "consumer protocol": ("consumer", "uniform", (KOHORT, CONFLUENT, *JAVA)),
}


@pytest.mark.nightly
@pytest.mark.timeout(LIFE_S * 3 + 300)
@pytest.mark.parametrize("kind", GROUPS)
def test_churn(kind: str, tmp_path: Path) -> None:
    protocol, strategy, makes = GROUPS[kind]
    chance = random.Random(f"{SEED} {kind}")
    topic = fresh("soak")
    with Cluster(**SESSIONS) as cluster:
        cluster.create_topic(topic, partitions=PARTITIONS)
        with GroupRun(
            cluster.bootstrap, topic, fresh("group"), strategy, PARTITIONS, tmp_path
        ) as run:
            end, changes = time.monotonic() + LIFE_S, 0
            for make in makes[:FEWEST]:
                run.start(make, protocol=protocol)
            while time.monotonic() < end:
                run.produce(chance.randint(1, 50))
                if chance.random() < 0.5:
                    run.await_stable()
                change(run, chance, makes, protocol)
                changes += 1
            run.await_stable()
            run.await_consumed()
            produced = sum(run.produced.values())
            print(f"{kind}: {changes} changes, {produced} records, seed {SEED}")
            run.stop(*list(run.members))


def change(run: GroupRun, chance: random.Random, makes: tuple[str, ...], protocol: str) -> None:
    """Somebody joins, leaves or is killed."""
    names = sorted(run.members)
    if len(names) <= FEWEST or (len(names) < MOST and chance.random() < 0.5):
        run.start(chance.choice(makes), protocol=protocol)
        return
    name = chance.choice(names)
    if chance.random() < 0.5:
        run.stop(name)
    else:
        run.kill(name)
