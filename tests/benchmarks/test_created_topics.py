"""The benchmarks wait for the leaders of a topic, as Apache Kafka leads its partitions later."""

from __future__ import annotations

import pytest
from benchmarks.load import ask

from benchmarks import bench_broker
from kohort.errors import BrokerError
from kohort.testing import Cluster
from kohort.wire import decode_response
from kohort.wire.messages.produce_response import ProduceResponse


def address_of(cluster: Cluster) -> tuple[str, int]:
    host, _, port = cluster.bootstrap.rpartition(":")
    return host, int(port)


def test_a_partition_that_was_just_made_can_be_written() -> None:
    """`bench_brokers` ended in an AssertionError at the first NOT_LEADER_OR_FOLLOWER."""
    with Cluster() as cluster:
        not_yet = ["LEADER_NOT_AVAILABLE", "UNKNOWN_TOPIC_OR_PARTITION", "NOT_LEADER_OR_FOLLOWER"]
        fault = cluster.faults.fail(["ListOffsets", "Produce"], not_yet)
        bench_broker.create(address_of(cluster), "small", 3)
        assert fault.hits == len(not_yet)
        frame = bench_broker.produce_frame("small", 2, bench_broker.batch_of(200))
        answer = decode_response(ProduceResponse, 9, ask(address_of(cluster), frame))[1]
        assert answer.responses[0].partition_responses[0].error_code == 0


def test_it_does_not_wait_for_ever(monkeypatch) -> None:
    with Cluster() as cluster:
        cluster.create_topic("small")
        cluster.faults.fail("ListOffsets", "TOPIC_AUTHORIZATION_FAILED")
        with pytest.raises(BrokerError, match="the leaders of small"):
            bench_broker.await_leaders(address_of(cluster), "small", 1)
        monkeypatch.setattr(bench_broker, "LEADERS_WITHIN_S", 0.0)
        cluster.faults.fail("ListOffsets", ["NOT_LEADER_OR_FOLLOWER"] * 100)
        with pytest.raises(TimeoutError, match="small has no leaders"):
            bench_broker.await_leaders(address_of(cluster), "small", 1)
