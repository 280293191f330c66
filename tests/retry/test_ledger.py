"""Spec 6.3: which copies run, row by row of the ledger's rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kohort.retry.classify import Disposition, stated
from kohort.retry.copies import Attempt, copy_for, held_copy
from kohort.retry.headers import Origin
from kohort.retry.ledger import (
    Entries,
    Place,
    RowState,
    Status,
    Verdict,
    failed,
    gate,
    held,
    succeeded,
)
from kohort.retry.policy import RetryPolicy, RetryTopics

TOPICS = RetryTopics("t", "g", RetryPolicy.parse("5m 5m"))
HERE = Place("t.g.retry.5m", 0, 7)
RUN, INERT = Verdict.RUN, Verdict.INERT


def attempt(number: int = 1, redrives: int = 0) -> Attempt:
    first = Attempt(Origin("t", 0, 3, 1), 0, ("t", 0, 3), b"k", b"v", [])
    copy, _ = copy_for(first, stated("x", permanent=False), topics=TOPICS, now_ms=1)
    previous = replace(
        copy.retry, number=number, redrive_count=redrives, disposition=Disposition.RETRYABLE
    )
    place = (HERE.topic, HERE.partition, HERE.offset)
    return Attempt(first.origin, number, place, b"k", b"v", [], previous)


def row(number: int, status: Status, place: Place | None = HERE, redrives: int = 0) -> RowState:
    return RowState(redrives, number, status, place)


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([], INERT),
        ([row(1, Status.SCHEDULED)], RUN),
        ([row(1, Status.DONE)], INERT),
        ([row(1, Status.FAILED)], INERT),
        ([row(1, Status.SCHEDULED, Place("t.g.retry.5m", 0, 8))], INERT),  # an orphan: not due yet
        ([row(1, Status.SCHEDULED, Place("t.g.retry.5m", 1, 7))], INERT),
        ([row(1, Status.SCHEDULED, None)], INERT),
        ([row(1, Status.DONE), row(2, Status.SCHEDULED)], INERT),
        ([row(1, Status.SCHEDULED), row(0, Status.DONE, redrives=1)], INERT),
    ],
)
def test_a_retry_runs_only_where_its_row_says_it_stands(
    rows: list[RowState], verdict: Verdict
) -> None:
    assert gate(attempt(), rows) is verdict
    assert gate(attempt(), rows[::-1]) is verdict


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([], INERT),
        ([row(2, Status.FAILED)], RUN),
        ([row(2, Status.SCHEDULED)], INERT),
        ([row(2, Status.DONE)], INERT),
        ([row(2, Status.FAILED), row(0, Status.FAILED, redrives=1)], INERT),  # failed by its twin
        ([row(2, Status.FAILED), row(0, Status.DONE, redrives=1)], INERT),
        ([row(2, Status.FAILED), row(1, Status.SCHEDULED, redrives=1)], INERT),
    ],
)
def test_a_redriven_copy_runs_once_and_only_after_a_failure(
    rows: list[RowState], verdict: Verdict
) -> None:
    """R9: a repeated redrive is a no-op."""
    assert gate(redriven(number=0), rows) is verdict
    assert gate(redriven(number=0), rows[::-1]) is verdict


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([], INERT),
        ([row(0, Status.FAILED)], RUN),
        ([row(2, Status.FAILED)], RUN),
        ([row(2, Status.SCHEDULED)], INERT),
        ([row(2, Status.FAILED), row(0, Status.DONE, redrives=1)], INERT),
        ([row(2, Status.FAILED), row(2, Status.SCHEDULED, redrives=1)], INERT),
    ],
)
def test_a_copy_that_was_redriven_into_a_retry_topic_runs_as_well(
    rows: list[RowState], verdict: Verdict
) -> None:
    """Its number is that of the retry topic, and yet no row was made for it before."""
    assert gate(redriven(number=1), rows) is verdict


def test_a_retry_of_a_redriven_copy_has_a_row_of_its_own() -> None:
    """Its headers no longer say that it was redriven."""
    rows = [row(2, Status.FAILED), row(0, Status.DONE, redrives=1)]
    assert gate(attempt(number=1, redrives=1), rows) is INERT
    assert gate(attempt(number=1, redrives=1), [*rows, row(1, Status.SCHEDULED, redrives=1)]) is RUN


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("ends", ["succeeded", "held", "scheduled", "failed"])
def test_of_two_redriven_copies_of_one_record_only_one_is_booked(ends: str, number: int) -> None:
    """Whichever retry topics they were sent into: both write the same row, and the second fails."""
    entries = ended(ends, redriven(number))
    assert entries.claim is None
    ((retry_id, redrive_count, first),) = {
        (each.retry_id, each.redrive_count, each.number)
        for each in entries.rows
        if each.number == 0
    }
    assert (retry_id, redrive_count, first) == ("t/0/3", 1, 0)
    keys = [each.number for each in entries.rows]
    assert len(set(keys)) == len(keys)
    newest = max(entries.rows, key=lambda each: each.number)
    statuses = {"succeeded": Status.DONE, "failed": Status.FAILED}
    assert newest.status == statuses.get(ends, Status.SCHEDULED)


def redriven(number: int) -> Attempt:
    copy = attempt(number, redrives=1)
    assert copy.previous is not None
    copy.previous = replace(copy.previous, disposition=Disposition.REDRIVEN)
    return copy


def ended(how: str, copy: Attempt) -> Entries:
    """What the ledger gets when a copy ends in this way."""
    failure = stated("x", permanent=how == "failed")
    following, step = copy_for(copy, failure, topics=TOPICS, now_ms=2)
    if how == "succeeded":
        return succeeded(copy, 2)
    if how == "held":
        kept = held_copy(copy, topics=TOPICS, retry_topic=HERE.topic, now_ms=2)
        return held(copy, kept, HERE, 2)
    return failed(copy, failure, following, step, HERE, 2)
