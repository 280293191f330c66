"""How a failed record becomes a copy in a retry topic or in the dead-letter topic.

Rules (spec 5.3, A2):
- Key, value and the user's headers stay byte for byte; our headers are added at the end.
- The copy's own timestamp is the broker's append time; the first timestamp lives in a header. A
  copied old timestamp would let retention delete the copy on arrival.
- A copy goes to partition `origin partition % n`, so all copies of a record meet one fence.
- When a copy is too large it is tried again without the stack, then without the message, then as a
  stub without its value (the origin's coordinates say where the value still is). Of a batch that
  cannot be read, the beginning of its bytes is tried before the stub.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kohort.retry import headers as h
from kohort.retry.classify import Disposition, Failure, stated
from kohort.retry.foreign_headers import foreign_headers
from kohort.retry.headers import Header, HeaderFault, Origin, RetryHeaders
from kohort.retry.policy import RetryPolicy, RetryTopics, Step

DEFAULT_SKEW_MS: Final = 1_000
MAX_STUB_HEADERS: Final = 16
MAX_DIGITS: Final = 19
CUT_BYTES: Final = 256 * 1024
"""So much of a damaged batch is kept where the dead-letter topic does not take all of it."""
BAD_HEADERS_REASON: Final = "bad_retry_headers"
UNDECODABLE: Final = "undecodable"
"""Reason of a value that does not decode, and never will."""
OMITTED_VALUE: Final = "the retry topic did not take the value; a redrive reads it at its origin"
MAX_WAIT_MS: Final = 10 * 366 * 24 * 3_600_000
"""The longest wait that a handler may ask for; longer ones are cut to ten years."""
HELD_REASON: Final = "behind_its_key"


@dataclass(slots=True)
class Attempt:
    """One record about to be handled: its origin, and how often it was tried.

    Args:
        origin: the record's first place; its own place when it comes from the source topic.
        number: 0 for the first try, else the retry's number.
        position: (topic, partition, offset) where this copy was read.
        previous: the headers of the copy; None for a record of the source topic.
    """

    origin: Origin
    number: int
    position: tuple[str, int, int]
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    previous: RetryHeaders | None = None

    @property
    def redrive_count(self) -> int:
        return self.previous.redrive_count if self.previous else 0


@dataclass(frozen=True, slots=True)
class Copy:
    """One record to publish, and what the ledger will say of it."""

    topic: str
    partition_hint: int
    key: bytes | None
    value: bytes | None
    user_headers: tuple[Header, ...]
    retry: RetryHeaders
    dead_letter: bool
    omitted_bytes: int | None = None
    makes: tuple[str, ...] = ()

    @property
    def headers(self) -> list[Header]:
        """The user's headers, then ours, then ours under the names of other makes."""
        ours = self.retry.encode()
        if self.omitted_bytes is not None:
            ours.append((h.VALUE_OMITTED, str(self.omitted_bytes).encode()))
        return [*self.user_headers, *ours, *foreign_headers(self.makes, self.retry)]


def read_attempt(
    topic: str,
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header],
    *,
    policy: RetryPolicy,
    delay_ms: int,
    group: str,
) -> Attempt:
    """The attempt that a record of a retry topic represents.

    Raises HeaderFault when the headers are not what this group would have written for this retry
    topic.
    """
    retry = h.parse(headers)
    if retry.group != group:
        raise HeaderFault(f"{h.GROUP} is {retry.group!r}; this topic belongs to {group!r}")
    if retry.delay_ms != delay_ms:
        raise HeaderFault(
            f"{h.DELAY_MS} is {retry.delay_ms}; this retry topic's delay is {delay_ms} ms"
        )
    if delay_ms == 0:
        if retry.number != 0 or retry.redrive_count < 1:
            raise HeaderFault("a record of the entry topic must be number 0 of a redrive")
    elif not (retry.number or retry.disposition is Disposition.HELD):
        raise HeaderFault(f"{h.NUMBER} is {retry.number}; a retry topic holds retries from 1 on")
    elif retry.number > policy.retries:
        raise HeaderFault(f"{h.NUMBER} is {retry.number}; this policy has {policy.retries}")
    return Attempt(
        origin=retry.origin,
        number=retry.number,
        position=(topic, partition, offset),
        key=key,
        value=value,
        headers=headers,
        previous=retry,
    )


def due_ms(attempt: Attempt, append_ms: int, delay_ms: int, skew_ms: int = DEFAULT_SKEW_MS) -> int:
    """When the attempt may run: append time + delay, or the header when that is a little later.

    The header is clamped to append time + delay + skew: a wild clock makes a record late by at most
    the allowance, never early and never stuck (D2).
    """
    base = append_ms + delay_ms
    if attempt.previous is None:
        return base
    return max(base, min(attempt.previous.not_before_ms, base + skew_ms))


def disposition_of(failure: Failure, step: Step | None) -> Disposition:
    """Why the copy of a failed record goes where `step` sends it; None: it is dead-lettered."""
    if step is None and failure.disposition is Disposition.RETRYABLE:
        return Disposition.EXHAUSTED
    return failure.disposition


def copy_for(
    attempt: Attempt, failure: Failure, *, topics: RetryTopics, now_ms: int
) -> tuple[Copy, Step | None]:
    """The copy of a failed attempt, and the retry it waits for; None: it is dead-lettered."""
    step, wait_ms = None, min(failure.min_delay_ms, MAX_WAIT_MS)
    if not failure.permanent:
        step = topics.policy.next_step(attempt.number, wait_ms)
    disposition = disposition_of(failure, step)
    previous = attempt.previous
    retry = RetryHeaders(
        number=step.number if step else attempt.number,
        not_before_ms=now_ms + (max(step.delay_ms, wait_ms) if step else 0),
        origin=attempt.origin,
        group=topics.group,
        delay_ms=step.delay_ms if step else 0,
        first_failed_at_ms=_first_failed(previous, now_ms),
        last_failed_at_ms=now_ms,
        disposition=disposition,
        error_class=failure.error_class,
        error_message=failure.message,
        error_stack="" if step else failure.stack,
        fingerprint=failure.fingerprint,
        reason=failure.reason,
        redrive_id=previous.redrive_id if previous else "",
        redrive_count=attempt.redrive_count,
        wait_left_ms=max(0, wait_ms - step.delay_ms) if step else 0,
    )
    topic = topics.retry_topic(step.delay_ms) if step else topics.dead_letter
    copy = _copy(topic, attempt, retry, dead_letter=step is None)
    return (copy if step else replace(copy, makes=topics.dead_letter_headers)), step


def held_copy(attempt: Attempt, *, topics: RetryTopics, retry_topic: str, now_ms: int) -> Copy:
    """The copy that follows an earlier record of its key into `retry_topic`; no attempt is used."""
    previous, delay_ms = attempt.previous, topics.delays_ms[retry_topic]
    retry = RetryHeaders(
        number=attempt.number,
        not_before_ms=now_ms + delay_ms,
        origin=attempt.origin,
        group=topics.group,
        delay_ms=delay_ms,
        first_failed_at_ms=previous.first_failed_at_ms if previous else now_ms,
        last_failed_at_ms=previous.last_failed_at_ms if previous else now_ms,
        disposition=Disposition.HELD,
        reason=HELD_REASON,
        redrive_id=previous.redrive_id if previous else "",
        redrive_count=attempt.redrive_count,
    )
    return _copy(retry_topic, attempt, retry, dead_letter=False)


def waits_on(attempt: Attempt) -> bool:
    """Whether a due copy must wait longer: its handler asked for more than the topic's delay."""
    return attempt.previous is not None and attempt.previous.wait_left_ms > 0


def postponed_copy(attempt: Attempt, *, topics: RetryTopics, now_ms: int) -> Copy:
    """The copy that waits for the rest of a `RetryAfter`; the attempt is not used up.

    One topic holds one delay (R6), so a longer wait passes through several topics, or through the
    one with the longest delay more than once.
    """
    previous = attempt.previous
    assert previous is not None, "only a copy in a retry topic waits on"
    left_ms = previous.wait_left_ms
    delay_ms = topics.policy.delay_for(left_ms)
    retry = replace(
        previous,
        not_before_ms=now_ms + max(delay_ms, left_ms),
        delay_ms=delay_ms,
        wait_left_ms=max(0, left_ms - delay_ms),
    )
    return _copy(topics.retry_topic(delay_ms), attempt, retry, dead_letter=False)


def redrive_copy(
    attempt: Attempt,
    *,
    topics: RetryTopics,
    redrive_id: str,
    now_ms: int,
    topic: str | None = None,
    number: int = 0,
) -> Copy:
    """The copy that sends a record of the dead-letter topic back for another round (spec 5.6).

    `topic` and `number` choose a retry topic, or any topic, instead of the group's entry topic.
    """
    if attempt.previous is None:
        raise HeaderFault("only a copy of the dead-letter topic can be redriven")
    target = topic or topics.entry
    delay_ms = topics.delays_ms.get(target, 0)
    retry = replace(
        attempt.previous,
        number=number,
        not_before_ms=now_ms + delay_ms,
        delay_ms=delay_ms,
        error_stack="",
        disposition=Disposition.REDRIVEN,
        redrive_id=redrive_id,
        wait_left_ms=0,
        redrive_count=attempt.previous.redrive_count + 1,
    )
    copy = _copy(target, attempt, retry, dead_letter=False)
    return replace(copy, omitted_bytes=None)  # the value is there, or null is what it shall be


def ladder(copy: Copy) -> Iterator[Copy]:
    """The copy, then ever smaller ones for a broker that refuses it as too large."""
    yield copy
    without_stack = replace(copy, retry=replace(copy.retry, error_stack=""))
    if copy.retry.error_stack:
        yield without_stack
    without_message = replace(copy, retry=replace(without_stack.retry, error_message=""))
    if copy.retry.error_message:
        yield without_message
    if copy.retry.disposition is Disposition.UNREADABLE and len(copy.value or b"") > CUT_BYTES:
        assert copy.value is not None, "it has bytes"
        cut, left = copy.value[:CUT_BYTES], len(copy.value) - CUT_BYTES
        yield replace(without_message, value=cut, omitted_bytes=left)
    small = [x for x in copy.user_headers if x[1] is None or len(x[1]) <= h.MAX_TEXT_BYTES]
    kept = tuple(small[:MAX_STUB_HEADERS])
    omitted = copy.omitted_bytes
    if copy.value is not None or (omitted is None and kept != copy.user_headers):
        omitted = len(copy.value or b"")
    yield replace(without_message, value=None, user_headers=kept, omitted_bytes=omitted)


def is_stub(headers: Sequence[Header]) -> bool:
    """True for a copy that had to leave its value behind; redrive reads it at the origin."""
    return any(key == h.VALUE_OMITTED for key, _ in headers)


def omitted_value(attempt: Attempt) -> Failure | None:
    """Why a stub that was read from a retry topic cannot be handled; None for any other record.

    Its null is no tombstone: a handler that took it for one would delete what the record updates.
    """
    if _omitted_bytes(attempt) is None:
        return None
    return stated(
        UNDECODABLE, permanent=True, message=OMITTED_VALUE, disposition=Disposition.DESERIALIZE
    )


def _copy(topic: str, attempt: Attempt, retry: RetryHeaders, *, dead_letter: bool) -> Copy:
    return Copy(
        topic=topic,
        partition_hint=attempt.origin.partition,
        key=attempt.key,
        value=attempt.value,
        user_headers=tuple(h.user_headers(attempt.headers)),
        retry=retry,
        dead_letter=dead_letter,
        omitted_bytes=_omitted_bytes(attempt),
    )


def _omitted_bytes(attempt: Attempt) -> int | None:
    """How long the value is that a stub has left at its origin; None for any other record."""
    if attempt.previous is None or attempt.value is not None:
        return None
    size = next((v for key, v in attempt.headers if key == h.VALUE_OMITTED), None)
    if size is None:
        return None
    return int(size) if size.isdigit() and len(size) <= MAX_DIGITS else 0


def _first_failed(previous: RetryHeaders | None, now_ms: int) -> int:
    """The first failure of this round; a redriven record begins a new one."""
    if previous is None or previous.number == 0 or previous.disposition is Disposition.REDRIVEN:
        return now_ms
    return previous.first_failed_at_ms
