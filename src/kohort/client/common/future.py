"""A result to come, for a caller in another thread or in an asyncio task, without asyncio.

Set once, by the network thread; waited for by any number of threads (`client.common.completion`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar, cast

from kohort.client.common.completion import Completion
from kohort.errors import KafkaTimeoutError, fresh

T = TypeVar("T")


class Future(Completion, Generic[T]):
    """A result to come. `result()` blocks; `await` suspends the task; both raise its error."""

    __slots__ = ("_error", "_value")

    def __init__(self) -> None:
        super().__init__()
        self._value: T | None = None
        self._error: BaseException | None = None

    def result(self, timeout_s: float | None = None) -> T:
        """The result; waits up to `timeout_s` seconds (None: for ever).

        Raises the error it was set to, or KafkaTimeoutError when the time runs out.
        """
        if not self.wait(timeout_s):
            raise KafkaTimeoutError(f"no result within {timeout_s} s; it may still come")
        if self._error is not None:
            raise fresh(self._error)
        return cast(T, self._value)

    def error(self, timeout_s: float | None = None) -> BaseException | None:
        """The error, or None for a result; waits like `result`."""
        if not self.wait(timeout_s):
            raise KafkaTimeoutError(f"no result within {timeout_s} s; it may still come")
        return self._error

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call `fn(self)` when it is done: on the network thread, or at once if it is already.

        What it raises is logged (`kohort.client`).
        """
        self.add_callback(lambda: fn(self))

    def set_result(self, value: T) -> None:
        """Set the result; ignored when it is done already."""
        if not self.done:
            self._value = value
            self._finish()

    def set_error(self, error: BaseException) -> None:
        """Set the error; ignored when it is done already."""
        if not self.done:
            self._error = error
            self._finish()

    def __await__(self) -> Generator[Any, None, T]:
        yield from self.suspend()
        return self.result()
