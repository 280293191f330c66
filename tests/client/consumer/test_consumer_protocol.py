"""The consumer protocol (KIP-848) over sockets, with a broker whose answers the tests write."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kohort import Consumer, SubscriptionPattern, TopicPartition
from kohort.errors import ErrorCode, UnsupportedVersionError, UsageError
from kohort.wire.messages.consumer_group_heartbeat_response import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from kohort.wire.messages.fetch_response import FetchResponse
from kohort.wire.messages.find_coordinator_response import Coordinator, FindCoordinatorResponse
from kohort.wire.messages.list_offsets_response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kohort.wire.messages.metadata_response import MetadataResponseTopic
from kohort.wire.messages.offset_commit_response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kohort.wire.messages.offset_fetch_response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from tests.client.scripted import ScriptedBroker
from tests.patience import PATIENCE_S

ID = b"\7" * 16
HEARTBEAT, COMMIT, LOOK_UP = (
    "ConsumerGroupHeartbeatRequest",
    "OffsetCommitRequest",
    "OffsetFetchRequest",
)
T0 = TopicPartition("t", 0)


class Coordinating:
    """A coordinator that assigns partition 0 of one topic to whoever joins; counts its epoch up."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.epoch = 1
        self.stale_at: str | None = None
        """The request that finds the epoch gone on; it is refused until it comes with that."""
        broker.cluster.topics["t"] = {0: (0, 1)}
        broker.cluster.topic_ids["t"] = ID
        answers = broker.answers
        answers["FindCoordinatorRequest"] = lambda r, c: FindCoordinatorResponse(
            coordinators=[
                Coordinator(
                    key=r.coordinator_keys[0], node_id=0, host="127.0.0.1", port=broker.port
                )
            ]
        )
        answers[HEARTBEAT] = self.heartbeat
        answers[LOOK_UP] = self.look_up
        answers[COMMIT] = self.commit
        answers["ListOffsetsRequest"] = lambda r, c: ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[ListOffsetsPartitionResponse(partition_index=0, offset=0)],
                )
                for topic in r.topics
            ]
        )
        answers["FetchRequest"] = self.fetch

    def fetch(self, request: Any, call: Any) -> None:
        threading.Timer(0.05, call.answer, (FetchResponse(),)).start()

    def heartbeat(self, request: Any, call: Any) -> ConsumerGroupHeartbeatResponse:
        full = request.rebalance_timeout_ms > 0
        return ConsumerGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=self.epoch if request.member_epoch >= 0 else request.member_epoch,
            heartbeat_interval_ms=60_000,
            assignment=Assignment(topic_partitions=[TopicPartitions(topic_id=ID, partitions=[0])])
            if full
            else None,
        )

    def look_up(self, request: Any, call: Any) -> OffsetFetchResponse:
        code = self._stale(LOOK_UP, request.groups[0].member_epoch)
        parts = [OffsetFetchResponsePartitions(partition_index=0, committed_offset=-1)]
        topics = [OffsetFetchResponseTopics(topic_id=ID, partitions=parts)]
        group = OffsetFetchResponseGroup(
            group_id="g", error_code=code, topics=[] if code else topics
        )
        return OffsetFetchResponse(groups=[group])

    def commit(self, request: Any, call: Any) -> OffsetCommitResponse:
        code = self._stale(COMMIT, request.generation_id_or_member_epoch)
        part = OffsetCommitResponsePartition(partition_index=0, error_code=code)
        topic = OffsetCommitResponseTopic(topic_id=ID, partitions=[part])
        return OffsetCommitResponse(topics=[topic])

    def _stale(self, request: str, epoch: int) -> int:
        """The epoch goes on no sooner than now: no heartbeat can tell of it before."""
        if self.stale_at == request:
            self.stale_at = None
            self.epoch += 1
        return ErrorCode.STALE_MEMBER_EPOCH if epoch < self.epoch else 0


@pytest.fixture
def broker(brokers) -> ScriptedBroker:
    return ScriptedBroker(brokers)


@pytest.fixture
def coordinating(broker) -> Coordinating:
    return Coordinating(broker)


@pytest.fixture
def consumer(broker) -> Iterator[Consumer]:
    made = Consumer(
        bootstrap_servers=broker.address,
        group_id="g",
        group_protocol="consumer",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        retry_backoff_ms=10,
        reconnect_backoff_ms=5,
    )
    yield made
    made.close(1)


def until(consumer: Consumer, met: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < deadline
        consumer.poll(0.02)


def test_a_broker_without_the_protocol_is_named_with_the_way_out(broker, coordinating, consumer):
    """Spec 2.14: no silent fallback: the error says what to configure."""
    del broker.versions[68]
    consumer.subscribe(["t"])
    with pytest.raises(UnsupportedVersionError, match="group_protocol=classic"):
        until(consumer, lambda: False)


def test_a_preview_of_the_protocol_is_not_enough(broker, coordinating, consumer):
    """KIP-848: version 0 has no member-made ids and no patterns."""
    broker.versions[68] = (0, 0)
    consumer.subscribe(["t"])
    with pytest.raises(UnsupportedVersionError, match=r"Kafka 4\.0"):
        until(consumer, lambda: False)


def test_a_pattern_of_the_broker_needs_no_metadata_of_all_topics(broker, coordinating, consumer):
    """B7: the topic is assigned by id, asked for by id until it is known, then watched by name."""
    unknown = [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID]
    by_name = broker.cluster.metadata

    def metadata(request: Any, call: Any) -> Any:
        named = [topic for topic in request.topics if topic.name is not None]
        if len(named) == len(request.topics):
            return by_name(request, call)
        assert not named
        answer = by_name(type(request)(topics=[]), call)
        for topic in request.topics:
            code = int(unknown.pop()) if unknown else 0
            name = None if code else "t"
            answer.topics.append(
                MetadataResponseTopic(error_code=code, name=name, topic_id=topic.topic_id)
            )
        return answer

    broker.answers["MetadataRequest"] = metadata
    consumer.subscribe(SubscriptionPattern("t.*"))
    until(consumer, lambda: consumer.assignment() == {T0})
    assert consumer.subscription() == {"t"}
    first = broker.of(HEARTBEAT)[0]
    assert (first.subscribed_topic_regex, first.subscribed_topic_names) == ("t.*", [])
    assert all(request.topics is not None for request in broker.of("MetadataRequest"))
    # While it was not known, nothing was acknowledged.
    until(consumer, lambda: any(beat.topic_partitions for beat in broker.of(HEARTBEAT)))
    owned = [beat.topic_partitions for beat in broker.of(HEARTBEAT) if beat.topic_partitions]
    assert [(t.topic_id, t.partitions) for t in owned[0]] == [(ID, [0])]


def test_a_pattern_of_the_broker_needs_the_consumer_protocol(broker):
    """The classic protocol has no place for it."""
    with (
        Consumer(bootstrap_servers=broker.address, group_id="g") as classic,
        pytest.raises(UsageError, match="group_protocol=consumer"),
    ):
        classic.subscribe(SubscriptionPattern("t"))
    with pytest.raises(UsageError, match="empty"):
        SubscriptionPattern("")


def test_look_ups_name_the_member_and_its_epoch(broker, coordinating, consumer):
    """KIP-848: OffsetFetch 9 checks them; a stale one is made again with the next epoch."""
    coordinating.stale_at = LOOK_UP
    consumer.subscribe(["t"])
    until(consumer, lambda: consumer.assignment() == {T0})
    assert consumer.position(T0) == 0
    asked = [(r.groups[0].member_epoch, bool(r.groups[0].member_id)) for r in broker.of(LOOK_UP)]
    assert asked[0] == (1, True)
    assert asked[-1] == (2, True)
    assert consumer.committed([T0]) == {T0: None}


def test_a_commit_with_a_stale_epoch_is_made_again(broker, coordinating, consumer):
    """B11: nothing is lost: the member learns its epoch and the commit goes out with it."""
    consumer.subscribe(["t"])
    until(consumer, lambda: consumer.assignment() == {T0})
    coordinating.stale_at = COMMIT
    consumer.commit({T0: 5})
    epochs = [r.generation_id_or_member_epoch for r in broker.of(COMMIT)]
    assert (epochs[0], epochs[-1]) == (1, 2)
    assert consumer.group_metadata().generation == 2


def test_closing_gives_up_and_leaves(broker, coordinating, consumer):
    """Spec 1.10: epoch -1, after everything was given up."""
    consumer.subscribe(["t"])
    until(consumer, lambda: consumer.assignment() == {T0})
    report = consumer.close()
    assert report.left_group
    assert broker.of(HEARTBEAT)[-1].member_epoch == -1
