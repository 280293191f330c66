"""Ends a producer that was dropped without `close()`; see `client.cluster.finalizers`."""

from __future__ import annotations

from collections.abc import Callable

from kohort.client.cluster.finalizers import End
from kohort.client.cluster.network_thread import LAST_MS
from kohort.client.producer.core import ProducerCore
from kohort.client.producer.plan.delivery import Delivery


class ProducerEnd:
    """Sends what a producer holds, then closes it. On the network thread."""

    def __init__(self, core: ProducerCore, done: Callable[[], None]) -> None:
        self._core, self._done = core, done
        loop = core.thread.loop
        self._left = 1
        pending: list[Delivery] = [] if core.transactional is not None else core.flushes.gather()
        for delivery in pending:
            self._left += 1
            delivery.add_callback(self._one_less)
        self._timer = loop.call_at(loop.now_ms() + LAST_MS, self._end)
        self._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        if not self._left:
            self._core.thread.loop.call_soon(self._end)

    def _end(self) -> None:
        done, self._done = self._done, _nothing
        if done is not _nothing:
            self._timer.cancel()
            self._core.shut_down()
            done()


def _nothing() -> None:
    """Already done."""


def end_producer(core: ProducerCore) -> End:
    """For `watch_over`."""
    return lambda done: ProducerEnd(core, done)
