"""When the oldest failure of each source topic failed, for health and metrics.

A topic's dead-letter topic is asked by one member of the group: the one that has partition 0.

Shell: threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping

from kohort.errors import KohortError
from kohort.retry.offset_queries import OffsetPort, TopicPartition

log = logging.getLogger("kohort.processing")

CHECK_MS = 30_000
ANSWER_S = 5.0
"""The due times of retry topics are asked for by the same thread, and wait meanwhile."""


class OldestFailures:
    """The first record of each dead-letter topic, as of half a minute ago at most. Any thread.

    Args:
        port: asks the cluster.
        dead_letters: by source topic, its dead-letter topic and the number of its partitions.
    """

    def __init__(self, port: OffsetPort, dead_letters: Mapping[str, tuple[str, int]]) -> None:
        self._port = port
        self._dead_letters = dict(dead_letters)
        self._lock = threading.Lock()
        self._ours: set[str] = set()
        self._oldest_ms: dict[str, int] = {}
        self._due_ms = 0
        """0: what is ours was not answered for yet."""
        self._again_ms = 0

    def add(self, dead_letters: Mapping[str, tuple[str, int]]) -> None:
        """More topics, as in `__init__`."""
        with self._lock:
            self._dead_letters.update(dead_letters)

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """These are ours now: with partition 0 of a source topic come its failures."""
        with self._lock:
            self._ours |= {topic for topic, number in partitions if not number}
            self._due_ms = self._again_ms = 0

    def removed(self, partitions: Iterable[TopicPartition]) -> None:
        """These are no longer ours."""
        with self._lock:
            self._ours -= {topic for topic, number in partitions if not number}

    def oldest(self) -> dict[str, int | None]:
        """When the oldest failure of each source topic that is ours failed; None: there is none."""
        with self._lock:
            requested = self._ours & self._dead_letters.keys() if self._due_ms else set[str]()
            return {topic: self._oldest_ms.get(topic) for topic in requested}

    def ask(self, now_ms: int) -> None:
        """Ask again if it is time to: one request for all partitions."""
        with self._lock:
            topics = self._ours & self._dead_letters.keys()
            if not topics or now_ms < max(self._due_ms, self._again_ms):
                return
            tps = {
                (self._dead_letters[topic][0], number): topic
                for topic in topics
                for number in range(self._dead_letters[topic][1])
            }
        try:
            first_offsets = self._port.by_time(dict.fromkeys(tps, 0), ANSWER_S)
        except KohortError as error:
            log.info("the oldest failure could not be asked for (%s); asked again", error)
            with self._lock:
                self._again_ms = now_ms + CHECK_MS
            return
        oldest: dict[str, int] = {}
        for at, stamped in first_offsets.items():
            if stamped.offset >= 0:
                topic = tps[at]
                oldest[topic] = min(oldest.get(topic, stamped.timestamp_ms), stamped.timestamp_ms)
        with self._lock:
            self._oldest_ms = oldest
            self._due_ms = now_ms + CHECK_MS
