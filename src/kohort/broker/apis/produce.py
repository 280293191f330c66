"""Produce (0), v3-13. KIP-98 (idempotence), KIP-110 (zstd), KIP-467, KIP-516 (topic ids).

One batch of format 2 a partition. It is checked (length, CRC, counts), stamped and stored as it is;
its records are looked at only where the topic is compacted (they need keys). It is answered when it
is safe at the broker's level of durability, whether acks is 1 or -1; acks=0 is not answered.

Differs from Apache Kafka: transactional batches are refused (INVALID_TXN_STATE) until transactions
are there; a producer's state survives with its last five batches, not one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.calls import Call, serve
from kohort.broker.log.log import Appended
from kohort.broker.partition import Partition
from kohort.errors import BrokerError, CorruptRecordError, ErrorCode
from kohort.records import BatchHeader, Chunk, Compression, validate_record_set
from kohort.wire import Records
from kohort.wire.messages.produce_request import PartitionProduceData, ProduceRequest
from kohort.wire.messages.produce_response import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from kohort.broker.node import Node
    from kohort.broker.topics import Topic

_ZSTD_FROM, _TOPIC_IDS_FROM = 7, 13


def handle(node: Node, request: ProduceRequest, call: Call) -> None:
    """Append to every partition that is named; answer when all of them are done."""
    pending = _Pending(call, request.acks != 0)
    for data in request.topic_data:
        by_id = call.api_version >= _TOPIC_IDS_FROM
        topic = node.topics.by_id(data.topic_id) if by_id else node.topics.get(data.name)
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answer = TopicProduceResponse(
            name=data.name, topic_id=data.topic_id, partition_responses=[]
        )
        pending.response.responses.append(answer)
        for part in data.partition_data:
            response = PartitionProduceResponse(index=part.index, base_offset=-1)
            answer.partition_responses.append(response)
            try:
                if request.acks not in (-1, 0, 1):
                    raise BrokerError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}")
                partition = _partition(topic, part, unknown)
                batch, header = _checked(partition, part.records, call.api_version)
                pending.append(partition, batch, header, response)
            except BrokerError as error:
                _refuse(response, error)
    pending.all_begun()


class _Pending:
    """The appends of one request."""

    def __init__(self, call: Call, wanted: bool) -> None:
        self._call = call
        self._wanted = wanted
        self._missing = 1  # the request itself, until all of its appends have begun
        self.response = ProduceResponse(responses=[])

    def append(
        self,
        partition: Partition,
        batch: memoryview,
        header: BatchHeader,
        response: PartitionProduceResponse,
    ) -> None:
        def done(result: Appended | BrokerError) -> None:
            if isinstance(result, BrokerError):
                _refuse(response, result)
            self.all_begun()

        self._missing += 1
        try:
            appended = partition.append(batch, header, done)
        except BrokerError:
            self._missing -= 1
            raise
        response.base_offset = appended.base_offset
        response.log_append_time_ms = appended.append_time_ms
        response.log_start_offset = partition.start_offset

    def all_begun(self) -> None:
        """One less is missing; the last one sends the answer."""
        self._missing -= 1
        if self._missing == 0:
            self._call.answer(self.response if self._wanted else None)


def _partition(topic: Topic | None, part: PartitionProduceData, unknown: ErrorCode) -> Partition:
    if topic is None:
        raise BrokerError(unknown)
    if topic.internal:
        raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is the broker's own")
    if not 0 <= part.index < len(topic.partitions):
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic.partitions[part.index]


def _checked(
    partition: Partition, records: Records | None, version: int
) -> tuple[memoryview, BatchHeader]:
    batch = memoryview(records) if isinstance(records, bytes | bytearray | memoryview) else None
    if not batch:
        raise BrokerError(ErrorCode.INVALID_RECORD, "no record batch was sent")
    if len(batch) > 16 and batch[16] != 2:
        raise BrokerError(
            ErrorCode.INVALID_RECORD, f"message format {batch[16]}; only format 2 is accepted"
        )
    config = partition.topic.config
    if len(batch) > config.max_message_bytes:
        raise BrokerError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {len(batch)} bytes; {partition.topic.name} accepts "
            f"{config.max_message_bytes} (max.message.bytes)",
        )
    try:
        headers = validate_record_set(batch)
    except CorruptRecordError as error:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    header = headers[0]
    if len(headers) > 1:
        raise BrokerError(ErrorCode.INVALID_RECORD, "one batch a partition, more were sent")
    if header.is_transactional:
        raise BrokerError(ErrorCode.INVALID_TXN_STATE, "transactions are not supported")
    if header.codec == Compression.ZSTD and version < _ZSTD_FROM:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce v7, this is v{version}"
        )
    if config.compact:
        _require_keys(batch, header)
    return batch, header


def _require_keys(batch: memoryview, header: BatchHeader) -> None:
    """A record without a key could never be compacted."""
    try:
        chunk = Chunk("", 0, batch, header.base_offset, check_crc=False)
        while not chunk.exhausted:
            if any(record.key is None for record in chunk.next_records(1_000)):
                raise BrokerError(
                    ErrorCode.INVALID_RECORD, "a compacted topic accepts no record without a key"
                )
    except CorruptRecordError as error:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error


def _refuse(response: PartitionProduceResponse, error: BrokerError) -> None:
    response.error_code = error.code
    response.error_message = error.detail
    response.base_offset = -1


API = serve(ProduceRequest, handle)
