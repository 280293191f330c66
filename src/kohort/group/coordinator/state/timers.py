"""Deadlines as keyed data: arming a key again replaces its deadline.

Rules:
- Nothing fires by itself: `pop_due(now_ms)` hands out keys, in order of deadline, then of key.
- Moving a deadline later, which every heartbeat does, costs one dictionary write: the heap keeps
  its old entry, which is corrected when it reaches the top.
- The heap never holds more than twice the armed keys (and a few), however often they are re-armed.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

TimerKey = tuple[str, str, str]
"""(kind, group id, member id or "")."""

_SLACK = 64


class Timers:
    """A set of deadlines, one for each key."""

    __slots__ = ("_deadlines", "_heap", "_queued")

    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, int] = {}
        self._queued: dict[TimerKey, int] = {}  # the one valid heap entry of a key
        self._heap: list[tuple[int, TimerKey]] = []

    def arm(self, key: TimerKey, at_ms: int) -> None:
        """Set the deadline of `key`, in place of any it has."""
        self._deadlines[key] = at_ms
        queued = self._queued.get(key)
        if queued is None or at_ms < queued:
            self._queue(key, at_ms)

    def cancel(self, key: TimerKey) -> None:
        """Forget the deadline of `key`, if there is one."""
        self._deadlines.pop(key, None)

    def deadline(self, key: TimerKey) -> int | None:
        """When `key` is due, or None when it is not armed."""
        return self._deadlines.get(key)

    def next_deadline(self) -> int | None:
        """The earliest deadline of all, or None."""
        self._settle()
        return self._heap[0][0] if self._heap else None

    def earliest(self) -> int | None:
        """A time that no deadline is before, at the price of a look; None: there is none."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> TimerKey | None:
        """Take out the first key that is due at `now_ms`; None when there is none."""
        self._settle()
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        _, key = heappop(self._heap)
        del self._queued[key], self._deadlines[key]
        return key

    def clear(self) -> None:
        """Forget everything."""
        self._deadlines.clear()
        self._queued.clear()
        self._heap.clear()

    def __len__(self) -> int:
        return len(self._deadlines)

    def _settle(self) -> None:
        """Make the heap's top a key's true deadline."""
        while self._heap:
            at_ms, key = self._heap[0]
            if self._queued.get(key) != at_ms:
                heappop(self._heap)  # superseded by an earlier entry
                continue
            deadline = self._deadlines.get(key)
            if deadline == at_ms:
                return
            if deadline is None:
                heappop(self._heap)
                del self._queued[key]
            else:
                self._queued[key] = deadline
                heapreplace(self._heap, (deadline, key))

    def _queue(self, key: TimerKey, at_ms: int) -> None:
        self._queued[key] = at_ms
        heappush(self._heap, (at_ms, key))
        if len(self._heap) > 2 * len(self._deadlines) + _SLACK:
            self._queued = dict(self._deadlines)
            self._heap = [(at, k) for k, at in self._deadlines.items()]
            heapify(self._heap)
