"""Writing record batches into a transaction that another process begins and ends.

Shell: threads (waiting), randomness (jitter).

Rules:
- One batch of a partition is under way at a time. So order needs no care, and a batch whose answer
  is lost is sent again with its sequence: the broker knows whether it has it (KIP-98).
- The queue is bounded: callers that add batches wait for the brokers.
- A temporary error is retried until `delivery_timeout_ms`; any other one ends the write,
  and the transaction can only be aborted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kohort.client.admin.calls import AdminCalls
from kohort.client.cluster.client import Versioned
from kohort.client.cluster.metadata import ClusterMetadata
from kohort.client.common.backoff import Backoff
from kohort.client.common.config import AdminConfig, known_to
from kohort.client.common.jitter import uniform
from kohort.client.common.types import TopicPartition
from kohort.client.producer.plan.produce_requests import restamp
from kohort.client.producer.plan.transaction_requests import BEFORE_KIP_890, Identity
from kohort.client.shared.transaction import EncodedBatch, lost
from kohort.errors import (
    RETRIABLE_CODES,
    BrokerError,
    ConnectionFailedError,
    ErrorCode,
    KafkaTimeoutError,
    KohortError,
    RecordTooLargeError,
)
from kohort.net import monotonic_ms
from kohort.records.compression import Readable
from kohort.wire import Message
from kohort.wire.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kohort.wire.messages.produce_response import ProduceResponse

MAX_WAITING_BYTES: Final = 64 << 20
MAX_REQUEST_BYTES: Final = 8 << 20
DELIVERY_TIMEOUT_MS: Final = 120_000
_MAX_SEQUENCE: Final = (1 << 31) - 1
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})


class _Waiting(NamedTuple):
    records: int
    payload: Readable


class WriteQueue:
    """What waits and what is under way, by partition. Pure."""

    def __init__(
        self, identity: Identity, after: Mapping[TopicPartition, int] = MappingProxyType({})
    ) -> None:
        self._identity = identity
        self._waiting: dict[TopicPartition, deque[_Waiting]] = {}
        self._sequences = {at: records & _MAX_SEQUENCE for at, records in after.items()}
        self._under_way: set[TopicPartition] = set()
        self._retried: set[TopicPartition] = set()
        self.bytes = 0
        self.records: dict[TopicPartition, int] = {}
        """Records that a broker has, by partition."""

    def add(self, batch: EncodedBatch) -> None:
        """Put a batch in line."""
        at = TopicPartition(batch.topic, batch.partition)
        self._waiting.setdefault(at, deque()).append(_Waiting(batch.records, batch.payload))
        self.bytes += len(batch.payload)

    @property
    def idle(self) -> bool:
        """True when everything has been stored."""
        return not self._waiting

    def ready(self) -> list[TopicPartition]:
        """The partitions whose next batch may go."""
        return [at for at in self._waiting if at not in self._under_way]

    def take(self, at: TopicPartition) -> Readable:
        """The next batch of a partition, with its identity; under way from now on."""
        sequence = self._sequences.get(at, 0)
        stamp = (self._identity.producer_id, self._identity.epoch, sequence)
        self._under_way.add(at)
        return restamp(self._waiting[at][0].payload, stamp)

    def again(self, at: TopicPartition) -> None:
        """The batch under way may not have been stored: it is ready again, as it is."""
        self._under_way.discard(at)
        self._retried.add(at)

    def is_retried(self, at: TopicPartition) -> bool:
        """True when the batch under way may have been stored by an earlier try of this writer."""
        return at in self._retried

    def stored(self, at: TopicPartition) -> None:
        """The batch under way has been stored."""
        self._under_way.discard(at)
        self._retried.discard(at)
        batches = self._waiting[at]
        first = batches.popleft()
        self.bytes -= len(first.payload)
        following = self._sequences.get(at, 0) + first.records
        self._sequences[at] = following & _MAX_SEQUENCE
        self.records[at] = self.records.get(at, 0) + first.records
        if not batches:
            del self._waiting[at]


class _Answered(NamedTuple):
    partitions: list[TopicPartition]
    answer: Message | KohortError


class SharedWriter(AdminCalls):
    """Writes partitions of a transaction over connections of its own.

    Args:
        config: the client's configuration in Kafka's names.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(AdminConfig.from_mapping(known_to(AdminConfig, config)))

    def write(
        self,
        identity: Identity,
        batches: Iterable[EncodedBatch],
        after: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> dict[TopicPartition, int]:
        """Write everything and wait until it is stored: how many records, by partition.

        Args:
            after: how many records other writers, who have ended, wrote to a partition under this
                identity; sequences continue there.

        Raises TransactionLostError when the epoch is over, RecordTooLargeError, BrokerError,
        KafkaTimeoutError.
        """
        return _Write(self, identity, after).run(batches)

    def leaders(self, topics: Iterable[str]) -> ClusterMetadata:
        """Fresh metadata of these topics."""
        known = self._cluster.watched_topics
        watched = known if isinstance(known, frozenset) else frozenset[str]()
        self._thread.call(self._cluster.watch_topics, watched.union(topics)).result()
        return self._refresh(self._deadline(None))

    @property
    def metadata(self) -> ClusterMetadata:
        """The present snapshot."""
        return self._cluster.metadata

    def send(
        self, node_id: int, message: Versioned, done: Callable[[Message | KohortError], None]
    ) -> None:
        """One Produce request; `done` receives its answer or error, on the network thread."""
        self._check()
        timeout_ms = self.config.request_timeout_ms
        self._thread.loop.call_soon_threadsafe(
            lambda: self._cluster.request(
                node_id, message, done, timeout_ms=timeout_ms, kind="produce"
            )
        )


class _Write:
    """One call of `SharedWriter.write`."""

    def __init__(
        self, writer: SharedWriter, identity: Identity, after: Mapping[TopicPartition, int]
    ) -> None:
        self._writer = writer
        self._identity = identity
        self._queue = WriteQueue(identity, after)
        self._answers: SimpleQueue[_Answered] = SimpleQueue()
        self._requested = 0
        self._deadline_ms = monotonic_ms() + DELIVERY_TIMEOUT_MS
        self._backoff = Backoff(20, 1_000, uniform)
        self._known: set[str] = set()

    def run(self, batches: Iterable[EncodedBatch]) -> dict[TopicPartition, int]:
        for batch in batches:
            self._learn(batch.topic)
            self._queue.add(batch)
            self._send_ready()
            while self._queue.bytes > MAX_WAITING_BYTES:
                self._settle_one()
        while not self._queue.idle:
            self._send_ready()
            self._settle_one()
        return self._queue.records

    def _learn(self, topic: str) -> None:
        if topic not in self._known:
            self._known.add(topic)
            if topic not in self._writer.metadata.topics:
                self._writer.leaders([topic])

    def _send_ready(self) -> None:
        by_node: dict[int, list[TopicPartition]] = {}
        for at in self._queue.ready():
            node_id = self._writer.metadata.leader(*at)
            if node_id >= 0:
                by_node.setdefault(node_id, []).append(at)
        for node_id, partitions in by_node.items():
            self._send(node_id, partitions)

    def _send(self, node_id: int, partitions: list[TopicPartition]) -> None:
        topics: dict[str, TopicProduceData] = {}
        taken: list[TopicPartition] = []
        size = 0
        for at in partitions:
            payload = self._queue.take(at)
            data = topics.setdefault(at.topic, TopicProduceData(name=at.topic))
            data.partition_data.append(PartitionProduceData(index=at.partition, records=payload))
            taken.append(at)
            size += len(payload)
            if size >= MAX_REQUEST_BYTES:
                break
        request = ProduceRequest(
            transactional_id=self._identity.transactional_id,
            acks=-1,
            timeout_ms=self._writer.config.request_timeout_ms,
            topic_data=list(topics.values()),
        )
        message = Versioned(ProduceRequest, lambda _: request, at_most=BEFORE_KIP_890["produce"])
        self._requested += 1
        answers = self._answers

        def done(answer: Message | KohortError) -> None:
            answers.put(_Answered(taken, answer))

        self._writer.send(node_id, message, done)

    def _settle_one(self) -> None:
        """Wait for one answer; without any under way, look for the leaders again."""
        if not self._requested:
            self._wait_for_leaders()
            return
        partitions, answer = self._answers.get()
        self._requested -= 1
        if isinstance(answer, KohortError):
            if not isinstance(answer, ConnectionFailedError | KafkaTimeoutError):
                raise answer
            self._try_again(partitions, answer)
            return
        assert isinstance(answer, ProduceResponse), f"{type(answer)} answers Produce"
        codes = {
            TopicPartition(topic.name, p.index): (p.error_code, p.error_message or "")
            for topic in answer.responses
            for p in topic.partition_responses
        }
        for at in partitions:
            code, text = codes.get(at, (int(ErrorCode.UNKNOWN_SERVER_ERROR), "no answer"))
            self._settle(at, code, text)

    def _settle(self, at: TopicPartition, code: int, text: str) -> None:
        duplicate = code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER and self._queue.is_retried(at)
        if code == ErrorCode.NONE or duplicate:
            self._queue.stored(at)
            self._backoff.succeeded()
            self._deadline_ms = monotonic_ms() + DELIVERY_TIMEOUT_MS
        elif code in _FENCED:
            raise lost(self._identity.transactional_id, f"writing to {at}", code, 0, expired=False)
        elif code in _TOO_LARGE:
            raise RecordTooLargeError(
                f"{at}: the broker refuses a batch as too large; raise the topic's "
                "max.message.bytes, or lower batch_bytes of the output"
            )
        elif code in RETRIABLE_CODES:
            self._try_again([at], BrokerError(code, text))
        else:
            raise BrokerError(code, f"writing to {at}{': ' + text if text else ''}")

    def _try_again(self, partitions: list[TopicPartition], error: KohortError) -> None:
        for at in partitions:
            self._queue.again(at)
        wait_ms = self._backoff.failed()
        if monotonic_ms() + wait_ms >= self._deadline_ms:
            raise error
        self._pause(wait_ms)
        self._writer.leaders(self._known)

    def _wait_for_leaders(self) -> None:
        wait_ms = self._backoff.failed()
        if monotonic_ms() + wait_ms >= self._deadline_ms:
            waiting = ", ".join(str(at) for at in self._queue.ready()[:5])
            raise KafkaTimeoutError(f"{waiting}: no leader; nothing was written there")
        self._pause(wait_ms)
        self._writer.leaders(self._known)

    def _pause(self, wait_ms: int) -> None:
        from kohort.client.common.future import Future

        Future[None]().wait(wait_ms / 1000)
