"""The loop: calls, timers, waking, ending, and defects in callbacks."""

from __future__ import annotations

import os
import queue
import threading

import pytest

from kohort.errors import ClosedError, UsageError
from kohort.net import Loop
from kohort.net.poller import SelectorPoller
from tests.net.conftest import LoopThread, Recorder
from tests.patience import PATIENCE_S


class VirtualPoller:
    """No descriptors: waiting moves the clock by exactly what the loop asked for."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def register(self, fd: int, mask: int) -> None: ...
    def modify(self, fd: int, mask: int) -> None: ...
    def unregister(self, fd: int) -> None: ...
    def close(self) -> None: ...

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        assert timeout_s >= 0, "the loop would sleep for ever"
        self.now_ms += round(timeout_s * 1000)
        return []


def virtual_loop() -> tuple[Loop, list]:
    poller = VirtualPoller()
    loop = Loop(clock_ms=lambda: poller.now_ms, poller=poller)
    return loop, []


def test_timers_run_in_order_at_their_time_and_equal_times_in_order_of_asking():
    loop, seen = virtual_loop()
    for delay in (50, 10, 50, 0):
        loop.call_at(1_000 + delay, lambda d=delay: seen.append((d, loop.now_ms())))
    loop.call_at(1_060, loop.stop)
    loop.run()
    assert seen == [(0, 1000), (10, 1010), (50, 1050), (50, 1050)]


def test_a_long_wait_that_the_system_makes_longer_ends_on_time():
    """Linux lets a wait last up to 0.5 % longer: a session of 6 s would end 30 ms late."""

    class Slack(VirtualPoller):
        def poll(self, timeout_s: float) -> list[tuple[int, int]]:
            return super().poll(timeout_s * 1.005)

    poller, seen = Slack(), []
    loop = Loop(clock_ms=lambda: poller.now_ms, poller=poller)
    for delay in (6_000, 90_000):
        loop.call_at(1_000 + delay, lambda d=delay: seen.append(loop.now_ms() - 1_000 - d))
    loop.call_at(100_000, loop.stop)
    loop.run()
    assert seen == [0, 0]


def test_a_cancelled_timer_is_not_called_and_cancelling_twice_is_harmless():
    loop, seen = virtual_loop()
    timer = loop.call_at(1_010, seen.append, "never")
    kept = loop.call_at(1_020, seen.append, "kept")
    assert timer.active
    timer.cancel()
    timer.cancel()
    assert not timer.active
    loop.call_at(1_030, loop.stop)
    loop.run()
    assert seen == ["kept"]
    assert not kept.active


def test_cancelled_timers_do_not_pile_up():
    loop, _ = virtual_loop()
    for n in range(5_000):
        loop.call_at(2_000_000 + n, print).cancel()
    assert len(loop._timers) < 1_000
    loop.call_at(1_001, loop.stop)
    loop.run()


def test_calls_made_by_calls_wait_for_the_next_turn():
    loop, seen = virtual_loop()

    def again(n: int) -> None:
        seen.append(n)
        if n < 3:
            loop.call_soon(again, n + 1)
        else:
            loop.stop()

    loop.call_soon(again, 0)
    loop.run()
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize("make", [lambda: None, SelectorPoller])
def test_a_call_from_another_thread_wakes_a_sleeping_loop(make):
    thread = LoopThread(make())
    seen: queue.SimpleQueue = queue.SimpleQueue()
    for n in range(100):
        thread.loop.call_soon_threadsafe(seen.put, n)
        assert seen.get(timeout=PATIENCE_S) == n
    assert thread.do(lambda: thread.loop.on_loop_thread)
    assert not thread.loop.on_loop_thread
    thread.stop()


def test_a_late_wake_up_never_writes_into_another_file(tmp_path, monkeypatch):
    """A thread saw the loop asleep; before it writes, the loop ends and its numbers are free."""
    loop, others = Loop(), []
    path, write = tmp_path / "another file", os.write

    def late_write(fd: int, data: bytes) -> int:
        loop.stop()  # it never ran, so it is closed here
        others.extend(path.open("ab") for _ in range(8))
        return write(fd, data)

    monkeypatch.setattr(os, "write", late_write)
    loop._asleep = True
    loop.call_soon_threadsafe(print)
    loop.call_soon_threadsafe(print)
    for file in others:
        file.close()
    assert len(others) == 8, "woken once, and not after its end"
    assert path.read_bytes() == b""


def test_no_call_is_lost_between_many_threads():
    thread = LoopThread()
    total, done = 0, threading.Event()

    def add() -> None:
        nonlocal total
        total += 1
        if total == 4_000:
            done.set()

    def produce() -> None:
        for _ in range(1_000):
            thread.loop.call_soon_threadsafe(add)

    producers = [threading.Thread(target=produce) for _ in range(4)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()
    assert done.wait(PATIENCE_S)
    thread.stop()


def test_a_call_that_raises_is_reported_and_the_loop_goes_on():
    thread = LoopThread()

    def broken() -> None:
        raise ValueError("planted")

    thread.loop.call_soon_threadsafe(broken)
    assert thread.do(lambda: 7) == 7
    thread.stop()
    ((what, error),) = thread.errors
    assert "broken" in what
    assert str(error) == "planted"


def test_errors_go_to_the_log_by_default(caplog):
    loop, _ = virtual_loop()
    loop.call_soon(lambda: 1 // 0)
    loop.call_at(1_001, loop.stop)
    loop.run()
    assert "ZeroDivisionError" in caplog.text


def test_stopping_closes_everything_and_tells_each_handler_once():
    thread = LoopThread()
    server, client = Recorder(), Recorder()
    listener = thread.do(thread.loop.listen, "127.0.0.1", 0, lambda c: server, max_frame_bytes=100)
    thread.do(thread.loop.connect, "127.0.0.1", listener.port, client, max_frame_bytes=100)
    server.next("connected")
    client.next("connected")
    thread.stop()
    assert isinstance(server.next("closed"), ClosedError)
    assert isinstance(client.next("closed"), ClosedError)
    assert listener.is_closed
    assert server.quiet
    assert client.quiet


def test_a_loop_that_never_ran_is_closed_by_stop_and_then_runs_for_no_turn():
    loop = Loop()
    listener = loop.listen("127.0.0.1", 0, lambda c: Recorder(), max_frame_bytes=100)
    loop.stop()
    assert listener.is_closed
    loop.run()


def test_a_loop_runs_once():
    loop, _ = virtual_loop()
    loop.call_soon(loop.stop)
    loop.run()
    with pytest.raises(UsageError):
        loop.run()


def test_stop_and_start_may_race():
    for _ in range(50):
        loop = Loop()
        thread = threading.Thread(target=loop.run)
        thread.start()
        loop.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
