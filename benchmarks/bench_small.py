"""How many small requests the broker answers on a core: `python -m benchmarks.bench_small`.

ApiVersions, heartbeats of both group protocols, commits of one offset and produces of one record,
over 64 connections with one request under way, and over 8 with 32; the best of three runs of each.
The broker is one process of one thread; CPU-s/M are the CPU seconds that it takes for a million
requests, and what a core of its own would do by that. Durability is `os` (what is to be stored is
written to the file before it is answered), and `fsync` where that is said.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from itertools import count

from benchmarks.bench_broker import create
from benchmarks.load import Rate, Served, ask, broker, drive, frame_of
from kohort.group.assignors.protocol import encode_subscription
from kohort.records import BatchBuilder
from kohort.wire import Message, decode_response
from kohort.wire.messages.api_versions_request import ApiVersionsRequest
from kohort.wire.messages.api_versions_response import ApiVersionsResponse
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from kohort.wire.messages.join_group_response import JoinGroupResponse
from kohort.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kohort.wire.messages.offset_commit_response import OffsetCommitResponse
from kohort.wire.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kohort.wire.messages.produce_response import ProduceResponse
from kohort.wire.messages.sync_group_request import SyncGroupRequest
from kohort.wire.messages.sync_group_response import SyncGroupResponse

Case = tuple[str, Callable[[Served], bytes], Callable[[bytes], object]]
"""A name, what makes a frame of it (each of a group of its own), and a look at an answer."""

ROUNDS = 3
_numbers = count()


def good(kind: type[Message], version: int) -> Callable[[bytes], None]:
    """A check that an answer says no error."""

    def check(answer: bytes) -> None:
        message = decode_response(kind, version, answer)[1]
        codes = [getattr(message, "error_code", 0)]
        for topic in getattr(message, "topics", ()):
            codes += [partition.error_code for partition in topic.partitions]
        assert not any(codes), message

    return check


def api_versions(served: Served) -> bytes:
    return frame_of(ApiVersionsRequest(), 0)


def member(served: Served) -> tuple[str, str, int]:
    """A classic group of one stable member: its group, its id, its generation."""
    group = f"small-{next(_numbers)}"
    metadata = encode_subscription(["small"], None, {}, -1, None)
    join = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )
    joined = decode_response(JoinGroupResponse, 3, ask(served.address, frame_of(join, 3)))[1]
    assert joined.error_code == 0, joined
    sync = SyncGroupRequest(
        group_id=group, generation_id=joined.generation_id, member_id=joined.member_id
    )
    synced = decode_response(SyncGroupResponse, 3, ask(served.address, frame_of(sync, 3)))[1]
    assert synced.error_code == 0, synced
    return group, joined.member_id, joined.generation_id


def heartbeat(served: Served) -> bytes:
    group, member_id, generation = member(served)
    beat = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id)
    return frame_of(beat, 4)


def consumer_heartbeat(served: Served) -> bytes:
    group, member_id = f"small-{next(_numbers)}", f"member-{next(_numbers)}-of-the-consumer-group"
    join = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=["small"],
        topic_partitions=[],
    )
    answer = ask(served.address, frame_of(join, 1))
    joined = decode_response(ConsumerGroupHeartbeatResponse, 1, answer)[1]
    assert joined.error_code == 0, joined
    beat = ConsumerGroupHeartbeatRequest(
        group_id=group, member_id=member_id, member_epoch=joined.member_epoch
    )
    return frame_of(beat, 1)


def commit(served: Served) -> bytes:
    part = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=12_345, committed_metadata=""
    )
    topics = [OffsetCommitRequestTopic(name="small", partitions=[part])]
    group, member_id, generation = member(served)
    request = OffsetCommitRequest(
        group_id=group, member_id=member_id, generation_id_or_member_epoch=generation, topics=topics
    )
    return frame_of(request, 8)


def produce(served: Served) -> bytes:
    builder = BatchBuilder()
    builder.append(int(time.time() * 1000), None, bytes(100))
    part = PartitionProduceData(index=0, records=builder.build())
    topics = [TopicProduceData(name="small", partition_data=[part])]
    return frame_of(ProduceRequest(acks=1, timeout_ms=10_000, topic_data=topics), 9)


def produced(answer: bytes) -> None:
    message = decode_response(ProduceResponse, 9, answer)[1]
    assert not message.responses[0].partition_responses[0].error_code, message


CASES: list[Case] = [
    ("ApiVersions v0", api_versions, good(ApiVersionsResponse, 0)),
    ("Heartbeat v4", heartbeat, good(HeartbeatResponse, 4)),
    ("ConsumerGroupHeartbeat v1", consumer_heartbeat, good(ConsumerGroupHeartbeatResponse, 1)),
    ("OffsetCommit v8", commit, good(OffsetCommitResponse, 8)),
    ("Produce v9", produce, produced),
]


def best(served: Served, case: Case, connections: int, depth: int, seconds: float) -> Rate:
    """The run with the least CPU time for a request."""
    _, make, check = case
    frames = [make(served) for _ in range(connections)]
    runs = [drive(served, frames, seconds, depth, check) for _ in range(ROUNDS)]
    return min(runs, key=lambda run: run.server_us)


def run(durability: str, cases: list[Case], seconds: float) -> None:
    """All cases on one broker."""
    with (
        tempfile.TemporaryDirectory(prefix="kohort-bench-") as directory,
        broker(durability=durability, data_dir=directory) as served,
    ):
        create(served.address, "small", 1)
        for case in cases:
            for connections, depth in ((64, 1), (8, 32)):
                name = f"{case[0]}, {durability}, {connections} x {depth}"
                print(f"{name:<42}{best(served, case, connections, depth, seconds)}", flush=True)


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each of the three runs")
    parser.add_argument("--only", default="", help="cases whose name begins so")
    args = parser.parse_args()
    chosen = [case for case in CASES if case[0].startswith(args.only)]
    run("os", chosen, args.seconds)
    run("fsync", [case for case in chosen if case[1] in (commit, produce)], args.seconds)


if __name__ == "__main__":
    main()
