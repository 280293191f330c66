"""What lasts is said now and again, not as often as it is tried."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from kohort.processing.runtime import store_transactor
from kohort.processing.runtime.repeated_warning import FIRST_MS, LONGEST_MS, Complaint
from kohort.processing.runtime.store_transactor import StoreTransactor
from kohort.retry.store import StoreBusyError

HOUR_MS = 3_600_000


def test_what_lasts_is_said_at_growing_intervals() -> None:
    complaint = Complaint()
    due_ms = [s for s in range(0, HOUR_MS, 1_000) if complaint.is_due("away", s)]
    assert due_ms[:4] == [0, FIRST_MS, 3 * FIRST_MS, 7 * FIRST_MS]
    assert due_ms[-1] - due_ms[-2] == LONGEST_MS
    assert len(due_ms) < 20


def test_what_becomes_another_is_said_at_once() -> None:
    complaint = Complaint()
    assert complaint.is_due("away", 0)
    assert not complaint.is_due("away", 1)
    assert complaint.is_due("locked", 2)
    assert not complaint.is_due("locked", FIRST_MS + 1)
    assert complaint.is_due("locked", FIRST_MS + 2)


def test_a_clock_that_is_set_back_silences_nothing() -> None:
    complaint = Complaint()
    assert complaint.is_due("away", HOUR_MS)
    assert complaint.is_due("away", 1_000), "it was silent for an hour"
    assert not complaint.is_due("away", 2_000)


def test_the_end_is_said_once_and_what_begins_again_at_once() -> None:
    complaint = Complaint()
    assert not complaint.is_over()
    assert complaint.is_due("away", 0)
    assert complaint.is_over()
    assert not complaint.is_over()
    assert complaint.is_due("away", 1)


def test_a_lost_store_is_not_logged_each_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked each second; an hour of it is 16 lines, and one when it is over."""
    monkeypatch.setattr(store_transactor, "Sends", lambda *_: None)
    clock = SimpleNamespace(ms=0, asked=0)

    def states(*_: object) -> dict[str, Any]:
        clock.asked += 1
        if clock.ms < HOUR_MS:
            raise StoreBusyError("connection refused")
        return {}

    def wait(seconds: float) -> bool:
        clock.ms += int(seconds * 1_000)
        return False

    store: Any = SimpleNamespace(states=states)
    producer: Any = None
    transactor = StoreTransactor("g", store, producer, lambda _: 1, {}, lambda: clock.ms)
    monkeypatch.setattr(transactor, "_stopping", SimpleNamespace(wait=wait))
    with caplog.at_level(logging.WARNING, "kohort.processing"):
        transactor._judge([])
    assert clock.asked == 3_601
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "records of retry topics wait for the store: connection refused"
    assert lines[-1] == "the store can be used again"
    assert len(lines) == 17
