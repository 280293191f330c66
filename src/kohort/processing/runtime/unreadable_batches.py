"""Polling past batches that cannot be read: each stops only itself.

Rules (spec 5.4, F6):
- A damaged batch whose end is known is dead-lettered by the engine, and reading continues behind
  it.
- Where the end is unknown, only its partition stops, reports why, and is retried.

Shell: none of its own; the runner's thread calls it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from kohort.client.common.types import TopicPartition
from kohort.client.consumer.consumer import Consumer
from kohort.errors import CorruptRecordError
from kohort.processing.engine.state import EngineCore
from kohort.records import Record
from kohort.retry.unreadable import Unreadable

log = logging.getLogger("kohort.processing")

PAUSE_MS: Final = 30_000
"""How long a partition that the broker itself cannot read waits before the next try."""


class PastDamage:
    """Polls one consumer for one engine.

    Args:
        now_ms: the time of day.
        steady_ms: a steady clock, for the pauses.
    """

    def __init__(
        self,
        engine: EngineCore,
        consumer: Consumer,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._consumer = consumer
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._standing: dict[TopicPartition, tuple[int, int]] = {}
        """Partitions that cannot be read on: the offset, and when it is tried again."""

    def poll(self, timeout_s: float) -> Sequence[Record]:
        """As `Consumer.poll`; no records where a batch could not be read.

        Raises CorruptRecordError for damage that names no partition.
        """
        self._try_again(self._steady_ms())
        try:
            return self._consumer.poll(timeout_s)
        except CorruptRecordError as error:
            self._pass(error)
            return ()

    def forget(self, partitions: Sequence[TopicPartition]) -> None:
        """These are no longer ours."""
        for tp in partitions:
            self._standing.pop(tp, None)

    def _try_again(self, steady_ms: int) -> None:
        due = [tp for tp, (_, due_ms) in self._standing.items() if steady_ms >= due_ms]
        for tp in due:
            offset, _ = self._standing.pop(tp)
            self._mark(tp, "")
            if tp in self._consumer.assignment():
                self._consumer.seek(tp, offset)

    def _mark(self, tp: TopicPartition, why: str) -> None:
        """A partition cannot be read past damage of unknown length; "": it is read again."""
        partition = self._engine.partitions.get(tp)
        if partition is not None:
            partition.unreadable = why

    def _pass(self, error: CorruptRecordError) -> None:
        if error.topic is None or error.partition is None:
            raise error
        tp = TopicPartition(error.topic, error.partition)
        if tp not in self._consumer.assignment():
            return
        unreadable = Unreadable.of(error)
        if unreadable is not None:
            self._engine.unreadable(tp, unreadable, self._now_ms())
            self._consumer.seek(tp, unreadable.next_offset)
            return
        log.error("%s; this partition is tried again in %g s", error, PAUSE_MS / 1_000)
        offset = self._consumer.position(tp) if error.offset is None else error.offset
        self._mark(tp, str(error))
        self._standing[tp] = (offset, self._steady_ms() + PAUSE_MS)
        self._consumer.pause(tp)
