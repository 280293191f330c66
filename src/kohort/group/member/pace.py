"""How long a member waits between heartbeats: a short time at first, then ever longer.

Rules:
- Other members must first give up a new member's partitions, and it learns of that by heartbeats.
  So after a join, and after each assignment, the wait is `first_ms`, doubles with each heartbeat,
  and is full-grown when it reaches the interval.
- A coordinator may name a shorter interval for a while (KIP-848). The member keeps to that; a
  heartbeat that it causes does not count here, and the back-off continues from where it was.
"""

from __future__ import annotations


class Pace:
    """The wait of one member. It is grown up until `restart` is called."""

    def __init__(self, first_ms: int) -> None:
        self._first_ms = first_ms
        self._doublings: int | None = None
        self._usual_ms = 0
        """The longest interval so far."""

    @property
    def is_young(self) -> bool:
        """Whether the wait is still shorter than the usual interval."""
        return self._doublings is not None

    def restart(self) -> None:
        """From now on the first wait again."""
        self._doublings = 0

    def grow_up(self) -> None:
        """From now on the interval."""
        self._doublings = None

    def beat(self, interval_ms: int) -> None:
        """A heartbeat goes out: the next wait is twice as long."""
        if self._doublings is not None and self._first_ms << self._doublings <= interval_ms:
            self._doublings += 1

    def wait_ms(self, interval_ms: int) -> int:
        """The wait until the next heartbeat."""
        self._usual_ms = max(self._usual_ms, interval_ms)
        if self._doublings is None:
            return interval_ms
        wait_ms = self._first_ms << self._doublings
        if not 0 < wait_ms < self._usual_ms:
            self._doublings = None
            return interval_ms
        return min(wait_ms, interval_ms)
