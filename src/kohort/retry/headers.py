"""The headers of a retry copy: written by us, and never trusted when they come back.

Rules (A2, invariant R5):
- ASCII decimals and UTF-8 text, each of our keys once. The names in `RESERVED` are ours; every
  other header of the user is kept byte for byte, with its duplicates, its order and its nulls.
- On a source topic our names mean nothing: services copy headers onto the records they produce.
  They are ignored, and not carried into a copy.
- In a retry topic a header that is missing, doubled, unparsable or out of range is a `HeaderFault`;
  its record goes to the dead-letter topic. Nothing is ever run sooner because a header was bad.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kohort.errors import KohortError
from kohort.retry.classify import Disposition
from kohort.retry.policy import MAX_RETRIES

Header = tuple[str, bytes | None]

MAX_MESSAGE_BYTES: Final = 1024
MAX_STACK_BYTES: Final = 4096
MAX_TEXT_BYTES: Final = 512
MAX_INT_DIGITS: Final = 19
_INT64_MAX: Final = (1 << 63) - 1

NUMBER: Final = "retry_number"
TIMESTAMP: Final = "retry_timestamp"
ID: Final = "retry_id"
ORIGIN_TOPIC: Final = "retry_origin_topic"
ORIGIN_PARTITION: Final = "retry_origin_partition"
ORIGIN_OFFSET: Final = "retry_origin_offset"
ORIGIN_NEXT_OFFSET: Final = "retry_origin_next_offset"
"""Of a batch that cannot be read: the first offset after it."""
ORIGIN_TIMESTAMP: Final = "retry_origin_timestamp"
ORIGIN_TIMESTAMP_TYPE: Final = "retry_origin_timestamp_type"
ORIGIN_TOPIC_ID: Final = "retry_origin_topic_id"
GROUP: Final = "retry_group"
DELAY_MS: Final = "retry_delay_ms"
FIRST_FAILED_AT: Final = "retry_first_failed_at"
LAST_FAILED_AT: Final = "retry_last_failed_at"
ERROR_CLASS: Final = "retry_error_class"
ERROR_MESSAGE: Final = "retry_error_message"
ERROR_STACK: Final = "retry_error_stack"
ERROR_FINGERPRINT: Final = "retry_error_fingerprint"
ERROR_REASON: Final = "retry_error_reason"
DISPOSITION: Final = "retry_disposition"
REDRIVE_ID: Final = "retry_redrive_id"
REDRIVE_COUNT: Final = "retry_redrive_count"
VALUE_OMITTED: Final = "retry_value_omitted"
WAIT_LEFT_MS: Final = "retry_wait_left_ms"
"""What a `RetryAfter` still waits after this delay; relative, so no clock can stretch it."""

FOREIGN_PREFIXES: Final = ("kafka_dlt-", "__connect.errors.", "__streams.errors.")
"""Of the names of other makes, which dead letters may carry beside ours."""

RESERVED: Final[frozenset[str]] = frozenset(
    {
        NUMBER,
        TIMESTAMP,
        ID,
        ORIGIN_TOPIC,
        ORIGIN_PARTITION,
        ORIGIN_OFFSET,
        ORIGIN_TIMESTAMP,
        ORIGIN_TIMESTAMP_TYPE,
        ORIGIN_TOPIC_ID,
        GROUP,
        DELAY_MS,
        FIRST_FAILED_AT,
        LAST_FAILED_AT,
        ERROR_CLASS,
        ERROR_MESSAGE,
        ERROR_STACK,
        ERROR_FINGERPRINT,
        ERROR_REASON,
        DISPOSITION,
        REDRIVE_ID,
        REDRIVE_COUNT,
        VALUE_OMITTED,
        WAIT_LEFT_MS,
        ORIGIN_NEXT_OFFSET,
    }
)


class HeaderFault(KohortError):
    """A record in a retry topic does not carry the headers that this project writes."""


class Origin(NamedTuple):
    """The original position of a record. `timestamp_type` is 0 for create time, 1 for append
    time."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int = 0
    topic_id: str = ""

    @property
    def retry_id(self) -> str:
        """`TOPIC/PARTITION/OFFSET`: one name for the record and all of its copies."""
        return f"{self.topic}/{self.partition}/{self.offset}"


@dataclass(frozen=True, slots=True)
class RetryHeaders:
    """What our headers say. Times are milliseconds since the epoch."""

    number: int
    not_before_ms: int
    origin: Origin
    group: str
    delay_ms: int
    first_failed_at_ms: int
    last_failed_at_ms: int
    disposition: Disposition
    error_class: str = ""
    error_message: str = ""
    error_stack: str = ""
    fingerprint: str = ""
    reason: str = ""
    redrive_id: str = ""
    redrive_count: int = 0
    wait_left_ms: int = 0
    """What is left of the wait that the handler asked for, after the delay of this retry topic."""
    origin_next_offset: int | None = None
    """Of a batch that cannot be read: the first offset after it."""

    def encode(self) -> list[Header]:
        """The headers, each key once; empty texts are left out, long ones are cut."""
        origin = self.origin
        headers: list[tuple[str, int | str | None, int]] = [
            (NUMBER, self.number, 0),
            (TIMESTAMP, self.not_before_ms, 0),
            (ID, origin.retry_id, MAX_TEXT_BYTES),
            (ORIGIN_TOPIC, origin.topic, MAX_TEXT_BYTES),
            (ORIGIN_PARTITION, origin.partition, 0),
            (ORIGIN_OFFSET, origin.offset, 0),
            (ORIGIN_NEXT_OFFSET, self.origin_next_offset, 0),
            (ORIGIN_TIMESTAMP, origin.timestamp_ms, 0),
            (ORIGIN_TIMESTAMP_TYPE, origin.timestamp_type, 0),
            (ORIGIN_TOPIC_ID, origin.topic_id or None, MAX_TEXT_BYTES),
            (GROUP, self.group, MAX_TEXT_BYTES),
            (DELAY_MS, self.delay_ms, 0),
            (FIRST_FAILED_AT, self.first_failed_at_ms, 0),
            (LAST_FAILED_AT, self.last_failed_at_ms, 0),
            (DISPOSITION, self.disposition.value, MAX_TEXT_BYTES),
            (ERROR_REASON, self.reason or None, MAX_TEXT_BYTES),
            (ERROR_CLASS, self.error_class or None, MAX_TEXT_BYTES),
            (ERROR_MESSAGE, self.error_message or None, MAX_MESSAGE_BYTES),
            (ERROR_STACK, self.error_stack or None, MAX_STACK_BYTES),
            (ERROR_FINGERPRINT, self.fingerprint or None, MAX_TEXT_BYTES),
            (REDRIVE_ID, self.redrive_id or None, MAX_TEXT_BYTES),
            (REDRIVE_COUNT, self.redrive_count, 0),
            (WAIT_LEFT_MS, self.wait_left_ms or None, 0),
        ]
        return [(k, _to_bytes(v, limit)) for k, v, limit in headers if v is not None]


def user_headers(headers: Iterable[Header]) -> list[Header]:
    """All headers that are not ours, exactly as they were.

    Ours come last, and after them what `foreign_headers` repeats under other names.
    """
    users: list[Header] = []
    ours = False
    for header in headers:
        if header[0] in RESERVED:
            ours = True
        elif not (ours and header[0].startswith(FOREIGN_PREFIXES)):
            users.append(header)
    return users


def parse(headers: Sequence[Header]) -> RetryHeaders:
    """Read the headers of a copy. Raises HeaderFault for anything that we would not write."""
    ours = _single_valued(headers)
    origin = Origin(
        topic=_text(ours, ORIGIN_TOPIC, MAX_TEXT_BYTES),
        partition=_int(ours, ORIGIN_PARTITION, 0, (1 << 31) - 1),
        offset=_int(ours, ORIGIN_OFFSET, 0, _INT64_MAX),
        timestamp_ms=_int(ours, ORIGIN_TIMESTAMP, -1, _INT64_MAX),
        timestamp_type=_int(ours, ORIGIN_TIMESTAMP_TYPE, -1, 1),
        topic_id=_text(ours, ORIGIN_TOPIC_ID, MAX_TEXT_BYTES, ""),
    )
    retry_id = _text(ours, ID, MAX_TEXT_BYTES)
    if retry_id != origin.retry_id:
        raise HeaderFault(f"{ID} is {retry_id!r}, but the origin headers say {origin.retry_id!r}")
    disposition = _text(ours, DISPOSITION, MAX_TEXT_BYTES)
    if disposition not in set(Disposition):
        raise HeaderFault(f"{DISPOSITION} is {disposition!r}, which is none of ours")
    return RetryHeaders(
        number=_int(ours, NUMBER, 0, MAX_RETRIES),
        not_before_ms=_int(ours, TIMESTAMP, 0, _INT64_MAX),
        origin=origin,
        group=_text(ours, GROUP, MAX_TEXT_BYTES),
        delay_ms=_int(ours, DELAY_MS, 0, _INT64_MAX),
        first_failed_at_ms=_int(ours, FIRST_FAILED_AT, 0, _INT64_MAX),
        last_failed_at_ms=_int(ours, LAST_FAILED_AT, 0, _INT64_MAX),
        disposition=Disposition(disposition),
        error_class=_text(ours, ERROR_CLASS, MAX_TEXT_BYTES, ""),
        error_message=_text(ours, ERROR_MESSAGE, MAX_MESSAGE_BYTES, ""),
        error_stack=_text(ours, ERROR_STACK, MAX_STACK_BYTES, ""),
        fingerprint=_text(ours, ERROR_FINGERPRINT, MAX_TEXT_BYTES, ""),
        reason=_text(ours, ERROR_REASON, MAX_TEXT_BYTES, ""),
        redrive_id=_text(ours, REDRIVE_ID, MAX_TEXT_BYTES, ""),
        redrive_count=_int(ours, REDRIVE_COUNT, 0, 1_000_000, 0),
        wait_left_ms=_int(ours, WAIT_LEFT_MS, 0, _INT64_MAX, 0),
        origin_next_offset=_int(ours, ORIGIN_NEXT_OFFSET, 0, _INT64_MAX, -1)
        if ORIGIN_NEXT_OFFSET in ours
        else None,
    )


def cut_utf8(text: str, max_bytes: int) -> bytes:
    """`text` as UTF-8 of at most `max_bytes`, never ending inside a character."""
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) <= max_bytes:
        return raw
    return raw[:max_bytes].decode("utf-8", "ignore").encode()


def _to_bytes(value: int | str, limit: int) -> bytes:
    return str(value).encode("ascii") if isinstance(value, int) else cut_utf8(value, limit)


def _single_valued(headers: Sequence[Header]) -> dict[str, bytes]:
    values: dict[str, bytes] = {}
    for key, value in headers:
        if key not in RESERVED:
            continue
        if key in values:
            raise HeaderFault(f"{key} occurs twice")
        if value is None:
            raise HeaderFault(f"{key} is null")
        values[key] = value
    return values


def _text(ours: dict[str, bytes], key: str, max_bytes: int, default: str | None = None) -> str:
    raw = ours.get(key)
    if raw is None:
        if default is None:
            raise HeaderFault(f"{key} is missing")
        return default
    if len(raw) > max_bytes:
        raise HeaderFault(f"{key} has {len(raw)} bytes; at most {max_bytes}")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise HeaderFault(f"{key} is not UTF-8") from None


def _int(ours: dict[str, bytes], key: str, low: int, high: int, default: int | None = None) -> int:
    raw = ours.get(key)
    if raw is None:
        if default is None:
            raise HeaderFault(f"{key} is missing")
        return default
    digits = raw.removeprefix(b"-")
    if not digits.isdigit() or len(digits) > MAX_INT_DIGITS:
        raise HeaderFault(f"{key} is {raw[:40]!r}, not a decimal number")
    value = int(raw)
    if not low <= value <= high:
        raise HeaderFault(f"{key} is {value}, outside {low} to {high}")
    return value
