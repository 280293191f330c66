"""Microseconds to decode and to encode one message, beside kio and kafka-python.

Shortest of several runs. Not one product: ours and kafka-python's give ints, kio's enums,
`timedelta` and `uuid.UUID`; ours gives records as views of the input, the others copy them. kio
reads by compiled Rust and writes in Python. A ratio above 1 means that ours is faster.
"""

from __future__ import annotations

import importlib
import io
import time
import warnings
from collections.abc import Callable
from typing import Any

from kio.serial import entity_reader, entity_writer

from kohort.wire import Message, decode, encode, message_class
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from kohort.wire.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from kohort.wire.messages.fetch_response import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from kohort.wire.messages.join_group_response import JoinGroupResponse, JoinGroupResponseMember
from kohort.wire.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from kohort.wire.messages.metadata_response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kohort.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kohort.wire.messages.offset_commit_response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kohort.wire.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kohort.wire.messages.produce_response import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from kohort.wire.messages.sync_group_request import SyncGroupRequest, SyncGroupRequestAssignment

RUNS = 7
SECONDS = 0.04
MEMBER = "consumer-1-6f1f3a2e-8d7c-4a53-9b0e-1f2d3c4b5a69"
TOPIC_ID = bytes(range(16))

KAFKA_PYTHON = {
    "Metadata": "metadata.metadata",
    "JoinGroup": "consumer.group",
    "SyncGroup": "consumer.group",
    "Heartbeat": "consumer.group",
    "OffsetCommit": "consumer.group",
    "Fetch": "consumer.fetch",
    "Produce": "producer.produce",
}


def metadata_response() -> MetadataResponse:
    def partition(n: int) -> MetadataResponsePartition:
        nodes = [1, 2, 3]
        return MetadataResponsePartition(
            partition_index=n,
            leader_id=1 + n % 3,
            leader_epoch=5,
            replica_nodes=nodes,
            isr_nodes=nodes,
        )

    topics = [
        MetadataResponseTopic(
            name=f"topic-{t}", topic_id=TOPIC_ID, partitions=[partition(n) for n in range(12)]
        )
        for t in range(20)
    ]
    brokers = [MetadataResponseBroker(node_id=n, host="127.0.0.1", port=9092) for n in (1, 2, 3)]
    return MetadataResponse(brokers=brokers, cluster_id="cluster", controller_id=1, topics=topics)


def group_messages() -> list[tuple[str, Message, int]]:
    protocols = [JoinGroupRequestProtocol(name=n, metadata=b"m" * 90) for n in ("range", "sticky")]
    join = JoinGroupRequest(
        group_id="group",
        session_timeout_ms=45000,
        rebalance_timeout_ms=300000,
        member_id=MEMBER,
        protocol_type="consumer",
        protocols=protocols,
    )
    members = [JoinGroupResponseMember(member_id=MEMBER, metadata=b"m" * 90) for _ in range(30)]
    joined = JoinGroupResponse(
        generation_id=4,
        protocol_type="consumer",
        protocol_name="range",
        leader=MEMBER,
        member_id=MEMBER,
        members=members,
    )
    assignments = [
        SyncGroupRequestAssignment(member_id=MEMBER, assignment=b"a" * 90) for _ in range(30)
    ]
    sync = SyncGroupRequest(
        group_id="group",
        generation_id=4,
        member_id=MEMBER,
        protocol_type="consumer",
        protocol_name="range",
        assignments=assignments,
    )
    beat = HeartbeatRequest(group_id="group", generation_id=4, member_id=MEMBER)
    return [
        ("JoinGroupRequest v9", join, 9),
        ("JoinGroupResponse v9 (30)", joined, 9),
        ("SyncGroupRequest v5 (30)", sync, 5),
        ("HeartbeatRequest v4", beat, 4),
        ("HeartbeatResponse v4", HeartbeatResponse(), 4),
        (
            "ConsumerGroupHeartbeatRequest v1",
            ConsumerGroupHeartbeatRequest(group_id="group", member_id=MEMBER, member_epoch=3),
            1,
        ),
    ]


def data_messages() -> list[tuple[str, Message, int]]:
    asked = [
        FetchPartition(partition=n, fetch_offset=1000 + n, partition_max_bytes=1 << 20)
        for n in range(50)
    ]
    fetched = [
        PartitionData(partition_index=n, high_watermark=99, records=b"r" * 8192) for n in range(50)
    ]
    commits = [
        OffsetCommitRequestPartition(partition_index=n, committed_offset=n, committed_metadata="")
        for n in range(50)
    ]
    committed = [OffsetCommitResponsePartition(partition_index=n) for n in range(50)]
    produced = [PartitionProduceData(records=b"r" * 16384)]
    stored = [PartitionProduceResponse(base_offset=1000)]
    return [
        (
            "FetchRequest v12 (50)",
            FetchRequest(topics=[FetchTopic(topic="topic", partitions=asked)]),
            12,
        ),
        (
            "FetchResponse v12 (50 x 8 KB)",
            FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=fetched)]),
            12,
        ),
        (
            "OffsetCommitRequest v9 (50)",
            OffsetCommitRequest(
                group_id="group",
                member_id=MEMBER,
                topics=[OffsetCommitRequestTopic(name="topic", partitions=commits)],
            ),
            9,
        ),
        (
            "OffsetCommitResponse v9 (50)",
            OffsetCommitResponse(
                topics=[OffsetCommitResponseTopic(name="topic", partitions=committed)]
            ),
            9,
        ),
        (
            "ProduceRequest v9 (16 KB)",
            ProduceRequest(
                acks=-1, topic_data=[TopicProduceData(name="topic", partition_data=produced)]
            ),
            9,
        ),
        (
            "ProduceResponse v9",
            ProduceResponse(
                responses=[TopicProduceResponse(name="topic", partition_responses=stored)]
            ),
            9,
        ),
    ]


def cases() -> list[tuple[str, Message, int]]:
    wanted = [MetadataRequestTopic(topic_id=TOPIC_ID, name=f"topic-{n}") for n in range(20)]
    return [
        ("MetadataRequest v12 (20)", MetadataRequest(topics=wanted), 12),
        ("MetadataResponse v12 (20 x 12)", metadata_response(), 12),
        *group_messages(),
        *data_messages(),
    ]


def micros(work: Callable[[], object]) -> float:
    """The shortest time of one call, in microseconds."""
    work()
    started = time.perf_counter()
    work()
    number = max(1, int(SECONDS / (time.perf_counter() - started + 1e-9)))
    best = float("inf")
    for _ in range(RUNS):
        started = time.perf_counter()
        for _ in range(number):
            work()
        best = min(best, time.perf_counter() - started)
    return best / number * 1e6


def of_kio(message: Message, version: int, data: bytes) -> tuple[float, float]:
    name = message.NAME
    kind = "Request" if name.endswith("Request") else "Response"
    package = message_class(name).__module__.rsplit(".", 1)[1].removesuffix(f"_{kind.lower()}")
    module = importlib.import_module(f"kio.schema.{package}.v{version}.{kind.lower()}")
    read, write = entity_reader(getattr(module, name)), entity_writer(getattr(module, name))
    entity, _ = read(data, 0)
    return micros(lambda: read(data, 0)), micros(lambda: write(io.BytesIO(), entity))


def of_kafka_python(message: Message, version: int, data: bytes) -> tuple[float, float] | None:
    place = KAFKA_PYTHON.get(message.NAME.removesuffix("Request").removesuffix("Response"))
    if place is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        cls: Any = getattr(importlib.import_module(f"kafka.protocol.{place}"), message.NAME)
    theirs = cls.decode(data, version=version)
    theirs._header = None
    reading = micros(lambda: cls.decode(data, version=version))
    return reading, micros(lambda: theirs.encode(version=version))


def main() -> None:
    head = ("decode", "kio", "k-py", "encode", "kio", "k-py")
    print(f"{'message':33}{'bytes':>8}" + "".join(f"{text:>9}" for text in head), end="")
    print("   ratios: decode kio k-py, encode kio k-py")
    for title, message, version in cases():
        data = encode(message, version)
        cls = message_class(message.NAME)
        reading = micros(lambda cls=cls, data=data, v=version: decode(cls, v, data))
        writing = micros(lambda m=message, v=version: encode(m, v))
        kio = of_kio(message, version, data)
        other = of_kafka_python(message, version, data)
        row = [reading, kio[0], other and other[0], writing, kio[1], other and other[1]]
        ratios = [row[1], row[2], row[4], row[5]]
        mine = [reading, reading, writing, writing]
        print(f"{title:33}{len(data):>8}", end="")
        print("".join("      n/a" if value is None else f"{value:9.2f}" for value in row), end="  ")
        for value, base in zip(ratios, mine, strict=True):
            print("    n/a" if value is None else f"{value / base:6.1f}x", end="")
        print()


if __name__ == "__main__":
    main()
