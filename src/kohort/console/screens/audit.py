"""Who changed what by the console: a line for each action, in memory and in a file.

Shell: the clock, files, threads.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

log = logging.getLogger("kohort.console")
KEPT: Final = 1_000


@dataclass(frozen=True)
class Entry:
    """One action: when, who, what, and how it ended."""

    at_ms: int
    who: str
    action: str
    target: str
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    outcome: str = "done"


class Audit:
    """The actions of this console.

    Args:
        path: a file that lines of JSON are appended to; None keeps the last ones in memory alone.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.entries: deque[Entry] = deque(maxlen=KEPT)

    def add(
        self,
        who: str,
        action: str,
        target: str,
        outcome: str = "done",
        details: Mapping[str, Any] | None = None,
    ) -> Entry:
        """Note an action. Raises OSError where the file cannot be written."""
        entry = Entry(time.time_ns() // 1_000_000, who, action, target, details or {}, outcome)
        log.info("%s %s %s: %s", who, action, target, outcome)
        with self._lock:
            self.entries.append(entry)
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(entry)) + "\n")
        return entry
