"""What a handler sends and the broker refuses (A2): in every mode, and for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kohort import Producer
from kohort.errors import BrokerError, ClosedError, ErrorCode, KafkaTimeoutError, UsageError
from kohort.processing.app import App
from kohort.processing.engine.engine import Done, Engine
from kohort.processing.engine.outbox import Publication
from kohort.processing.engine.output import Output
from kohort.processing.runtime.publishing import BLOCKED_S, Sends, is_unfit
from kohort.retry import headers as h
from kohort.testing import AppHarness, VirtualClock
from tests.clusters import Cluster
from tests.known import fake, known
from tests.processing.test_broken import TP, records, started
from tests.processing.test_exact import wait_for
from tests.processing.world import route
from tests.reading import read_committed

MODES = [None, "kafka", "store"]
OUT, MISSING, BAD_NAME = "out", "not-there-yet", "no topic's name"
ANSWER = {"3": (OUT, b"x" * 3_000_000), "5": (BAD_NAME, b"5"), "7": (MISSING, b"7")}


@pytest.fixture
def strict() -> Iterator[Cluster]:
    """A cluster in which topics do not come by themselves."""
    with Cluster(group_initial_rebalance_delay_ms=0, auto_create_topics_enable=False) as running:
        running.create_topic("in", partitions=3)
        running.create_topic("calm", partitions=1)
        running.create_topic(OUT, partitions=3)
        yield running


@pytest.mark.rows(1)
@pytest.mark.parametrize("mode", MODES)
def test_what_nobody_will_take_fails_and_what_can_be_mended_waits(
    strict: Cluster, start, mode: str | None, tmp_path: Path
) -> None:
    """Too large, or no topic's name: dead-lettered, with the cause. No such topic: it waits.

    What waits is said, others are worked on meanwhile, and it goes on when the topic is there.
    """
    promise = f"sqlite:///{tmp_path}/results.db" if mode == "store" else mode
    app = App(
        "g",
        bootstrap_servers=strict.bootstrap,
        retries="100ms",
        clock_skew=0,
        exactly_once=promise,
        commit_interval="20ms",
    )

    @app.handler("in")
    def answer(record):
        record.send(*ANSWER.get(record.value.decode(), (OUT, record.value)))

    @app.handler("calm")
    def pass_on(record):
        record.send(OUT, record.value)

    with Producer(bootstrap_servers=strict.bootstrap) as producer:
        for n in range(10):
            producer.send("in", b"%d" % n, b"%d" % n, partition=n % 3)
    running = start(app)
    failed = app.topics["in"].dead_letter
    wait_for(lambda: len(failures(strict, failed)) == 2, "failures")
    assert set(failures(strict, failed)) == {("3", "output_refused"), ("5", "output_refused")}

    def complaints() -> str:
        return " ".join([*app.status().values(), *app.troubles()])

    wait_for(lambda: MISSING in complaints(), "it does not say what is missing")
    with Producer(bootstrap_servers=strict.bootstrap) as producer:
        producer.send("calm", b"meanwhile")
    wait_for(lambda: b"meanwhile" in values(strict, OUT), "others are held up")
    strict.create_topic(MISSING, partitions=1)
    wait_for(lambda: values(strict, MISSING, 1) == [b"7"], "it does not go on")
    wait_for(lambda: not complaints().strip(), "the trouble is over")
    running.stop()
    assert running.error is None
    wanted = [b"%d" % n for n in (0, 1, 2, 4, 6, 8, 9)]
    assert sorted(values(strict, OUT)) == sorted([*wanted, b"meanwhile"])


def test_a_text_is_refused_in_the_handlers_own_call() -> None:
    """It ended the whole app, and again at each start."""
    app = App("g", retries="5m")

    @app.handler("in")
    def answer(record) -> None:
        record.send(OUT, fake("text"))

    with AppHarness(app) as harness:
        harness.send("in", b"1")
        harness.run()
        (dead,) = harness.dead_letters()
        assert dead.retry.reason == "TypeError"
        assert not harness.records(OUT)


def test_what_no_later_try_can_produce_is_unfit() -> None:
    """A partition that does not exist was tried again for ever; a closed producer says nothing of
    the record."""
    assert is_unfit(UsageError("topic 'out' has partitions 0 to 2, not 99"))
    assert not is_unfit(ClosedError("this producer was closed"))
    assert not is_unfit(None)


def failures(cluster: Cluster, topic: str) -> list[tuple[str, str]]:
    found = read_committed(cluster.bootstrap, topic)
    return sorted((known(r.value).decode(), h.parse(r.headers).reason) for r in found)


def values(cluster: Cluster, topic: str, partitions: int = 3) -> list[bytes]:
    return [known(r.value) for r in read_committed(cluster.bootstrap, topic, partitions)]


def test_an_output_that_is_refused_names_its_cause_and_passes_no_commit() -> None:
    engine = Engine([route()])
    started(engine)
    engine.polled(TP, records(0), 1, 0)
    items = engine.take("threads", 1, 0)
    engine.finished(items, [Done([Output(OUT, b"v")])], 0)
    (publication,) = engine.publications()
    engine.published(publication, 0, BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, OUT))
    assert "TOPIC_AUTHORIZATION_FAILED" in engine.partitions[TP].why_stopped(0)
    assert TP in engine.paused(0)
    assert TP not in engine.commits()
    engine.tick(500)
    assert engine.publications() == [publication]
    engine.published(publication, 500)
    assert not engine.partitions[TP].why_stopped(500)
    assert engine.commits()[TP].offset == 1


def test_a_topic_that_cannot_be_had_is_not_waited_for_again_and_again() -> None:
    """Whoever publishes is the one that polls; each wait may take as long as `send` waits."""
    now_s, asked = [100.0], list[str]()

    class Slow:
        def send(self, topic, *args, **more):
            asked.append(topic)
            if topic == MISSING:
                raise KafkaTimeoutError("no metadata")
            return "sent"

    sends = Sends(fake(Slow()), lambda topic: 3, lambda: now_s[0])
    publication = Publication(fake(None))
    for _ in range(5):
        with pytest.raises(KafkaTimeoutError):
            sends.send(publication, Output(MISSING, b""))
    assert asked == [MISSING]
    assert sends.send(publication, Output(OUT, b"")) == "sent"
    now_s[0] += BLOCKED_S
    with pytest.raises(KafkaTimeoutError):
        sends.send(publication, Output(MISSING, b""))
    assert asked == [MISSING, OUT, MISSING]


def test_a_topic_is_held_for_away_by_the_time_that_the_caller_waits_in() -> None:
    """In virtual time, too: by the machine's clock an hour of a test is no time at all."""
    asked: list[str] = []

    class Away:
        def send(self, topic, *args, **more):
            asked.append(topic)
            raise KafkaTimeoutError("no metadata")

    with VirtualClock() as clock:
        sends = Sends(fake(Away()), lambda topic: 3)
        for _ in range(2):
            with pytest.raises(KafkaTimeoutError):
                sends.send(Publication(fake(None)), Output(MISSING, b""))
        assert asked == [MISSING]
        clock.advance(BLOCKED_S)
        with pytest.raises(KafkaTimeoutError):
            sends.send(Publication(fake(None)), Output(MISSING, b""))
    assert asked == [MISSING, MISSING]


def test_the_skew_of_clocks_is_what_no_delay_explains() -> None:
    """Between sending and acknowledgement a broker may have appended it at any time."""
    now_ms = time.time_ns() // 1_000_000

    class Stored:
        def __init__(self, stamp_ms: int) -> None:
            self.timestamp_ms = stamp_ms

        def error(self):
            return None

        def result(self):
            return self

    sends = Sends(fake(None), lambda topic: 3)
    assert sends.skew_ms is None
    for stamp_ms, skew_ms in ((now_ms - 2_000, 0), (now_ms - 9_000, -4_000)):
        sends._appended(fake(Stored(stamp_ms)), now_ms - 5_000)
        assert sends.skew_ms == skew_ms
    sends._appended(fake(Stored(now_ms + 3_600_000)), now_ms)
    assert sends.skew_ms == pytest.approx(3_600_000, abs=30_000)
