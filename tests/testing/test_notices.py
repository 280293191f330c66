"""Waiting for what the broker sees never stands in the broker's way."""

from __future__ import annotations

import threading

from kohort.broker.faults.notices import Notices
from tests.patience import PATIENCE_S


def test_who_looks_does_not_hold_up_who_tells():
    """`look` asks the broker's thread, which is telling just then: it was a deadlock."""
    notices = Notices()
    looks: list[int] = []

    def look() -> int | None:
        notifier = threading.Thread(target=notices.notify)
        notifier.start()
        notifier.join(PATIENCE_S)
        assert not notifier.is_alive(), "notify waits for who looks"
        looks.append(1)
        return len(looks) if len(looks) == 3 else None

    assert notices.until(look, PATIENCE_S) == 3


def test_time_is_over():
    assert Notices().until(lambda: None, 0.01) is None
