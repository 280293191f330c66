"""Produce requests on the fast path: the same bytes as on the slow path, and as durable."""

from __future__ import annotations

import errno
import random
from types import SimpleNamespace
from typing import Any

import pytest

from kohort.acl import ANYBODY, WILDCARD, Acl, Operation, Pattern, Permission, Resource
from kohort.broker.fast_path import fast_path as lane_module
from kohort.broker.fast_path.fast_path import FastPath
from kohort.broker.log import log as log_module
from kohort.broker.log.files import MemoryFiles
from kohort.broker.log.log import Appended
from kohort.broker.server.connection import ClientConnection
from kohort.broker.state.partition import Partition
from kohort.errors import ErrorCode
from kohort.records import Compression
from kohort.wire import Message, decode_response, encode_request
from kohort.wire.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kohort.wire.messages.list_offsets_response import ListOffsetsResponse
from kohort.wire.messages.metadata_request import MetadataRequest
from kohort.wire.messages.produce_request import ProduceRequest
from kohort.wire.messages.produce_response import PartitionProduceResponse, ProduceResponse
from kohort.wire.messages.sasl_authenticate_request import SaslAuthenticateRequest
from kohort.wire.messages.sasl_handshake_request import SaslHandshakeRequest
from tests.broker.harness import WALL_MS, FakeEnv, Harness, batch_of, produce_request
from tests.broker.hostile import Line
from tests.broker.hostile_fast_path import renumbered
from tests.broker.shadow_files import Crash, ShadowFiles
from tests.known import fake
from tests.wire.test_fuzz import mutated

pytestmark = pytest.mark.skipif(lane_module.FAST_PATH != "cython", reason="there is no fast path")

CONFIG: dict[str, Any] = {
    "durability": "fsync",
    "log_segment_bytes": 3_000,
    "log_index_interval_bytes": 200,
}
OWN_MEMORY = 17_000
"""Frames of so many bytes come in memory that may be written to, as from a connection."""
TOPICS: dict[str, dict[str, str]] = {
    "t": {},
    "u": {"cleanup.policy": "compact"},
    "s": {"max.message.bytes": "300"},
    "a": {"message.timestamp.type": "LogAppendTime"},
    "n": {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "1000"},
}


class Served:
    """A node and some connections to it."""

    def __init__(self, harness: Harness, connections: int, *, on_fast_path: bool = True) -> None:
        self.harness = harness
        end: Any = SimpleNamespace(
            node=harness.node, gate=None, peers=set(), left=lambda peer: None
        )
        self.lines: list[Any] = [Line(None) for _ in range(connections)]  # type: ignore[arg-type]
        self.peers = [ClientConnection(end, line) for line in self.lines]
        for peer, line in zip(self.peers, self.lines, strict=True):
            peer.connected(line)
            if not on_fast_path:
                peer._take = fake(None)

    def turn(self, frames: list[tuple[int, bytes]]) -> None:
        """What one turn of the loop brings."""
        for at, frame in frames:
            if not self.lines[at].is_closed:
                memory = frame if len(frame) < OWN_MEMORY else bytearray(frame)
                self.peers[at].frame_received(self.lines[at], memoryview(memory))
        self.harness.env.settle()

    def produced(self, at: int = 0, version: int = 11) -> list[PartitionProduceResponse]:
        """The answers on a connection, to Produce requests of one partition."""
        return [
            decode_response(ProduceResponse, version, sent[4:])[1]
            .responses[0]
            .partition_responses[0]
            for sent in self.lines[at].sent
        ]


def frame_of(message: Message, version: int, correlation_id: int = 1) -> bytes:
    return b"".join(encode_request(message, version, correlation_id, "tester"))[4:]


def served(connections: int = 1, *, on_fast_path: bool = True, **config: Any) -> Served:
    harness = Harness(MemoryFiles(), **{**CONFIG, **config})
    for name, settings in TOPICS.items():
        harness.state.topics.create(name, 3, settings)  # the third has no log yet
    both = Served(harness, connections, on_fast_path=on_fast_path)
    both.turn(
        [
            (0, frame_of(produce_request(name, batch_of([b"0"]), p), 11))
            for name in TOPICS
            for p in (0, 1)
        ]
    )
    for line in both.lines:
        line.sent.clear()
    return both


class Client:
    """Random requests, many of them as they should not be."""

    def __init__(self, seed: int, ids: dict[str, bytes], sizes: tuple[int, ...]) -> None:
        self.pick = random.Random(seed)
        self.sizes = sizes
        self.ids = ids
        self.sequences = dict.fromkeys(((i, p) for i in range(3) for p in (0, 1)), 0)
        self.sent = 0

    def frame(self) -> bytes:
        pick = self.pick
        self.sent += 1
        if pick.random() < 0.1:
            return frame_of(self.other(), 8 if pick.random() < 0.1 else 7, self.sent)
        version = pick.choice((8, 9, 10, 11, 12, 13, 13))
        frame = frame_of(self.produce(version), version, self.sent)
        return mutated(frame, pick) if pick.random() < 0.05 else frame

    def other(self) -> Message:
        if self.pick.random() < 0.5:
            return MetadataRequest(topics=None)
        part = ListOffsetsPartition(partition_index=0, timestamp=-1)
        return ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[part])])

    def produce(self, version: int) -> ProduceRequest:
        pick = self.pick
        topic = pick.choice(("t", "t", "t", "u", "s", "a", "n", "absent", "__consumer_offsets"))
        partition = pick.choice((0, 0, 1, 0, 0, 2, 3, -1))
        values = [b"x" * pick.choice(self.sizes) for _ in range(pick.choice((1, 1, 3)))]
        stamp: dict[str, Any] = {}
        if pick.random() < 0.4:
            producer = pick.randrange(3)
            key = (producer, partition)
            at = self.sequences.get(key, 0)
            at += pick.choice((0, 0, 0, 0, -len(values), 1))
            stamp = {"producer_id": producer, "producer_epoch": 0, "base_sequence": max(at, 0)}
            self.sequences[key] = max(at, 0) + len(values)
            stamp["transactional"] = pick.random() < 0.05
        batch = batch_of(
            values,
            WALL_MS + 1_000_000 + pick.choice((0, 0, 7, -5_000, 5_000)),
            compression=pick.choice((Compression.NONE, Compression.NONE, Compression.LZ4)),
            keys=[*[b"k"] * len(values)] if pick.random() < 0.5 else None,
            **stamp,
        )
        if pick.random() < 0.1:
            batch = renumbered(batch, pick)
        request = produce_request(topic, batch, partition, acks=pick.choice((1, -1, -1, 0, 2)))
        if version >= 13:
            request.topic_data[0].name = ""
            request.topic_data[0].topic_id = self.ids.get(topic, bytes(range(16)))
        if pick.random() < 0.05:
            request.topic_data *= 2
        return request


def state(one: Served) -> dict[str, bytes | None]:
    """Every file of the data directory."""
    files = one.harness.files
    assert isinstance(files, MemoryFiles)
    names = [f"{d}/{f}" for d in files.list("") for f in files.list(d)]
    return {name: files.read_all(name) for name in names}


@pytest.mark.rows(1)
@pytest.mark.parametrize("block", range(6))
def test_the_lane_and_the_general_way_do_the_same(block: int) -> None:
    """Where rights are asked for, too."""
    for seed in range(block * 5, block * 5 + 5):
        large = seed % 5 == 4
        config: dict[str, Any] = {"log_segment_bytes": 400_000} if large else {}
        config |= {"acls": True, "allow_everyone_if_no_acl_found": True} if seed % 2 else {}
        quick, plain = served(4, **config), served(4, on_fast_path=False, **config)
        for one in (quick, plain) if seed % 2 else ():
            denied = (acl(name, Operation.WRITE, Permission.DENY) for name in ("s", "n", "absent"))
            one.harness.state.acls.change(add=denied)
        topics = quick.harness.state.topics
        ids = {topic.name: topic.topic_id for topic in topics}
        client = Client(seed, ids, (0, 400, 16_300, 40_000) if large else (0, 5, 100, 400))
        for _ in range(15 if large else 40):
            frames = [(client.pick.randrange(4), client.frame()) for _ in range(20)]
            hold = client.pick.random() < 0.3
            for one in (quick, plain):
                one.harness.env.hold_flushes = hold
                one.turn(frames)
                one.harness.env.hold_flushes = False
                one.harness.env.run_flushes()
                one.harness.env.settle()
            for ours, theirs in zip(quick.lines, plain.lines, strict=True):
                assert ours.sent == theirs.sent, seed
                assert (ours.is_closed, ours.reading) == (theirs.is_closed, theirs.reading)
                ours.sent.clear(), theirs.sent.clear()
            if any(line.is_closed for line in quick.lines):
                quick = Served(quick.harness, 4)
                plain = Served(plain.harness, 4, on_fast_path=False)
                assert not quick.harness.node.fast_path.waiting
        for one in (quick, plain):
            one.harness.state.close()
        assert state(quick) == state(plain), "logs, indexes and snapshots"


def test_usual_requests_are_taken_and_share_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    one = served(8)
    partition = one.harness.state.topics.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    writes: list[int] = []
    append = partition.log.append_run

    def counted(run: Any, now_ms: int) -> Appended | None:
        writes.append(len(run))
        return append(run, now_ms)

    monkeypatch.setattr(partition.log, "append_run", counted)
    for version in range(9, 14):
        request = produce_request("t", batch_of([b"v"]))
        if version == 13:
            request.topic_data[0].topic_id = partition.topic.topic_id
            request.topic_data[0].name = ""
        one.turn([(at, frame_of(request, version)) for at in range(8)])
    assert writes == [8] * 5
    assert all(len(line.sent) == 5 for line in one.lines)


def test_the_first_records_of_partitions_are_taken_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new log is made for them, under the leader epoch of then; only what it cannot have goes the
    general way, and where it cannot be made they are told so."""
    stamp: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    one = served(durability="os")
    topic = one.harness.state.topics.create("new", 6, {})
    monkeypatch.setattr(
        ClientConnection, "take_slow_path", lambda self, entry: pytest.fail("it left the fast path")
    )
    frames = [
        frame_of(produce_request("new", batch_of([b"v"], **(stamp if p % 2 else {})), p), 11)
        for p in range(4)
    ]
    one.turn([(0, frame) for frame in frames])
    assert [(a.error_code, a.base_offset) for a in one.produced()] == [(0, 0)] * 4
    assert [p.log is not None for p in topic.partitions] == [True] * 4 + [False] * 2
    assert [topic.partitions[p].epoch_at(0) for p in range(4)] == [0] * 4

    def full(partition: Partition) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(one.harness.state, "open_log", full)
    one.lines[0].sent.clear()
    for p in (4, 5):
        batch = batch_of([b"v"], **(stamp if p % 2 else {}))
        one.turn([(0, frame_of(produce_request("new", batch, p), 11))])
    codes = [answer.error_code for answer in one.produced()]
    assert codes == [ErrorCode.KAFKA_STORAGE_ERROR] * 2


def test_a_batch_that_comes_twice_in_a_turn_is_stored_once() -> None:
    """KIP-98: the second is checked against the first, though both wait for one write."""
    one = served(2)
    stamp: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    frame = frame_of(produce_request("t", batch_of([b"v"], **stamp)), 11)
    one.turn([(0, frame), (1, frame)])
    assert [one.produced(at)[0].base_offset for at in (0, 1)] == [1, 1]
    assert one.harness.read_all("t") == [(0, b"0"), (1, b"v")]


def test_a_large_batch_is_written_from_where_it_came() -> None:
    """Between small ones, in their order, without a copy, and its frame is let go then."""
    one = served(log_segment_bytes=1 << 20)
    partition = one.harness.state.topics.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    file: Any = partition.log.active.file
    written: list[Any] = []
    append = file.append

    def seen(buffers: list[Any]) -> None:
        written.extend(buffers)
        append(buffers)

    file.append = seen
    one.harness.env.hold_flushes = True
    small, large = (produce_request("t", batch_of([bytes(size)])) for size in (10, 50_000))
    frames = [bytearray(frame_of(m, 11)) for m in (small, large, large, small, small)]
    for frame in frames:
        one.peers[0].frame_received(one.lines[0], memoryview(frame))
    one.harness.env.settle()
    sizes = [len(batch_of([bytes(size)])) for size in (10, 50_000)]
    assert [len(piece) for piece in written] == [sizes[0], sizes[1], sizes[1], 2 * sizes[0]]
    assert all(p.obj is f for p, f in zip(written[1:3], frames[1:3], strict=True))
    with pytest.raises(BufferError):
        frames[1].append(0)  # while it is written
    written.clear()
    frames[1].append(0)  # nobody holds it, although nobody has been answered yet
    assert not one.lines[0].sent
    one.harness.env.run_flushes()
    assert [a.base_offset for a in one.produced()] == [1, 2, 3, 4, 5]
    stored = one.harness.read_all("t")
    assert [(offset, len(value)) for offset, value in stored][1:4] == [
        (1, 10),
        (2, 50_000),
        (3, 50_000),
    ]


def guarded(**config: Any) -> Served:
    """A node that asks who clients are, or what they may, and is asked to store a record."""
    one = Served(Harness(MemoryFiles(), **CONFIG, **config), 1)
    one.harness.state.topics.create("t", 1, {})
    store(one)
    return one


def store(one: Served) -> None:
    one.turn([(0, frame_of(produce_request("t", batch_of([b"x" * 100])), 11))])


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the fast path was given."""
    found: list[Any] = []
    add = FastPath.add

    def seen(self: FastPath, entry: Any) -> None:
        found.append(entry)
        add(self, entry)

    monkeypatch.setattr(FastPath, "add", seen)
    return found


def acl(name: str, operation: Operation, permission: Permission, principal: str = ANYBODY) -> Acl:
    return Acl(Resource.TOPIC, name, Pattern.LITERAL, principal, WILDCARD, operation, permission)


def test_the_lane_serves_who_may_write(taken: list[Any]) -> None:
    """Issue 5, ACLs enforced: as entries come and go."""
    one = guarded(acls=True)
    assert [a.error_code for a in one.produced()] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    allowed = acl("t", Operation.WRITE, Permission.ALLOW)
    one.harness.state.acls.change(add=[allowed])
    store(one)
    assert len(taken) == 1
    one.harness.state.acls.change(remove=[allowed])
    store(one)
    store(one)
    codes = [a.error_code for a in one.produced()]
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert codes == [refused, 0, refused, refused]
    assert len(taken) == 1


def test_the_lane_asks_who_it_is(taken: list[Any]) -> None:
    """Issue 5, ACLs enforced: entries name principals and hosts."""
    one = guarded(acls=True)
    entry = acl("t", Operation.WRITE, Permission.ALLOW, "User:ann")
    one.harness.state.acls.change(add=[entry._replace(host="10.0.0.1")])
    for principal, address in (("User:ann", "127.0.0.1"), ("User:bob", "10.0.0.1")):
        one.peers[0].principal, one.peers[0].address = principal, address
        store(one)
    assert not taken
    one.peers[0].principal = "User:ann"
    store(one)
    assert len(taken) == 1


def log_in(one: Served) -> None:
    shake = frame_of(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    one.turn([(0, shake), (0, frame_of(SaslAuthenticateRequest(auth_bytes=b"\0ann\0secret"), 2))])


def test_the_lane_serves_who_has_logged_in(taken: list[Any]) -> None:
    """Issue 5, nothing before a login; KIP-368: nothing in the middle of one, or after its time."""
    sasl: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_users": ("ann:secret",)}
    one = guarded(**sasl)
    assert one.lines[0].is_closed
    assert not one.lines[0].sent
    again = Served(one.harness, 1)
    log_in(again)
    store(again)
    assert len(taken) == 1
    assert again.peers[0].principal == "User:ann"
    again.turn([(0, frame_of(SaslHandshakeRequest(mechanism="PLAIN"), 1))])
    store(again)
    assert again.lines[0].is_closed
    for late in (False, True):
        harness = Harness(MemoryFiles(), **CONFIG, **sasl, connections_max_reauth_ms=1_000)
        harness.state.topics.create("t", 1, {})
        one = Served(harness, 1)
        log_in(one)
        harness.env.advance(1_000 if late else 999)
        taken.clear()
        store(one)
        assert len(taken) == (not late)
        assert one.lines[0].is_closed == late


def test_a_turn_that_brings_much_is_written_in_pieces() -> None:
    """What waits is bounded, and all of it is answered."""
    for durability in ("memory", "fsync"):
        one = served(durability=durability, log_segment_bytes=1 << 30)
        produce, large = (
            frame_of(produce_request("t", batch_of([bytes(size)])), 11)
            for size in (16_000, 300_000)
        )
        one.turn([(0, produce)] * 200 + [(0, large)] * 10)
        assert [a.base_offset for a in one.produced()] == list(range(1, 211))


def test_a_request_behind_a_small_one_sees_what_that_did() -> None:
    """The fast path holds nothing back from what comes after it, on any connection."""
    one = served(2, durability="memory")
    part = ListOffsetsPartition(partition_index=0, timestamp=-1)
    asked = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[part])])
    produce = frame_of(produce_request("t", batch_of([b"v"])), 11)
    one.turn([(0, produce), (0, produce), (1, frame_of(asked, 7))])
    answer = decode_response(ListOffsetsResponse, 7, one.lines[1].sent[0][4:])[1]
    assert answer.topics[0].partitions[0].offset == 3


def test_nobody_is_answered_before_the_flush_and_all_hear_that_it_failed() -> None:
    """L1, L9: one flush for all of a turn; when it fails the partition is offline."""
    one = served(3)
    env = one.harness.env
    env.hold_flushes = True
    produce = frame_of(produce_request("t", batch_of([b"v"])), 11)
    one.turn([(at, produce) for at in (0, 1, 2)])
    assert [line.sent for line in one.lines] == [[], [], []]
    assert len(env.flushes) == 1
    env.flush_error = OSError(errno.EIO, "no")
    env.run_flushes()
    for at in range(3):
        [answer] = one.produced(at)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    env.flush_error, env.hold_flushes = None, False
    one.turn([(0, produce)])
    assert one.produced()[-1].error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_write_that_fails_leaves_nothing_behind() -> None:
    """L8: nothing changes before the write has succeeded, and half of it is cut off."""
    disk = ShadowFiles(random.Random(1))
    harness = Harness(disk, **{**CONFIG, "log_segment_bytes": 1 << 20})
    harness.create("t")
    harness.produce("t", batch_of([b"0"]))
    one = Served(harness, 2)
    partition = harness.state.topics.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    file: Any = partition.log.active.file
    size, append = file.size, file.append

    def half(buffers: list[Any]) -> None:
        append([bytes(b"".join(buffers))[:70]])
        raise OSError(errno.ENOSPC, "full")

    file.append = half
    produce = frame_of(produce_request("t", batch_of([b"v"])), 11)
    one.turn([(0, produce), (1, produce)])
    for at in (0, 1):
        assert one.produced(at)[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (file.size, partition.log.end.offset) == (size, 1)
    file.append = append
    one.turn([(0, produce), (1, produce)])
    assert [one.produced(at)[1].base_offset for at in (0, 1)] == [1, 2]


def test_a_partition_that_another_node_leads_is_left_to_it() -> None:
    """Whoever leads it when what waits is appended: the first of a turn may come before a move."""
    one = served(nodes=2)
    nodes = one.harness.nodes
    me, other = (
        one.harness.node.node_id,
        next(n.node_id for n in nodes if n is not one.harness.node),
    )
    nodes.leaders.move("t", 0, me)
    produce = frame_of(produce_request("t", batch_of([b"v"])), 11)
    one.turn([(0, produce)])
    one.peers[0].frame_received(one.lines[0], memoryview(produce))
    nodes.leaders.move("t", 0, other)
    one.turn([(0, produce)])
    refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [a.error_code for a in one.produced()] == [0, refused, refused]


def test_batches_carry_the_epoch_of_their_leader() -> None:
    """KIP-101: clients see by it where a log was cut; the fast path stamps it, too."""
    one = served(nodes=2)
    nodes, partition = one.harness.nodes, one.harness.state.topics.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    me = one.harness.node.node_id
    other = next(n.node_id for n in nodes if n.node_id != me)
    produce = frame_of(produce_request("t", batch_of([b"v"])), 11)
    for _ in range(3):
        nodes.leaders.move("t", 0, other)
        nodes.leaders.move("t", 0, me)
        one.turn([(0, produce)] * 3)
    epochs = [header.partition_leader_epoch for header, _ in partition.log.batches()]
    assert epochs[-9:] == [e for e in sorted(set(epochs))[-3:] for _ in range(3)]
    assert epochs[-1] == partition.leader_epoch >= 4


@pytest.mark.parametrize("on_fast_path", [True, False], ids=["fast", "slow"])
def test_a_connection_has_so_many_requests_under_way_and_no_more(on_fast_path: bool) -> None:
    """Limits on everything that grows (issue D)."""
    one = served(max_requests_in_flight=3, on_fast_path=on_fast_path)
    env = one.harness.env
    env.hold_flushes = True
    produce = frame_of(produce_request("t", batch_of([b"v"])), 11)
    one.turn([(0, produce)] * 2)
    assert one.lines[0].reading
    one.turn([(0, produce)])
    assert not one.lines[0].reading
    env.run_flushes()
    assert one.lines[0].reading
    assert len(one.produced()) == 3


def test_more_offsets_than_a_segment_may_have_do_not_share_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Offsets of an index are of four bytes: what one turn brings may not go beyond, in a new
    segment either."""
    monkeypatch.setattr(log_module, "_MAX_DELTA", 7)
    files: list[Any] = []
    for on_fast_path in (True, False):
        one = served(on_fast_path=on_fast_path)
        partition = one.harness.state.topics.partition("t", 0)
        assert partition is not None
        assert partition.log is not None
        partition.log.roll()
        batch = batch_of([b"x"] * 3, compression=Compression.LZ4)
        one.turn([(0, frame_of(produce_request("t", batch), 11))] * 9)
        assert [a.base_offset for a in one.produced()] == [1 + n * 3 for n in range(9)]
        assert [s.base_offset for s in partition.log.segments] == [0, 1, 7, 13, 19, 25]
        one.harness.state.close()
        files.append(state(one))
    assert files[0] == files[1]


def history(seed: int) -> tuple[int, int]:
    """Cut the power under some turns; how many were acknowledged, and how many are there."""
    rng = random.Random(seed)
    disk = ShadowFiles(rng)
    harness = Harness(disk, FakeEnv(), **CONFIG)
    harness.create("t")
    harness.produce("t", batch_of([b"0"]))
    one = Served(harness, 5)
    disk.fail_at = disk.calls + rng.randrange(1, 30)
    try:
        for turn in range(12):
            harness.env.hold_flushes = rng.random() < 0.4
            produce = frame_of(
                produce_request("t", batch_of([b"%d" % turn * rng.choice((1, 50, 9_000))])), 9
            )
            one.turn([(rng.randrange(5), produce) for _ in range(rng.randrange(1, 9))])
            if not harness.env.hold_flushes:
                harness.env.run_flushes()
    except Crash:
        pass
    acked = 1 + sum(len(line.sent) for line in one.lines)
    again = Harness(disk.after_crash(), FakeEnv(), **CONFIG)
    found = again.read_all("t")
    assert [offset for offset, _ in found] == list(range(len(found)))
    return acked, len(found)


def test_a_power_cut_loses_nothing_that_the_lane_acknowledged() -> None:
    """L1, L2, L7."""
    for seed in range(150):
        acked, found = history(seed)
        assert acked <= found, seed


def test_that_test_finds_answers_that_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted defect: acknowledged when written."""

    def at_once(self: Partition, appended: Appended, done: Any) -> None:
        self._safe(appended, done, None)

    monkeypatch.setattr(Partition, "_await", at_once)
    assert any(acked > found for acked, found in map(history, range(150)))


def test_the_comparison_finds_a_lane_that_reorders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted defect: what waits is not appended before other requests are served."""
    one = served(2, durability="memory")
    monkeypatch.setattr(FastPath, "run", lambda self: None)
    part = ListOffsetsPartition(partition_index=0, timestamp=-1)
    asked = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[part])])
    produce = frame_of(produce_request("t", batch_of([b"v"])), 11)
    one.turn([(0, produce), (1, frame_of(asked, 7))])
    answer = decode_response(ListOffsetsResponse, 7, one.lines[1].sent[0][4:])[1]
    assert answer.topics[0].partitions[0].offset == 1
