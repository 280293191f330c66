"""What other threads may ask about a runner: health, why partitions are stopped, workers, retries.

Everything here only reads, on the asking thread, while the runner works on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from kohort.client.consumer.consumer import Consumer
from kohort.processing.engine.engine import Engine
from kohort.processing.engine.failures import FailureLog
from kohort.processing.engine.health import (
    AppHealth,
    Reading,
    Workers,
    examine,
    positions_in,
    reading,
    retries_in,
)
from kohort.processing.runtime.retry_topic_poller import RetryTopicPoller
from kohort.processing.workers.worker_pools import Feed

PAUSED = "paused by hand: nothing is begun until it is resumed"


class Reported(Protocol):
    """What a report reads of a runner."""

    engine: Engine
    consumer: Consumer
    feeds: dict[str, Feed]
    failure_log: FailureLog
    retry_poller: RetryTopicPoller | None
    is_paused: bool
    trouble: str

    @property
    def now_ms(self) -> Callable[[], int]:
        """The clock of the engine."""
        ...


class Report:
    """Answers about one runner. Any thread."""

    def __init__(
        self,
        runner: Reported,
        unanswered: Callable[[], str],
        skew_ms: Callable[[], int | None],
    ) -> None:
        self._runner = runner
        self._unanswered = unanswered
        self.skew_ms = skew_ms
        """How far the brokers' clocks are ahead of ours, by the last copy's append time."""

    def status(self) -> dict[tuple[str, int], str]:
        """Why each partition is stopped, as text; "" for the others."""
        now_ms, partitions = self._runner.now_ms(), self._runner.engine.partitions
        return {key: p.why_stopped(now_ms) for key, p in list(partitions.items())}

    def retry_topics(
        self, positions: Mapping[tuple[str, int], int] | None = None
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Of each partition of a retry topic: records not read yet, and how many are due."""
        retry_poller = self._runner.retry_poller
        return {} if retry_poller is None else retry_poller.depths(positions)

    def oldest_failures(self) -> dict[str, int | None]:
        """When the oldest failure of each source topic that this member looks after failed."""
        retry_poller = self._runner.retry_poller
        return {} if retry_poller is None else retry_poller.failures.oldest()

    def workers(self) -> dict[str, Workers]:
        """How busy each kind of workers is."""
        workers: dict[str, Workers] = {}
        for name, feed in self._runner.feeds.items():
            busy = min(feed.lists, feed.pool.workers)
            workers[name] = Workers(
                feed.pool.workers, busy, self._runner.engine.dispatchers[name].in_flight
            )
        return workers

    def health(self, group: str) -> AppHealth:
        """What is known of every partition at this instant."""
        runner = self._runner
        consumer = runner.consumer.health()
        read, now_ms = reading(consumer, self.retry_topics(positions_in(consumer))), runner.now_ms()
        partitions = [
            examine(partition, now_ms, read.get(key, Reading()))
            for key, partition in sorted(dict(runner.engine.partitions).items())
        ]
        next_due_ms = None if runner.retry_poller is None else runner.retry_poller.next_due_ms()
        return AppHealth(
            group,
            True,
            self.workers(),
            partitions,
            self.troubles(),
            consumer,
            retries_in(partitions, runner.engine.waits.items, next_due_ms, now_ms),
            runner.failure_log.last,
            now_ms,
        )

    def troubles(self) -> list[str]:
        """The problems outside of the app at present, as text."""
        runner = self._runner
        troubles = [
            self._unanswered(),
            PAUSED if runner.is_paused else "",
            runner.trouble,
            *runner.consumer.health().concerns,
        ]
        return list(dict.fromkeys(each for each in troubles if each))
