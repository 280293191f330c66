"""The shared network thread and the future: waiting, awaiting, counting users, forks."""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from kohort.client.cluster.network_thread import NetworkThread
from kohort.client.common.backoff import Backoff
from kohort.client.common.completion import Completion
from kohort.client.common.future import Future
from kohort.errors import ClosedError, ForkedError, KafkaTimeoutError
from tests.patience import PATIENCE_S, until


@pytest.fixture
def thread():
    thread = NetworkThread.shared()
    yield thread
    thread.release()


def test_clients_share_one_thread_and_the_last_one_ends_it(monkeypatch):
    # A program that Ctrl-C ended in a test before may still hold the thread of the process.
    monkeypatch.setattr(NetworkThread, "_shared", None)
    first, second = NetworkThread.shared(), NetworkThread.shared()
    assert first is second
    assert first.call(threading.current_thread).result(PATIENCE_S).name == "kohort-network"
    first.release()
    assert second.call(lambda: 1).result(PATIENCE_S) == 1
    second.release()
    with pytest.raises(ClosedError):
        second.call(lambda: 1)
    third = NetworkThread.shared()
    assert third is not first
    third.release()


def test_a_call_brings_back_errors(thread):
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 // 0).result(PATIENCE_S)


def test_release_on_the_network_thread_itself_does_not_wait_for_itself():
    thread = NetworkThread.shared()
    thread.call(thread.release).result(PATIENCE_S)


def test_a_future_that_does_not_come_times_out():
    future: Future[int] = Future()
    with pytest.raises(KafkaTimeoutError):
        future.result(0)
    future.set_result(3)
    future.set_error(ValueError("too late"))
    assert future.result(0) == 3
    assert future.error() is None


def test_many_threads_may_wait_and_callbacks_run_once():
    future: Future[int] = Future()
    seen: list[int] = []
    future.add_done_callback(lambda f: seen.append(f.result()))
    waiters = [
        threading.Thread(target=lambda: seen.append(future.result(PATIENCE_S))) for _ in range(4)
    ]
    for waiter in waiters:
        waiter.start()
    future.set_result(1)
    for waiter in waiters:
        waiter.join(PATIENCE_S)
    future.add_done_callback(lambda f: seen.append(f.result()))
    assert seen == [1] * 6


def test_a_callback_that_raises_is_logged_and_the_next_one_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    future: Future[int] = Future()
    seen: list[int] = []
    future.add_done_callback(lambda _: 1 // 0)
    future.add_done_callback(lambda f: seen.append(f.result()))
    future.set_result(1)
    future.add_done_callback(lambda _: 1 // 0)
    assert seen == [1]
    assert [r.name for r in caplog.records] == ["kohort.client"] * 2
    assert caplog.text.count("ZeroDivisionError: ") == 2


def test_a_future_may_be_awaited(thread):
    async def main() -> tuple[int, int]:
        future = thread.call(lambda: 5)
        return await future, await future

    assert asyncio.run(main()) == (5, 5)


def test_cancelling_a_waiting_task_leaves_the_future_alone():
    future: Future[int] = Future()

    async def wait() -> int:
        return await future

    async def main() -> None:
        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        future.set_result(1)
        assert await future == 1

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_old_clients_are_refused_and_new_ones_work(thread):
    """Invariant C14: sockets do not survive a fork; Spark workers fork."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            thread.call(lambda: 1)
        except ForkedError:
            fresh = NetworkThread.shared()
            code = 0 if fresh.call(lambda: 7).result(PATIENCE_S) == 7 else 2
            fresh.release()
            thread.release()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert thread.call(lambda: 1).result(PATIENCE_S) == 1


def test_backoff_doubles_to_its_bound_and_is_spread():
    middle = Backoff(50, 1_000, lambda: 0.5)
    assert [middle.failed() for _ in range(7)] == [50, 100, 200, 400, 800, 1_000, 1_000]
    middle.succeeded()
    assert middle.failed() == 50
    assert Backoff(100, 1_000, lambda: 0.0).failed() == 80
    assert Backoff(100, 1_000, lambda: 0.999999).failed() == 120
    far = Backoff(100, 1_000, lambda: 0.5)
    assert [far.failed() for _ in range(200)][-1] == 1_000


@pytest.mark.parametrize("call", [Completion.wait, Completion.add_callback])
def test_two_threads_that_begin_to_wait_at_once_both_hear_of_the_end(call: Any) -> None:
    """C14: one is held at each line of its call, in turn, while the other goes through with its."""
    for line in sorted({number for _, _, number in call.__code__.co_lines() if number}):
        both_hear(call, line)


def both_hear(call: Any, line: int) -> None:
    future: Future[int] = Future()
    there, go_on = threading.Event(), threading.Event()
    results: queue.Queue[bool] = queue.Queue()

    def begin() -> None:
        if call is Completion.wait:
            results.put(future.wait(PATIENCE_S))
        else:
            future.add_callback(lambda: results.put(True))

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code is call.__code__ and (event, frame.f_lineno) == ("line", line):
            there.set()
            go_on.wait(PATIENCE_S)
        return trace

    def begin_slowly() -> None:
        sys.settrace(trace)
        begin()

    def waiting() -> int:
        return len((future._waiters if call is Completion.wait else future._callbacks) or ())

    slow, quick = threading.Thread(target=begin_slowly), threading.Thread(target=begin)
    slow.start()
    until(lambda: there.is_set() or waiting() == 1, "the first")
    before = waiting()
    quick.start()
    until(lambda: waiting() > before, "the second")
    go_on.set()
    until(lambda: waiting() == 2, f"one of the two, held at line {line},")
    future.set_result(1)
    assert [results.get(timeout=PATIENCE_S) for _ in range(2)] == [True, True]
    slow.join(PATIENCE_S)
    quick.join(PATIENCE_S)
    assert waiting() == 0


def test_who_asks_again_and_again_leaves_nothing_behind() -> None:
    future: Future[int] = Future()
    for _ in range(5):
        assert not future.wait(0)
    assert not future._waiters
