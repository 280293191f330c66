"""An app whose store or whose source topic is not there when it starts (spec 4.12)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest

from kohort import Producer
from kohort.errors import BrokerError, ErrorCode
from kohort.processing import app as shell
from kohort.processing.app import App
from kohort.processing.runtime import exactly_once_runner as exact_runner
from kohort.processing.runtime import start_wait
from kohort.processing.runtime.client_settings import ClientSettings
from kohort.processing.runtime.start_wait import LONGEST_PAUSE_S, TOPICS, until_there
from kohort.retry.store import Store, StoreBusyError
from tests.patience import PATIENCE_S, until
from tests.processing.conftest import Running, Until


class Time:
    """A clock that moves while somebody sleeps, and a stop at some time."""

    def __init__(self, stopped_at: float = 1e9) -> None:
        self.now_s, self.stopped_at = 0.0, stopped_at

    def stopped(self) -> bool:
        return self.now_s >= self.stopped_at

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def wait(self, work: Callable[[], None], patience_ms: int, messages: list[str]) -> bool:
        return until_there(work, self.stopped, patience_ms, messages.append, self.clock, self.sleep)


class Away:
    """A store that is there from some time on."""

    def __init__(self, time: Time, until_s: float) -> None:
        self.time, self.until_s = time, until_s
        self.asked: list[float] = []

    def __call__(self) -> None:
        self.asked.append(self.time.now_s)
        if self.time.now_s < self.until_s:
            raise StoreBusyError("connection refused")


def test_it_is_asked_later_and_later_until_it_is_there(caplog) -> None:
    time = Time()
    away, messages = Away(time, 60), list[str]()
    assert time.wait(away, 300_000, messages)
    waits = [after - before for before, after in pairwise(away.asked)]
    assert waits[0] == pytest.approx(0.2)
    assert max(waits) == pytest.approx(LONGEST_PAUSE_S)
    assert waits == sorted(waits, key=lambda wait: round(wait, 6))
    assert 60 <= time.now_s <= 60 + LONGEST_PAUSE_S
    assert set(messages[:-1]) == {"the store cannot be used: connection refused"}
    assert messages[-1] == ""
    assert len(caplog.messages) == 1  # not as often as it was asked


def test_the_end_of_patience_says_what_was_waited_for() -> None:
    time = Time()
    text = r"away for 30s \(store_wait\), and nothing was begun: connection refused"
    with pytest.raises(StoreBusyError, match=text):
        time.wait(Away(time, 1e9), 30_000, [])
    assert time.now_s == pytest.approx(30)


def test_without_patience_it_is_asked_once() -> None:
    time = Time()
    away = Away(time, 1e9)
    with pytest.raises(StoreBusyError):
        time.wait(away, 0, [])
    assert (away.asked, time.now_s) == ([0], 0)


def test_stopped_it_asks_no_more() -> None:
    time = Time(stopped_at=5)
    assert not time.wait(Away(time, 1e9), 300_000, [])
    assert time.now_s == pytest.approx(5, abs=0.2)


def test_what_the_store_answers_is_no_reason_to_wait() -> None:
    """A statement that is wrong is wrong in five minutes too."""
    time = Time()

    def work() -> None:
        raise ValueError("no such column")

    with pytest.raises(ValueError, match="no such column"):
        time.wait(work, 300_000, [])
    assert time.now_s == 0


class Shut:
    """The database's machine: nobody answers until it is opened."""

    def __init__(self, monkeypatch) -> None:
        self.open = False
        self.asked = Until(3)
        opened = shell.open_store

        def open_store(url: str) -> Store:
            self.asked.count()
            if not self.open:
                raise StoreBusyError("nobody answers")
            return opened(url)

        monkeypatch.setattr(shell, "open_store", open_store)


def waiting_app(cluster, topic: str, url: str) -> App:
    return App(
        f"group-{topic}",
        bootstrap_servers=cluster.bootstrap,
        retries="none",
        exactly_once=url,
        client={"heartbeat_interval_ms": 50},
    )


def test_a_store_that_is_locked_is_told(cluster, topic, produce, tmp_path, monkeypatch) -> None:
    """Somebody has a transaction open in it: all partitions were said to move, and nothing did."""
    monkeypatch.setattr(exact_runner, "UNANSWERED_MS", 1)
    path = tmp_path / "results.db"
    app = waiting_app(cluster, topic, f"sqlite:///{path}")
    done = Until(1)

    @app.handler(topic)
    def handle(record) -> None:
        done.count()

    produce(1)
    running = Running(app)
    try:
        done.wait()
        with closing(sqlite3.connect(path, isolation_level=None, timeout=PATIENCE_S)) as other:
            other.execute("BEGIN EXCLUSIVE")
            produce(1)
            until(lambda: "the store is locked" in str(app.health()), "the trouble")
        until(lambda: not app.troubles(), "its end")
    finally:
        running.stop()


def test_an_app_begins_when_its_store_comes(cluster, topic, produce, tmp_path, monkeypatch) -> None:
    """It ended at once; now it waits, and says why nothing happens."""
    shut = Shut(monkeypatch)
    app = waiting_app(cluster, topic, f"sqlite:///{tmp_path}/results.db")
    done = Until(1)

    @app.handler(topic)
    def handle(record) -> None:
        done.count()

    produce(1)
    running = Running(app)
    try:
        shut.asked.wait()
        health = app.health()
        assert not health.running
        assert "trouble: the store cannot be used: nobody answers" in str(health)
        assert app.troubles() == list(health.concerns)
        shut.open = True
        done.wait()
        assert app.troubles() == []
    finally:
        running.stop()
    assert running.error is None


def test_an_app_that_waits_for_its_store_can_be_stopped(
    cluster, topic, tmp_path, monkeypatch
) -> None:
    shut = Shut(monkeypatch)
    app = waiting_app(cluster, topic, f"sqlite:///{tmp_path}/results.db")
    app.handler(topic)(lambda record: None)
    running = Running(app)
    shut.asked.wait()
    running.stop()
    assert running.error is None
    assert app.troubles() == []


def test_an_app_begins_when_its_topic_comes(cluster, caplog) -> None:
    """It ended with a traceback; now it says what is missing, and begins when it is there."""
    done, topic = Until(1), "comes-later"
    app = App("comes-later", bootstrap_servers=cluster.bootstrap, retries="none")

    @app.handler(topic)
    def handle(record) -> None:
        done.count()

    running = Running(app)
    until(lambda: bool(app.troubles()), "the trouble")
    assert not app.health().running
    (trouble,) = app.troubles()
    assert "app comes-later reads topic 'comes-later', which does not exist" in trouble
    assert "`kohort topic create comes-later` makes it" in trouble
    cluster.create_topic(topic)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send(topic, b"one").result()
    done.wait()
    running.stop()
    assert running.error is None
    assert [m for m in caplog.messages if "does not exist" in m] == [
        f"{trouble}; asking again for 5m"
    ]


def test_an_app_that_waits_for_its_topic_can_be_stopped(cluster) -> None:
    app = App("never", bootstrap_servers=cluster.bootstrap)
    app.handler("never")(lambda record: None)
    running = Running(app)
    until(lambda: bool(app.troubles()), "the trouble")
    running.stop()
    assert running.error is None
    assert app.troubles() == []


@pytest.mark.parametrize("signals", [True, False])
def test_ctrl_c_while_it_waits_for_its_topic(cluster, monkeypatch, signals) -> None:
    """It has begun nothing, so it ends at once; an app without signal handlers passes it on."""

    def interrupted(*_: object, **__: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(start_wait, "until_there", interrupted)
    app = App("interrupted", bootstrap_servers=cluster.bootstrap)
    app.handler("never")(lambda record: None)
    if signals:
        assert app.run().clean
    else:
        with pytest.raises(KeyboardInterrupt):
            app.run(signals=False)


@pytest.mark.parametrize("signals", [True, False])
@pytest.mark.parametrize("step", ["consumer", "producer", "port"])
def test_ctrl_c_at_any_step_of_the_start(cluster, monkeypatch, signals, step) -> None:
    """F.19, F.26: imports and connections take seconds on a busy machine; no traceback then."""
    cluster.create_topic(topic := f"{step}-{signals}".lower(), partitions=1)
    app = App("begun", bootstrap_servers=cluster.bootstrap)
    app.handler(topic)(lambda record: None)

    def interrupted(*_: object, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ClientSettings, step, interrupted)
    if signals:
        assert app.run().clean
        assert app.is_stopping
    else:
        with pytest.raises(KeyboardInterrupt):
            app.run(signals=False)


def test_the_end_of_patience_names_the_topic() -> None:
    """With the time that it waited; another error is no reason to wait."""
    time = Time()
    missing = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic 'orders' does not exist")
    refused = BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no")

    def wait(error: BrokerError) -> None:
        def work() -> None:
            raise error

        until_there(
            work,
            time.stopped,
            30_000,
            lambda trouble: None,
            time.clock,
            time.sleep,
            awaited=TOPICS,
        )

    with pytest.raises(BrokerError, match=r"'orders' does not exist \(topic_wait: 30s\)") as raised:
        wait(missing)
    assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert str(raised.value).count("UNKNOWN_TOPIC") == 1
    assert time.now_s == pytest.approx(30)
    with pytest.raises(BrokerError, match="no"):
        wait(refused)
    assert time.now_s == pytest.approx(30)
