"""The consumer's requests as wire messages, and their answers as the core's own terms.

Rules:
- Requests carry the topic's name and, where metadata knows it, its id; the version decides which of
  the two is sent (Fetch 13 and later carry ids alone).
- A topic id in an answer that metadata does not know is left out: an answer names what was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar, cast

from kohort.client.cluster.client import Versioned
from kohort.client.common.offset_reset import require_version
from kohort.client.common.types import OffsetAndMetadata, TopicPartition
from kohort.client.consumer.local_reads import LocalDirectory, LocalRecords
from kohort.client.consumer.plan.commit_queue import CommitSend, Identity
from kohort.client.consumer.plan.committed_offsets import Committed
from kohort.client.consumer.plan.fetch_planner import FetchOrder, FetchResult, Records, RecordSet
from kohort.client.consumer.plan.fetch_session import FINAL_EPOCH, Ask
from kohort.client.consumer.plan.offset_fetcher import FindStart, OffsetAnswer, Validate
from kohort.client.consumer.plan.offset_lookups import QuerySend, TimeAnswer
from kohort.wire import local_files
from kohort.wire.local_files import Place
from kohort.wire.messages import fetch_request, fetch_response
from kohort.wire.messages import list_offsets_request as lo
from kohort.wire.messages import offset_commit_request as oc
from kohort.wire.messages import offset_fetch_request as of
from kohort.wire.messages import offset_for_leader_epoch_request as ole
from kohort.wire.messages.fetch_response import FetchResponse
from kohort.wire.messages.list_offsets_response import ListOffsetsResponse
from kohort.wire.messages.offset_commit_response import OffsetCommitResponse
from kohort.wire.messages.offset_fetch_response import (
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)
from kohort.wire.messages.offset_for_leader_epoch_response import OffsetForLeaderEpochResponse

CONSUMER = -1
V = TypeVar("V")
TopicIds = Callable[[str], bytes]


class FetchTerms(NamedTuple):
    """What all fetches of one consumer share."""

    min_bytes: int
    isolation_level: int
    rack: str


def by_topic(parts: Mapping[TopicPartition, V]) -> Iterator[tuple[str, list[tuple[int, V]]]]:
    """Partitions grouped under their topics, as requests hold them."""
    topics: dict[str, list[tuple[int, V]]] = {}
    for tp, value in parts.items():
        topics.setdefault(tp.topic, []).append((tp.partition, value))
    yield from topics.items()


# -- Fetch ---------------------------------------------------------------------------------------


def fetch(
    order: FetchOrder, ask: Ask, terms: FetchTerms, ids: TopicIds
) -> fetch_request.FetchRequest:
    """The Fetch of an order: the changes to its session (KIP-227)."""
    topics: dict[str, fetch_request.FetchTopic] = {}
    for part in ask.parts:
        name, partition = part.tp
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = fetch_request.FetchTopic(topic=name, topic_id=ids(name))
        topic.partitions.append(
            fetch_request.FetchPartition(
                partition=partition,
                current_leader_epoch=part.leader_epoch,
                fetch_offset=part.offset,
                partition_max_bytes=part.max_bytes,
            )
        )
    forgotten: dict[tuple[str, bytes], fetch_request.ForgottenTopic] = {}
    for name, topic_id, partition in ask.forgotten:
        left = forgotten.get((name, topic_id))
        if left is None:
            left = fetch_request.ForgottenTopic(topic=name, topic_id=topic_id)
            forgotten[name, topic_id] = left
        left.partitions.append(partition)
    return fetch_request.FetchRequest(
        replica_id=CONSUMER,
        max_wait_ms=order.max_wait_ms,
        min_bytes=terms.min_bytes,
        max_bytes=order.max_bytes,
        isolation_level=terms.isolation_level,
        session_id=ask.session_id,
        session_epoch=ask.epoch,
        topics=list(topics.values()),
        forgotten_topics_data=list(forgotten.values()),
        rack_id=terms.rack,
    )


def end_of_fetches(session_id: int) -> fetch_request.FetchRequest:
    """A Fetch of nothing that ends a session (KIP-227)."""
    return fetch_request.FetchRequest(
        replica_id=CONSUMER, session_id=session_id, session_epoch=FINAL_EPOCH, max_bytes=1
    )


def fetched(
    response: FetchResponse,
    names: Callable[[bytes], str | None],
    directory: LocalDirectory | None = None,
) -> Iterator[FetchResult]:
    """The partitions of a Fetch answer; `directory` where it may name places there (ADR 0015)."""
    for topic in response.responses:
        name = topic.topic or names(topic.topic_id)
        if name is None:
            continue
        for part in topic.partitions:
            yield FetchResult(
                TopicPartition(name, part.partition_index),
                part.error_code,
                part.high_watermark,
                part.last_stable_offset,
                part.log_start_offset,
                record_set(part, directory),
                part.preferred_read_replica,
                aborted(part),
            )


def record_set(
    part: fetch_response.PartitionData, directory: LocalDirectory | None = None
) -> RecordSet:
    """The record set as it came: one slice of the frame, never copied; or where it is.

    Raises DecodeError.
    """
    if directory is not None and part.unknown_tags:
        link = local_files.found(part.unknown_tags)
        if link is not None:
            return LocalRecords(directory, Place.decode(link))
    return cast("Records | None", part.records) or b""


def aborted(part: fetch_response.PartitionData) -> tuple[tuple[int, int], ...]:
    """Aborted transactions in this answer: (producer id, first offset), sorted by us (B56, F2)."""
    transactions = (
        (entry.producer_id, entry.first_offset) for entry in part.aborted_transactions or ()
    )
    return tuple(sorted(transactions, key=lambda pair: pair[1]))


# -- ListOffsets ---------------------------------------------------------------------------------


def list_offsets(
    targets: Mapping[TopicPartition, tuple[int, int]], isolation_level: int, timeout_ms: int
) -> lo.ListOffsetsRequest:
    """`targets`: partition -> (timestamp or sentinel, leader epoch)."""
    topics = [
        lo.ListOffsetsTopic(
            name=topic,
            partitions=[
                lo.ListOffsetsPartition(
                    partition_index=partition, current_leader_epoch=epoch, timestamp=timestamp
                )
                for partition, (timestamp, epoch) in partitions
            ],
        )
        for topic, partitions in by_topic(targets)
    ]
    return lo.ListOffsetsRequest(
        replica_id=CONSUMER, isolation_level=isolation_level, topics=topics, timeout_ms=timeout_ms
    )


def find_start(question: FindStart, isolation_level: int, timeout_ms: int) -> lo.ListOffsetsRequest:
    """ListOffsets for a reset."""
    targets = {tp: (part.value, part.leader_epoch) for tp, part in question.parts.items()}
    return list_offsets(targets, isolation_level, timeout_ms)


def query(send: QuerySend, isolation_level: int, timeout_ms: int) -> Versioned:
    """ListOffsets for a caller's query, in a version that knows the names in it."""
    targets = {tp: (timestamp, -1) for tp, timestamp in send.targets.items()}

    def build(version: int) -> lo.ListOffsetsRequest:
        require_version(version, send.targets.values())
        return list_offsets(targets, isolation_level, timeout_ms)

    return Versioned(lo.ListOffsetsRequest, build)


def listed(response: ListOffsetsResponse) -> dict[TopicPartition, TimeAnswer]:
    """The partitions of a ListOffsets answer."""
    return {
        TopicPartition(topic.name, part.partition_index): TimeAnswer(
            part.error_code, part.offset, part.timestamp, part.leader_epoch
        )
        for topic in response.topics
        for part in topic.partitions
    }


def starts(response: ListOffsetsResponse) -> dict[TopicPartition, OffsetAnswer]:
    """The same answer, as the offset fetcher wants it."""
    return {
        tp: OffsetAnswer(answer.error, answer.offset, answer.leader_epoch)
        for tp, answer in listed(response).items()
    }


# -- OffsetForLeaderEpoch ------------------------------------------------------------------------


def validate(question: Validate) -> ole.OffsetForLeaderEpochRequest:
    """Where did this epoch end in your log?"""
    topics = [
        ole.OffsetForLeaderTopic(
            topic=topic,
            partitions=[
                ole.OffsetForLeaderPartition(
                    partition=partition,
                    current_leader_epoch=part.leader_epoch,
                    leader_epoch=part.value,
                )
                for partition, part in partitions
            ],
        )
        for topic, partitions in by_topic(question.parts)
    ]
    return ole.OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=topics)


def validated(response: OffsetForLeaderEpochResponse) -> dict[TopicPartition, OffsetAnswer]:
    """The partitions of an OffsetForLeaderEpoch answer."""
    return {
        TopicPartition(topic.topic, part.partition): OffsetAnswer(
            part.error_code, part.end_offset, part.leader_epoch
        )
        for topic in response.topics
        for part in topic.partitions
    }


# -- OffsetFetch and OffsetCommit ----------------------------------------------------------------


def offset_fetch(
    group: str, asker: Identity, tps: Iterable[TopicPartition], ids: TopicIds, version: int
) -> of.OffsetFetchRequest:
    """Committed offsets of one group; only settled ones (KIP-447).

    `asker` is a member of the consumer protocol, whose epoch is checked (KIP-848), or `NO_MEMBER`.
    """
    topics = list(by_topic(dict.fromkeys(tps, 0)))
    if version < 8:
        old = [
            of.OffsetFetchRequestTopic(name=name, partition_indexes=[p for p, _ in partitions])
            for name, partitions in topics
        ]
        return of.OffsetFetchRequest(group_id=group, topics=old, require_stable=version >= 7)
    new = [
        of.OffsetFetchRequestTopics(
            name=name, topic_id=ids(name), partition_indexes=[p for p, _ in partitions]
        )
        for name, partitions in topics
    ]
    one = of.OffsetFetchRequestGroup(
        group_id=group,
        member_id=asker.member_id or None,
        member_epoch=asker.generation,
        topics=new,
    )
    return of.OffsetFetchRequest(groups=[one], require_stable=True)


def offsets_fetched(
    response: OffsetFetchResponse, names: Callable[[bytes], str | None]
) -> tuple[int, dict[TopicPartition, Committed]]:
    """The group's error code, and the partitions of an OffsetFetch answer."""
    committed: dict[TopicPartition, Committed] = {}
    if response.groups:
        group = response.groups[0]
        for topic in group.topics:
            name = topic.name or names(topic.topic_id)
            if name is not None:
                committed.update(_committed(name, topic.partitions))
        return group.error_code, committed
    for topic in response.topics:
        committed.update(_committed(topic.name, topic.partitions))
    return response.error_code, committed


def _committed(
    name: str,
    parts: Iterable[OffsetFetchResponsePartition | OffsetFetchResponsePartitions],
) -> Iterator[tuple[TopicPartition, Committed]]:
    for part in parts:
        yield (
            TopicPartition(name, part.partition_index),
            Committed(
                part.error_code,
                part.committed_offset,
                part.committed_leader_epoch,
                part.metadata or "",
            ),
        )


def offset_commit(group: str, send: CommitSend, ids: TopicIds) -> oc.OffsetCommitRequest:
    """Commit for one group, as the member that `send.identity` names."""
    topics = [
        oc.OffsetCommitRequestTopic(
            name=topic,
            topic_id=ids(topic),
            partitions=[_commit(partition, offset) for partition, offset in partitions],
        )
        for topic, partitions in by_topic(send.offsets)
    ]
    return oc.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=send.identity.generation,
        member_id=send.identity.member_id,
        group_instance_id=send.identity.instance_id,
        topics=topics,
    )


def _commit(partition: int, offset: OffsetAndMetadata) -> oc.OffsetCommitRequestPartition:
    return oc.OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


def committed_codes(
    response: OffsetCommitResponse, names: Callable[[bytes], str | None]
) -> dict[TopicPartition, int]:
    """An error code a partition."""
    codes: dict[TopicPartition, int] = {}
    for topic in response.topics:
        name = topic.name or names(topic.topic_id)
        if name is not None:
            for part in topic.partitions:
                codes[TopicPartition(name, part.partition_index)] = part.error_code
    return codes
