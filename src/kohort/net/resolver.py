"""Host names to addresses, off the loop thread.

Rules:
- A numeric address is never looked up.
- `getaddrinfo` may block for many seconds, so it runs on a thread of its own; two lookups of one
  name at the same time share a thread, so there are never more threads than names.

Shell: sockets, threads.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from kohort.errors import ConnectionFailedError

Address = tuple[int, tuple[str, int] | tuple[str, int, int, int]]
"""An address family and what `socket.connect` takes for it."""

Done = Callable[[list[Address] | ConnectionFailedError], None]


def numeric(host: str, port: int) -> Address | None:
    """The address of a host given as digits (`127.0.0.1`, `::1`), or None when it is a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return (family, (host, port))
    return None


class Resolver:
    """Looks names up on threads and calls back through `call_soon_threadsafe`."""

    def __init__(self, call_soon_threadsafe: Callable[..., None]) -> None:
        self._call = call_soon_threadsafe
        self._waiting: dict[tuple[str, int], list[Done]] = {}

    def resolve(self, host: str, port: int, done: Done) -> None:
        """Call `done` on the loop's thread with the addresses, or an error."""
        address = numeric(host, port)
        if address is not None:
            self._call(done, [address])
            return
        waiting = self._waiting.get((host, port))
        if waiting is not None:
            waiting.append(done)
            return
        self._waiting[host, port] = [done]
        threading.Thread(
            target=self._look_up, args=(host, port), name=f"kohort-dns-{host}", daemon=True
        ).start()

    def _look_up(self, host: str, port: int) -> None:
        result: list[Address] | ConnectionFailedError
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            result = [(int(entry[0]), entry[4]) for entry in entries]  # type: ignore[misc]
        except (OSError, UnicodeError) as error:
            result = ConnectionFailedError(
                f"the name {host!r} does not resolve ({error}); check the spelling and the DNS"
            )
        self._call(self._finish, (host, port), result)

    def _finish(self, key: tuple[str, int], result: list[Address] | ConnectionFailedError) -> None:
        for done in self._waiting.pop(key):
            done(result)
