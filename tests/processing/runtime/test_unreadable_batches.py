"""A batch that cannot be read stops nobody but itself (issue 14, item 1; spec 5.4, 5.6)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kohort import Producer, Temporary
from kohort.errors import CorruptRecordError
from kohort.processing.app import App
from kohort.retry import headers as h
from kohort.retry.policy import RetryPolicy, RetryTopics
from kohort.retry.redrive import Redrive
from kohort.retry.unreadable import Unreadable
from tests.clusters import APACHE, Cluster
from tests.known import known
from tests.patience import until
from tests.processing.damage import damage
from tests.processing.test_app import committed, drain
from tests.processing.world import World, route
from tests.reading import read_committed

pytestmark = pytest.mark.skipif(APACHE, reason="the log's files are damaged behind the broker")
BATCHES, EACH = 6, 5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    path = tmp_path_factory.mktemp("log")
    with Cluster(group_initial_rebalance_delay_ms=0, durability="os", data_dir=str(path)) as made:
        yield made


def fill(cluster: Cluster, topic: str) -> None:
    """Six batches of five records in partition 0, and one record in each of the others."""
    with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=0) as producer:
        for batch in range(BATCHES):
            for n in range(EACH):
                producer.send(topic, b"%d" % (batch * EACH + n), partition=0)
            producer.flush()
        for partition in (1, 2):
            producer.send(topic, b"%d" % (100 + partition), partition=partition)


@pytest.mark.rows(1)
@pytest.mark.parametrize("promise", [None, "kafka", "sqlite"])
def test_an_app_gets_past_damaged_batches(
    cluster, topic, app, start, tmp_path: Path, promise: str | None
) -> None:
    """The bytes go to the dead-letter topic, all other records are handled and committed."""
    fill(cluster, topic)
    bad = [damage(cluster, topic, offset) for offset in (7, 12, 29)]
    url = f"sqlite:///{tmp_path}/app.db" if promise == "sqlite" else promise
    program: App = app(exactly_once=url, retries="none")
    done: list[int] = []

    @program.handler(topic)
    def handle(record):
        done.append(int(record.value))

    running = start(program)
    ends = {(topic, 0): BATCHES * EACH, (topic, 1): 1, (topic, 2): 1}
    until(
        lambda: ends.items() <= committed(cluster, program).items() or running.error,
        "everything is committed",
    )
    running.stop()
    assert running.error is None
    left = [n for n in range(BATCHES * EACH) if n // EACH not in (1, 2, 5)]
    assert sorted(done) == [*left, 101, 102]
    letters = read_committed(cluster.bootstrap, program.topics[topic].dead_letter)
    assert [letter.value for letter in letters] == bad
    headers = [h.parse(letter.headers) for letter in letters]
    assert [(x.origin.partition, x.origin.offset, x.origin_next_offset) for x in headers] == [
        (0, 5, 10),
        (0, 10, 15),
        (0, 25, 30),
    ]
    assert {(x.reason, x.disposition) for x in headers} == {("unreadable_batch", "unreadable")}
    assert program.counts()["unreadable"] == 3
    if promise == "sqlite":
        with closing(sqlite3.connect(tmp_path / "app.db")) as books:
            found = books.execute("SELECT retry_id, status FROM kohort_ledger").fetchall()
        assert sorted(found) == sorted((f"{topic}/0/{at}", "failed") for at in (5, 10, 25))


@pytest.mark.parametrize("stored", [False, True])
def test_a_damaged_batch_of_a_retry_topic_is_passed_too(
    cluster, topic, app, start, tmp_path: Path, stored: bool
) -> None:
    """Others that wait in the topic are retried; a redrive leaves the bytes where they are.

    With a store nothing stays owed: the record whose copy stood there has failed.
    """
    books = tmp_path / "app.db"
    promise = {"exactly_once": f"sqlite:///{books}"} if stored else {}
    program: App = app(retries="30m", **promise)
    topics = RetryTopics(topic, program.group, RetryPolicy.parse("30m"))
    seen: list[int] = []

    @program.handler(topic)
    def handle(record):
        seen.append(record.attempt)
        raise Temporary("down")

    running = start(program)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send(topic, b"v", partition=0)
    retry_topic = topics.retry_topic(1_800_000)
    until(lambda: len(drain(cluster, retry_topic)) == 1, "the copy waits")
    running.stop()
    batch = damage(cluster, retry_topic, 0)
    # A program whose clock says that the copy is due.
    again: App = app(retries="30m", **promise)
    again.handler(topic)(handle)
    again._skew_ms = -1_800_000
    second = start(again)
    until(lambda: again.counts().get("unreadable") or second.error, "it is passed")
    until(lambda: len(drain(cluster, topics.dead_letter)) == 1, "it is a dead letter")
    second.stop()
    assert second.error is None
    (letter,) = drain(cluster, topics.dead_letter)
    assert letter.value == batch
    assert h.parse(letter.headers).origin.topic == retry_topic
    if stored:
        with closing(sqlite3.connect(books)) as database:
            found = dict(database.execute("SELECT retry_id, status FROM kohort_ledger").fetchall())
        assert found == {f"{topic}/0/0": "failed", f"{retry_topic}/0/0": "failed"}
    report = Redrive("r", topics, {"bootstrap_servers": cluster.bootstrap}).run()
    assert (report.sent, report.unreadable) == (0, 1)


def test_what_the_broker_cannot_read_stops_its_partition_alone(cluster, topic, app, start) -> None:
    """Where it goes on is not known: the others are handled, and it says why it stands."""
    fill(cluster, topic)
    with cluster.faults.fail("Fetch", ["CORRUPT_MESSAGE"] * 1_000, topic=topic, partition=0):
        program: App = app(retries="none")
        done: list[int] = []
        program.handler(topic)(lambda record: done.append(int(record.value)))
        running = start(program)
        until(lambda: sorted(done) == [101, 102] or running.error, "the others are done")
        until(lambda: (topic, 0) in program.status() and program.status()[topic, 0], "it stands")
        assert "damaged" in program.status()[topic, 0]
        assert "cannot be read" in str(program.health())
        running.stop()
    assert running.error is None


def test_damage_without_an_end_is_published_once() -> None:
    """A header that does not say where its batch ends is passed one offset at a time."""
    world = World([route(retries="none")], lambda record, attempt: None, partitions=1)
    world.produce("orders", 0, None, b"first")
    world.settle()
    for offset in (1, 2, 3):
        found = Unreadable("orders", 0, offset, offset + 1, "its CRC does not match", b"\xff" * 90)
        world.engine.unreadable(("orders", 0), found, world.now_ms)
    world.settle()
    assert [letter.value for letter in world.failed()] == [b"\xff" * 90]
    assert world.commits["orders", 0][0] == 4
    assert world.engine.idle


def test_the_bytes_are_bounded_by_what_the_topic_takes() -> None:
    """Too large for the dead-letter topic: the beginning is kept, and how much is missing."""
    world = World([route(retries="none")], lambda record, attempt: None, partitions=1)
    world.refuse = lambda topic, size: True if size > 300_000 else None
    found = Unreadable("orders", 0, 0, 7, "zstd data is damaged", bytes(1_000_000))
    world.engine.unreadable(("orders", 0), found, world.now_ms)
    world.settle()
    (letter,) = world.failed()
    assert len(known(letter.value)) == 256 * 1024
    assert dict(letter.headers)[h.VALUE_OMITTED] == b"%d" % (1_000_000 - 256 * 1024)
    assert world.commits["orders", 0][0] == 7


def test_a_guess_is_no_end() -> None:
    assert Unreadable.of(CorruptRecordError("x", topic="t", partition=0, offset=3)) is None
    assert Unreadable.of(CorruptRecordError("x")) is None
