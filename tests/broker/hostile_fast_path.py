"""Hostile requests for the APIs that the broker's fast path serves (ADR 0014).

`hostile.py` hardly ever makes a request that is plain enough for the fast path. Here every request
is one that it takes. Most are then damaged: anywhere, or in the numbers of a batch, whose checksum
is put right again. Several come in one turn of the loop, some of them large and in memory of their
own.
"""

from __future__ import annotations

import random
import struct
from typing import Any

from kohort.records import Compression, crc32c
from kohort.wire import Message, encode_request
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from kohort.wire.messages.join_group_response import JoinGroupResponse
from kohort.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kohort.wire.messages.produce_request import ProduceRequest
from kohort.wire.messages.sync_group_request import SyncGroupRequest
from tests.broker.harness import WALL_MS, Harness, batch_of, produce_request
from tests.broker.hostile_batches import hostile_batch
from tests.wire.test_fuzz import mutated

CLASSIC, CONSUMER = "usual", "usual-848"
SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
LARGE = 17_000
"""A frame of so many bytes comes in memory that may be written to, as from a connection."""
CRC_AT, CRC_FROM, HEADER = 17, 21, 61
NUMBERS = {
    0: ">q",
    8: ">i",
    12: ">i",
    16: ">b",
    21: ">h",
    23: ">i",
    27: ">q",
    35: ">q",
    43: ">q",
    51: ">h",
    53: ">i",
    57: ">i",
}
"""The fields of a batch's header, by their place."""


def renumbered(batch: bytes, pick: random.Random) -> bytes:
    """A batch whose header or records say something else, and whose checksum agrees."""
    new = bytearray(batch)
    if pick.random() < 0.3 and len(batch) > HEADER:
        for _ in range(pick.choice((1, 5))):
            new[pick.randrange(HEADER, len(batch))] = pick.randrange(256)
    for _ in range(pick.choice((0, 1, 1, 2))):
        at = pick.choice(list(NUMBERS))
        bits = struct.calcsize(NUMBERS[at]) * 8
        most = 2 ** (bits - 1) - 1
        value = pick.choice((0, 1, -1, 2, 1 << (bits - 2), most, -most - 1))
        struct.pack_into(NUMBERS[at], new, at, value)
    struct.pack_into(">I", new, CRC_AT, crc32c(memoryview(new)[CRC_FROM:]))
    return bytes(new)


class Usual:
    """Makes such requests to a broker; its members come back when they were thrown out."""

    def __init__(self, harness: Harness, pick: random.Random) -> None:
        self._harness = harness
        self._pick = pick
        self._members: dict[str, tuple[str, int]] = {CLASSIC: ("", -1), CONSUMER: ("m", 0)}

    def join(self) -> None:
        """Have a member in a group of each protocol."""
        protocol = JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)
        join = JoinGroupRequest(
            group_id=CLASSIC,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=10,
            protocol_type="consumer",
            protocols=[protocol],
            member_id=self._members[CLASSIC][0],
        )
        answer = self._harness.send(join, 3)
        self._harness.env.advance(20)  # members that are gone are not waited for
        if answer.done:
            response = self._harness.read(answer, JoinGroupResponse, 3)
            self._members[CLASSIC] = response.member_id, response.generation_id
            sync = SyncGroupRequest(
                group_id=CLASSIC, generation_id=response.generation_id, member_id=response.member_id
            )
            self._harness.send(sync, 3)
        beat = ConsumerGroupHeartbeatRequest(
            group_id=CONSUMER,
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        joined = self._harness.ask(beat, ConsumerGroupHeartbeatResponse, 1)
        self._members[CONSUMER] = joined.member_id or "m", joined.member_epoch

    def frame(self, number: int, *, damaged: bool) -> tuple[bytes | bytearray, str]:
        """A request, and what it is."""
        pick = self._pick
        make = pick.choice((self._produce, self._produce, self._commit, self._beat, self._beat_848))
        message, version = make()
        frame = b"".join(encode_request(message, version, number, pick.choice(("c", "", "c" * 40))))
        name, data = f"{message.NAME} v{version}, usual", frame[4:]
        if damaged:
            what = pick.random()
            if isinstance(message, ProduceRequest) and what < 0.5:
                batch = bytes(message.topic_data[0].partition_data[0].records or b"")  # type: ignore[arg-type]
                data, name = data.replace(batch, renumbered(batch, pick)), f"{name}, renumbered"
            else:
                data, name = mutated(data, pick), f"{name}, damaged"
        return (bytearray(data) if len(data) > LARGE else data), name

    def _produce(self) -> tuple[ProduceRequest, int]:
        pick = self._pick
        version = pick.choice((9, 10, 11, 12, 13))
        size = pick.choice((0, 5, 100, 300)) if pick.random() < 0.97 else 30_000
        stamp: dict[str, Any] = {}
        if pick.random() < 0.3:
            stamp = {
                "producer_id": pick.choice((1, 2)),
                "producer_epoch": pick.choice((0, 0, 1)),
                "base_sequence": pick.choice((0, 1, 2, 2**31 - 1)),
            }
        now = WALL_MS + self._harness.env.clock_ms
        codec = pick.choice((Compression.NONE, Compression.NONE, Compression.LZ4))
        batch = batch_of([b"v" * size] * pick.randint(1, 4), now, compression=codec, **stamp)
        if pick.random() < 0.2:
            batch = hostile_batch(pick)
        request = produce_request(
            pick.choice(("t", "t", "t", "u", "absent")),
            batch,
            pick.choice((0, 0, 1)),
            acks=pick.choice((1, -1)),
        )
        if version >= 13:
            topic = self._harness.state.topics.get(request.topic_data[0].name)
            request.topic_data[0].name = ""
            request.topic_data[0].topic_id = bytes(range(16)) if topic is None else topic.topic_id
        return request, version

    def _epoch(self, group: str) -> int:
        return self._members[group][1] + self._pick.choice((0, 0, 0, 0, -1, 1, 1_000))

    def _commit(self) -> tuple[Message, int]:
        pick = self._pick
        version, group = pick.choice((6, 7, 8, 9, 9, 10)), pick.choice((CLASSIC, CONSUMER))
        if group == CONSUMER:
            version = max(version, 9)
        topic = OffsetCommitRequestTopic(name="t")
        if version >= 10:
            known = self._harness.state.topics.get("t")
            topic.name, topic.topic_id = "", bytes(16) if known is None else known.topic_id
        topic.partitions = [
            OffsetCommitRequestPartition(
                partition_index=pick.choice((0, 1, 0, 1, 2, -1, 2**31 - 1)),
                committed_offset=pick.choice((0, 7, 2**63 - 1, -1, -(2**63))),
                committed_leader_epoch=pick.choice((-1, 0, 2**31 - 1)),
                committed_metadata=pick.choice((None, "", "note", "x" * 5_000)),
            )
            for _ in range(pick.choice((1, 1, 2, 20)))
        ]
        request = OffsetCommitRequest(
            group_id=group,
            member_id=self._members[group][0],
            generation_id_or_member_epoch=self._epoch(group),
            topics=[topic],
        )
        return request, version

    def _beat(self) -> tuple[Message, int]:
        beat = HeartbeatRequest(
            group_id=CLASSIC,
            member_id=self._members[CLASSIC][0],
            generation_id=self._epoch(CLASSIC),
        )
        return beat, self._pick.randint(0, 4)

    def _beat_848(self) -> tuple[Message, int]:
        beat = ConsumerGroupHeartbeatRequest(
            group_id=CONSUMER,
            member_id=self._members[CONSUMER][0],
            member_epoch=self._epoch(CONSUMER),
        )
        return beat, self._pick.randint(0, 1)
