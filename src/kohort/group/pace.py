"""How long a member waits between heartbeats: a short time at first, then ever longer.

Rules: what a new member is to have, others must give up first, and it learns of that by heartbeats.
So after a join, and after what it brings, the wait is `first_ms`, doubles with each heartbeat, and
has grown up when it reaches the interval.
"""

from __future__ import annotations


class Pace:
    """The wait of one member. It is grown up until `restart` is called."""

    def __init__(self, first_ms: int) -> None:
        self._first_ms = first_ms
        self._doublings: int | None = None

    @property
    def is_young(self) -> bool:
        """Whether the wait is still shorter than the interval."""
        return self._doublings is not None

    def restart(self) -> None:
        """From now on the first wait again."""
        self._doublings = 0

    def grow_up(self) -> None:
        """From now on the interval."""
        self._doublings = None

    def beat(self) -> None:
        """A heartbeat goes out: the next wait is twice as long."""
        if self._doublings is not None:
            self._doublings += 1

    def wait_ms(self, interval_ms: int) -> int:
        """The wait until the next heartbeat."""
        if self._doublings is None:
            return interval_ms
        wait_ms = self._first_ms << self._doublings
        if 0 < wait_ms < interval_ms:
            return wait_ms
        self._doublings = None
        return interval_ms
