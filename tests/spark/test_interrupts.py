"""Ctrl-C while a pipeline runs (spec 6.3)."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from kohort.spark.interrupts import quiet_py4j, stopped_by_signals


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """As in a program at a terminal; a worker of pytest-xdist ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def run_with(signals: list[signal.Signals], stop: Callable[[], None], after: list[str]) -> None:
    """A run that gets signals, and then ends by itself."""
    with stopped_by_signals(stop):
        for number in signals:
            signal.raise_signal(number)
        after.append("the run continues until it has stopped")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_and_is_raised_at_the_end(number: signal.Signals) -> None:
    stops: list[int] = []
    after: list[str] = []
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_with([number], lambda: stops.append(1), after)
        assert stops == [1]
        assert after
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_the_second_signal_ends_the_run_at_once() -> None:
    after: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_with([signal.SIGINT, signal.SIGINT], lambda: None, after)
    assert not after


def test_a_signal_that_the_program_does_not_handle_is_left_to_the_system() -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with stopped_by_signals(lambda: None):
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_error_of_the_run_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="the cause"), stopped_by_signals(lambda: None):
        raise ValueError("the cause")


def test_in_another_thread_nothing_changes() -> None:
    seen: list[object] = []

    def run() -> None:
        with stopped_by_signals(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


def test_py4j_is_silent_only_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    child = logging.getLogger("py4j.clientserver")
    with quiet_py4j():
        child.warning("cut off")
    child.warning("a failure")
    assert [r.getMessage() for r in caplog.records] == ["a failure"]
