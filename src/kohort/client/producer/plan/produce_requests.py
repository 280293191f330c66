"""Produce requests and answers in terms of batches. Pure.

Rules:
- A request carries one batch a partition (as every version since 3 demands).
- Topics are named up to version 12, and have ids from 13 on (KIP-516); both are filled in. An
  answer is matched by the ids that were sent: metadata may have lost the topic meanwhile.
- A batch is built once. When only its identity changes (producer id, epoch, sequence), the header
  is rewritten with a new CRC, because the records may be compressed and their builder is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

from kohort.client.cluster.metadata import Node
from kohort.client.producer.plan.accumulator import Batch
from kohort.client.producer.plan.sender import Answer
from kohort.records import BatchBuilder, crc32c
from kohort.records.layout import Readable
from kohort.wire import ZERO_UUID
from kohort.wire.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kohort.wire.messages.produce_response import PartitionProduceResponse, ProduceResponse

_IDENTITY: Final = Struct(">qhi")  # producer id, producer epoch, base sequence
_IDENTITY_AT: Final = 43
_CRC: Final = Struct(">I")
_CRC_AT: Final = 17
_CRC_FROM: Final = 21


Stamp = tuple[int, int, int]
"""Producer id, epoch and sequence."""


def stamp_of(batch: Batch) -> Stamp:
    """The identity that a batch is to carry now."""
    producer_id, epoch = batch.queue.identity or (-1, -1)
    return producer_id, epoch, batch.sequence


def take(builder: BatchBuilder, stamp: Stamp, *, transactional: bool) -> Readable:
    """The batch that was gathered in `builder`, which is empty afterwards."""
    return builder.take(
        producer_id=stamp[0],
        producer_epoch=stamp[1],
        base_sequence=stamp[2],
        transactional=transactional,
    )


def restamp(payload: Readable, stamp: Stamp) -> bytearray:
    """A copy of an encoded batch that carries another identity."""
    fresh = bytearray(payload)
    _IDENTITY.pack_into(fresh, _IDENTITY_AT, *stamp)
    _CRC.pack_into(fresh, _CRC_AT, crc32c(memoryview(fresh)[_CRC_FROM:]))
    return fresh


def seal(batch: Batch, *, transactional: bool = False) -> bool:
    """Make the payload carry the batch's identity; True when the builder is free again."""
    stamp = stamp_of(batch)
    builder = batch.builder
    if builder is not None:
        batch.payload = take(builder, stamp, transactional=transactional)
    elif batch.stamp != stamp:
        batch.payload = restamp(batch.payload, stamp)
    batch.stamp = stamp
    return builder is not None


def produce_request(
    batches: Sequence[Batch],
    topic_ids: Mapping[str, bytes],
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """The request that carries sealed batches."""
    topics: dict[str, TopicProduceData] = {}
    for batch in batches:
        name = batch.queue.topic
        data = topics.get(name)
        if data is None:
            topic_id = topic_ids.get(name, ZERO_UUID)
            data = topics[name] = TopicProduceData(name=name, topic_id=topic_id)
        data.partition_data.append(
            PartitionProduceData(index=batch.queue.partition, records=batch.payload)
        )
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=list(topics.values()),
    )


def answers_in(
    response: ProduceResponse, batches: Sequence[Batch], names: Mapping[bytes, str]
) -> list[Answer | None]:
    """The answer for each batch of the request, in order; None where the broker left one out.

    Args:
        names: the topics of the request by the ids that were sent.
    """
    by_partition: dict[tuple[str, int], PartitionProduceResponse] = {}
    for topic in response.responses:
        name = topic.name or names.get(topic.topic_id, "")
        for partition in topic.partition_responses:
            by_partition[name, partition.index] = partition
    answers: list[Answer | None] = []
    for batch in batches:
        result = by_partition.get((batch.queue.topic, batch.queue.partition))
        if result is None:
            answers.append(None)
            continue
        text = result.error_message or ""
        if result.record_errors:
            text += "; ".join(e.batch_index_error_message or "" for e in result.record_errors[:3])
        answers.append(
            Answer(result.error_code, text, result.base_offset, result.log_append_time_ms)
        )
    return answers


def leader_hints(
    response: ProduceResponse, names: Mapping[bytes, str]
) -> list[tuple[str, int, int, int]]:
    """(topic, partition, leader, epoch) where the broker named a newer leader (KIP-951)."""
    return [
        (
            topic.name or names.get(topic.topic_id, ""),
            partition.index,
            partition.current_leader.leader_id,
            partition.current_leader.leader_epoch,
        )
        for topic in response.responses
        for partition in topic.partition_responses
        if partition.current_leader.leader_epoch >= 0
    ]


def nodes_in(response: ProduceResponse) -> list[Node]:
    """The addresses of the leaders that the answer names."""
    return [Node(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints]
