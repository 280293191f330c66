"""Topics as lists, for the harness of an `App`: records and committed offsets. Pure.

Rules:
- A topic keeps the append time by the harness's clock, as a retry topic does.
- Partitions are chosen as a producer chooses them: by murmur2 of the key; without one, in turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kohort.broker.log.directory import topic_name_fault
from kohort.client.common.types import RecordMetadata
from kohort.client.producer.plan.partitioner import checked, for_key
from kohort.errors import BrokerError, ErrorCode, KohortError, RecordTooLargeError
from kohort.processing.engine.output import Output
from kohort.records import BatchBuilder, Record
from kohort.retry.headers import Header
from kohort.retry.topics import DEFAULT_MAX_MESSAGE_BYTES

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

    def check(self, output: Output) -> None:
        """Raise what a producer or broker raises, by default, for a record that it never takes.

        Raises:
            BrokerError: no topic can have this name.
            UsageError: the topic does not have the partition.
            RecordTooLargeError: the record is larger than a topic takes, without compression.
        """
        if fault := topic_name_fault(output.topic):
            raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{output.topic!r}: {fault}")
        if output.partition is not None:
            checked(output.topic, output.partition, self.partitions)
        batch = BatchBuilder()
        batch.append(0, output.key, output.value, output.headers)
        if batch.size > DEFAULT_MAX_MESSAGE_BYTES:
            raise RecordTooLargeError(
                f"a record of {batch.size:,} bytes is larger than the max.message.bytes of "
                f"{output.topic}, which is {DEFAULT_MAX_MESSAGE_BYTES:,} by default"
            )

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
        """Store a record. Raises as `MemoryTopics.check`."""
        self._reach(f"before {topic} gets a record")
        self._topics.check(Output(topic, value, key, partition, headers))
        return Stored(self._topics.append(topic, value, key, partition, headers, self._now_ms()))
