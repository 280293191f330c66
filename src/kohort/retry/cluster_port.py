"""The cluster as retries see it: offsets, times, committed progress, topics.

Shell: the clock and sleep, threads (a lock); the client's network thread does the rest.

Rules:
- One consumer for questions (it is assigned nothing), one for each group that progress goes to, one
  admin; all made when they are first needed.
- Commits are those of a simple consumer (no member): a group with members refuses them.
- Executors and planners get plain values.
- Closing is permanent, and allowed from any thread: calls of other threads end with WakeupError.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from kohort.client.admin.admin import Admin
from kohort.client.admin.types import NewTopic
from kohort.client.common.config import AdminConfig, ConsumerConfig, known_to
from kohort.client.common.types import OffsetAndMetadata, OffsetAndTimestamp
from kohort.client.common.types import TopicPartition as Partition
from kohort.client.consumer.consumer import Consumer
from kohort.errors import (
    BrokerError,
    ClosedError,
    ConcurrentUseError,
    CorruptRecordError,
    ErrorCode,
    KafkaTimeoutError,
    NoOffsetForPartitionError,
)
from kohort.records import Record
from kohort.retry.offset_queries import Stamped, TopicPartition, TopicView
from kohort.retry.reading import poll_past_damage
from kohort.retry.topics import MAX_MESSAGE_BYTES, TopicSpec

MAX_TIMESTAMP: Final = -3
SCAN_RECORDS: Final = 100_000
SAMPLE_RECORDS: Final = 200
SCAN_POLL_S: Final = 2.0
SILENT_POLLS: Final = 5
CLOSE_S: Final = 10.0
"""How long another thread may take to leave a call that was ended."""
DESCRIBED: Final = (
    "message.timestamp.type",
    "cleanup.policy",
    "retention.ms",
    MAX_MESSAGE_BYTES,
)
_NONE = Stamped(-1, -1)


def now_ms() -> int:
    """The wall clock, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class WallClock:
    """The `Clock` of `kohort.retry.fenced`."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return now_ms()

    def sleep_ms(self, ms: int) -> None:
        """Wait."""
        time.sleep(ms / 1000)


class ClusterPort:
    """What the gate (`kohort.retry.offset_queries`) and Spark's planner ask of a cluster.

    Args:
        config: the clients' configuration in Kafka's names. Nothing is connected before it is
            needed; every call raises a KohortError when the cluster does not answer in time.
        committed_only: nothing of an open or aborted transaction is seen.
    """

    def __init__(self, config: Mapping[str, str], *, committed_only: bool = False) -> None:
        self._config = dict(config)
        self._committed_only = committed_only
        self._asking: Consumer | None = None
        self._groups: dict[str, Consumer] = {}
        self._admin: Admin | None = None
        self._making = threading.Lock()
        self._closed = False

    # Topics

    def topics(self, names: Collection[str] = ()) -> dict[str, TopicView]:
        """Topics with their ids and numbers of partitions: those of `names` that exist, or all."""
        if names:
            try:
                described = self.admin.describe_topics(names)
            except BrokerError as error:
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                return {name: view for name, view in self.topics().items() if name in names}
            return {
                name: TopicView(_text(description.topic_id), len(description.partitions))
                for name, description in described.items()
            }
        return {
            topic.name: TopicView(_text(topic.topic_id), topic.partition_count)
            for topic in self.admin.list_topics()
        }

    def describe(self, names: Sequence[str]) -> dict[str, dict[str, str | None]]:
        """The configurations that retry topics are made and verified by."""
        described: dict[str, dict[str, str | None]] = {}
        for name in names:
            configs = self.admin.describe_configs(name)
            described[name] = {key: configs[key].value for key in DESCRIBED if key in configs}
        return described

    def create(self, specs: Iterable[TopicSpec]) -> None:
        """Create retry topics. Raises BrokerError when one was refused."""
        self.admin.create_topics(
            NewTopic(s.name, s.partitions, s.replication_factor, dict(s.configs)) for s in specs
        )

    # Offsets

    def earliest(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the first record that is there."""
        return _plain(self._questions.beginning_offsets(_named(partitions)))

    def delete_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Delete the records of topics of ours before these offsets."""
        self.admin.delete_records({Partition(*at): offset for at, offset in offsets.items()})

    def latest(
        self,
        partitions: Sequence[TopicPartition],
        timeout_s: float | None = None,
        *,
        partial: bool = False,
    ) -> dict[TopicPartition, int]:
        """The offset after the last record; `timeout_s` defaults to the client's.

        With `partial`, partitions without a leader, and those whose leader does not answer in time
        or refuses, are left out instead of raised.
        """
        if partial:
            committed = self._questions.config.isolation_level == "read_committed"
            ends = self.admin.list_offsets(
                dict.fromkeys(_named(partitions), "latest"),
                isolation_level="read_committed" if committed else "read_uncommitted",
                partial=True,
                timeout_s=timeout_s,
            )
            return _plain({tp: end.offset for tp, end in ends.items()})
        return _plain(self._questions.end_offsets(_named(partitions), timeout_s))

    def by_time(
        self, times: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, Stamped]:
        """The first record at or after a time, (-1, -1) when there is none."""
        targets = {Partition(*at): ms for at, ms in times.items()}
        return _stamped(self._questions.offsets_for_times(targets, timeout_s))

    def max_timestamp(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Stamped]:
        """The record with the largest timestamp (KIP-734), (-1, -1) in an empty partition."""
        times = {Partition(*at): MAX_TIMESTAMP for at in partitions}
        return _stamped(self._questions.offsets_for_times(times))

    def scan(self, at: TopicPartition, start: int, end: int, target_ms: int) -> Stamped:
        """The first record at or after a time by reading, or where reading ended, without a time.

        Bounded: partitions beyond the bound are asked for with the next plan.
        """
        consumer = self._questions
        tp = Partition(*at)
        consumer.assign([tp])
        consumer.limit(tp, end)
        consumer.seek(tp, start)
        try:
            seen = 0
            while (position := consumer.position(tp)) < end and seen < SCAN_RECORDS:
                records = poll_past_damage(consumer, SCAN_POLL_S, SCAN_RECORDS)
                if not records and consumer.position(tp) == position:
                    break
                seen += len(records)
                for record in records:
                    if record.timestamp >= target_ms:
                        return Stamped(record.offset, record.timestamp)
            return Stamped(min(position, end), -1)
        finally:
            consumer.assign([])

    def record_bytes(self, at: TopicPartition, start: int, end: int) -> float | None:
        """The mean size of the first records of a range, keys and values; None when none came."""
        consumer, tp = self._questions, Partition(*at)
        consumer.assign([tp])
        consumer.limit(tp, end)
        consumer.seek(tp, start)
        try:
            records = poll_past_damage(consumer, SCAN_POLL_S, SAMPLE_RECORDS)
        finally:
            consumer.assign([])
        sizes = [len(r.key or b"") + len(r.value or b"") for r in records]
        return sum(sizes) / len(sizes) if sizes else None

    def has_records(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> bool:
        """Whether there is a record in any of the ranges; markers and gaps are none.

        Where records are damaged, gone or late, the answer is True: their reader has to see it.
        """
        consumer = self._questions
        ends = {Partition(*at): end for at, (_, end) in ranges.items()}
        consumer.assign(list(ends))
        for at, (start, end) in ranges.items():
            consumer.limit(Partition(*at), end)
            consumer.seek(Partition(*at), start)
        try:
            left = list(ends)
            while left:
                unread = len(left)
                records = consumer.poll(SCAN_POLL_S, max_records=1)
                left = [tp for tp in left if consumer.position(tp) < ends[tp]]
                if records or len(left) == unread:
                    return True
            return False
        except (CorruptRecordError, NoOffsetForPartitionError):
            return True
        finally:
            consumer.assign([])

    def read(self, at: TopicPartition, start: int) -> Iterator[Sequence[Record]]:
        """Everything from an offset to the present end, page by page.

        Raises KafkaTimeoutError when records that are there do not come.
        """
        consumer, tp = self._questions, Partition(*at)
        end = consumer.end_offsets([tp])[tp]
        start = max(start, consumer.beginning_offsets([tp])[tp])
        if start >= end:
            return
        consumer.assign([tp])
        consumer.limit(tp, end)
        consumer.seek(tp, start)
        silent = 0
        try:
            while consumer.position(tp) < end:
                page = poll_past_damage(consumer, SCAN_POLL_S)
                silent = 0 if page else silent + 1
                if page:
                    yield page
                elif silent >= SILENT_POLLS:
                    raise KafkaTimeoutError(
                        f"{at[0]}-{at[1]} has records up to {end}, but none came after "
                        f"{consumer.position(tp)}"
                    )
        finally:
            consumer.assign([])

    # Groups

    def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The group's committed offsets; partitions without one are absent."""
        committed = self._group(group).committed(_named(partitions))
        return {(tp.topic, tp.partition): o.offset for tp, o in committed.items() if o is not None}

    def commits(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The same with metadata; what an open transaction is about to commit is waited for."""
        committed = self._group(group).committed(_named(partitions))
        return {(tp.topic, tp.partition): at for tp, at in committed.items()}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commit as a simple consumer, with the same metadata beside each offset."""
        self._group(group).commit(
            {Partition(*at): OffsetAndMetadata(offset, metadata) for at, offset in offsets.items()}
        )

    # Clients

    @property
    def admin(self) -> Admin:
        """The admin client, made when it is first needed."""
        with self._making:
            if self._admin is None:
                self._check()
                self._admin = Admin(**known_to(AdminConfig, self._config))
            return self._admin

    @property
    def _questions(self) -> Consumer:
        """A consumer without a group."""
        with self._making:
            if self._asking is None:
                self._asking = self._consumer(None)
            return self._asking

    def _group(self, group: str) -> Consumer:
        with self._making:
            if group not in self._groups:
                self._groups[group] = self._consumer(group)
            return self._groups[group]

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("this connection to the cluster was closed; make a new port")

    def _consumer(self, group: str | None) -> Consumer:
        self._check()
        ours: dict[str, Any] = {
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "allow_auto_create_topics": False,
        }
        if self._committed_only:
            ours["isolation_level"] = "read_committed"
        settings = {**self._config, **ours, **({"group_id": group} if group else {})}
        return Consumer(config=ConsumerConfig.from_mapping(settings))

    def close(self) -> None:
        """Close every client. A second call does nothing."""
        with self._making:
            self._closed = True
            admin, asking, groups = self._admin, self._asking, list(self._groups.values())
            self._asking = self._admin = None
            self._groups.clear()
        if admin is not None:
            admin.close()
        for consumer in groups if asking is None else [asking, *groups]:
            _close(consumer)


def _close(consumer: Consumer) -> None:
    """Close it, once every thread inside a call has been notified."""
    until_s = time.monotonic() + CLOSE_S
    while True:
        try:
            consumer.close()
            return
        except ConcurrentUseError:
            if time.monotonic() >= until_s:
                raise
            consumer.wakeup()
            time.sleep(0.01)


def _named(partitions: Iterable[TopicPartition]) -> list[Partition]:
    return [Partition(*at) for at in partitions]


def _plain(offsets: Mapping[Partition, int]) -> dict[TopicPartition, int]:
    return {(tp.topic, tp.partition): offset for tp, offset in offsets.items()}


def _stamped(
    offsets: Mapping[Partition, OffsetAndTimestamp | None],
) -> dict[TopicPartition, Stamped]:
    return {
        (tp.topic, tp.partition): _NONE if o is None else Stamped(o.offset, o.timestamp_ms)
        for tp, o in offsets.items()
    }


def _text(topic_id: bytes) -> str:
    """A topic's id as text; empty for brokers that have none."""
    return str(uuid.UUID(bytes=topic_id)) if any(topic_id) else ""
