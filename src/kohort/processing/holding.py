"""Keeping a key's order although one of its records waits in a tier (`on_failure="hold_key"`).

Rules (retry reference B2):
- While a record of a key is in a tier, later records of the key follow it into the same tier, where
  they stand behind it, and fall due after it. Their attempt number stays as it is.
- A record of a tier is tried when no earlier one of its key is still under way; otherwise it
  follows the earlier one to wherever that has gone.
- Kept in memory, within a bound: past it no more keys are held and `overflowed` says so. After a
  restart the tiers are read up to their end first (`scheduled` for each of their records).
"""

from __future__ import annotations

from typing import Final

Key = tuple[str, bytes]
"""(source topic, key)."""
Place = tuple[int, int]
"""(partition, offset) of a record in its source topic: the order within a key."""

MAX_HELD: Final = 100_000


class KeyHolds:
    """Which records of which keys are in a tier, and in which one."""

    __slots__ = ("_count", "_keys", "_most", "overflowed")

    def __init__(self, most: int = MAX_HELD) -> None:
        self._keys: dict[Key, dict[Place, str]] = {}
        self._count = 0
        self._most = most
        self.overflowed = 0

    def __len__(self) -> int:
        return self._count

    def scheduled(self, key: Key, place: Place, tier: str) -> None:
        """This record waits in `tier` now (it may have waited in another one before)."""
        held = self._keys.get(key)
        if held is None:
            if self._count >= self._most:
                self.overflowed += 1
                return
            held = self._keys[key] = {}
        self._count += place not in held
        held[place] = tier

    def ended(self, key: Key, place: Place) -> None:
        """This record is done, or in the failed topic: whoever waited for it may go on."""
        held = self._keys.get(key)
        if held is None or held.pop(place, None) is None:
            return
        self._count -= 1
        if not held:
            del self._keys[key]

    def behind(self, key: Key, place: Place) -> str | None:
        """The tier that a record has to follow into, None when nothing earlier is in its way."""
        held = self._keys.get(key)
        if held is None:
            return None
        earlier = [other for other in held if other < place]
        return held[max(earlier)] if earlier else None
