"""Spec 6.3: which copies run, row by row of the ledger's rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kohort.retry.classify import Disposition, stated
from kohort.retry.copies import Attempt, copy_for
from kohort.retry.headers import Origin
from kohort.retry.ledger import Place, RowState, Status, Verdict, gate
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
    assert gate(attempt(number=0, redrives=1), rows) is verdict
