"""What has happened to records that failed, by the labels that the metrics want. Pure.

Rules:
- Labels are bounded: topics that have handlers, tiers and attempts of their policies, dispositions.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

FAILED: Final = "failed"
"""The label of the failed topic among the tiers."""


class Tally:
    """Counters of one engine. Read from any thread, written by the owner's."""

    __slots__ = ("copies", "early", "recovered")

    def __init__(self) -> None:
        self.copies: Counter[tuple[str, str, str]] = Counter()
        """Copies made, by (source topic, tier or `failed`, disposition)."""
        self.recovered: Counter[tuple[str, int]] = Counter()
        """Records that a retry succeeded with, by (source topic, which retry)."""
        self.early: Counter[str] = Counter()
        """Records of a tier that were read before they were due, by source topic; always 0."""
