"""A proxy that flips one bit of one answer, at the client's end of every connection.

It sees an answer's bytes before anything of the client does. `length` of an answer is flipped by
holding it back: the client waits for bytes that never come, as behind a too large length.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import NamedTuple

import pytest

from kohort.client.cluster.connection import Peer, PeerState

SOUND = "sound"
"""The client.id of those whose answers nobody touches."""
HELD_BACK = -1
"""Not a bit of the answer's body, but of the length in front of it."""


class Flip(NamedTuple):
    """Bit `bit` of answer number `ordinal` (from 0) of an API."""

    api: str
    ordinal: int
    bit: int


class Flips(logging.Handler):
    """Counts answers by API, flips what it is asked to, and notes every unexpected exception."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(logging.ERROR)
        self.sizes: dict[tuple[str, int], int] = {}
        self.counts: Counter[str] = Counter()
        self.target: Flip | None = None
        self.done = False
        self.defects: list[str] = []
        inner = Peer.frame_received

        def frame_received(peer: Peer, c: object, frame: memoryview) -> None:
            if peer._config.client_id == SOUND:
                inner(peer, c, frame)  # pyright: ignore[reportArgumentType]
                return
            api = _api(peer)
            number = self.counts[api]
            self.counts[api] += 1
            self.sizes[api, number] = len(frame)
            if self.target is not None and self.target[:2] == (api, number):
                self.done = True
                if self.target.bit == HELD_BACK:
                    return
                flipped = bytearray(frame)
                flipped[self.target.bit // 8] ^= 1 << self.target.bit % 8
                frame = memoryview(flipped)
            inner(peer, c, frame)  # pyright: ignore[reportArgumentType]

        patch.setattr(Peer, "frame_received", frame_received)
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.defects.append(self.format(record))

    def begin(self, target: Flip | None) -> None:
        self.sizes, self.counts = {}, Counter()
        self.target, self.done, self.defects = target, False, []

    @property
    def answers(self) -> int:
        return self.counts.total()

    def close(self) -> None:
        logging.getLogger().removeHandler(self)
        super().close()


def _api(peer: Peer) -> str:
    if peer.state is PeerState.NEGOTIATING:
        return "ApiVersions"
    if not peer.pipeline.in_flight:
        return "nothing"
    return peer.pipeline.in_flight[0].api.NAME.removesuffix("Request")


def bits(size: int, many: int) -> list[int]:
    """About `many` bits of an answer of `size` bytes: another bit of each byte, evenly spread."""
    step = max(1, size // many)
    return [HELD_BACK, *(at * 8 + (5 * at + 3) % 8 for at in range(0, size, step))]
