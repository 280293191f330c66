"""Lines to the store for handlers that look something up: one for each thread that asks.

Shell: threads (thread-local storage).
"""

from __future__ import annotations

import threading

from kohort.retry.handling import Lookup
from kohort.retry.store import open_store


class ThreadLookups:
    """The calling thread's `Lookup`; a store's connection belongs to one thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._mine = threading.local()

    def __call__(self) -> Lookup:
        lookup: Lookup | None = getattr(self._mine, "lookup", None)
        if lookup is None:
            lookup = self._mine.lookup = Lookup(open_store(self._url))
        return lookup
