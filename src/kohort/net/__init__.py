"""The network: one small readiness loop, framed connections, listeners. See DESIGN.md.

`loop` is the loop and its timers, `poller` epoll or kqueue, `connection` a stream of frames, `tls`
the same encrypted, `movers` the threads that send large answers.
Clients and broker import it; it imports nothing of them.
"""

from kohort.net.connection import Buffer, Connection, ConnectionHandler, Transport
from kohort.net.listener import Listener
from kohort.net.loop import Loop, Timer, monotonic_ms

__all__ = [
    "Buffer",
    "Connection",
    "ConnectionHandler",
    "Listener",
    "Loop",
    "Timer",
    "Transport",
    "monotonic_ms",
]
