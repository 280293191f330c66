"""What a node needs from outside: clocks, timers, the flusher, randomness. A shell provides it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from kohort.broker.log.files import Syncable


class Cancellable(Protocol):
    """A timer."""

    def cancel(self) -> None: ...


class Env(Protocol):
    """Everything is called, and calls back, on the node's one thread."""

    def now_ms(self) -> int:
        """Monotonic; for deadlines."""
        ...

    def wall_ms(self) -> int:
        """Since 1970; for timestamps in records."""
        ...

    def call_at(self, when_ms: int, fn: Callable[..., object], *args: Any) -> Cancellable: ...

    def call_soon(self, fn: Callable[..., object], *args: Any) -> None: ...

    def flush(self, file: Syncable, done: Callable[[OSError | None], None]) -> None:
        """Make what has been appended to `file` durable; answers come in the order of the calls."""
        ...

    def new_uuid(self) -> bytes:
        """16 random bytes of a version 4 UUID."""
        ...
