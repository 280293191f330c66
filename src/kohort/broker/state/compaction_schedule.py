"""When logs are compacted: one at a time, between other work.

A log that is being read in pieces (a group shard that is being loaded) is left alone meanwhile. One
that is damaged, or that the disk refuses to copy, is left alone until the next start, and served as
before (Kafka: an uncleanable partition).
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Protocol

from kohort.broker.base.config import Durability
from kohort.broker.log.cleaner import DiskFullError, SwapFailedError, clean, worth_cleaning
from kohort.broker.log.log import PartitionLog
from kohort.broker.state.partition import Partition, cure_for
from kohort.errors import BrokerError, CorruptRecordError

if TYPE_CHECKING:
    from kohort.broker.base.env import Env
    from kohort.broker.log.files import Files

log = logging.getLogger("kohort.broker")


class CleanerServices(Protocol):
    """What the cleaner needs of the broker."""

    files: Files
    env: Env
    durability: Durability

    def opened(self) -> list[Partition]:
        """The partitions whose logs are open."""
        ...


class CompactionSchedule:
    """The cleaner of a process."""

    def __init__(self, services: CleanerServices) -> None:
        self._services = services
        self._cleaned_to: dict[bytes, int] = {}
        """By topic id and partition: where the last pass ended."""
        self._postponed: set[bytes] = set()
        """Those that found no room, which has been logged."""
        self._uncleanable: set[bytes] = set()
        """Those that are left alone until the next start, which has been logged."""
        self._running = False

    def look(self) -> None:
        """Begin with a log that is worth it, if there is one and none is being cleaned."""
        if self._running:
            return
        for partition in self._services.opened():
            opened = partition.log
            if opened is None or opened.closed or opened.offline or opened.pins:
                continue
            if _id(partition) in self._uncleanable:
                continue
            if opened.config.compact and self._worth(partition, opened):
                steps = clean(
                    self._services.files,
                    opened,
                    self._services.env.wall_ms(),
                    durable=self._services.durability is not Durability.MEMORY,
                    cleaned_to=self._cleaned_to.get(_id(partition), 0),
                )
                self._step(partition, steps)
                return

    def _worth(self, partition: Partition, opened: PartitionLog) -> bool:
        try:
            return worth_cleaning(opened, self._cleaned_to.get(_id(partition), 0))
        except (OSError, CorruptRecordError) as error:
            self._leave(partition, error)
            return False

    def _step(self, partition: Partition, steps: Generator[int, None, None]) -> None:
        self._running = False  # until there is another step; this one may fail
        opened = partition.log
        if opened is None or opened.closed:
            steps.close()
            return
        try:
            done = next(steps, None)
        except DiskFullError as error:
            self._postpone(partition, error)
            return
        except SwapFailedError as error:
            partition.fail(f"compaction failed: {error}")
            return
        except (OSError, BrokerError, CorruptRecordError) as error:
            self._leave(partition, error)
            return
        if done is None:
            self._postponed.discard(_id(partition))
            # As in Kafka: a pass may have found more keys than it can know, and others wait.
            self._services.env.call_soon(self.look)
            return
        if done > self._cleaned_to.get(_id(partition), 0):
            self._cleaned_to[_id(partition)] = done
        self._running = True
        self._services.env.call_soon(self._step, partition, steps)

    def _postpone(self, partition: Partition, error: DiskFullError) -> None:
        if _id(partition) not in self._postponed:
            log.warning(
                "compaction of %s-%d waits for room on the disk: %s; free some space",
                *partition.key,
                error,
            )
        self._postponed.add(_id(partition))

    def _leave(self, partition: Partition, error: Exception) -> None:
        self._uncleanable.add(_id(partition))
        log.error(
            "compaction of %s-%d ends until the broker is restarted, and its log grows: %s%s",
            *partition.key,
            error,
            cure_for(error),
        )


def _id(partition: Partition) -> bytes:
    return partition.topic.topic_id + partition.index.to_bytes(4, "big")
