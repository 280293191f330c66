"""Requests on their way: what metadata forgets meanwhile does not make them senseless."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from kohort.client.cluster.metadata import ClusterMetadata, TopicMetadata
from kohort.client.common.config import ConsumerConfig
from kohort.client.common.types import OffsetAndMetadata, TopicPartition
from kohort.client.consumer.exchange import Exchange
from kohort.client.consumer.plan.commit_queue import CommitSend, Identity
from kohort.client.consumer.plan.fetch_planner import FetchOrder, FetchPart
from kohort.client.consumer.plan.offset_lookups import QuerySend
from kohort.client.consumer.plan.positions import Stamp
from kohort.errors import UnsupportedVersionError
from kohort.wire.messages.offset_commit_response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tests.known import fake

ID = bytes(range(16))


class Cluster:
    """Keeps what was asked."""

    def __init__(self) -> None:
        topic = TopicMetadata("orders", ID, False, MappingProxyType({}))
        self.metadata = ClusterMetadata(topics=MappingProxyType({"orders": topic}))
        self.asked: list[Any] = []
        self.loop = SimpleNamespace(now_ms=lambda: 0)

    def request(self, target, message, done, **how) -> None:
        self.asked.append((message, done))


@pytest.mark.parametrize("rack", ["", "east"])
def test_a_fetch_says_where_its_reader_is(rack: str) -> None:
    """KIP-392: without its rack in it, the leader cannot name the closest replica."""
    cluster = Cluster()
    exchange = Exchange(ConsumerConfig(client_rack=rack, local_reads=False), fake(cluster))
    exchange.answers = fake(Answers())
    part = FetchPart(TopicPartition("orders", 0), Stamp(1, 1), 7, 3, 100)
    exchange.fetch(FetchOrder(1, 1, 0, (part,), 1_000, 500))
    [(versioned, _)] = cluster.asked
    request = versioned.build(12)
    assert request.rack_id == rack
    asked = request.topics[0].partitions[0]
    assert (asked.fetch_offset, asked.current_leader_epoch) == (7, 3)


class Answers:
    """Keeps what was answered."""

    def __init__(self) -> None:
        self.codes: Any = None

    def commit_answered(self, token, answer) -> None:
        self.codes = answer


def test_a_commit_outlives_its_topic_in_metadata() -> None:
    """The last commit before `unsubscribe` goes out, and is answered, when nobody watches its topic
    any more: it still names the topic's id, and its answer is understood (O7).
    """
    cluster, answers = Cluster(), Answers()
    exchange = Exchange(ConsumerConfig(group_id="g"), fake(cluster))
    exchange.answers = fake(answers)
    tp = TopicPartition("orders", 0)
    exchange.commit(CommitSend(1, {tp: OffsetAndMetadata(7)}, Identity(1, "m")), coordinator=1)
    cluster.metadata = ClusterMetadata()
    [(versioned, done)] = cluster.asked
    request = versioned.build(10)
    assert request.topics[0].topic_id == ID
    part = OffsetCommitResponsePartition(partition_index=0, error_code=0)
    done(OffsetCommitResponse(topics=[OffsetCommitResponseTopic(topic_id=ID, partitions=[part])]))
    assert answers.codes == {tp: 0}


@pytest.mark.parametrize(("sentinel", "since"), [(-3, 7), (-4, 8), (-5, 9)])
def test_an_offset_by_a_name_that_the_broker_does_not_know_is_refused(
    sentinel: int, since: int
) -> None:
    """KIP-734: a broker before 3.0 takes -3 for a time, and answers with its first record."""
    cluster = Cluster()
    exchange = Exchange(ConsumerConfig(), fake(cluster))
    exchange.ask_offsets(QuerySend(1, 1, {TopicPartition("orders", 0): sentinel}))
    [(versioned, _)] = cluster.asked
    with pytest.raises(UnsupportedVersionError, match=f"needs {since}"):
        versioned.build(since - 1)
    assert versioned.build(since).topics[0].partitions[0].timestamp == sentinel
