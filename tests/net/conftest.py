"""A loop on a thread, stopped and checked at the end of each test."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from kohort.errors import KohortError
from kohort.net import Connection, Loop
from tests.patience import PATIENCE_S


class LoopThread:
    """Runs a loop; `do` runs a function on it and brings its result back."""

    def __init__(self, poller=None, movers=0) -> None:
        self.errors: list[tuple[str, BaseException]] = []
        self.loop = Loop(
            on_error=lambda what, error: self.errors.append((what, error)),
            poller=poller,
            movers=movers,
        )
        self.thread = threading.Thread(target=self.loop.run, name="test-loop", daemon=True)
        self.thread.start()

    def do(self, fn, *args, **kwargs):
        answer: queue.SimpleQueue = queue.SimpleQueue()

        def run() -> None:
            try:
                answer.put((fn(*args, **kwargs), None))
            except Exception as error:  # carried to the test
                answer.put((None, error))

        self.loop.call_soon_threadsafe(run)
        value, error = answer.get(timeout=PATIENCE_S)
        if error is not None:
            raise error
        return value

    def stop(self) -> None:
        self.loop.stop()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


class Recorder:
    """A handler that puts everything it hears into a queue, in order."""

    def __init__(self, on_frame=None) -> None:
        self.events: queue.SimpleQueue = queue.SimpleQueue()
        self.on_frame = on_frame
        self.connection: Connection | None = None

    def connected(self, c: Connection) -> None:
        self.connection = c
        self.events.put(("connected", c))

    def frame_received(self, c: Connection, frame: memoryview) -> None:
        if self.on_frame is not None:
            self.on_frame(c, frame)
        self.events.put(("frame", frame))

    def closed(self, c: Connection, error: KohortError | None) -> None:
        self.events.put(("closed", error))

    def drained(self, c: Connection) -> None:
        self.events.put(("drained", c))

    def next(self, kind: str):
        got, value = self.events.get(timeout=PATIENCE_S)
        assert got == kind, (got, value)
        return value

    @property
    def quiet(self) -> bool:
        return self.events.empty()


@pytest.fixture
def lt() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.stop()
    assert thread.errors == []
