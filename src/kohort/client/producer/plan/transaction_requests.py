"""The requests of a transactional producer, and what their answers mean. Pure.

Rules:
- A code is looked up by the request it answers: the same code may end the transaction for one and
  the producer for another.
- A code that is not known to be harmless is fatal: a commit is never reported unless it is certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from kohort.client.cluster.client import Versioned
from kohort.client.common.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from kohort.errors import RETRIABLE_CODES, ErrorCode
from kohort.wire import Message
from kohort.wire.messages.add_offsets_to_txn_request import AddOffsetsToTxnRequest
from kohort.wire.messages.add_offsets_to_txn_response import AddOffsetsToTxnResponse
from kohort.wire.messages.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from kohort.wire.messages.add_partitions_to_txn_response import AddPartitionsToTxnResponse
from kohort.wire.messages.end_txn_request import EndTxnRequest
from kohort.wire.messages.end_txn_response import EndTxnResponse
from kohort.wire.messages.init_producer_id_request import InitProducerIdRequest
from kohort.wire.messages.init_producer_id_response import InitProducerIdResponse
from kohort.wire.messages.txn_offset_commit_request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kohort.wire.messages.txn_offset_commit_response import TxnOffsetCommitResponse

ADD_AT_MOST: Final = 3
"""Later versions of AddPartitionsToTxn are between brokers."""
BEFORE_KIP_890: Final = {"produce": 11, "offsets": 4, "end": 4}
"""The newest versions for a coordinator whose epoch does not rise with every transaction."""


class Kind(Enum):
    """What is asked."""

    FIND_TRANSACTIONS = "FindCoordinator of the transactional id"
    FIND_GROUP = "FindCoordinator of the group"
    INIT = "InitProducerId"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    ADD_OFFSETS = "AddOffsetsToTxn"
    OFFSETS = "TxnOffsetCommit"
    END = "EndTxn"

    __hash__ = object.__hash__


class Verdict(Enum):
    """What an error code means."""

    RETRY = auto()
    MOVED = auto()
    """Look for the coordinator again, then retry."""
    BROKEN = auto()
    """The transaction must be aborted."""
    FENCED = auto()
    """Another producer has this transactional id now."""
    FATAL = auto()


class Identity(NamedTuple):
    """Who writes."""

    transactional_id: str
    producer_id: int
    epoch: int


_E, _K, _V = ErrorCode, Kind, Verdict
_EVERYWHERE: Final = {
    _E.COORDINATOR_NOT_AVAILABLE: _V.MOVED,
    _E.NOT_COORDINATOR: _V.MOVED,
    _E.INVALID_PRODUCER_EPOCH: _V.FENCED,
    _E.PRODUCER_FENCED: _V.FENCED,
    _E.TRANSACTION_ABORTABLE: _V.BROKEN,
    _E.INVALID_PRODUCER_ID_MAPPING: _V.BROKEN,
    _E.UNKNOWN_PRODUCER_ID: _V.BROKEN,
    _E.TOPIC_AUTHORIZATION_FAILED: _V.BROKEN,
    _E.GROUP_AUTHORIZATION_FAILED: _V.BROKEN,
    _E.OPERATION_NOT_ATTEMPTED: _V.BROKEN,
}
_BY_KIND: Final[Mapping[tuple[Kind, ErrorCode], Verdict]] = {
    (_K.INIT, _E.TRANSACTION_ABORTABLE): _V.FATAL,
    (_K.INIT, _E.INVALID_PRODUCER_ID_MAPPING): _V.FATAL,
    (_K.INIT, _E.UNKNOWN_PRODUCER_ID): _V.FATAL,
    (_K.OFFSETS, _E.ILLEGAL_GENERATION): _V.BROKEN,
    (_K.OFFSETS, _E.UNKNOWN_MEMBER_ID): _V.BROKEN,
    (_K.OFFSETS, _E.FENCED_INSTANCE_ID): _V.BROKEN,
    (_K.OFFSETS, _E.STALE_MEMBER_EPOCH): _V.BROKEN,
    (_K.OFFSETS, _E.GROUP_ID_NOT_FOUND): _V.BROKEN,
    (_K.OFFSETS, _E.OFFSET_METADATA_TOO_LARGE): _V.BROKEN,
    (_K.OFFSETS, _E.INVALID_GROUP_ID): _V.BROKEN,
    (_K.ADD_OFFSETS, _E.INVALID_GROUP_ID): _V.BROKEN,
    (_K.FIND_GROUP, _E.INVALID_GROUP_ID): _V.BROKEN,
    (_K.FIND_GROUP, _E.COORDINATOR_NOT_AVAILABLE): _V.RETRY,
    (_K.FIND_TRANSACTIONS, _E.COORDINATOR_NOT_AVAILABLE): _V.RETRY,
}


def verdict(kind: Kind, code: int) -> Verdict:
    """What `code` means as the answer to `kind`."""
    known = ErrorCode(code) if code in _E._value2member_map_ else _E.UNKNOWN_SERVER_ERROR
    special = _BY_KIND.get((kind, known)) or _EVERYWHERE.get(known)
    if special is not None:
        return special
    return _V.RETRY if known in RETRIABLE_CODES else _V.FATAL


def codes_in(answer: Message) -> list[int]:
    """Every error code of an answer, the ones to be retried last."""
    codes: list[int] = []
    match answer:
        case InitProducerIdResponse() | AddOffsetsToTxnResponse() | EndTxnResponse():
            codes = [answer.error_code]
        case AddPartitionsToTxnResponse():
            topics = answer.results_by_topic_v3_and_below
            codes = [p.partition_error_code for t in topics for p in t.results_by_partition]
        case TxnOffsetCommitResponse():
            codes = [p.error_code for t in answer.topics for p in t.partitions]
        case _:
            raise TypeError(f"{type(answer).__name__} is no answer to a transactional producer")
    return sorted((c for c in codes if c), key=lambda c: c in RETRIABLE_CODES)


def init(who: Identity, timeout_ms: int) -> InitProducerIdRequest:
    """With an id and epoch: the next epoch of it (KIP-360)."""
    return InitProducerIdRequest(
        transactional_id=who.transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
    )


def add_partitions(who: Identity, partitions: Iterable[tuple[str, int]]) -> Versioned:
    """The partitions that records of the transaction will go to."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=who.transactional_id,
        v3_and_below_producer_id=who.producer_id,
        v3_and_below_producer_epoch=who.epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=name, partitions=indexes)
            for name, indexes in topics.items()
        ],
    )
    return Versioned(AddPartitionsToTxnRequest, lambda _: request, at_most=ADD_AT_MOST)


def add_offsets(who: Identity, group_id: str) -> AddOffsetsToTxnRequest:
    """The group whose offsets the transaction will commit."""
    return AddOffsetsToTxnRequest(
        transactional_id=who.transactional_id,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        group_id=group_id,
    )


_GROUP_METADATA_FROM: Final = 3


def offsets(
    who: Identity,
    group: GroupMetadata,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    kip_890: bool,
) -> Versioned:
    """The offsets, with who the consumer is in its group (KIP-447)."""
    topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
    for (topic, partition), value in committed.items():
        topics.setdefault(topic, []).append(
            TxnOffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=value.offset,
                committed_leader_epoch=value.leader_epoch,
                committed_metadata=value.metadata,
            )
        )

    def build(version: int) -> Message:
        request = TxnOffsetCommitRequest(
            transactional_id=who.transactional_id,
            group_id=group.group_id,
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(name=name, partitions=parts)
                for name, parts in topics.items()
            ],
        )
        if version >= _GROUP_METADATA_FROM:
            request.generation_id = group.generation
            request.member_id = group.member_id
            request.group_instance_id = group.group_instance_id
        return request

    at_most = None if kip_890 else BEFORE_KIP_890["offsets"]
    return Versioned(TxnOffsetCommitRequest, build, at_most=at_most)


def end(who: Identity, *, commit: bool, kip_890: bool) -> Versioned:
    """Commit or abort."""
    request = EndTxnRequest(
        transactional_id=who.transactional_id,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        committed=commit,
    )
    at_most = None if kip_890 else BEFORE_KIP_890["end"]
    return Versioned(EndTxnRequest, lambda _: request, at_most=at_most)


def fenced(name: str) -> str:
    """The error of a fenced producer."""
    return (
        f"another producer with transactional_id {name!r} has begun, and this one can never write "
        "again: close it. If both are to run, give each a transactional_id of its own"
    )
