"""Failures are visible when they happen (spec 5.7, issue 14 item 11)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kohort.processing.engine.failures import FailedAttempt, FailureLog
from kohort.processing.engine.in_place_retries import Blocking
from kohort.processing.engine.partition_state import OnFailure
from kohort.retry.classify import Permanent, RetryAfter, Temporary
from tests.patience import until
from tests.processing.test_app import drain
from tests.processing.world import World, route

SECOND = 1_000


def failed(at_ms: int, *, kind: str = "f1", dead: bool = False, offset: int = 0) -> FailedAttempt:
    return FailedAttempt(
        "orders",
        0,
        offset,
        0,
        "KeyError",
        "KeyError",
        "'amuont'",
        "Traceback: line 7",
        kind,
        dead,
        at_ms,
        None if dead else at_ms + 300_000,
        "orders.g.retry.5m",
        dead,
    )


def test_a_kind_is_told_with_its_traceback_then_counted_at_growing_intervals() -> None:
    log = FailureLog()
    entries = {at: entry for at in range(0, 100_000, SECOND) if (entry := log.note(failed(at)))}
    assert list(entries) == [0, 10 * SECOND, 30 * SECOND, 70 * SECOND]
    assert entries[0].level == logging.WARNING
    assert entries[0].text == (
        "orders-0 offset 0, attempt 0, failed: KeyError: 'amuont'; next try in 5m\n"
        "Traceback: line 7"
    )
    counts = [entries[at].text.split(" ", 1)[0] for at in list(entries)[1:]]
    assert counts == ["10", "20", "40"]
    assert "Traceback" not in entries[10 * SECOND].text


def test_another_kind_and_the_dead_letter_topic_are_told_anew() -> None:
    log = FailureLog()
    assert log.note(failed(0))
    assert log.note(failed(1, kind="f2"))
    entry = log.note(failed(2, dead=True))
    assert entry is not None
    assert entry.level == logging.ERROR
    assert "it goes to the dead-letter topic" in entry.text
    assert log.note(failed(3, dead=True)) is None
    assert log.last == failed(3, dead=True)


def test_a_clock_that_is_set_back_silences_no_kind() -> None:
    log = FailureLog()
    assert log.note(failed(3_600_000))
    assert log.note(failed(SECOND)), "it was silent for an hour"
    assert log.note(failed(2 * SECOND)) is None


def test_kinds_are_bounded() -> None:
    log = FailureLog(most_kinds=2)
    for kind in ("f1", "f2", "f3"):
        assert log.note(failed(0, kind=kind))
    assert log.note(failed(1, kind="f3")) is None
    assert log.note(failed(1, kind="f1")), "forgotten, so it is told anew"


@pytest.mark.parametrize(
    ("error", "more", "words"),
    [
        (Temporary("down"), {}, "next try in 5m"),
        (RetryAfter("2h", "busy"), {}, "next try in 2h"),
        (KeyError("amuont"), {}, "dead-letter topic orders.billing.dlt"),
        (Permanent("bad"), {}, "dead-letter topic orders.billing.dlt"),
        (Temporary("down"), {"blocking": Blocking.parse("10s")}, "next try in 10s"),
        (
            Temporary("down"),
            {"on_failure": OnFailure.STOP_PARTITION},
            "is stopped until it is resumed",
        ),
    ],
)
def test_every_failed_attempt_is_told_with_what_becomes_of_it(
    error: Exception, more: dict[str, Any], words: str
) -> None:
    def handle(record: object, attempt: int) -> None:
        raise error

    world = World([route(**more)], handle, partitions=1)
    world.produce("orders", 0, b"k", b"v")
    world.settle()
    (found,) = world.engine.take_failures()
    assert words in found.next
    assert (found.topic, found.partition, found.offset, found.attempt) == ("orders", 0, 0, 0)
    assert "handle" in found.stack
    assert world.engine.take_failures() == []


def test_an_app_says_what_fails_and_what_waits(cluster, topic, produce, app, start, caplog) -> None:
    """Spec 5.7: a log entry with its traceback, the hook, and health()."""
    produce(3)
    program = app(retries="30m")
    attempts: list[FailedAttempt] = []
    program.on_failure(attempts.append)

    @program.on_failure
    def broken(failed: FailedAttempt) -> None:
        raise RuntimeError("the hook is broken")

    @program.handler(topic)
    def handle(record):
        if record.value == b"2":
            raise KeyError("amuont")
        raise Temporary("down", "the ledger is away")

    with caplog.at_level(logging.WARNING, "kohort.processing"):
        running = start(program)
        until(lambda: len(attempts) == 3 or running.error, "three attempts failed")
        until(lambda: program.health().retries.waiting == 2, "two wait, as the gate says")
        until(lambda: program.health().retries.next_due_in_ms, "and until when")
        health = str(program.health())
        retries = program.health().retries
        until(lambda: drain(cluster, program.topics[topic].dead_letter), "one is dead")
        running.stop()
    assert running.error is None
    assert {(each.topic, each.reason, each.dead) for each in attempts} == {
        (topic, "down", False),
        (topic, "KeyError", True),
    }
    assert 1_700_000 < retries.next_due_in_ms <= 1_800_000
    assert "retries: 2 records wait, next due in" in health
    assert "last failure" in health
    logged = [r for r in caplog.records if r.name == "kohort.processing"]
    away = [r for r in logged if "the ledger is away" in r.getMessage()]
    assert away[0].levelno == logging.WARNING
    (dead,) = [r for r in logged if r.levelno == logging.ERROR and "amuont" in r.getMessage()][:1]
    lines = dead.getMessage().splitlines()
    assert lines[1].startswith("Traceback")
    assert "test_failures.py" in lines[2], "it begins in the handler, not in ours"
    assert 'raise KeyError("amuont")' in lines[3]
    assert any("a hook of on_failure raised" in r.getMessage() for r in logged)
