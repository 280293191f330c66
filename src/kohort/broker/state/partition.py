"""A partition as the APIs see it: its log, who waits for it, and when an append is safe.

Rules:
- `append` calls back exactly once, in order, and only when the batch is safe at the broker's level
  of durability; then the high watermark has passed it, and waiting readers are notified.
- A log is opened (its directory made) at the first append; before, the partition is simply empty.
- A failed flush takes the partition offline: nothing of it is acknowledged any more (spec L9).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kohort.broker.base.config import Durability
from kohort.broker.log.files import disk_refusal
from kohort.broker.log.log import Appended, Mark, PartitionLog, Span, TimedOffset
from kohort.broker.log.recovery import headers
from kohort.broker.log.txn_index import AbortedTransaction, Marker
from kohort.broker.state.leadership import Led
from kohort.errors import BrokerError, CorruptRecordError, ErrorCode
from kohort.records import BatchHeader

if TYPE_CHECKING:
    from kohort.broker.base.config import BrokerConfig
    from kohort.broker.base.env import Env
    from kohort.broker.log.log import BatchRun
    from kohort.broker.log.producers import Producers
    from kohort.broker.log.topic_config import TopicConfig
    from kohort.broker.state.dynamic_broker_config import BrokerConfigs
    from kohort.broker.state.leadership import Leadership

log = logging.getLogger("kohort.broker")

AppendDone = Callable[[Appended | BrokerError], None]


class Waiter(Protocol):
    """Is notified when there may be more to read."""

    def progressed(self) -> None: ...


class TopicServices(Protocol):
    """What topics and their partitions need of the broker."""

    config: BrokerConfig
    env: Env
    durability: Durability
    leadership: Leadership
    broker_configs: BrokerConfigs
    refused: dict[Partition, Producers]
    """What partitions have refused whose log could not be made."""

    def open_log(self, partition: Partition) -> PartitionLog:
        """Make the log of a partition. Raises OSError."""
        ...


class OwningTopic(Protocol):
    """The topic of a partition."""

    services: TopicServices
    config: TopicConfig

    @property
    def name(self) -> str: ...

    @property
    def topic_id(self) -> bytes: ...

    @property
    def internal(self) -> bool: ...


class Partition:
    """One partition of a topic."""

    __slots__ = ("_epoch", "awaited", "index", "leader", "log", "topic", "waiters")

    def __init__(self, topic: OwningTopic, index: int, led: Led) -> None:
        self.topic = topic
        self.index = index
        self.leader = led.leader
        """The id of the node that leads it, or -1."""
        self._epoch = led.epoch
        self.log: PartitionLog | None = None
        self.waiters: dict[Waiter, None] = {}
        self.awaited: Counter[int] = Counter()
        """Batches by producer id that wait until their transaction was asked for."""

    @property
    def key(self) -> tuple[str, int]:
        return self.topic.name, self.index

    # -- reading

    @property
    def start_offset(self) -> int:
        return 0 if self.log is None else self.log.log_start_offset

    @property
    def end_offset(self) -> int:
        """The high watermark: what readers may see."""
        return 0 if self.log is None else self.log.high.offset

    @property
    def stable_offset(self) -> int:
        """What READ_COMMITTED may see (KIP-98). Raises OSError, CorruptRecordError."""
        return 0 if self.log is None else self.log.stable.offset

    @property
    def leader_epoch(self) -> int:
        return self._epoch if self.log is None else self.log.leader_epoch

    @property
    def offline(self) -> str | None:
        return None if self.log is None else self.log.offline

    def epoch_at(self, offset: int) -> int:
        """The leader epoch in which the record at `offset` was written, or -1."""
        return -1 if self.log is None else self.log.epochs.at(offset)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """`(epoch, end offset)` of the largest epoch not above the given one, or (-1, -1).

        An epoch is one as soon as it is led in, with records or without: LATEST names it, and a
        reader who hears that it is undefined resets, beyond what was written meanwhile.
        """
        if self.log is None:
            return (epoch, 0) if 0 <= epoch <= self._epoch else (-1, -1)
        epochs, end = self.log.epochs, self.log.high.offset
        latest = epochs.latest
        if latest < epoch <= self.leader_epoch:  # without records so far
            return (epoch if latest < 0 or epoch == self.leader_epoch else latest), end
        return epochs.end_of(epoch, end)

    def epoch_fault(self, epoch: int) -> ErrorCode | None:
        """What is wrong with the leader epoch that a client knows; -1 is never wrong (KIP-320)."""
        if epoch < 0 or epoch == self.leader_epoch:
            return None
        older = epoch < self.leader_epoch
        return ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH

    def refusal(self, node_id: int, epoch: int = -1) -> ErrorCode | None:
        """Why a node may not serve a client that knows this leader epoch (-1: none)."""
        if self.leader == node_id:
            return None if epoch < 0 else self.epoch_fault(epoch)
        replicas = self.topic.services.leadership.at(*self.key).replicas
        fault = self.epoch_fault(epoch) if node_id in replicas else None
        return fault or ErrorCode.NOT_LEADER_OR_FOLLOWER

    def follow(self, led: Led) -> None:
        """It is led otherwise now."""
        self.leader, self._epoch = led.leader, led.epoch
        if self.log is not None:
            self.log.begin_leader_epoch(led.epoch)

    def _upto(self, opened: PartitionLog, committed: bool) -> Mark:
        return opened.stable if committed else opened.high

    def locate(self, offset: int, max_bytes: int, *, committed: bool = False) -> Span | None:
        """See `PartitionLog.locate`; `committed`: only what is stable."""
        if self.log is None:
            if offset != 0:
                raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset}; it is empty")
            return None
        return self.log.locate(offset, max_bytes, self._upto(self.log, committed))

    def offset_for_time(self, timestamp: int, *, committed: bool = False) -> TimedOffset | None:
        """The first visible record at or after a time."""
        if self.log is None:
            return None
        upto = self._upto(self.log, committed)
        stamped = self.log.offset_for_time(timestamp, upto)
        return stamped if stamped is not None and stamped.offset < upto.offset else None

    def max_timestamp(self, *, committed: bool = False) -> TimedOffset | None:
        """The visible record with the largest timestamp."""
        if self.log is None:
            return None
        upto = self._upto(self.log, committed)
        stamped = self.log.max_timestamp(upto)
        return stamped if stamped is not None and stamped.offset < upto.offset else None

    def aborted(self, span: Span, offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with records in what was located from `offset` on."""
        assert self.log is not None
        if not any(segment.index.has_aborted for segment in self.log.segments_from(offset)):
            return []
        end = offset
        for header in headers(span.segment.file.read, span.start, span.end):
            end = header.next_offset
        return self.log.aborted(offset, end)

    # -- writing

    def open(self) -> PartitionLog:
        """The log, made now if there is none yet. Raises BrokerError."""
        if self.log is None:
            try:
                self.log = self.topic.services.open_log(self)
            except OSError as error:
                raise disk_refusal(error) from error
            refused = self.topic.services.refused.pop(self, None)
            if refused is not None:
                self.log.producers.take_over(refused)
        return self.log

    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        done: AppendDone,
        marker: Marker | None = None,
    ) -> Appended:
        """Append a checked batch, or a `marker` in its control batch; `done` hears when it is safe.

        Raises BrokerError at once.
        """
        now_ms = self.topic.services.env.wall_ms()
        appended = self.open().append(batch, header, now_ms, marker)
        self._await(appended, done)
        return appended

    def append_run(self, run: BatchRun, done: AppendDone) -> Appended | None:
        """The same for several batches in one write; None where they must go one by one.

        Raises BrokerError at once.
        """
        appended = self.open().append_run(run, self.topic.services.env.wall_ms())
        if appended is not None:
            self._await(appended, done)
        return appended

    def _await(self, appended: Appended, done: AppendDone) -> None:
        services = self.topic.services
        if services.durability is not Durability.FSYNC:
            self._safe(appended, done, None)
        else:
            file = appended.mark.segment.file
            services.env.flush(file, lambda error: self._safe(appended, done, error))

    def _safe(self, appended: Appended, done: AppendDone, error: OSError | None) -> None:
        opened = self.log
        if opened is None or opened.closed:
            done(BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted"))
            return
        if error is not None:
            self.fail(f"flushing {appended.mark.segment.file.path} failed: {error}")
        if opened.offline:
            done(BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, opened.offline))
            return
        if opened.advance(appended.mark):
            self.wake()
        done(appended)

    def fail(self, why: str) -> None:
        """Take the partition offline and say so."""
        if self.log is not None and self.log.offline is None:
            log.error("%s-%d is offline until the broker is restarted: %s", *self.key, why)
            self.log.fail(why)
        self.wake()

    def fail_unreadable(self, error: Exception) -> None:
        """Take the partition offline because its log cannot be read, and say how to repair it."""
        self.fail(f"it cannot be read: {error}{cure_for(error)}")

    def wake(self) -> None:
        """Tell those who wait."""
        for waiter in list(self.waiters) if self.waiters else ():
            waiter.progressed()


def cure_for(error: Exception) -> str:
    """What to do about an error of a log's reader, for the end of a message."""
    damaged = isinstance(error, CorruptRecordError)
    return "; stop the broker and run `kohort broker repair DATA_DIR`" if damaged else ""
