"""Clients that were dropped without `close()`: a ResourceWarning, and the best that can be done.

Rules:
- Nothing inside refers to a client object (`Consumer`, `Producer`, ...), so it is collected when
  its user drops it. The network thread then ends what is left of it, within `LAST_MS`.
- A consumer commits what had been dealt with (if commits are automatic) and leaves its group, so
  that others get its partitions at once, not after `max_poll_interval_ms`. No listener is called.
- A producer sends what it holds. An open transaction is left to be aborted by its timeout.
- At the interpreter's exit the same happens to every client that is still open; exit waits for it.
- A finalizer may run on any thread, inside any lock: here it only posts to the loop.
- In the child of a fork nothing is done or logged: the client is the parent's.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable

from kohort.client.cluster.network_thread import NetworkThread

End = Callable[[Callable[[], None]], object]
"""Ends what a face leaves behind, on the network thread, and calls its argument when it is done."""


def watch_over(face: object, network: NetworkThread, end: End) -> weakref.finalize[..., object]:
    """Have `end` called when `face` is dropped; it must not refer to it. Closing detaches it."""
    return weakref.finalize(face, _dropped, type(face).__name__, network, end)


def _dropped(name: str, network: NetworkThread, end: End) -> None:
    if not network.alive:
        return
    network.abandon(end)
    warnings.warn(
        f"a {name} was dropped without close(); use it in a `with` block or close it to see "
        "its errors",
        ResourceWarning,
        stacklevel=2,
    )
