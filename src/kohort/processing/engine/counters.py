"""What has happened to records that failed, by the labels that the metrics want. Pure.

Rules:
- Labels are bounded: topics that have handlers, retry topics and attempts of their policies,
  dispositions.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

DEAD_LETTER: Final = "dlt"
"""The label of the dead-letter topic among the retry topics."""


class Tally:
    """Counters of one engine. Read from any thread, written by the owner's."""

    __slots__ = ("copies", "early", "recovered")

    def __init__(self) -> None:
        self.copies: Counter[tuple[str, str, str]] = Counter()
        """Copies made, by (source topic, retry topic or `dlt`, disposition)."""
        self.recovered: Counter[tuple[str, int]] = Counter()
        """Records that a retry succeeded with, by (source topic, which retry)."""
        self.early: Counter[str] = Counter()
        """Records of a retry topic that were read before they were due, by source topic; 0."""
