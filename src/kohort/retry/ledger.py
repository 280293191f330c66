"""The ledger: the source of truth for every failed record, however many copies of it exist.

Rules (spec 6.3, E2):
- A ledger row is written in the same transaction as the effects and the fence. The key is
  (pipeline, retry_id, redrive_count, retry_number): one row for each attempt that is owed or ended.
- A copy in a retry topic is run only if its row is `scheduled` and names the copy's own place.
  Every other copy (an orphan of a killed attempt, a duplicate, a stranger's) is inert.
- An attempt that ends turns its row to `done` (it succeeded, or a next row was scheduled with it)
  or to `failed`. The newest row of a record therefore says what became of it.
- A redriven copy runs if the newest row of its record is `failed` with a smaller redrive count,
  whichever topic it was sent to. When it ends it leaves row 0 of its round, so of two copies of one
  round the second is inert.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Final

from kohort.retry.classify import Disposition, Failure
from kohort.retry.copies import Attempt, Copy
from kohort.retry.headers import MAX_MESSAGE_BYTES, Origin, cut_utf8
from kohort.retry.policy import Step

IN_BATCH: Final = -1
"""The offset of a copy in the Kafka transaction of its micro-batch: wherever the transaction has
put it, it exists exactly when the row does."""


class Status(StrEnum):
    """What a ledger row says of its attempt."""

    SCHEDULED = "scheduled"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a published copy."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One attempt that is owed (`scheduled`) or has ended. Times are milliseconds.

    `place` is the copy in a retry topic, and of a failed record the copy in the dead-letter topic.
    `delay_ms` is the retry topic that the attempt waited in, and stays when it has ended.
    """

    origin: Origin
    redrive_count: int
    number: int
    status: Status
    place: Place | None
    due_ms: int | None
    key_hash: str | None
    disposition: str
    reason: str
    error_class: str
    error_message: str
    fingerprint: str
    created_ms: int
    closed_ms: int | None = None
    delay_ms: int | None = None

    @property
    def retry_id(self) -> str:
        return self.origin.retry_id


@dataclass(frozen=True, slots=True)
class RowState:
    """The part of a row that the gate needs."""

    redrive_count: int
    number: int
    status: Status
    place: Place | None


@dataclass(frozen=True, slots=True)
class Claim:
    """Close a scheduled row: to `done`, or to `failed` with the failure and its copy's place.

    With `moved` it stays scheduled and names another place: the copy follows its key (`hold_key`),
    or waits on (`RetryAfter`).
    """

    retry_id: str
    redrive_count: int
    number: int
    failed: LedgerRow | None = None
    moved: LedgerRow | None = None


@dataclass(frozen=True, slots=True)
class FenceMove:
    """The compare-and-set of one partition's fence, in the transaction of its effects."""

    topic: str
    partition: int
    expected: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class FenceRow:
    """How far a pipeline has taken one partition of one incarnation of a topic."""

    topic: str
    topic_id: str
    partition: int
    next_offset: int


@dataclass(slots=True)
class Counts:
    """What became of the records of one range, counted in the transaction that moves its fence.

    Args:
        read: records that ended in one of the ways below, without copies that are not owed.
        loaded: with something written; `filtered`: with nothing to write.
        scheduled: with another try to come; `failed`: permanently.
        rows: rows that name their input, in the handler's table.
    """

    read: int = 0
    loaded: int = 0
    filtered: int = 0
    scheduled: int = 0
    failed: int = 0
    rows: int = 0

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The counts in order, as the store's columns are called."""
        return tuple(each.name for each in fields(cls))


class Verdict(StrEnum):
    """What the ledger says of a copy."""

    RUN = "run"
    INERT = "inert"


def newest(rows: Sequence[RowState]) -> RowState | None:
    """The row that tells what has become of a record; None where it has none."""
    return max(rows, key=lambda r: (r.redrive_count, r.number), default=None)


def gate(attempt: Attempt, rows: Sequence[RowState]) -> Verdict:
    """May this copy be run? `rows` are all rows of its record, in any order."""
    last = newest(rows)
    if last is None:
        return Verdict.INERT
    same = (last.redrive_count, last.number) == (attempt.redrive_count, attempt.number)
    here = _names(last.place, Place(*attempt.position))
    if same and here and last.status is Status.SCHEDULED:
        return Verdict.RUN
    if is_redriven(attempt):
        redrivable = last.status is Status.FAILED and last.redrive_count < attempt.redrive_count
        return Verdict.RUN if redrivable else Verdict.INERT
    return Verdict.INERT


def owed_elsewhere(rows: Sequence[RowState]) -> bool:
    """Whether some copy of the record is still to be run."""
    last = newest(rows)
    return last is not None and last.status is Status.SCHEDULED


def backs_failed(place: Place, row: RowState | None, redrive_count: int) -> bool:
    """Is this copy in the dead-letter topic the one that the ledger tells of?

    Args:
        redrive_count: the round that the copy belongs to.
    """
    if row is None or row.status is not Status.FAILED:
        return False
    return _names(row.place, place) and row.redrive_count == redrive_count


def _names(row: Place | None, copy: Place) -> bool:
    """Whether the place in a row is that of a copy."""
    if row is None or row.offset != IN_BATCH:
        return row == copy
    return (row.topic, row.partition) == (copy.topic, copy.partition)


@dataclass(frozen=True, slots=True)
class Entries:
    """What one ended attempt means for the ledger: a row to close, and rows to write."""

    claim: Claim | None = None
    rows: tuple[LedgerRow, ...] = ()


MAX_KEY_HASH: Final = 16


def succeeded(attempt: Attempt, now_ms: int) -> Entries:
    """A first try that succeeds leaves no row; a retry closes its own."""
    if attempt.previous is None:
        return Entries()
    if not _has_row(attempt):
        return Entries(rows=(_ended(attempt, now_ms),))
    return Entries(_claim(attempt))


def held(attempt: Attempt, copy: Copy, place: Place, now_ms: int) -> Entries:
    """The row of an attempt that is still owed, and waits in another retry topic from now on.

    It follows its key there (`hold_key`), or waits out what is left of a `RetryAfter`.
    """
    row = LedgerRow(
        origin=attempt.origin,
        redrive_count=attempt.redrive_count,
        number=attempt.number,
        status=Status.SCHEDULED,
        place=place,
        due_ms=copy.retry.not_before_ms,
        key_hash=key_hash(attempt.key),
        disposition=copy.retry.disposition.value,
        reason=copy.retry.reason,
        error_class=copy.retry.error_class,
        error_message=cut_utf8(copy.retry.error_message, MAX_MESSAGE_BYTES).decode(),
        fingerprint=copy.retry.fingerprint,
        created_ms=now_ms,
        delay_ms=copy.retry.delay_ms,
    )
    if not _has_row(attempt):
        return _first(attempt, row, now_ms)
    return Entries(_claim(attempt, moved=row))


def failed(
    attempt: Attempt, failure: Failure, copy: Copy, step: Step | None, place: Place, now_ms: int
) -> Entries:
    """The rows of an attempt that failed: the next one is scheduled, or the record has failed."""
    row = LedgerRow(
        origin=attempt.origin,
        redrive_count=attempt.redrive_count,
        number=step.number if step else attempt.number,
        status=Status.SCHEDULED if step else Status.FAILED,
        place=place,
        due_ms=copy.retry.not_before_ms if step else None,
        key_hash=key_hash(attempt.key),
        disposition=copy.retry.disposition.value,
        reason=failure.reason,
        error_class=failure.error_class,
        error_message=cut_utf8(failure.message, MAX_MESSAGE_BYTES).decode(),
        fingerprint=failure.fingerprint,
        created_ms=now_ms,
        closed_ms=None if step else now_ms,
        delay_ms=step.delay_ms if step else None,
    )
    if not _has_row(attempt):
        return _first(attempt, row, now_ms)
    if step is None:
        return Entries(_claim(attempt, row))
    return Entries(_claim(attempt), (row,))


def failed_unread(
    owed: Iterable[LedgerRow], failure: Failure, copy: Copy, place: Place, now_ms: int
) -> list[Claim]:
    """Scheduled copies in an unreadable batch: each has failed with it."""
    return [
        Claim(
            row.retry_id,
            row.redrive_count,
            row.number,
            replace(
                row,
                status=Status.FAILED,
                place=place,
                due_ms=None,
                closed_ms=now_ms,
                disposition=copy.retry.disposition.value,
                reason=failure.reason,
                error_class=failure.error_class,
                fingerprint=failure.fingerprint,
                error_message=cut_utf8(failure.message, MAX_MESSAGE_BYTES).decode(),
            ),
        )
        for row in owed
    ]


def key_hash(key: bytes | None) -> str | None:
    """A short hash by which records of one key are found; None for a record without a key."""
    return None if key is None else hashlib.sha256(key).hexdigest()[:MAX_KEY_HASH]


def is_redriven(attempt: Attempt) -> bool:
    """Whether this is the copy that a redrive sent, to the entry topic or to a retry topic."""
    previous = attempt.previous
    return previous is not None and previous.disposition is Disposition.REDRIVEN


def _has_row(attempt: Attempt) -> bool:
    """Whether the ledger knew this attempt before it was made."""
    return attempt.previous is not None and not is_redriven(attempt)


def _first(attempt: Attempt, row: LedgerRow, now_ms: int) -> Entries:
    """The rows of an attempt that the ledger did not know.

    A redriven copy leaves row 0 of its round as well. Of two copies in one round (of a repeated
    redrive, or of two into different topics) the second meets that row and is inert.
    """
    if not is_redriven(attempt) or row.number == 0:
        return Entries(rows=(row,))
    return Entries(rows=(_ended(attempt, now_ms), row))


def _claim(
    attempt: Attempt, row: LedgerRow | None = None, *, moved: LedgerRow | None = None
) -> Claim:
    return Claim(attempt.origin.retry_id, attempt.redrive_count, attempt.number, row, moved)


def _ended(attempt: Attempt, now_ms: int) -> LedgerRow:
    """Row 0 of a redriven copy's round; the copy itself may have another number."""
    return LedgerRow(
        origin=attempt.origin,
        redrive_count=attempt.redrive_count,
        number=0,
        status=Status.DONE,
        place=Place(*attempt.position),
        due_ms=None,
        key_hash=key_hash(attempt.key),
        disposition=Disposition.REDRIVEN,
        reason="",
        error_class="",
        error_message="",
        fingerprint="",
        created_ms=now_ms,
        closed_ms=now_ms,
    )
