"""Topics as lists, for the harness of an `App`: records and committed offsets. Pure.

Rules:
- A topic keeps the append time by the harness's clock, as a retry topic does.
- Partitions are chosen as a producer chooses them: by murmur2 of the key; without one, in turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kohort.client.common.types import RecordMetadata
from kohort.client.producer.plan.partitioner import checked, for_key
from kohort.errors import KohortError
from kohort.records import Record
from kohort.retry.headers import Header

TopicPartition = tuple[str, int]
LOG_APPEND_TIME = 1


def _no_logs() -> dict[TopicPartition, list[Record]]:
    return defaultdict(list)


@dataclass
class MemoryTopics:
    """What survives a crash of the program: logs, and the group's committed offsets.

    Args:
        partitions: of every topic.
    """

    partitions: int
    logs: dict[TopicPartition, list[Record]] = field(default_factory=_no_logs)
    commits: dict[TopicPartition, tuple[int, str]] = field(
        default_factory=dict[TopicPartition, tuple[int, str]]
    )
    _turn: int = 0

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: Sequence[Header],
        now_ms: int,
    ) -> Record:
        """Append a record. Raises UsageError for a partition that the topic does not have."""
        number = self._partition(topic, key, partition)
        log = self.logs[topic, number]
        record = Record(
            topic,
            number,
            len(log),
            timestamp=now_ms,
            key=key,
            value=value,
            headers=tuple(headers),
            timestamp_type=LOG_APPEND_TIME,
        )
        log.append(record)
        return record

    def check(self, topic: str, partition: int | None) -> None:
        """Raise UsageError for a partition that the topic does not have."""
        if partition is not None:
            checked(topic, partition, self.partitions)

    @property
    def names(self) -> set[str]:
        """The topics that there are."""
        return {topic for topic, _ in self.logs}

    def _partition(self, topic: str, key: bytes | None, partition: int | None) -> int:
        if partition is not None:
            return checked(topic, partition, self.partitions)
        if key is not None:
            return for_key(key, self.partitions)
        self._turn += 1
        return (self._turn - 1) % self.partitions

    def records(self, topic: str) -> list[Record]:
        """All records of a topic, partition by partition."""
        return [r for number in range(self.partitions) for r in self.logs.get((topic, number), ())]


class Stored:
    """The delivery of a record that is stored already; as much of a future as an app asks."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def error(self) -> KohortError | None:
        """Nothing is refused here."""
        return None

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """The record's position."""
        del timeout_s
        r = self._record
        return RecordMetadata(r.topic, r.partition, r.offset, r.timestamp)

    def add_done_callback(self, fn: Callable[[Stored], object]) -> None:
        """It is done."""
        fn(self)


class MemoryProducer:
    """Sends into `MemoryTopics`.

    Args:
        reach: called before each record is stored.
    """

    def __init__(
        self, topics: MemoryTopics, now_ms: Callable[[], int], reach: Callable[[str], None]
    ) -> None:
        self._topics = topics
        self._now_ms = now_ms
        self._reach = reach

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        *,
        headers: Sequence[Header] = (),
    ) -> Stored:
        """Store a record."""
        self._reach(f"before {topic} gets a record")
        return Stored(self._topics.append(topic, value, key, partition, headers, self._now_ms()))
