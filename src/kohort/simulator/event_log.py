"""What happened in a simulated run: every event for the trace's hash, the telling ones as a story.

Rules: the hash covers every noted and reported event in order, with its time; two runs of one seed
have equal hashes, or the simulator (or the simulated code) is not deterministic.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from kohort.simulator.schedule import Schedule

MAX_STORY_LINES = 20_000


class Line(NamedTuple):
    """One sentence of a story."""

    at_ms: int
    text: str


class Journal:
    """The record of one run."""

    def __init__(self, schedule: Schedule) -> None:
        self.story: list[Line] = []
        self.notes = 0
        self.log: list[str] | None = None
        """Set to a list to keep every note as text (for finding where two runs part)."""
        self._schedule = schedule
        self._hash = blake2b(digest_size=16)

    def note(self, *what: object) -> None:
        """Something small: it counts for the hash only."""
        self.notes += 1
        line = f"{self._schedule.now_ms} {what}\n"
        self._hash.update(line.encode())
        if self.log is not None:
            self.log.append(line)

    def tell(self, text: str) -> None:
        """Something that belongs in the story."""
        self.note("tell", text)
        if len(self.story) < MAX_STORY_LINES:
            self.story.append(Line(self._schedule.now_ms, text))

    @property
    def digest(self) -> str:
        """The hash of everything so far."""
        return self._hash.hexdigest()
