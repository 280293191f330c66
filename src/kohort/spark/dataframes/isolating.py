"""Which rows make a batch fail: found by halves, given a verdict, and the others are loaded.

Rules (spec 6.5):
- An exception in a UDF, a cast that ANSI SQL refuses, or a Python worker that dies fails Spark's
  whole job. The batch's input is then computed by halves, into nothing, until single records are
  left that fail by themselves. Spark tries each task four times, so a record that kills its worker
  has killed it four times.
- Spark hands on the text of a traceback. An exception states there itself what it is, by a note
  (`HandlerError`), or is judged by its class, as the driver knows it; a class that only the worker
  has is temporary.
- A temporary failure of no single record (it has passed, or too many fail) restarts the query.
- What fails only together with others, and trouble that is not a record's (the broker, the
  database, a lost executor), is raised unchanged.
- A broken constraint is found by a trial of every row behind a savepoint, all of it undone. So is a
  value that a column's type refuses: a task meets it, and Spark raises what the database says.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kohort.retry.classify import is_permanent
from kohort.retry.store import ConstraintError

MAX_CULPRITS: Final = 100
"""Beyond so many failing records in one batch the step is taken to be wrong, not the records."""
WORKER_KILLED: Final = "worker_killed"
_DEAD_WORKER: Final = re.compile(r"Python worker exited unexpectedly|Python worker .*crashed")
_NOT_A_ROWS: Final = re.compile(
    r"kohort\.errors\.|kohort\.client\.|ExecutorLostFailure|OutOfMemoryError"
)
_CONNECTION_REFUSED: Final = re.compile(r"Connection ?Refused")
"""No record's, unless Python code raised it: then it is the step's own connection."""
_PYTHON: Final = re.compile(
    r"^(?:(?P<module>[\w.<>]+)\.)?(?P<name>[A-Za-z_]\w*)(?:: ?(?P<text>.*))?$"
)
_STATED: Final = re.compile(
    r"^(?P<kind>permanent|temporary) failure: (?P<reason>[\w.:-]+)$", re.MULTILINE
)
"""The note of a `HandlerError`."""
_CONDITION: Final = re.compile(r"\[(?P<name>[A-Z][A-Z0-9_.]+)\] (?P<text>.*)")
_STATE: Final = re.compile(r"SQLSTATE: (?P<state>\w{5})")
_DATA_EXCEPTION: Final = "22"
"""The class of SQL states for bad values (ISO 9075)."""
_OURS: Final = "kohort."
_HANDLER_ERRORS: Final = "kohort.retry.classify"
_REFUSED: Final = f"{ConstraintError.__module__}.{ConstraintError.__qualname__}:"


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets [start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class RowFailure:
    """What a record's failure is called. `permanent`: no retry can help."""

    permanent: bool
    reason: str
    message: str


def row_failure(text: str) -> RowFailure | None:
    """The failure that an error of a Spark job represents; None when it is no record's.

    Args:
        text: the error with its causes, as Spark writes it.
    """
    if _NOT_A_ROWS.search(text):
        return None
    if _DEAD_WORKER.search(text):
        return RowFailure(True, WORKER_KILLED, "the Python worker died, at every try")
    raised = _PYTHON.match(_raised(text))
    if raised is not None:
        name, message = raised["name"], raised["text"] or ""
        stated = _STATED.search(_last_traceback(text))
        if stated is not None:
            return RowFailure(stated["kind"] == "permanent", stated["reason"], message)
        kind = _loaded(raised["module"], name)
        return RowFailure(kind is not None and is_permanent(kind), name, message)
    found = _CONDITION.search(text)
    if found is None or _CONNECTION_REFUSED.search(text):
        return None
    state = _STATE.search(text, found.start())
    bad_value = state is not None and state["state"].startswith(_DATA_EXCEPTION)
    if found["name"].startswith(("INTERNAL", "CANNOT_", "UNRESOLVED")) and not bad_value:
        return None
    return RowFailure(True, found["name"], found["text"])


def temporary_failure(text: str) -> RowFailure | None:
    """What code of a step has raised and a later try may not meet, such as a time-out; else None.

    Kohort's own errors are judged by their classes: a row that the database refuses stays refused.
    """
    raised = _raised(text)
    if raised.startswith(_OURS) and not raised.startswith(f"{_HANDLER_ERRORS}."):
        return None
    failure = row_failure(text)
    return None if failure is None or failure.permanent else failure


def refused_in_a_task(text: str) -> bool:
    """Whether the database has refused a row that a task of the job has sent to it."""
    return _raised(text).startswith(_REFUSED)


def culprits(
    spans: Sequence[Span], fails: Callable[[Sequence[Span]], str | None], most: int = MAX_CULPRITS
) -> dict[Span, str] | None:
    """The single records that fail, with their errors; None when there are more than `most`.

    Args:
        spans: the batch, which is known to fail.
        fails: computes records into nothing; the error's text, or None when they pass.
    """
    found: dict[Span, str] = {}
    left = [list(spans)]
    while left:
        part = left.pop()
        error = fails(part)
        if error is None:
            continue
        if sum(s.size for s in part) <= 1:
            found[next(s for s in part if s.size)] = error
            if len(found) > most:
                return None
            continue
        left += reversed(halves(part))
    return found


def halves(spans: Sequence[Span]) -> tuple[list[Span], list[Span]]:
    """The spans in two parts of about the same number of offsets."""
    middle = sum(s.size for s in spans) // 2
    first: list[Span] = []
    second: list[Span] = []
    for span in spans:
        room = middle - sum(s.size for s in first)
        cut = min(span.end, span.start + max(0, room))
        if cut > span.start:
            first.append(Span(span.topic, span.partition, span.start, cut))
        if span.end > cut:
            second.append(Span(span.topic, span.partition, cut, span.end))
    return first, second


def _raised(text: str) -> str:
    """The last line of the last Python traceback in a text: the exception itself."""
    lines = _last_traceback(text).splitlines()[1:]
    return next((line for line in lines if line and not line[0].isspace()), "")


def _last_traceback(text: str) -> str:
    _, found, trace = text.rpartition("Traceback (most recent call last):")
    return trace if found else ""


def _loaded(module: str | None, name: str) -> type[BaseException] | None:
    """The class of an exception, where the driver has it. Nothing is imported: a text names it."""
    for place in (module,) if module else ("__main__", "builtins"):  # a traceback omits these two
        kind = getattr(sys.modules.get(place), name, None)
        if isinstance(kind, type) and issubclass(kind, BaseException) and kind.__module__ == place:
            return kind
    return None
