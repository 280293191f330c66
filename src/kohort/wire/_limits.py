"""Limits on what a decoder accepts."""

from __future__ import annotations

from typing import Final


class Limits:
    """What a decoder accepts at most.

    `elements` counts the elements of all arrays of one message together, `frame_bytes` the whole
    input, `tags` the unknown tagged fields of one struct.
    """

    __slots__ = ("elements", "frame_bytes", "tags")

    def __init__(
        self, *, elements: int = 100_000, frame_bytes: int = 100 << 20, tags: int = 64
    ) -> None:
        self.elements = elements
        self.frame_bytes = frame_bytes
        self.tags = tags

    def __repr__(self) -> str:
        return f"Limits(elements={self.elements}, frame_bytes={self.frame_bytes}, tags={self.tags})"


REQUEST_LIMITS: Final = Limits()
"""For what a server reads: 100,000 elements, 100 MiB."""

RESPONSE_LIMITS: Final = Limits(elements=5_000_000, frame_bytes=1 << 30)
"""For what a client reads, and for records of the internal topics: 5 million elements, 1 GiB."""
