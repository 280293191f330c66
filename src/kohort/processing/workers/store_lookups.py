"""Lines to the store for handlers that look something up: one for each thread that asks.

Shell: threads (thread-local storage).
"""

from __future__ import annotations

import threading
from typing import Self

from kohort.retry.handling import Lookup
from kohort.retry.store import Store
from kohort.retry.stores import open_store


class ThreadLookups:
    """The calling thread's `Lookup`; a store's connection is used by one thread.

    A context manager: at its end all of their connections are closed.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._mine = threading.local()
        self._stores: list[Store] = []

    def __call__(self) -> Lookup:
        lookup: Lookup | None = getattr(self._mine, "lookup", None)
        if lookup is None:
            store = open_store(self._url)
            self._stores.append(store)
            lookup = self._mine.lookup = Lookup(store)
        return lookup

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._stores:
            self._stores.pop().close()
