"""Who changed what by the console: two lines for each action, in memory and in a file.

Rules: an action has a line when it begins, and one with its outcome, also where that is not known.
Where the file cannot be written, no action begins; one that was done by then is said to be done,
and its line stays in memory.

Shell: the clock, files, threads.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from kohort.errors import ConnectionFailedError, KafkaTimeoutError, KohortError

log = logging.getLogger("kohort.console")
KEPT: Final = 1_000
BEGUN: Final = "begun"


@dataclass(frozen=True)
class Entry:
    """One action: when, who, what, and how it ended."""

    at_ms: int
    who: str
    action: str
    target: str
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    outcome: str = "done"


@dataclass
class Doing:
    """An action that is being done: what its second line will say."""

    target: str
    outcome: str = "done"


class AuditError(KohortError):
    """The file of the audit cannot be written; the message says whether the action was done."""


class Audit:
    """The actions of this console.

    Args:
        path: a file that lines of JSON are appended to; None keeps the last ones in memory alone.

    Raises:
        AuditError: the file cannot be opened.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.entries: deque[Entry] = deque(maxlen=KEPT)
        if (why := self._append("")) is not None:
            raise AuditError(f"{why}; choose another file with --audit")

    def check(self) -> None:
        """Before an action. Raises AuditError where the file cannot be opened."""
        if (why := self._append("")) is not None:
            raise AuditError(f"nothing was done: {why}")

    @contextmanager
    def doing(
        self, who: str, action: str, target: str, details: Mapping[str, Any] | None = None
    ) -> Generator[Doing]:
        """Note that the action of this block begins, and then how it has ended.

        Raises:
            AuditError: the file cannot be written; the message says whether the action was done.
            KohortError: it has failed, or it is not known whether it was done.
        """
        self.begin(who, action, target, details)
        it = Doing(target)
        try:
            yield it
        except (ConnectionFailedError, KafkaTimeoutError) as error:
            self.add(who, action, it.target, f"not known: {error}", details)
            raise KohortError(
                f"{action} {it.target}: it is not known whether it was done: {error}. Look before "
                "you do it again"
            ) from error
        except KohortError as error:
            self.add(who, action, it.target, f"failed: {error}", details)
            raise
        except Exception as error:  # a bug of ours: what was done by then is not known
            self.add(who, action, it.target, f"not known: {error!r}", details)
            raise
        self.add(who, action, it.target, it.outcome, details)

    def add(
        self,
        who: str,
        action: str,
        target: str,
        outcome: str = "done",
        details: Mapping[str, Any] | None = None,
    ) -> Entry:
        """Note an action that was done. Raises AuditError where the file cannot be written."""
        entry = Entry(time.time_ns() // 1_000_000, who, action, target, details or {}, outcome)
        if (why := self._noted(entry)) is not None:
            raise AuditError(f"{action} {target}: {outcome}. But {why}; /audit shows this action")
        return entry

    def begin(
        self, who: str, action: str, target: str, details: Mapping[str, Any] | None = None
    ) -> Entry:
        """Note an action that begins now. Raises AuditError where the file cannot be written."""
        entry = Entry(time.time_ns() // 1_000_000, who, action, target, details or {}, BEGUN)
        if (why := self._noted(entry)) is not None:
            raise AuditError(f"nothing was done: {why}")
        return entry

    def _noted(self, entry: Entry) -> str | None:
        log.info("%s %s %s: %s", entry.who, entry.action, entry.target, entry.outcome)
        with self._lock:
            why = self._append(json.dumps(asdict(entry)) + "\n")
            if why is None or entry.outcome != BEGUN:
                self.entries.append(entry)
        return why

    def _append(self, text: str) -> str | None:
        """Why the file does not take a text; None where it does."""
        if self._path is None:
            return None
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            return f"the audit file {self._path} cannot be written: {error.strerror}"
        return None
