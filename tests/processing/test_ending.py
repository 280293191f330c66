"""How an app ends while a handler is at work: `drain` is waited for once, unless one hurries."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from unittest.mock import Mock

import pytest

from kohort.errors import KafkaTimeoutError, UsageError
from kohort.processing.app import App, Ended
from kohort.processing.engine.engine import Done, Engine
from kohort.processing.engine.exactly_once_engine import ExactEngine, Verdict
from kohort.processing.engine.output import Output
from kohort.processing.runtime.exactly_once_runner import ExactRunner
from kohort.processing.runtime.publishing import Published
from kohort.processing.runtime.runner import Runner
from kohort.processing.workers.worker_pools import ThreadPool
from tests.known import fake
from tests.processing.conftest import PATIENCE_S
from tests.processing.test_broken import TP, records, started
from tests.processing.world import route

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import os, sys, threading
from kohort import App

class Announcing(App):
    def stop(self, **how):
        os.write(1, b"heard\\n")
        super().stop(**how)

app = Announcing("hurried", bootstrap_servers=sys.argv[1], drain="10m")
@app.handler(sys.argv[2])
def work(record):
    print("begun", flush=True)
    threading.Event().wait(600)
print(app.run())
"""


def held_up(program: App, topic: str) -> tuple[threading.Thread, list[Ended], threading.Event]:
    """The app at work on a record whose handler waits for the event."""
    begun, go_on, ended = threading.Event(), threading.Event(), list[Ended]()

    @program.handler(topic)
    def handle(record: object) -> None:
        begun.set()
        go_on.wait(PATIENCE_S)

    thread = threading.Thread(target=lambda: ended.append(program.run()), daemon=True)
    thread.start()
    assert begun.wait(PATIENCE_S)
    return thread, ended, go_on


def test_drain_is_the_time_of_the_whole_end(topic, produce, app, monkeypatch) -> None:
    """Workers that had it already are not waited for again."""
    produce(1)
    waited: list[float] = []
    stop = ThreadPool.stop
    monkeypatch.setattr(
        ThreadPool, "stop", lambda pool, limit_s: (waited.append(limit_s), stop(pool, limit_s))[1]
    )
    program = app(drain="200ms")
    thread, ended, go_on = held_up(program, topic)
    program.stop()
    thread.join(PATIENCE_S)
    go_on.set()
    assert [end.given_up for end in ended] == [1]
    assert waited == [0.5]


@pytest.mark.parametrize("way", [{}, {"exactly_once": "kafka"}], ids=["least", "exactly"])
def test_whoever_hurries_is_not_made_to_wait(topic, produce, app, way) -> None:
    produce(1)
    program = app(drain="10m", **way)
    thread, ended, go_on = held_up(program, topic)
    program.stop()
    program.stop(at_once=True)
    thread.join(PATIENCE_S)
    go_on.set()
    assert [end.given_up for end in ended] == [1]


def test_an_app_that_is_stopped_before_it_begins_leaves_nothing_open(topic, app) -> None:
    """Its loop was left to the garbage collector, which complained in the midst of anything."""
    program = app()

    @program.handler(topic)
    async def handle(record: object) -> None:
        raise AssertionError

    program.stop()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert program.run(signals=False).given_up == 0
        gc.collect()
    assert [str(each.message) for each in caught if each.category is ResourceWarning] == []
    with pytest.raises(UsageError, match="make a new App for another run"):
        program.run(signals=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_gives_up_what_is_at_work(cluster, topic, produce, number) -> None:
    """Else only `kill -9` ends a program whose handler hangs, and the group waits for a session."""
    produce(1)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, cluster.bootstrap, topic],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        for _ in range(2):
            process.send_signal(number)
            assert process.stdout.readline() == "heard\n"
        out, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    assert out.endswith("abandoned 1\n"), errors
    assert process.returncode == 0
    assert "1 record was still in progress after 0 s" in errors


class Member:
    """A consumer of which only the end is looked at."""

    def __init__(self) -> None:
        self.committed: dict = {}

    def subscribe(self, topics, listener) -> None:
        pass

    def nudge(self) -> None:
        pass

    def group_metadata(self) -> str:
        return "me"

    def commit(self, offsets) -> None:
        self.committed = offsets


class Refused:
    """Whoever publishes, or puts batches through, and is refused `times` times first."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.error = KafkaTimeoutError("no metadata")

    def publish(self, publication) -> None:
        error = self.error if self.left else None
        self.left -= 1
        self.report(Published(publication, error))

    def submit(self, batch, member) -> None:
        sent = range(len(batch.publications)) if self.left else ()
        error = self.error if self.left else None
        self.left -= 1
        self.report(Verdict(batch, error, refused=sent))

    def start(self, report, is_stopped=None) -> None:
        self.report = report

    def stop(self, timeout_s: float) -> None:
        pass


def run_to_the_end(engine: Engine, member: Member, refused: Refused) -> tuple[Runner, int]:
    """A runner that has been stopped, and the time at its end; time passes while it waits."""
    now_ms = 0
    shell = ExactRunner if isinstance(engine, ExactEngine) else Runner
    runner = shell(engine, fake(member), [], now_ms=lambda: now_ms, steady_ms=lambda: now_ms)
    wait = runner._handle_next_events

    def passing(wait_ms: int) -> None:
        nonlocal now_ms
        if runner._inbox.empty():
            now_ms += wait_ms
        wait(0 if runner._inbox.empty() else wait_ms)

    runner._handle_next_events = passing
    fake(runner).transactor = refused
    refused.start(runner.post)
    runner.stop()
    runner.run(fake(refused), None)
    return runner, now_ms


@pytest.mark.parametrize("times", [1, 2, 100])
@pytest.mark.parametrize("kind", [Engine, ExactEngine])
def test_what_is_refused_at_the_end_is_tried_again_while_there_is_time(kind, times) -> None:
    """Its next try waited for a turn of the program, and there was none any more: everything that
    one hiccup of the cluster had refused was given up, and done again by the next owner.
    """
    engine = kind([route()], crash_guard=False)
    started(engine)
    engine.polled(TP, records(0, 1), 2, 0)
    items = engine.take("threads", 2, 0)
    engine.finished(items, [Done([Output("out", b"v")]), None], 0)
    member, refused = Member(), Refused(times)
    runner, now_ms = run_to_the_end(engine, member, refused)
    done = times < 100
    assert refused.left == (-1 if done else refused.left)
    assert (now_ms >= 10_000) is not done
    if kind is Engine:
        assert runner.given_up == (not done)
        assert [at.offset for at in member.committed.values()] == ([2] if done else [0])
    else:
        assert engine.counts["transactions"] == done


@pytest.mark.parametrize("kind", [Engine, ExactEngine])
def test_an_end_whose_last_commit_failed_is_not_clean(kind) -> None:
    """Its caller would take the records for done; the next owner handles them again."""
    engine = kind([route()], crash_guard=False)
    started(engine)
    engine.polled(TP, records(0), 1, 0)
    engine.finished(engine.take("threads", 1, 0), [None], 0)
    member = Member()
    fake(member).commit = Mock(side_effect=KafkaTimeoutError("the coordinator does not answer"))
    runner, _ = run_to_the_end(engine, member, Refused(1_000))
    assert (runner.given_up, runner.uncommitted) == (0, 1)
    ended = Ended({"succeeded": 1}, runner.given_up, runner.uncommitted)
    assert not ended.clean
    assert str(ended).endswith(", partitions not committed 1")


class Ending(App):
    """An app whose `run` ends just after anybody has looked for what runs."""

    @property
    def _runner(self):
        found, self.left = self.left, None
        return found

    @_runner.setter
    def _runner(self, runner) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.left = runner


@pytest.mark.parametrize(
    "ask",
    [App.stop, App.health, App.status, App.troubles, lambda each: each.resume("t", 0)],
    ids=["stop", "health", "status", "troubles", "resume"],
)
def test_whoever_asks_while_it_ends_is_answered(ask) -> None:
    """Any thread: what runs is looked for once, and may be gone the moment after."""
    program, asked = Ending("g"), Mock()
    program._runner = asked
    ask(program)
    assert len(asked.method_calls) == 1
