"""The kill table with processes that are really killed, and really hang (E2, X3).

Sockets, the broker's coordinators and SQLite's file are real here; `test_exact_world` has the same
rows, and many more lives, in virtual time.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kohort import Producer
from kohort.retry.policy import RetryPolicy, RetryTopics
from kohort.retry.stores import open_store
from tests.clusters import APACHE, Cluster
from tests.e2e.broker_process import ROOT
from tests.known import known
from tests.processing.exact_program import OUT, TOPIC
from tests.processing.test_exact import wait_for
from tests.reading import read_committed

RECORDS = 120
PATIENCE_S = 120.0  # two starts of Python and many rebalances, on a machine that is busy
BAD = [n for n in range(RECORDS) if n % 10 == 9]
GOOD = [n for n in range(RECORDS) if n % 10 != 9]

pytestmark = [
    pytest.mark.skipif(APACHE, reason="sessions are shorter than Apache Kafka allows"),
    pytest.mark.timeout(4 * PATIENCE_S),
]
FAILED = RetryTopics(TOPIC, "billing", RetryPolicy.parse("1s")).dead_letter
CONFIG = {"message.timestamp.type": "LogAppendTime"}
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=500) as running:
        for name in (TOPIC, OUT, FAILED):
            running.create_topic(name, 3, CONFIG if name == FAILED else None)
        with Producer(bootstrap_servers=running.bootstrap) as producer:
            for n in range(RECORDS):
                producer.send(TOPIC, b"%d" % n, b"k%d" % (n % 7))
        yield running


@pytest.fixture
def program(cluster: Cluster, tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def start(mode: str, place: str = "-", number: int = 0, instance: str = ""):
        with (tmp_path / f"errors-{len(started)}").open("wb") as errors:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.processing.exact_program",
                    cluster.bootstrap,
                    "billing",
                    mode,
                    place,
                    str(number),
                    *([instance] if instance else []),
                ],
                cwd=ROOT,
                stderr=errors,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
    for errors in tmp_path.glob("errors-*"):
        print(errors.read_text()[-2_000:])


@pytest.fixture
def mode(request: pytest.FixtureRequest, where: str, tmp_path: Path) -> str:
    """What `App` is told: "kafka", or the URL of a store that is still empty."""
    if where == "postgres":
        return request.getfixturevalue("database")
    return "kafka" if where == "kafka" else f"sqlite:///{tmp_path}/results.db"


def everywhere(kafka: list[str], store: list[str], quick: set[tuple[str, str]]) -> list:
    """(where, place) for each place of a kind of transaction; `make test` runs the quick ones."""
    rows = []
    for where, places in (("kafka", kafka), ("sqlite", store), ("postgres", store)):
        database = [pytest.mark.postgres] if where == "postgres" else []
        for place in places:
            more = [] if (where, place) in quick else [pytest.mark.extended]
            rows.append(pytest.param(where, place, marks=[*database, *more]))
    return rows


def ask(url: str, sql: str) -> list[tuple]:
    store = open_store(url)
    try:
        return store.query(sql)
    except Exception:  # of whichever database: it is away, or has no tables yet
        return []
    finally:
        store.close()


def state(cluster: Cluster, mode: str) -> tuple[list[int], list[int]]:
    """Results and failures as a reader sees them."""
    if mode == "kafka":
        found = [
            sorted(int(known(r.value)) for r in read_committed(cluster.bootstrap, topic))
            for topic in (OUT, FAILED)
        ]
        return found[0], found[1]
    loaded = sorted(n for (n,) in ask(mode, "SELECT number FROM loaded"))
    sql = "SELECT reason FROM kohort_ledger WHERE status = 'failed'"
    return loaded, BAD if len(ask(mode, sql)) == len(BAD) else []


def finish(cluster: Cluster, mode: str, process: subprocess.Popen[bytes]) -> None:
    """Until everything is done; then what is there stays as it is."""
    wait_for(
        lambda: [len(x) for x in state(cluster, mode)] == [len(GOOD), len(BAD)],
        f"{[len(x) for x in state(cluster, mode)]}",
        PATIENCE_S,
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    assert state(cluster, mode) == (GOOD, BAD)


@pytest.mark.rows(1)
@pytest.mark.parametrize("number", [5, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("where", "place"),
    everywhere(
        ["begun", "offsets", "committed"],
        ["published", "inside", "stored"],
        {("kafka", "offsets"), ("sqlite", "inside")},
    ),
)
def test_killed_in_the_midst_of_a_transaction(cluster, program, mode, place, number) -> None:
    """Before, between and after; the next process starts at once, as the same static member."""
    first = program(mode, place, number, "one")
    assert first.wait(PATIENCE_S) == -signal.SIGKILL
    finish(cluster, mode, program(mode, instance="one"))


@pytest.mark.extended
@pytest.mark.parametrize(
    "instances",
    [("", ""), ("one", "two")],
    ids=["dynamic", "static"],
)
@pytest.mark.parametrize(
    ("where", "place"),
    everywhere(["stop:offsets"], ["stop:published"], {("postgres", "stop:published")}),
)
def test_a_process_that_hangs_and_comes_back(cluster, program, mode, place, instances) -> None:
    """E2, "zombie": another member has its partitions when it goes on with its transaction.

    That has taken too long and was aborted, which fences its producer: no reason to end, also where
    the transactional id is the member's own. What is refused is done anew by whoever owns it.
    """
    first = program(mode, place, 4, instances[0])
    second = program(mode, instance=instances[1])
    done = [len(GOOD), len(BAD)]
    wait_for(lambda: [len(x) for x in state(cluster, mode)] == done, "the second", PATIENCE_S)
    first.send_signal(signal.SIGCONT)
    second.send_signal(signal.SIGTERM)
    assert second.wait(PATIENCE_S) == 0
    finish(cluster, mode, first)


@pytest.mark.extended
@pytest.mark.postgres
@pytest.mark.parametrize("where", ["postgres"])
def test_a_database_that_is_killed_and_comes_back(cluster, program, mode, postgres) -> None:
    """E2, "COMMIT sent, reply lost", and connections that end at any place: nobody else ends."""
    process = program(mode)
    for done in (1, 30, 60):
        wait_for(lambda done=done: len(state(cluster, mode)[0]) >= done, f"{done}", PATIENCE_S)
        postgres.stop(crash=done != 30)
        postgres.start()
    finish(cluster, mode, process)
