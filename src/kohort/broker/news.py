"""Letting consumers know at once that their group has news for them: their waiting fetch ends.

Rules:
- A fetch that waits for data is answered early, with none. Our client takes that for a hint and
  heartbeats at once; to others it is an empty poll.
- A client is known by its id and host, which several consumers may share: each connection hears of
  news once, by a fetch that waits or by the next one that would.
- A connection that has fetched nothing yet may be a member's whose group had news since it joined,
  so its first fetch does not wait when there ever was news for its client.
- Of the clients that there was news for, so many are remembered that it costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from kohort.broker.calls import Ear

Client = tuple[str, str]
"""Client id and host."""

MAX_REMEMBERED: Final = 10_000


class Waiting(Protocol):
    """A fetch that waits."""

    def cut_short(self) -> None:
        """Answer with what there is."""
        ...


class News:
    """Who waits, and for whom there was news, numbered."""

    def __init__(self) -> None:
        self._waiting: dict[Client, dict[Waiting, Ear]] = {}
        self._latest: dict[Client, int] = {}
        self._number = 0

    def wait(self, client: Client, ear: Ear, fetch: Waiting) -> bool:
        """A fetch begins to wait; False when there is news for its client, so that it must not."""
        is_new = self._latest.get(client, 0) > ear.heard
        if is_new:
            ear.heard = self._number
        else:
            self._waiting.setdefault(client, {})[fetch] = ear
        return not is_new

    def stop(self, client: Client, fetch: Waiting) -> None:
        """A fetch waits no more."""
        fetches = self._waiting.get(client)
        if fetches is not None:
            fetches.pop(fetch, None)
            if not fetches:
                del self._waiting[client]

    def spread(self, clients: Iterable[Client]) -> None:
        """There is news for these."""
        self._number += 1
        for client in dict.fromkeys(clients):
            self._latest.pop(client, None)
            self._latest[client] = self._number
            for fetch, ear in list(self._waiting.get(client, {}).items()):
                ear.heard = self._number
                fetch.cut_short()
        while len(self._latest) > MAX_REMEMBERED:
            del self._latest[next(iter(self._latest))]
