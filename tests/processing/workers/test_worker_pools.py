"""How much a worker is given at once (W2), and what handing over costs."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

from kohort.processing.engine.dispatcher import Order
from kohort.processing.runtime.runner import Feed
from kohort.processing.workers import worker_pools
from kohort.processing.workers.handlers import TIMED_OUT, HandlerSpec, Invoker, Kind
from kohort.processing.workers.process_worker import Call
from kohort.processing.workers.task_pool import TaskPool
from kohort.processing.workers.timer_slack import wake_on_time
from kohort.processing.workers.worker_pools import (
    AIM_S,
    MOST_AT_ONCE,
    MOST_LISTS_PER_S,
    Finished,
    Portions,
    ProcessPool,
    ThreadPool,
)
from kohort.retry.classify import Classifier, Failure
from tests.processing.conftest import PATIENCE_S
from tests.processing.workers.test_mixed_handlers import item
from tests.processing.world import World, route


def hangs(record) -> None:
    threading.Event().wait()


def is_quick(record) -> None:
    del record


def test_a_process_is_ended_after_the_time_of_its_own_handler() -> None:
    """`timeout=` limits one call of that handler, whatever the others' limits and the list are."""
    specs = {
        "slow": HandlerSpec("slow", hangs, timeout_ms=100),
        "patient": HandlerSpec("patient", is_quick, timeout_ms=600_000),
        "unlimited": HandlerSpec("unlimited", is_quick),
    }
    returned: SimpleQueue[Finished] = SimpleQueue()
    pool = ProcessPool(specs, 1)
    pool.start(returned.put)
    topics = ["unlimited", "slow", "patient"]
    pool.submit([item(topic, n, b"k%d" % n) for n, topic in enumerate(topics)])
    finished = returned.get(timeout=PATIENCE_S)
    assert pool.stop(PATIENCE_S)
    assert finished.outcomes is not None
    reasons = [o.reason if isinstance(o, Failure) else o for o in finished.outcomes]
    assert reasons == [None, TIMED_OUT, None]


class ScriptedPipe:
    """A pipe to a child that sends these messages; `limits` are the waits for each."""

    def __init__(self, *messages: object) -> None:
        self.messages = list(messages)
        self.limits: list[float] = []

    def send(self, message: object) -> None:
        pass

    def poll(self, limit_s: float) -> bool:
        self.limits.append(limit_s)
        return True

    def recv(self) -> object:
        return self.messages.pop(0)


def test_the_limit_of_a_call_ends_with_the_call() -> None:
    """Decoding, and calls without a limit, are not timed by the limit of the call before."""
    child = worker_pools._Child(None, {}, None)
    child._process = object()
    pipe = child._pipe = ScriptedPipe(Call(5.0), Call(0), Call(0.1), Call(0), None)
    assert child.ask([item("t", 0)]) is None
    assert pipe.limits == [5.0, 0.1], "without a limit nothing is polled"


def portions(workers: int, each_s: float) -> Portions:
    found = Portions(workers)
    for _ in range(100):
        found.learn(1, each_s)
    return found


@pytest.mark.parametrize(
    ("workers", "each_s", "ready", "size"),
    [
        (8, 1.0, 10_000, 1),
        (8, 1e-6, 100_000, MOST_AT_ONCE),
        (8, 1e-6, 80, 10),
        (20, 0.001, 10_000, int(AIM_S / 0.001)),
        (1_000, 0.03, 100_000, int(1_000 / MOST_LISTS_PER_S / 0.03)),
        (1_000, 0.03, 1_000, 1),
    ],
    ids=["slow", "fast", "shared out", "some ms each", "many workers", "many, few records"],
)
def test_a_list_keeps_a_worker_busy_and_its_owner_not(workers, each_s, ready, size) -> None:
    """Lists of one record of a thousand workers cost their owner more than the work itself."""
    assert portions(workers, each_s).size(ready) == pytest.approx(size, abs=size // 10)


def test_tasks_are_woken_once_for_many_lists(monkeypatch) -> None:
    """A wake-up is a system call, at which the others' work gets in between."""
    done: list[Finished] = []
    all_of_them = threading.Event()

    def report(finished: Finished) -> None:
        done.append(finished)
        if len(done) == 50:
            all_of_them.set()

    async def handle(record) -> None:
        del record

    spec = HandlerSpec("orders", handle, Kind.ASYNC, None, Classifier())
    pool = TaskPool(Invoker({"orders": spec}, None), 4)
    wakes: list[object] = []
    pool.start(report)
    assert pool._loop is not None
    wake, busy = pool._loop.call_soon_threadsafe, threading.Event()
    wake(busy.wait)
    monkeypatch.setattr(
        pool._loop, "call_soon_threadsafe", lambda f, *a: (wakes.append(f), wake(f, *a))
    )
    world = World([route(pool="tasks", order=Order.NONE)], lambda record, attempt: None)
    for n in range(50):
        world.produce("orders", 0, None, b"%d" % n)
    world.poll()
    world.commit()
    lists = [world.engine.take("tasks", 1, world.now_ms) for _ in range(50)]
    for items in lists:
        pool.submit(items)
    busy.set()
    assert all_of_them.wait(PATIENCE_S)
    assert pool.stop(PATIENCE_S)
    assert sorted(map(id, lists)) == sorted(id(finished.items) for finished in done)
    assert wakes.count(pool._hand_out) == 1


def finished_after(seconds: float = 0.01, outcomes=None, error=None) -> Finished:
    return Finished("threads", [], outcomes, seconds, error)


@pytest.mark.parametrize("workers", [1, 2, 8, 100])
def test_the_owner_is_woken_before_anybody_has_nothing_to_do(workers: int) -> None:
    """Each turn of the owner costs more than a list: several are heard of at once, the last never
    waits, and at the first that wakes it there is something left for every worker that comes.
    """
    feed = Feed(ThreadPool(Invoker({}), workers), Portions(workers), 2 * workers)
    woken = [n for n in range(1, 2 * workers + 1) if not feed.can_wait(finished_after(), n)]
    assert woken[-1] == 2 * workers
    assert woken == list(range(woken[0], 2 * workers + 1)), "who is not heard is heard soon"
    assert woken[0] <= max(1, workers // 2 + 1)
    feed.lists = workers
    assert not feed.can_wait(finished_after(), 1), "nothing lies ready: there is to be more at once"


def test_what_has_consequences_is_heard_of_at_once() -> None:
    """A failure has a copy to be made, an output is to be sent; a slow list may be followed by a
    slow one, and what ended a worker ends the program.
    """
    feed = Feed(ThreadPool(Invoker({}), 8), Portions(8), 16)
    assert feed.can_wait(finished_after(), 1)
    assert not feed.can_wait(finished_after(outcomes=[None]), 1)
    assert not feed.can_wait(finished_after(error=SystemExit()), 1)
    assert not feed.can_wait(finished_after(seconds=1), 1)


@pytest.mark.skipif(sys.platform != "linux", reason="timer slack is Linux's")
def test_a_workers_thread_is_woken_on_time_and_only_that() -> None:
    """50 us of slack are a twentieth of a handler that waits 1 ms."""

    def slack() -> str:
        return Path(f"/proc/{threading.get_native_id()}/timerslack_ns").read_text().strip()

    found: list[str] = []
    before = slack()
    thread = threading.Thread(target=lambda: (wake_on_time(), found.append(slack())))
    thread.start()
    thread.join()
    assert found == ["1"]
    assert slack() == before


def test_a_system_without_timer_slack_is_as_late_as_it_was(monkeypatch) -> None:
    """No such file, or not allowed: nothing happens."""
    monkeypatch.setattr(threading, "get_native_id", lambda: 0)
    wake_on_time()
