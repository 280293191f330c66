"""A redrive from the console: paused, the console killed, begun again: each record once (spec 5.6).

3,000 records in `make test-all`, 100,000 in `make nightly`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kohort import Admin, App, NewTopic, Permanent, Producer, Record, TopicPartition
from kohort.client.common.config import ConsumerConfig
from kohort.processing.engine.circuit_breaker import CircuitConfig
from kohort.retry.reading import pages_to_end
from tests.clusters import Embedded
from tests.console.test_pages import Visitor

FAILED = "orders.fulfilment.dlt"
ENTRY = "orders.fulfilment.retry.0s"
PARTITIONS = 4
BETWEEN = threading.Event()
"""Never set: what the test waits for is another process's."""


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(3_000, marks=pytest.mark.extended),
        pytest.param(100_000, marks=pytest.mark.nightly),
    ],
)
def test_a_paused_and_killed_redrive_sends_each_record_once(count: int) -> None:
    with Embedded(group_initial_rebalance_delay_ms=0) as cluster:
        fail(cluster.bootstrap, count)
        rate = {"rate": str(count // 4)}
        with console(cluster.bootstrap) as (process, visitor):
            page = visitor.ask(f"/dlq/redrive?name={FAILED}")
            assert f"<strong>{count:,}</strong>" in page.text
            form = {name: page.hidden(name) for name in ("name", "id")} | {"confirm": "yes"}
            job = begin(visitor, form | rate)
            sent = progress(visitor, job, count // 10)
            visitor.ask("/job/pause", {"form_token": token_of(visitor), "id": form["id"]})
            outcome = ended(visitor, job)
            assert outcome.startswith("paused"), outcome
            process.kill()
        with console(cluster.bootstrap) as (process, visitor):
            job = begin(visitor, form | rate)
            progress(visitor, job, sent)
            assert not outcome_of(visitor, job), "it is killed while it sends"
            process.kill()
        with console(cluster.bootstrap) as (_, visitor):
            outcome = ended(visitor, begin(visitor, form))
            assert outcome.startswith("done"), outcome
            outcome = ended(visitor, begin(visitor, form))
            assert outcome.startswith("done: 0 sent"), outcome
        found = Counter(origins(cluster.bootstrap))
        assert len(found) == found.total() == count


def fail(bootstrap: str, count: int) -> None:
    """Let an App put so many records into its dead-letter topic."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic("orders", PARTITIONS)])
    with Producer(bootstrap_servers=bootstrap) as producer:
        for n in range(count):
            producer.send("orders", b"%d" % n, partition=n % PARTITIONS)
    app = App("fulfilment", bootstrap_servers=bootstrap, retries="1h")
    left, none_left = iter(range(count - 1)), threading.Event()

    @app.handler("orders", order="none", circuit=CircuitConfig(tokens=0))
    def handle(record: Record) -> None:
        if next(left, None) is None:
            none_left.set()
        raise Permanent("no such customer")

    def stop() -> None:
        none_left.wait()
        app.stop()

    threading.Thread(target=stop, daemon=True).start()
    app.run()


@contextmanager
def console(bootstrap: str) -> Iterator[tuple[subprocess.Popen[str], Visitor]]:
    """`kohort console` as a process of its own, and somebody who looks at it."""
    words = ["console", "--allow-actions", "--listen", "127.0.0.1:0", "-b", bootstrap]
    process = subprocess.Popen(
        [sys.executable, "-m", "kohort", *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process, Visitor(process.stdout.readline().split()[2])
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def begin(visitor: Visitor, form: dict[str, str]) -> str:
    """Begin the redrive, or go on with it; the path of its job."""
    begun = visitor.ask("/dlq/redrive", form | {"form_token": token_of(visitor)})
    assert begun.status == 303, begun.text
    return begun.headers["location"]


def token_of(visitor: Visitor) -> str:
    """What forms of this session carry; each page that can change something has it."""
    return visitor.ask(f"/dlq/redrive?name={FAILED}&offsets=0:0").hidden("form_token")


def progress(visitor: Visitor, job: str, least: int) -> int:
    """Wait until a job has sent at least so many records; how many it has."""
    while (sent := visitor.ask(job + "&format=json").json["count"]) < least:
        assert not outcome_of(visitor, job)
        BETWEEN.wait(0.05)
    return sent


def outcome_of(visitor: Visitor, job: str) -> str:
    """How a job ended; empty while it runs."""
    outcome: str = visitor.ask(job + "&format=json").json["outcome"]
    return outcome


def ended(visitor: Visitor, job: str) -> str:
    """Wait for the end of a job; how it ended."""
    while not (outcome := outcome_of(visitor, job)):
        BETWEEN.wait(0.05)
    return outcome


def origins(bootstrap: str) -> Iterator[bytes]:
    """The value of each record that readers of committed records find sent back."""
    settings = {"bootstrap_servers": bootstrap, "isolation_level": "read_committed"}
    places = [TopicPartition(ENTRY, n) for n in range(PARTITIONS)]
    for page in pages_to_end(ConsumerConfig.from_mapping(settings), places):
        yield from (record.value or b"" for record in page)
