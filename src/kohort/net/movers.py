"""Threads that send what is large, while the loop serves others.

Rules:
- A mover makes one system call at a time, `sendmsg` on a stream that does not block, and posts what
  came of it to the loop. It decides nothing, and touches nothing that the loop may change.
- A connection has one call under way at most: its bytes keep their order, and no more calls wait
  than there are connections.
- The stream stays open until its call has ended: the descriptor of a closed one may be another
  connection's by the time of the call.
- Each mover keeps to its part of the processors that the process may run on, and sends to whom the
  kernel last heard from there (`SO_INCOMING_CPU`): for a client on this machine that is where it
  runs, and what was just copied is read from that processor's cache. Elsewhere than on Linux
  connections are spread by their descriptors.
- Threads begin with the first call; who never sends much has none.

Shell: threads, the processors they run on.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

Buffer = bytes | bytearray | memoryview
OnSent = Callable[[int | OSError], object]
Call = tuple[socket.socket, Sequence[Buffer], OnSent]
_INCOMING_CPU: Final = getattr(socket, "SO_INCOMING_CPU", None)
_KNOWS_PROCESSORS: Final = hasattr(os, "sched_setaffinity") and _INCOMING_CPU is not None


def parts_of(processors: Sequence[int], count: int) -> list[set[int]]:
    """Neighbouring processors in `count` parts, as even as can be; some are empty if need be."""
    total = len(processors)
    return [set(processors[total * n // count : total * (n + 1) // count]) for n in range(count)]


class Movers:
    """The movers of one loop. `post` must run its arguments on the loop's thread."""

    def __init__(self, count: int, post: Callable[..., object]) -> None:
        self._post = post
        self._queues: list[SimpleQueue[Call | None]] = [SimpleQueue() for _ in range(count)]
        allowed = sorted(os.sched_getaffinity(0)) if _KNOWS_PROCESSORS else []
        self._parts = parts_of(allowed, count)
        self._mover_of = {cpu: n for n, part in enumerate(self._parts) for cpu in part}
        self._threads: list[threading.Thread] = []

    def send(self, stream: socket.socket, pieces: Sequence[Buffer], on_sent: OnSent) -> None:
        """Send what the kernel takes of `pieces`; `on_sent` hears the bytes, or the error."""
        if not self._threads:
            self._begin()
        near = _receiving_processor(stream)
        mover = self._mover_of.get(near, near % len(self._queues))
        self._queues[mover].put((stream, pieces, on_sent))

    def stop(self) -> None:
        """Make the calls that wait, then end; what came of them has been posted on return."""
        for queue in self._queues[: len(self._threads)]:
            queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _begin(self) -> None:
        for n, queue in enumerate(self._queues):
            args, name = (queue, self._parts[n]), f"kohort-mover-{n}"
            thread = threading.Thread(target=self._run, args=args, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, queue: SimpleQueue[Call | None], part: set[int]) -> None:
        if part:
            with suppress(OSError):  # taken from the process since: it may run anywhere else
                os.sched_setaffinity(0, part)  # 0: this thread
        while (call := queue.get()) is not None:
            stream, pieces, on_sent = call
            try:
                result: int | OSError = stream.sendmsg(pieces)
            except OSError as error:
                result = error
            self._post(on_sent, result)
            del call, stream, pieces, on_sent, result  # the memory is free when it has been sent


def _receiving_processor(stream: socket.socket) -> int:
    """The processor on which the kernel last received something of a stream; else any number."""
    if _INCOMING_CPU is None:
        return stream.fileno()
    return stream.getsockopt(socket.SOL_SOCKET, _INCOMING_CPU)
