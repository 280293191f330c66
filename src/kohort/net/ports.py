"""What connections and listeners use of their loop; `Loop` implements it, so does the simulator's.

Types only: connection, listener and TLS import this module, and the loop imports them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from kohort.errors import KohortError
from kohort.net.movers import Movers


class TimerPort(Protocol):
    """A call to come."""

    def cancel(self) -> None:
        """Do not call."""
        ...


class Closable(Protocol):
    """What is closed when its loop ends."""

    def close(self, error: KohortError | None = None) -> None:
        """Close it."""
        ...

    def abandon(self) -> None:
        """In the child of a fork: close the descriptor without a word to the peer."""
        ...


class Flushable(Protocol):
    """What writes at the end of a turn."""

    def flush(self) -> None:
        """Write what is queued."""
        ...


class LoopPort(Protocol):
    """A readiness loop; see `Loop` for each member."""

    @property
    def now_ms(self) -> Callable[[], int]:
        """The clock."""
        ...

    turn_ms: int
    movers: Movers | None

    def call_soon(self, fn: Callable[..., object], *args: Any) -> None:
        """Call `fn(*args)` in this turn or the next one."""
        ...

    def call_at(self, when_ms: int, fn: Callable[..., object], *args: Any) -> TimerPort:
        """Call `fn(*args)` when the clock has reached `when_ms`."""
        ...

    def watch(self, fd: int, mask: int, ready: Callable[[int], None]) -> None:
        """Call `ready` with the events of a descriptor."""
        ...

    def rewatch(self, fd: int, mask: int) -> None:
        """Change the events."""
        ...

    def unwatch(self, fd: int) -> None:
        """Stop watching."""
        ...

    def adopt(self, closable: Closable) -> int:
        """Remember what must be closed when the loop ends; returns its id."""
        ...

    def disown(self, ident: int) -> None:
        """Forget it: it is closed."""
        ...

    def flush_soon(self, connection: Flushable) -> None:
        """Flush at the end of this turn."""
        ...

    def report(self, what: str, error: BaseException) -> None:
        """Report an error that a callback raised."""
        ...
