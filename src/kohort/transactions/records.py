"""The records of `__transaction_state`, bit for bit Kafka's.

Rules:
- Key type 0 (the transactional id). Written: value v1 (flexible, KIP-890); read: v0 and v1. A null
  value is a tombstone: the transactional id is forgotten.
- A transaction in Empty has no partitions, which is written as null.
- Bytes that break the format raise `DecodeError`. A key of another type is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kohort.errors import DecodeError
from kohort.group.coordinator.state.effects import GroupRecord
from kohort.transactions.states import TransactionState
from kohort.wire import (
    decode_record_key,
    decode_versioned,
    encode_record_key,
    encode_versioned,
    record_type,
)
from kohort.wire.messages.transaction_log_key import TransactionLogKey
from kohort.wire.messages.transaction_log_value import PartitionsSchema, TransactionLogValue

NO_PRODUCER_ID, NO_EPOCH, NO_TIME = -1, -1, -1
EPOCH_MAX = (1 << 15) - 1
EPOCH_LAST_ISSUED = EPOCH_MAX - 1
"""The highest epoch that a client is given; the one above it is for the last marker."""
KIP_890: Final = 2
"""The transaction version of clients whose epoch rises with every transaction."""
TopicPartition = tuple[str, int]
NO_PARTITIONS: Final[frozenset[TopicPartition]] = frozenset()
_VALUE_VERSION = 1
_S = TransactionState
_STATUS: Final = (
    _S.EMPTY,
    _S.ONGOING,
    _S.PREPARE_COMMIT,
    _S.PREPARE_ABORT,
    _S.COMPLETE_COMMIT,
    _S.COMPLETE_ABORT,
    _S.DEAD,
)
_STATUS_OF: Final = {state: at for at, state in enumerate(_STATUS)}


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id as the log has it. Times are wall-clock milliseconds."""

    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = NO_PARTITIONS
    updated_ms: int = NO_TIME
    started_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0
    """The transaction version of the client: 0, or 2 for KIP-890."""

    @property
    def exhausted(self) -> bool:
        """No epoch is left to give: the next one needs a new producer id."""
        return self.epoch >= EPOCH_LAST_ISSUED

    def but(self, **changes: object) -> Transaction:
        """A copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]


def transaction_record(transactional_id: str, transaction: Transaction) -> GroupRecord:
    """The record that stores a transaction."""
    t = transaction
    partitions: list[PartitionsSchema] | None = None
    if t.state is not TransactionState.EMPTY:
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(t.partitions):
            topics.setdefault(topic, []).append(partition)
        partitions = [
            PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in topics.items()
        ]
    value = TransactionLogValue(
        producer_id=t.producer_id,
        previous_producer_id=t.previous_producer_id,
        next_producer_id=t.next_producer_id,
        producer_epoch=t.epoch,
        transaction_timeout_ms=t.timeout_ms,
        transaction_status=_STATUS_OF[t.state],
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=t.updated_ms,
        transaction_start_timestamp_ms=t.started_ms,
        client_transaction_version=t.client_version,
    )
    return GroupRecord(_key(transactional_id), encode_versioned(value, _VALUE_VERSION))


def transaction_tombstone(transactional_id: str) -> GroupRecord:
    """The record that forgets a transactional id."""
    return GroupRecord(_key(transactional_id), None)


def decode_record(record: GroupRecord) -> tuple[str, Transaction | None] | None:
    """`(transactional id, transaction or None for a tombstone)`; None for another key type.

    Raises DecodeError or UnsupportedVersionError when key or value break their format.
    """
    if record_type(record.key) != TransactionLogKey.API_KEY:
        return None
    transactional_id = decode_record_key(TransactionLogKey, record.key).transactional_id
    if record.value is None:
        return transactional_id, None
    _, value = decode_versioned(TransactionLogValue, record.value)
    if not 0 <= value.transaction_status < len(_STATUS):
        raise DecodeError(
            f"transactional id {transactional_id!r}: status {value.transaction_status} in its "
            "record is none that is stored"
        )
    partitions = frozenset(
        (topic.topic, partition)
        for topic in value.transaction_partitions or ()
        for partition in topic.partition_ids
    )
    return transactional_id, Transaction(
        producer_id=value.producer_id,
        epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=_STATUS[value.transaction_status],
        partitions=partitions,
        updated_ms=value.transaction_last_update_timestamp_ms,
        started_ms=value.transaction_start_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_version=value.client_transaction_version,
    )


def _key(transactional_id: str) -> bytes:
    return encode_record_key(TransactionLogKey(transactional_id=transactional_id))
