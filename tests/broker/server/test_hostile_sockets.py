"""Hostile clients over real sockets: slow, greedy, many, deaf; others are served all the while."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from kohort import Admin, Consumer, NewTopic, Producer
from kohort.errors import BrokerError, ErrorCode
from kohort.records import Compression
from kohort.wire import decode_response, encode_request
from kohort.wire.messages.metadata_request import MetadataRequest
from kohort.wire.messages.produce_response import ProduceResponse
from tests.broker.harness import batch_of, produce_request
from tests.broker.hostile import most_memory
from tests.broker.server.test_server import Wire
from tests.clusters import Embedded as Cluster
from tests.patience import PATIENCE_S

MAX_CONNECTIONS = 20
IDLE_MS = 300


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(max_connections=MAX_CONNECTIONS) as made:
        made.create_topic("t", 1)
        yield made


@pytest.fixture
def impatient() -> Iterator[Cluster]:
    """It closes whoever is silent; who is not meant to be closed must not meet it."""
    with Cluster(max_connections=MAX_CONNECTIONS, connections_max_idle_ms=IDLE_MS) as made:
        made.create_topic("t", 1)
        yield made


def raw(cluster: Cluster) -> socket.socket:
    host, _, port = cluster.bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def flood(connection: socket.socket, data: bytes, most: int) -> None:
    """Send it again and again."""
    for _ in range(-(-most // len(data))):
        connection.sendall(data)


def prove_served(cluster: Cluster) -> None:
    with (
        Producer(bootstrap_servers=cluster.bootstrap) as producer,
        Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        sent = producer.send("t", b"honest").result(PATIENCE_S)
        consumer.assign([("t", sent.partition)])
        consumer.seek(("t", sent.partition), sent.offset)
        records = []
        while not records:
            records = consumer.poll(PATIENCE_S)
        assert records[0].value == b"honest"


def test_who_never_finishes_a_request_is_closed_and_holds_nobody_up(impatient: Cluster) -> None:
    """Slow loris: half a size, half a frame, and nothing more."""
    with ExitStack() as stack:
        slow = [stack.enter_context(raw(impatient)) for _ in range(MAX_CONNECTIONS // 2)]
        for number, connection in enumerate(slow):
            with suppress(ConnectionError):  # so slow that it is closed already
                connection.sendall((b"\x00\x00\x00\x40" + b"\x00" * 20)[: 1 + number * 2])
        prove_served(impatient)
        for connection in slow:
            with suppress(ConnectionError):
                assert connection.recv(1) == b""


def test_more_connections_than_allowed_are_closed_and_the_others_stay(cluster: Cluster) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(Wire(cluster.bootstrap)) for _ in range(MAX_CONNECTIONS)]
        held[0].send(MetadataRequest(topics=[]), 9)
        assert held[0].receive()
        refused = stack.enter_context(raw(cluster))
        assert refused.recv(1) == b""
        held[1].send(MetadataRequest(topics=[]), 9)
        assert held[1].receive()
    prove_served(cluster)


@pytest.mark.extended
def test_who_never_reads_is_read_from_no_more(cluster: Cluster) -> None:
    """Answers that nobody takes are bounded; the rest of the requests waits in the sockets."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("wide", 500)])
    request = b"".join(encode_request(MetadataRequest(topics=None), 9, 1, "deaf"))
    before = most_memory()
    with raw(cluster) as deaf:
        deaf.settimeout(1.0)
        with pytest.raises(TimeoutError):
            flood(deaf, request * 1_000, 64 << 20)
        prove_served(cluster)
    grown = most_memory() - before
    assert grown < 256 << 20


@pytest.mark.parametrize("size", [2**31 - 1, -1, -(2**31), 101 << 20])
def test_a_frame_of_an_impossible_size_ends_its_connection(cluster: Cluster, size: int) -> None:
    with raw(cluster) as greedy:
        greedy.sendall(size.to_bytes(4, "big", signed=True) + b"\x00" * 100)
        assert greedy.recv(1) == b""
    prove_served(cluster)


def test_requests_that_are_never_finished_hold_a_bounded_memory() -> None:
    """Each is of a size that is allowed; all together are not. Who began first is closed, and
    others are served, with large requests too."""
    half = (9 << 20).to_bytes(4, "big") + bytes.fromhex("0000000b00000001ffff") + bytes(6 << 20)
    with (
        Cluster(socket_request_max_bytes=10 << 20, queued_max_request_bytes=40 << 20) as cluster,
        ExitStack() as stack,
    ):
        cluster.create_topic("t", 1)
        greedy = [stack.enter_context(raw(cluster)) for _ in range(12)]
        before = most_memory()
        for connection in greedy:
            connection.sendall(half)
        for connection in greedy[:8]:
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        prove_served(cluster)
        batch = batch_of([bytes(900_000)])
        request = produce_request("t", batch)
        request.topic_data[0].partition_data *= 4  # one is stored
        with Wire(cluster.bootstrap) as wire:
            wire.send(request, 9)
            wire.receive()
        grown = most_memory() - before
        assert grown < 100 << 20
        for connection in greedy[-3:]:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)


def test_an_oversized_request_of_a_small_api_ends_its_connection(cluster: Cluster) -> None:
    with raw(cluster) as greedy:
        head = bytes.fromhex("00030009" + "00000001" + "ffff" + "00")
        greedy.sendall((17 << 20).to_bytes(4, "big") + head)
        with pytest.raises(ConnectionError):
            flood(greedy, b"\xff" * (1 << 20), 64 << 20)
    prove_served(cluster)


@pytest.mark.rows(1)
@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.ZSTD, Compression.LZ4])
def test_a_bomb_is_refused(cluster: Cluster, codec: Compression) -> None:
    """A batch that unpacks to 200 MB is refused, and never unpacked as a whole."""
    bomb = batch_of([bytes(50 << 20)] * 4, compression=codec)
    before = most_memory()
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("kept", 1, configs={"cleanup.policy": "compact"})])
    with Wire(cluster.bootstrap) as wire:
        for topic in ("t", "kept"):
            wire.send(produce_request(topic, bomb), 9)
            answer = decode_response(ProduceResponse, 9, wire.receive())[1]
            code = answer.responses[0].partition_responses[0].error_code
            assert code == ErrorCode.MESSAGE_TOO_LARGE
    grown = most_memory() - before
    assert grown < 128 << 20
    with Admin(bootstrap_servers=cluster.bootstrap) as admin, pytest.raises(BrokerError):
        admin.create_topics([NewTopic("kept", 1)])
