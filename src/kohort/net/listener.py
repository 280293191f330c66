"""A listening socket.

Rules:
- A bounded number of connections is open at once; those beyond are closed at once, and counted.
- Large frames that have begun and not ended take bounded room altogether: where a further one would
  take more, the connection whose frame began first is closed. A sender that continues ends soon, so
  the closed one is a sender that never does.
- When the process has no file descriptor left, accepting pauses instead of spinning.

Shell: sockets.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Final

from kohort.errors import ConfigError, ConnectionFailedError, KohortError, ProtocolError
from kohort.net.connection import Connection, ConnectionHandler, ServerTls
from kohort.net.poller import READ
from kohort.net.ports import LoopPort

_ACCEPTS_A_TURN: Final = 64
_PAUSE_MS: Final = 100
_MAPPED: Final = "::ffff:"
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _Nobody:
    """The handler of a connection that has not been given one yet."""

    def connected(self, c: Connection, /) -> None: ...
    def frame_received(self, c: Connection, frame: memoryview, /) -> None: ...
    def closed(self, c: Connection, error: KohortError | None, /) -> None: ...
    def drained(self, c: Connection, /) -> None: ...


_NOBODY: Final = _Nobody()


class Listener:
    """Accepts connections for a loop. Made by `Loop.listen`."""

    def __init__(
        self,
        loop: LoopPort,
        host: str,
        port: int,
        accept: Callable[[Connection], ConnectionHandler],
        max_frame_bytes: int,
        max_connections: int,
        max_unfinished_bytes: int,
        backlog: int,
        tls: ServerTls | None = None,
    ) -> None:
        self._loop = loop
        self._tls = tls
        self._max_unfinished_bytes = max_unfinished_bytes
        self._unfinished: dict[Connection, int] = {}
        """Sizes of large frames under way, the first begun first."""
        self.unfinished_bytes = 0
        """Of all of them."""
        self._accept = accept
        self._max_frame_bytes = max_frame_bytes
        self._max_connections = max_connections
        self._socket = _bind(host, port, backlog)
        self.host = host
        self.port: int = self._socket.getsockname()[1]
        """The port that is really bound."""
        self.open_count = 0
        """Connections that are open now."""
        self.refused_count = 0
        """Connections refused because `max_connections` were open."""
        self.is_closed = False
        self._id = loop.adopt(self)
        loop.watch(self._socket.fileno(), READ, self._ready)

    def close(self, error: KohortError | None = None) -> None:
        """Stop accepting and free the port. Open connections stay open."""
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._loop.disown(self._id)

    def abandon(self) -> None:
        """In the child of a fork: let go of the socket, which stays the parent's."""
        self.is_closed = True
        self._socket.close()

    def connection_ended(self, connection: Connection) -> None:
        """Called by a connection of ours when it closes."""
        self.open_count -= 1
        self.frame_ended(connection)

    def frame_began(self, connection: Connection, size: int) -> None:
        """Called by a connection of ours when a large frame begins; others may have to go for
        it."""
        unfinished = self._unfinished
        unfinished[connection] = size
        self.unfinished_bytes += size
        while self.unfinished_bytes > self._max_unfinished_bytes and len(unfinished) > 1:
            first, held = next(iter(unfinished.items()))
            first.close(
                ProtocolError(
                    f"{first.peer} had not finished a request of {held} bytes when others needed "
                    f"the room; all that are under way may take {self._max_unfinished_bytes}"
                )
            )

    def frame_ended(self, connection: Connection) -> None:
        """Called when it is whole, or never will be."""
        self.unfinished_bytes -= self._unfinished.pop(connection, 0)

    def _ready(self, mask: int) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            if self.is_closed:
                return
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    self._loop.report(f"accepting on {self.host}:{self.port}", error)
                    self._loop.rewatch(self._socket.fileno(), 0)
                    self._loop.call_at(self._loop.now_ms() + _PAUSE_MS, self._resume)
                    return
                continue  # the peer gave up before we took it
            if not address:  # the same, as macOS says it
                sock.close()
                continue
            if self.open_count >= self._max_connections:
                self.refused_count += 1
                sock.close()
                continue
            self._take(sock, f"{_own(address[0])}:{address[1]}")

    def _take(self, sock: socket.socket, peer: str) -> None:
        sock.setblocking(False)
        size_max = self._max_frame_bytes
        connection = (
            Connection(self._loop, _NOBODY, peer, size_max, self)
            if self._tls is None
            else self._tls.connection(self._loop, _NOBODY, peer, size_max, self)
        )
        self.open_count += 1
        try:
            handler = self._accept(connection)
        except Exception as error:  # a defect in one accept must not stop the listener
            self._loop.report(f"accepting {peer}", error)
            sock.close()
            connection.close(ConnectionFailedError(f"accepting {peer} failed: {error!r}"))
            return
        if connection.is_closed:
            sock.close()
        else:
            connection.accepted(sock, handler)

    def _resume(self) -> None:
        if not self.is_closed:
            self._loop.rewatch(self._socket.fileno(), READ)


def _own(address: str) -> str:
    """An IPv4 client's own address: a socket of both families has it as `::ffff:10.0.0.5`."""
    own = address.removeprefix(_MAPPED)
    return own if "." in own else address


def _bind(host: str, port: int, backlog: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        hint = (
            "another process has this port; choose another, or 0 for any free one"
            if error.errno == errno.EADDRINUSE
            else "is the address this machine's own?"
        )
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; {hint}") from error
    return sock
