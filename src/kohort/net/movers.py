"""Threads that send what is large, while the loop serves others.

Rules:
- A mover makes one system call at a time, `sendmsg` on a stream that does not block, and posts what
  came of it to the loop. It decides nothing, and touches nothing that the loop may change.
- A connection has one call under way at most: its bytes keep their order, and no more calls wait
  than there are connections.
- The stream stays open until its call has been told: the descriptor of a closed one may be another
  connection's by the time of the call.
- Threads begin with the first call; who never sends much has none.

Shell: threads.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

Buffer = bytes | bytearray | memoryview
Told = Callable[[int | OSError], object]
Call = tuple[socket.socket, Sequence[Buffer], Told]


class Movers:
    """The movers of one loop. `post` must run its arguments on the loop's thread."""

    def __init__(self, count: int, post: Callable[..., object]) -> None:
        self._count = count
        self._post = post
        self._queue: SimpleQueue[Call | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def send(self, stream: socket.socket, pieces: Sequence[Buffer], told: Told) -> None:
        """Send what the kernel takes of `pieces`; `told` hears the bytes, or the error."""
        if not self._threads:
            self._begin()
        self._queue.put((stream, pieces, told))

    def stop(self) -> None:
        """Make the calls that wait, then end; what came of them has been posted on return."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _begin(self) -> None:
        for n in range(self._count):
            name = f"kohort-mover-{n}"
            self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
            self._threads[-1].start()

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            stream, pieces, told = call
            try:
                result: int | OSError = stream.sendmsg(pieces)
            except OSError as error:
                result = error
            self._post(told, result)
            del call, stream, pieces, told, result  # the memory is free when it has been sent
