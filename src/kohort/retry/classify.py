"""Is a failure permanent or temporary? One answer for each exception, with its reason.

Rules (spec 5.1):
- `Permanent` is never retried; `Temporary` is, by the retry topics; `RetryAfter` names the least
  delay.
- Any other exception is looked for in the given class lists along `__cause__` and `__context__`;
  the nearest match wins. A broken constraint and bytes that do not decode are permanent.
- Other errors go by their own class: `PROGRAM_OR_DATA` (a missing field, a wrong type, a bug) is
  permanent, since time does not repair it and a redrive brings it back. So is a `UsageError`
  itself, but not its subclasses: a client that is closed may be open after a restart. An `OSError`
  (the network, a time-out) and everything else is temporary.
- `BaseException`s that are not `Exception`s (KeyboardInterrupt, CancelledError) are not failures.
"""

from __future__ import annotations

import hashlib
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Final

from kohort.config import parse_duration_ms
from kohort.errors import KohortError, UsageError

MAX_REASON_CHARS: Final = 100
MAX_CAUSES: Final = 32
_NUMBERS_AND_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|0x[0-9a-fA-F]+|\d+")
_NOT_IN_REASON = re.compile(r"[^A-Za-z0-9_.:-]+")


PROGRAM_OR_DATA: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)
"""What the record or the program causes. Only the raised error counts, never what it came from: a
dependency's error is often raised while a KeyError is being handled."""


class Disposition(StrEnum):
    """Why a copy is in its topic (`retry_disposition`)."""

    RETRYABLE = "retryable"
    FATAL = "fatal"
    EXHAUSTED = "exhausted"
    DESERIALIZE = "deserialize"
    CRASH = "crash"
    EVICTED = "evicted"
    HELD = "held"
    REDRIVEN = "redriven"
    UNREADABLE = "unreadable"


class HandlerError(KohortError):
    """What a handler raises to say how its record failed.

    Args:
        reason: a short stable word (`unknown_airport`); failures are counted by it. At most 100
            characters of letters, digits and `_.:-`; anything else becomes `_`.
        message: free text for the reader of the dead-letter topic; the reason by default.
    """

    def __init__(self, reason: str, message: str = "") -> None:
        self.reason = clean_reason(reason)
        super().__init__(message or reason)
        kind = "permanent" if isinstance(self, Permanent) else "temporary"
        self.add_note(f"{kind} failure: {self.reason}")  # Spark passes on the traceback alone


class Permanent(HandlerError):
    """The record can never succeed: straight to the dead-letter topic."""


Fatal = Permanent
"""The other common name of `Permanent`."""


class Temporary(HandlerError):
    """The record may succeed later: to the next retry topic, after the last one dead-lettered."""

    retriable = True
    min_delay_ms: int = 0


class RetryAfter(Temporary):
    """Temporary, and not before `delay` is over. It uses up one retry, however long it waits.

    Args:
        delay: milliseconds, or a text such as `"45m"`. The record waits in the retry topic with the
            shortest delay that covers it; a wait beyond the longest delay passes through that
            topic several times.
        reason, message: as `HandlerError`.
    """

    def __init__(self, delay: int | str, reason: str, message: str = "") -> None:
        super().__init__(reason, message)
        self.min_delay_ms = parse_duration_ms(delay)


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt, ready for headers and ledger. No exception object is kept."""

    permanent: bool
    disposition: Disposition
    reason: str
    error_class: str
    message: str
    stack: str
    fingerprint: str
    min_delay_ms: int = 0


@dataclass(frozen=True)
class Classifier:
    """Sorts exceptions into permanent and temporary ones.

    Args:
        permanent: classes that are never retried (beside `Permanent` itself).
        temporary: classes that are, also when they are subclasses of a permanent one, or of one
            in `PROGRAM_OR_DATA`.
    """

    permanent: tuple[type[BaseException], ...] = ()
    temporary: tuple[type[BaseException], ...] = ()

    def classify(self, error: Exception) -> Failure:
        """The failure that `error` represents."""
        for cause in causes(error):
            if isinstance(cause, HandlerError):
                return self._of_handler_error(cause, error)
            if isinstance(cause, self.temporary):
                return describe(error, permanent=False, reason=type(error).__name__)
            if isinstance(cause, self.permanent):
                return describe(error, permanent=True, reason=type(cause).__name__)
        kind = type(error)
        return describe(error, permanent=is_permanent(kind), reason=kind.__name__)

    def _of_handler_error(self, statement: HandlerError, error: Exception) -> Failure:
        delay = statement.min_delay_ms if isinstance(statement, Temporary) else 0
        permanent = isinstance(statement, Permanent)
        return describe(error, permanent=permanent, reason=statement.reason, min_delay_ms=delay)


def is_permanent(kind: type[BaseException]) -> bool:
    """Whether time does not repair what raises this class, which states nothing itself."""
    ours = issubclass(kind, PROGRAM_OR_DATA) and not issubclass(kind, OSError)
    return ours or kind is UsageError


def describe(
    error: Exception,
    *,
    permanent: bool,
    reason: str,
    disposition: Disposition | None = None,
    min_delay_ms: int = 0,
) -> Failure:
    """A `Failure` with the texts of `error`."""
    if disposition is None:
        disposition = Disposition.FATAL if permanent else Disposition.RETRYABLE
    return Failure(
        permanent=permanent,
        disposition=disposition,
        reason=clean_reason(reason),
        error_class=class_name(type(error)),
        message=str(error),
        stack=_stack(error),
        fingerprint=fingerprint(error),
        min_delay_ms=min_delay_ms,
    )


def stated(
    reason: str,
    *,
    permanent: bool,
    message: str = "",
    min_delay_ms: int = 0,
    disposition: Disposition | None = None,
    error_class: str = "",
) -> Failure:
    """A failure that was marked without raising; cheap, since no stack is built.

    Raises UsageError for a reason that is no text.
    """
    if not isinstance(reason, str):
        raise UsageError(
            f"the reason of a failure is a short text by which failures are counted, such as "
            f"'bad_price', not {reason!r}; give str(error) as the message"
        )
    reason = clean_reason(reason)
    if disposition is None:
        disposition = Disposition.FATAL if permanent else Disposition.RETRYABLE
    kind = Permanent if permanent else Temporary
    name = error_class or class_name(kind)
    return Failure(
        permanent=permanent,
        disposition=disposition,
        reason=reason,
        error_class=name,
        message=message or reason,
        stack="",
        fingerprint=_digest(f"{name}|{reason}"),
        min_delay_ms=min_delay_ms,
    )


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, then the errors it was raised from; bounded, and safe against a cycle."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(seen) < MAX_CAUSES:
        seen.add(id(current))
        yield current
        hidden = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or hidden


def fingerprint(error: Exception) -> str:
    """16 hex digits that are equal for failures of one kind: class, place, and message pattern."""
    if isinstance(error, HandlerError):
        pattern = error.reason
    else:
        pattern = _NUMBERS_AND_QUOTED.sub("#", str(error))[:1024]
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
    place = frames[-1].name if frames else ""
    return _digest(f"{class_name(type(error))}|{place}|{pattern}")


def clean_reason(reason: str) -> str:
    """A reason fit to be counted by: no spaces, no control characters, at most 100 characters."""
    return _NOT_IN_REASON.sub("_", reason)[:MAX_REASON_CHARS] or "unknown"


def class_name(kind: type[BaseException]) -> str:
    """`module.Class`, or `Class` alone for a builtin."""
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _stack(error: Exception) -> str:
    """The traceback from the first frame on that is not ours; "" where nothing was raised."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None and _is_ours(frame):
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame)) if frame else ""


def _is_ours(frame: TracebackType) -> bool:
    # a module compiled with the stable ABI is named in its functions' names, not in its globals
    called = frame.tb_frame.f_code.co_name
    return str(frame.tb_frame.f_globals.get("__name__", called)).startswith("kohort.")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]
