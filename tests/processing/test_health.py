"""`App.health`: every partition's state, for how long, how far behind, and why it is not moving."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from kohort import Permanent, Temporary
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.health import ConsumerHealth, PartitionHealth
from kohort.errors import BrokerError, ErrorCode
from kohort.processing.app import App
from kohort.processing.engine.circuit_breaker import CircuitConfig
from kohort.processing.engine.engine import Done, Engine
from kohort.processing.engine.health import PAUSED, Reading, examine, reading
from kohort.processing.engine.output import Output
from kohort.processing.engine.partition_state import OnFailure
from kohort.processing.runtime import runner
from kohort.retry.classify import stated
from tests.clusters import APACHE
from tests.e2e.broker_process import ROOT
from tests.patience import PATIENCE_S
from tests.processing.test_broken import TP, records, started
from tests.processing.test_exact import wait_for
from tests.processing.world import route

SECOND = 1_000
PROGRAM = """
from kohort import App
app = App("health", retries="none")

@app.handler("{topic}")
def handle(record):
    pass
"""


def at(engine: Engine, now_ms: int, read: Reading | None = None):
    return examine(engine.partitions[TP], now_ms, read or Reading())


def one_in_hand(**more) -> Engine:
    engine = Engine([route(**more)])
    started(engine)
    engine.polled(TP, records(0, 1), 2, 0)
    engine.tick(0)
    return engine


def test_what_is_worked_on_says_which_record_holds_it_up() -> None:
    engine = one_in_hand()
    items = engine.take("threads", 1, SECOND)
    found = at(engine, 5 * SECOND, Reading(unread=7))
    assert (found.state, found.since_ms, found.lag, found.outstanding) == ("working", 5_000, 9, 2)
    assert (found.done, found.oldest, found.oldest_ms) == (0, 0, 5_000)
    assert found.moving
    engine.finished(items, None, 6 * SECOND)
    engine.tick(6 * SECOND)
    found = at(engine, 8 * SECOND)
    assert (found.done, found.oldest, found.oldest_ms, found.lag) == (1, 1, 2_000, None)
    engine.finished(engine.take("threads", 1, 0), None, 9 * SECOND)
    engine.tick(9 * SECOND)
    found = at(engine, 10 * SECOND, Reading(unread=0))
    assert (found.state, found.since_ms, found.oldest) == ("nothing to do", 1_000, None)


def test_what_stands_still_says_why_and_since_when() -> None:
    engine = one_in_hand(on_failure=OnFailure.STOP_PARTITION)
    items = engine.take("threads", 1, 0)
    engine.finished(items, [stated("down", permanent=False)], SECOND)
    engine.tick(SECOND)
    found = at(engine, 61 * SECOND)
    assert (found.state, found.since_ms, found.moving) == ("stopped", 60_000, False)
    assert "mend the cause" in found.why
    assert "orders-0: stopped for 1m, lag unknown, offset 0 unfinished for 1m1s" in str(found)


def test_an_open_circuit_and_a_refused_output() -> None:
    engine = one_in_hand(circuit=CircuitConfig(tokens=1))
    items = engine.take("threads", 1, 0)
    engine.finished(items, [stated("down", permanent=False)], 0)
    engine.tick(1)
    assert (at(engine, 2).state, at(engine, 2).circuit) == ("circuit open", "open")
    engine = one_in_hand()
    engine.finished(engine.take("threads", 1, 0), [Done([Output("out", b"")])], 0)
    (publication,) = engine.publications()
    engine.published(publication, 0, BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "out"))
    assert at(engine, 1).state == "waiting for what is refused"
    assert "TOPIC_AUTHORIZATION_FAILED" in at(engine, 1).why


def test_what_the_consumer_says_counts_when_nothing_is_in_hand() -> None:
    """A retry topic read up to what is due is not stuck; a partition without a leader is."""

    def seen(topic: str, why: str, *, paused: bool = False, bound: bool = False):
        tp = TopicPartition(topic, 0)
        return PartitionHealth(tp, "", 0, 0, 5, 3, None, 0, paused, why, bound)

    partitions = (
        seen("orders", "its leader is gone"),
        seen("full", "paused; resume()", paused=True),
        seen("retry_topic", "read up to its bound", bound=True),
        seen("opened", "read up to its bound", bound=True),
        seen("due", "its leader is gone"),
    )
    consumer = ConsumerHealth("stable", 0, "", 1, 0, 0, 1, partitions, ())
    found = reading(
        consumer, {("retry_topic", 0): (8, 0), ("opened", 0): (8, 1), ("due", 0): (8, 2)}
    )
    assert found["orders", 0] == Reading(3, None, "its leader is gone")
    assert found["full", 0].why == PAUSED
    assert found["retry_topic", 0] == Reading(8, 0, "")
    assert found["opened", 0] == Reading(8, 1, ""), "the bound that is ours is moved at once"
    assert found["due", 0] == Reading(8, 2, "its leader is gone")
    engine = Engine([route()])
    started(engine)
    assert at(engine, 1, found["orders", 0]).why == "its leader is gone"
    assert at(engine, 1, Reading(0, None, "its leader is gone")).moving
    retry_topic = (engine.partitions[TP].route.topics.entry, 0)
    engine.assigned(retry_topic, 1, 0, "")
    held_up = (
        examine(engine.partitions[retry_topic], 1, found[name, 0])
        for name in ("retry_topic", "due")
    )
    assert [each.moving for each in held_up] == [True, False]
    unknown = Reading(8, None, "its leader is gone")
    assert examine(engine.partitions[retry_topic], 1, unknown).moving, (
        "nobody knows yet what is due"
    )


def test_of_a_running_app(cluster, topic, produce, app, start) -> None:
    go, begun = threading.Event(), threading.Event()
    program: App = app(threads=2, retries="10m", max_records=10)
    assert not program.health().running

    @program.handler(topic)
    def handle(record):
        number = int(record.value)
        if number == 0:
            begun.set()
            assert go.wait(2 * PATIENCE_S)
        if number == 1:
            raise Temporary("down")
        if number == 2:
            raise Permanent("bad")

    produce(30)
    running = start(program)
    assert begun.wait(PATIENCE_S)
    wait_for(lambda: program.counts().get("to_retry"), "nothing failed")

    def stuck(health):
        return [p for p in health.partitions if p.oldest is not None and not p.retry_topic]

    seen = []

    def one_works() -> bool:
        """Others may be at work now and then, too: one look must show it all."""
        seen.append(health := program.health())
        working = "working" in {each.state for each in stuck(health)}
        return working and health.workers["threads"].busy == 1

    # What stands behind it in its worker's list may be of other partitions.
    wait_for(one_works, "stuck")
    health = seen[-1]
    assert health.consumer is not None
    assert health.consumer.group == "member of the group"
    assert {each.retry_topic for each in health.partitions} == {"", "10m", "redrive"}
    assert "1 of 2 threads are busy" in str(health)
    go.set()
    wait_for(lambda: not stuck(program.health()), "it goes on")
    wait_for(lambda: program.health().moving, str(program.health()))

    def numbers(name: str) -> set[float]:
        return {v for n, v in program.metrics().items() if n.name == name}

    wait_for(lambda: numbers("workers_busy") == {0}, "a worker is busy for ever")
    wait_for(lambda: numbers("oldest_unfinished_seconds") == {0}, "something is never finished")
    running.stop()


@pytest.mark.slow
@pytest.mark.skipif(APACHE, reason="has the broker answer late")
def test_to_connect_takes_its_time_and_is_no_trouble(
    cluster, topic, produce, app, monkeypatch
) -> None:
    """A broker that is busy as the app starts is not told of as one that cannot be reached: the
    first look is a while after the start, here so late that no machine is too slow."""
    monkeypatch.setattr(runner, "LOOK_FOR_TROUBLE_MS", 1_000 * PATIENCE_S)
    program, troubles = app(), list[str]()

    @program.handler(topic)
    def handle(record) -> None:
        program.stop()

    produce(1)
    with cluster.faults.delay(250, "ApiVersions"):
        program.run(signals=False, on_trouble=troubles.append)
    assert troubles == []


def test_the_command_tells_it_when_it_is_asked(cluster, topic, tmp_path) -> None:
    """`kill -USR1`: it goes on, and its last word is still whether all was done."""
    (tmp_path / "program.py").write_text(PROGRAM.format(topic=topic))
    process = subprocess.Popen(
        [sys.executable, "-m", "kohort", "app", "run", "program.py:app", "-b", cluster.bootstrap],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert process.stderr is not None
    try:
        assert "reads" in process.stderr.readline()
        process.send_signal(signal.SIGUSR1)
        assert "app health" in process.stderr.readline()
    finally:
        process.send_signal(signal.SIGTERM)
        printed = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode in (0, -signal.SIGTERM), printed
