"""The timers of `App`'s own event loop: fine, never early, and nobody else's loop is touched."""

from __future__ import annotations

import asyncio
import sys

import pytest

from kohort.processing.workers import precise_timers as fine_timers
from kohort.processing.workers.precise_timers import LONGEST_LEAD_S, NOTHING, SELECTABLE, FineWait
from tests.known import fake


class Poller:
    """A system that wakes late, and a clock that only moves when somebody waits."""

    def __init__(self, late_s: float) -> None:
        self.late_s, self.now_s = late_s, 0.0
        self.waits: list[float] = []
        self.comes_after_s: float | None = None

    def readable(self, number: int, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        if self.comes_after_s is not None and self.comes_after_s < timeout_s:
            self.now_s += self.comes_after_s + self.late_s
            return True
        self.now_s += timeout_s + self.late_s
        return False

    def clock(self) -> float:
        return self.now_s


def waiting(late_s: float) -> tuple[FineWait, Poller]:
    poller = Poller(late_s)
    return FineWait(poller.readable, poller.clock), poller


def test_waits_are_cut_short_by_as_much_as_they_have_been_late() -> None:
    """Then a wait ends when it is to end, and not by a millisecond's rounding later."""
    fine, poller = waiting(late_s=80e-6)
    assert fine.wait(5, 0.0004) == NOTHING, "the selector need not be asked as well"
    assert poller.waits == [0.0004], "nothing is rounded, and nothing is known yet"
    for _ in range(100):
        fine.wait(5, 0.001)
    started = poller.now_s
    fine.wait(5, 0.001)
    assert poller.now_s - started == pytest.approx(0.001, abs=2e-6)


def test_a_busy_machine_does_not_make_it_look_on_and_on() -> None:
    """The lead has a bound, whatever happens; what comes before its time teaches nothing."""
    fine, poller = waiting(late_s=0.02)
    for _ in range(200):
        fine.wait(5, 0.001)
    assert fine.lead_s == pytest.approx(LONGEST_LEAD_S, rel=0.01)
    fine, poller = waiting(late_s=80e-6)
    poller.comes_after_s = 0.0001
    assert fine.wait(5, 0.001) == 0
    assert fine.lead_s == 0


def test_what_is_shorter_than_the_lead_is_not_waited_for() -> None:
    """asyncio looks again until it is due: it is that which keeps anything from being early."""
    fine, poller = waiting(late_s=80e-6)
    for _ in range(100):
        fine.wait(5, 0.001)
    poller.waits.clear()
    assert fine.wait(5, 20e-6) == 0
    assert not poller.waits


def test_what_select_cannot_do_is_left_to_the_selector() -> None:
    """Descriptors of a process with many open files, no timeout, and none to wait for."""
    fine, poller = waiting(late_s=0)
    assert fine.wait(SELECTABLE, 0.5) == 0.5
    assert fine.wait(5, None) is None
    assert fine.wait(5, 0) == 0
    assert not poller.waits


@pytest.mark.skipif(sys.platform != "linux", reason="kqueue counts in nanoseconds itself")
def test_the_loop_works_as_any_other() -> None:
    """Timers are never early, sockets and threads are heard, and its descriptors are closed."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b""
            writer.close()
            assert await asyncio.to_thread(lambda: 5) == 5
        started = loop.time()
        due = loop.create_future()
        loop.call_later(0.0015, due.set_result, None)
        await due
        return loop.time() - started

    loop = fine_timers.new_loop()
    try:
        assert type(fake(loop)._selector) is fine_timers.FineEpoll
        assert loop.run_until_complete(main()) >= 0.0015
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_the_loop_of_somebody_elses_policy_is_left_alone(monkeypatch) -> None:
    """Whoever has chosen another loop (uvloop) for the program gets that one."""

    class Own(asyncio.SelectorEventLoop):
        pass

    monkeypatch.setattr(asyncio, "new_event_loop", Own)
    loop = fine_timers.new_loop()
    assert type(loop) is Own
    loop.close()
