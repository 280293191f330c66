"""Offsets as they were before the console set others.

Shell: the clock.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kohort.errors import UsageError

if TYPE_CHECKING:
    from kohort.client.common.types import TopicPartition

KEPT: Final = 100


class Undos:
    """Offsets as they were before changes of this console, the newest last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[str, int, dict[TopicPartition, int]]] = OrderedDict()

    def add(self, group: str, offsets: Mapping[TopicPartition, int]) -> str:
        """Keep offsets; the key that they are known by."""
        at_ms = time.time_ns() // 1_000_000
        key = f"{at_ms}"
        self._kept[key] = (group, at_ms, dict(offsets))
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return key

    def of(self, group: str) -> list[tuple[str, int, dict[TopicPartition, int]]]:
        """Those of a group, the newest first."""
        mine = [(k, at, o) for k, (name, at, o) in self._kept.items() if name == group]
        return mine[::-1]

    def get(self, group: str, key: str) -> dict[TopicPartition, int]:
        """The offsets of a key. Raises UsageError."""
        name, _, offsets = self._kept.get(key, ("", 0, {}))
        if name != group:
            raise UsageError("this undo is not known any more; the audit has the old offsets")
        return offsets
