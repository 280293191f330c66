"""Ends a consumer that was dropped without `close()`; see `client.cluster.finalizers`."""

from __future__ import annotations

from collections.abc import Callable

from kohort.client.cluster.finalizers import End
from kohort.client.cluster.network_thread import LAST_MS
from kohort.client.common.types import OffsetAndMetadata, TopicPartition
from kohort.client.consumer.core import ConsumerCore
from kohort.client.consumer.rebalance_steps import RevokeStep
from kohort.errors import ClosedError

_LOOK_MS = 20


class ConsumerEnd:
    """Commits, leaves, and closes a consumer. On the network thread."""

    def __init__(self, core: ConsumerCore, done: Callable[[], None]) -> None:
        self._core, self._done = core, done
        self._until_ms = core.loop.now_ms() + LAST_MS
        self._leaving = False
        if core.config.enable_auto_commit and core.commits.queue is not None and core.fatal is None:
            with core.lock:
                offsets = core.commits.acknowledged()
            if offsets:
                self._commit(offsets)
        self._look()

    def _commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        core = self._core
        core.commit(core.commits.job(offsets, LAST_MS), lambda _: None)

    def _look(self) -> None:
        core = self._core
        self._give_up_steps()
        if not self._leaving and core.commits.idle:
            self._leaving = True
            if core.session is not None:
                core.session.close()
            self._give_up_steps()
        if core.loop.now_ms() < self._until_ms and not (self._leaving and self._gone):
            core.loop.call_at(core.loop.now_ms() + _LOOK_MS, self._look)
            return
        core.exchange.end_sessions(lambda _: None)  # sent on the way out; no caller waits for it
        core.shut(ClosedError("the consumer was dropped"))
        self._done()

    @property
    def _gone(self) -> bool:
        session = self._core.session
        return session is None or session.member is None or session.member.is_out

    def _give_up_steps(self) -> None:
        """Rebalances that the caller would have taken part in."""
        core = self._core
        while core.inbox.steps:
            step = core.inbox.steps.popleft()
            if isinstance(step, RevokeStep):
                with core.lock:
                    core.positions.remove(step.partitions)
            core.confirm(step)


def end_consumer(core: ConsumerCore) -> End:
    """For `watch_over`."""
    return lambda done: ConsumerEnd(core, done)
