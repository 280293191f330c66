"""Heartbeat hints: end the long polls of clients whose group rebalances, so that they heartbeat.

Rules:
- A fetch that waits for data is answered early and empty. Our client takes that as a hint and
  heartbeats at once; other clients see an empty poll.
- A client is known by its id and host, which several consumers may share. Each connection gets a
  hint once: by the fetch that waits, or by the next one that would wait.
- The first fetch of a connection does not wait if its client ever got a hint: the hint may have
  come between the member's join and its first fetch.
- The number of remembered clients is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from kohort.broker.base.request import HintCursor

Client = tuple[str, str]
"""Client id and host."""

MAX_REMEMBERED: Final = 10_000


class Waiting(Protocol):
    """A fetch that waits."""

    def cut_short(self) -> None:
        """Answer with what there is."""
        ...


class HeartbeatHints:
    """Waiting fetches by client, and the number of each client's latest hint."""

    def __init__(self) -> None:
        self._waiting: dict[Client, dict[Waiting, HintCursor]] = {}
        self._latest: dict[Client, int] = {}
        self._number = 0

    def wait(self, client: Client, cursor: HintCursor, fetch: Waiting) -> bool:
        """Let a fetch wait; False when its client has a new hint and the fetch must not wait."""
        is_new = self._latest.get(client, 0) > cursor.seen
        if is_new:
            cursor.seen = self._number
        else:
            self._waiting.setdefault(client, {})[fetch] = cursor
        return not is_new

    def stop(self, client: Client, fetch: Waiting) -> None:
        """End the wait of a fetch."""
        fetches = self._waiting.get(client)
        if fetches is not None:
            fetches.pop(fetch, None)
            if not fetches:
                del self._waiting[client]

    def notify(self, clients: Iterable[Client]) -> None:
        """These clients should heartbeat now."""
        self._number += 1
        for client in dict.fromkeys(clients):
            self._latest.pop(client, None)
            self._latest[client] = self._number
            for fetch, cursor in list(self._waiting.get(client, {}).items()):
                cursor.seen = self._number
                fetch.cut_short()
        while len(self._latest) > MAX_REMEMBERED:
            del self._latest[next(iter(self._latest))]
