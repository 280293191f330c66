"""What a producer's batch must be before it is appended, by the rules of Apache Kafka's validator.

Rules:
- CORRUPT_MESSAGE is for bytes that changed on the way: sending them again may help. Everything else
  that is wrong with a batch was so when it was made: INVALID_RECORD, which no client retries.
- Every record is walked, of a compressed batch after decompressing it: what could not be read back
  is never stored. The expanded size of a batch is bounded.
- The batch's max timestamp is that of its records, not what the producer wrote in the header.

Differs from Apache Kafka: records whose offsets do not count up from 0 are refused, not renumbered
or stored as they are; so is a batch that does not decompress (UNKNOWN_SERVER_ERROR there).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.errors import BrokerError, CorruptRecordError, DecompressionLimitError, ErrorCode
from kohort.records import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    BatchHeader,
    Chunk,
    Compression,
    RecordCheck,
    TimestampType,
    check_produced,
    crc_matches,
    read_batch_header,
    set_max_timestamp,
)
from kohort.wire.messages.produce_response import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
)

if TYPE_CHECKING:
    from kohort.broker.log.topic_config import TopicConfig
    from kohort.wire import Records

_ZSTD_FROM = 7
_FORMATS = (0, 1, 2)
_MAGIC_AT = 16
_NAMED_MAX = 1_000
"""So many records of a batch are named in the answer at most."""
_NO_KEY = "a compacted topic accepts no record without a key"


def checked(
    records: Records | None,
    version: int,
    config: TopicConfig,
    now_ms: int,
    response: PartitionProduceResponse,
) -> tuple[memoryview, BatchHeader]:
    """The one batch of a Produce request for a partition, ready to be appended.

    Args:
        records: What the request has for the partition.
        version: The request's version.
        config: The topic's configuration.
        now_ms: The broker's time since 1970, in milliseconds.
        response: Gets the records that make the batch invalid (KIP-467).

    Returns:
        The batch and its header.

    Raises:
        BrokerError: It must not be appended.
    """
    batch = memoryview(records) if isinstance(records, bytes | bytearray | memoryview) else None
    header = _header(batch)
    assert batch is not None, "it has a header"
    if header.codec == Compression.ZSTD and version < _ZSTD_FROM:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce v7, this is v{version}"
        )
    if len(batch) > config.max_message_bytes:
        raise BrokerError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {len(batch)} bytes; the topic accepts {config.max_message_bytes} "
            "(max.message.bytes)",
        )
    if not crc_matches(batch, header):
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not match")
    check = _walked(batch, header, config)
    if check.keyless and config.compact:
        _refuse_keyless(batch, check.keyless, response)
    _check_times(header, check, config, now_ms)
    if check.latest != header.max_timestamp and not config.log_append_time:
        mended = bytearray(batch)
        set_max_timestamp(mended, check.latest)
        batch = memoryview(mended)
        header = BatchHeader(batch)
    return batch, header


def _header(batch: memoryview | None) -> BatchHeader:
    """The header of the only batch that there is. Raises BrokerError."""
    if not batch:
        raise BrokerError(ErrorCode.INVALID_RECORD, "no record batch was sent")
    if len(batch) > _MAGIC_AT and batch[_MAGIC_AT] != _FORMATS[-1]:
        known = batch[_MAGIC_AT] in _FORMATS
        raise BrokerError(
            ErrorCode.INVALID_RECORD if known else ErrorCode.CORRUPT_MESSAGE,
            f"message format {batch[_MAGIC_AT]}; only format 2 is accepted",
        )
    try:
        header = read_batch_header(batch)
    except CorruptRecordError as error:
        code = ErrorCode.CORRUPT_MESSAGE
        if int.from_bytes(batch[:8], "big", signed=True) < 0:
            code = ErrorCode.INVALID_RECORD
        raise BrokerError(code, str(error)) from error
    if header is None:
        raise BrokerError(
            ErrorCode.INVALID_RECORD, f"{len(batch)} bytes were sent, less than one whole batch"
        )
    if header.size < len(batch):
        raise BrokerError(
            ErrorCode.INVALID_RECORD,
            f"one batch a partition, {len(batch) - header.size} bytes follow it",
        )
    return header


def _walked(batch: memoryview, header: BatchHeader, config: TopicConfig) -> RecordCheck:
    limit = max(DEFAULT_MAX_DECOMPRESSED_BYTES, config.max_message_bytes)
    try:
        return check_produced(batch, header, max_decompressed=limit)
    except DecompressionLimitError as error:  # a client that can splits the batch
        raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE, str(error)) from error
    except CorruptRecordError as error:
        raise BrokerError(ErrorCode.INVALID_RECORD, str(error)) from error


def _refuse_keyless(batch: memoryview, count: int, response: PartitionProduceResponse) -> None:
    """A record without a key could never be compacted; the answer names the first of them
    (KIP-467), so that the client can send the others again. Raises BrokerError.
    """
    keyless: list[BatchIndexAndErrorMessage] = []
    chunk = Chunk("", 0, batch, 0, check_crc=False)
    while len(keyless) < min(count, _NAMED_MAX):
        for record in chunk.next_records(_NAMED_MAX):
            if record.key is None:
                named = BatchIndexAndErrorMessage(
                    batch_index=record.offset, batch_index_error_message=_NO_KEY
                )
                keyless.append(named)
    response.record_errors = keyless[:_NAMED_MAX]
    raise BrokerError(ErrorCode.INVALID_RECORD, f"{_NO_KEY}; {count} in this batch")


def _check_times(header: BatchHeader, check: RecordCheck, config: TopicConfig, now_ms: int) -> None:
    """Raises BrokerError for timestamps that the topic does not accept."""
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        raise BrokerError(
            ErrorCode.INVALID_TIMESTAMP,
            "the batch says that its timestamps are those of the broker; only the broker sets them",
        )
    if config.log_append_time:
        return
    if check.latest - now_ms > config.timestamp_after_max_ms or (
        0 <= check.earliest < now_ms - config.timestamp_before_max_ms
    ):
        raise BrokerError(
            ErrorCode.INVALID_TIMESTAMP,
            f"the batch's timestamps ({check.earliest} to {check.latest}) are out of the range "
            f"that the topic accepts around the broker's time {now_ms}",
        )
