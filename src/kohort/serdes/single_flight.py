"""Single flight: of the callers that want the same answer at the same time, one sends the request.

The others wait for its answer.

Rules:
- Callers for different keys do not wait for one another.
- Those that waited for a request without an answer share its failure: each would wait as long
  again. Who comes later asks again.

Shell: threads.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Hashable
from contextlib import contextmanager
from copy import copy

from kohort.errors import ConnectionFailedError


class _Flight:
    """One key's: how many have come, and what they failed by."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.callers = 0
        self.failed: ConnectionFailedError | None = None


class SingleFlight:
    """One caller at a time for each key. Holds only keys that are asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, _Flight] = {}

    @contextmanager
    def of(self, key: Hashable) -> Generator[None]:
        """Send the request for a key, in a `with` statement, when no other caller does.

        Args:
            key: what is asked for.

        Raises:
            ConnectionFailedError: the caller that this one waited for had no answer.
        """
        with self._lock:
            flight = self._flights.setdefault(key, _Flight())
            flight.callers += 1
        try:
            with flight.lock:
                if flight.failed is not None:
                    raise copy(flight.failed)
                try:
                    yield
                except ConnectionFailedError as error:
                    flight.failed = copy(error)
                    with self._lock:
                        self._close(key, flight)
                    raise
        finally:
            with self._lock:
                flight.callers -= 1
                if not flight.callers:
                    self._close(key, flight)

    def _close(self, key: Hashable, flight: _Flight) -> None:
        """Later callers send a request of their own. The caller holds the lock."""
        if self._flights.get(key) is flight:
            del self._flights[key]
