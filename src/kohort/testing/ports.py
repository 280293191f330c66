"""Free ports that stay a cluster's own while it does not listen on them.

Rules:
- A socket that is bound and never listens keeps its port: the system gives it to no program that
  asks for any port, connections to it are refused, and a program that sets SO_REUSEADDR (every
  listener of ours) may listen at it. So a broker that is down for a moment finds its port free, and
  its clients do not meet a stranger's broker there.
- Linux has it so; elsewhere nothing is kept, and a port is free while there is no listener.

Shell: sockets.
"""

from __future__ import annotations

import socket
import sys
import weakref


def keep_ports(owner: object, host: str, count: int) -> list[int]:
    """So many free ports of `host`, kept as long as `owner` lives; none where that cannot be."""
    if sys.platform != "linux":
        return []
    kept: list[socket.socket] = []
    weakref.finalize(owner, _let_go, kept)  # at the end of the process, too: no ResourceWarning
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = addresses[0]
        for _ in range(count):
            one = socket.socket(family, socket.SOCK_STREAM)
            kept.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(address)
    except OSError:  # the program that listens there will report the error
        _let_go(kept)
    return [one.getsockname()[1] for one in kept]


def _let_go(kept: list[socket.socket]) -> None:
    while kept:
        kept.pop().close()
