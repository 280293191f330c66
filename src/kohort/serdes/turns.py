"""Callers that want the same answer at the same time: one asks, the others wait for it.

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


class _Turn:
    """One key's: how many have come, and what they failed by."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.callers = 0
        self.failed: ConnectionFailedError | None = None


class Turns:
    """One caller at a time for each key. Holds only keys that are asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[Hashable, _Turn] = {}

    @contextmanager
    def of(self, key: Hashable) -> Generator[None]:
        """Have the turn of a key for a `with` statement.

        Args:
            key: what is asked for.

        Raises:
            ConnectionFailedError: the caller that this one waited for had no answer.
        """
        with self._lock:
            turn = self._turns.setdefault(key, _Turn())
            turn.callers += 1
        try:
            with turn.lock:
                if turn.failed is not None:
                    raise copy(turn.failed)
                try:
                    yield
                except ConnectionFailedError as error:
                    turn.failed = copy(error)
                    with self._lock:
                        self._close(key, turn)
                    raise
        finally:
            with self._lock:
                turn.callers -= 1
                if not turn.callers:
                    self._close(key, turn)

    def _close(self, key: Hashable, turn: _Turn) -> None:
        """Who comes from now on has a turn of its own. The caller holds the lock."""
        if self._turns.get(key) is turn:
            del self._turns[key]
