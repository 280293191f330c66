"""Connections over real loopback sockets: framing, limits, back-pressure, every way to end."""

from __future__ import annotations

import queue
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kohort.errors import ClosedError, ConfigError, ConnectionFailedError, ProtocolError
from kohort.net import Connection
from kohort.net.poller import READ
from tests.known import fake, known, of_type
from tests.net.conftest import LoopThread, Recorder
from tests.patience import PATIENCE_S


@pytest.fixture(params=[0, 2], ids=["alone", "movers"])
def lt(request: pytest.FixtureRequest) -> Iterator[LoopThread]:
    """What is true of a loop is true of one with movers."""
    thread = LoopThread(movers=request.param)
    yield thread
    thread.stop()
    assert thread.errors == []


def framed(payload: bytes) -> list[bytes]:
    return [struct.pack(">i", len(payload)), payload]


class Pair:
    """A server side and a client side on one loop."""

    def __init__(self, lt: LoopThread, max_frame_bytes: int = 64 << 20, on_frame=None) -> None:
        self.lt = lt
        self.server, self.client = Recorder(on_frame), Recorder()
        self.listener = lt.do(
            lt.loop.listen,
            "127.0.0.1",
            0,
            lambda c: self.server,
            max_frame_bytes=max_frame_bytes,
        )
        self.c: Connection = lt.do(
            lt.loop.connect,
            "127.0.0.1",
            self.listener.port,
            self.client,
            max_frame_bytes=max_frame_bytes,
        )
        self.client.next("connected")
        self.s: Connection = self.server.next("connected")

    def send(self, *payloads: bytes) -> None:
        def go() -> None:
            for payload in payloads:
                self.c.send(framed(payload))

        self.lt.do(go)


@pytest.mark.parametrize("size", [1, 3, 65_531, 65_532, 65_533, 65_536, 70_000, 1 << 20, 9 << 20])
def test_frames_of_every_size_arrive_whole(lt, size):
    pair = Pair(lt)
    payload = bytes(i * 7 % 251 for i in range(4_096)) * (size // 4_096 + 1)
    payload = payload[:size]
    pair.send(b"before", payload, b"after")
    assert pair.server.next("frame") == b"before"
    assert pair.server.next("frame") == payload
    assert pair.server.next("frame") == b"after"


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="the system has no choice")
def test_a_stream_within_this_machine_is_neither_paced_nor_probed(lt):
    """BBR, where it is the system's default, doubles what a loopback byte costs."""
    pair = Pair(lt)
    for c in (pair.c, pair.s):
        chosen = lt.do(
            of_type(c._transport, socket.socket).getsockopt,
            socket.IPPROTO_TCP,
            socket.TCP_CONGESTION,
            16,
        )
        assert chosen.rstrip(b"\0") == b"reno"


def test_many_small_frames_keep_their_order(lt):
    pair = Pair(lt)
    payloads = [b"%d" % n * (1 + n % 50) for n in range(5_000)]
    pair.send(*payloads)
    assert [pair.server.next("frame") for _ in payloads] == payloads


def raw(lt: LoopThread, max_frame_bytes: int = 1_000) -> tuple[socket.socket, Recorder]:
    server = Recorder()
    listener = lt.do(
        lt.loop.listen, "127.0.0.1", 0, lambda c: server, max_frame_bytes=max_frame_bytes
    )
    sock = socket.create_connection(("127.0.0.1", listener.port), timeout=PATIENCE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server.next("connected")
    return sock, server


def test_an_ipv4_client_of_a_listener_on_all_addresses_has_its_own_address(lt):
    """A socket of both families names it `::ffff:127.0.0.1`; ACLs and limits name the other."""
    server = Recorder()
    try:
        listener = lt.do(lt.loop.listen, "::", 0, lambda c: server, max_frame_bytes=1_000)
        sock = socket.create_connection(("127.0.0.1", listener.port), timeout=PATIENCE_S)
    except (ConfigError, OSError):
        pytest.skip("this machine has no sockets of both families")
    with sock:
        assert server.next("connected").peer == f"127.0.0.1:{sock.getsockname()[1]}"


def test_a_frame_may_arrive_byte_by_byte(lt):
    sock, server = raw(lt)
    with sock:
        for byte in struct.pack(">i", 5) + b"hello" + struct.pack(">i", 2) + b"ok":
            sock.sendall(bytes([byte]))
            lt.do(lambda: None)
        assert server.next("frame") == b"hello"
        assert server.next("frame") == b"ok"


@pytest.mark.parametrize("size", [65_533, 140_000, 1_200_000, 3 << 20])
def test_a_large_frame_may_arrive_in_small_pieces_and_a_small_one_behind_it(lt, size):
    """The stream is not watched for every piece of a large frame; its end is never missed."""
    sock, server = raw(lt, max_frame_bytes=4 << 20)
    payload = bytes(size)
    with sock:
        for _ in range(2):
            sock.sendall(struct.pack(">i", size))
            for at in range(0, size, 50_001):
                sock.sendall(payload[at : at + 50_001])
                lt.do(lambda: None)
            sock.sendall(struct.pack(">i", 2))
            assert server.next("frame") == payload
            sock.sendall(b"o")
            lt.do(lambda: None)
            sock.sendall(b"k")
            assert server.next("frame") == b"ok"


@pytest.mark.parametrize(
    "sizes",
    [
        [100_000] * 5,
        [100_000, 99_000, 100_001, 65_535, 65_536, 3, 100_000, 2, 1, 1 << 20, 1 << 20, 70_000],
        [1 << 20, (1 << 20) + 1, (1 << 20) + 1, 9, 80_000, 400_000, 80_000],
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_frames_behind_a_large_one_arrive_whole_whatever_their_size(lt, sizes, at_once):
    """After a large frame, room is made for another as large before its size is known."""
    sock, server = raw(lt, max_frame_bytes=4 << 20)
    payloads = [bytes([n + 1]) * size for n, size in enumerate(sizes)]
    with sock:
        if at_once:
            sock.sendall(b"".join(b"".join(framed(payload)) for payload in payloads))
            assert [server.next("frame") for _ in payloads] == payloads
        else:
            for payload in payloads:
                sock.sendall(b"".join(framed(payload)))
                assert server.next("frame") == payload


@pytest.mark.parametrize("part", [1, 3, 4, 5, 90_000])
def test_a_large_frame_may_begin_with_a_part_after_another(lt, part):
    sock, server = raw(lt, max_frame_bytes=4 << 20)
    data = b"".join(framed(bytes(range(250)) * 400))
    with sock:
        sock.sendall(data)
        assert len(server.next("frame")) == 100_000
        sock.sendall(data[:part])
        lt.do(lambda: None)
        sock.sendall(data[part:] + data[:3])
        assert server.next("frame") == data[4:]
        sock.sendall(data[3:])
        assert server.next("frame") == data[4:]


class Kernel:
    """What a socket has received, without the socket."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        if not self.data:
            raise BlockingIOError
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    recv = take

    def recv_into(self, buffer: memoryview) -> int:
        taken = self.take(len(buffer))
        buffer[: len(taken)] = taken
        return len(taken)


def test_large_frames_that_are_there_are_read_in_one_turn_up_to_a_megabyte(lt):
    """What they ask for is then done together, in one write to a log for example."""
    sock, server = raw(lt, max_frame_bytes=200_000)
    payloads = [bytes([n]) * 100_000 for n in range(25)]
    kernel = Kernel(b"".join(piece for p in payloads for piece in framed(p)) + b"\0\0")

    def turn() -> int:
        c, before = server.connection, server.events.qsize()
        known(c)._transport, own = fake(kernel), known(c)._transport
        known(c)._read()
        known(c)._transport = own
        return server.events.qsize() - before

    with sock:
        turns = [lt.do(turn) for _ in range(5)]
        assert turns == [1, 11, 11, 2, 0]
        assert [server.next("frame") for _ in payloads] == payloads
        sock.sendall(struct.pack(">i", 3)[2:] + b"end")
        assert server.next("frame") == b"end"


def test_a_bad_size_behind_a_large_frame_closes_the_connection(lt):
    sock, server = raw(lt, max_frame_bytes=200_000)
    with sock:
        sock.sendall(b"".join(framed(bytes(100_000))))
        server.next("frame")
        sock.sendall(struct.pack(">i", 200_001) + bytes(10))
        assert isinstance(server.next("closed"), ProtocolError)


def test_a_small_frame_behind_a_large_one_does_not_hold_a_large_buffer(lt):
    sock, server = raw(lt, max_frame_bytes=200_000)
    with sock:
        sock.sendall(b"".join(framed(bytes(100_000))))
        server.next("frame")
        sock.sendall(b"".join(framed(b"small")))
        small = server.next("frame")
        assert bytes(small) == b"small"
        assert len(small.obj) < 100


def test_pausing_inside_a_large_frame_holds_the_ones_behind(lt):
    pair = Pair(lt, on_frame=lambda c, frame: c.pause_reading())
    payloads = [bytes([n]) * 100_000 for n in range(4)]
    pair.send(*payloads)
    for expected in payloads:
        assert pair.server.next("frame") == expected
        lt.do(lambda: None)
        assert pair.server.quiet
        lt.do(pair.s.resume_reading)


def test_a_peer_that_goes_away_inside_a_large_frame_is_noticed(lt):
    sock, server = raw(lt, max_frame_bytes=4 << 20)
    sock.sendall(struct.pack(">i", 3 << 20) + bytes(200_000))
    lt.do(lambda: None)
    sock.close()
    assert isinstance(server.next("closed"), ConnectionFailedError)


@pytest.mark.parametrize("size", [0, -1, -(2**31), 1_001, 2**31 - 1])
def test_a_bad_frame_size_closes_the_connection_before_anything_is_allocated(lt, size):
    sock, server = raw(lt)
    with sock:
        sock.sendall(struct.pack(">i", size) + b"x" * 10)
        error = server.next("closed")
        assert isinstance(error, ProtocolError)
        assert str(size) in str(error)
        assert sock.recv(1) == b""


def test_the_frame_limit_may_be_raised_on_a_live_connection(lt):
    sock, server = raw(lt)
    with sock:
        lt.do(setattr, server.connection, "max_frame_bytes", 5_000)
        sock.sendall(struct.pack(">i", 5_000) + b"x" * 5_000)
        assert len(server.next("frame")) == 5_000


@pytest.mark.parametrize("part", [b"", b"\0", struct.pack(">i", 9), struct.pack(">i", 9) + b"abc"])
def test_a_peer_that_goes_away_at_any_point_ends_the_connection_once(lt, part):
    sock, server = raw(lt)
    sock.sendall(part)
    lt.do(lambda: None)
    sock.close()
    assert isinstance(server.next("closed"), ConnectionFailedError)
    lt.do(lambda: None)
    assert server.quiet


def test_a_reset_ends_the_connection(lt):
    sock, server = raw(lt)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    assert isinstance(server.next("closed"), ConnectionFailedError)


def test_a_reset_while_reading_is_paused_ends_the_connection_and_does_not_spin(lt):
    sock, server = raw(lt)
    lt.do(known(server.connection).pause_reading)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    assert isinstance(server.next("closed"), ConnectionFailedError)


def test_close_is_told_once_and_never_from_inside(lt):
    pair = Pair(lt)

    def close_twice() -> bool:
        pair.c.close()
        pair.c.close()
        return pair.client.quiet

    assert lt.do(close_twice)
    assert pair.client.next("closed") is None
    assert isinstance(pair.server.next("closed"), ConnectionFailedError)
    lt.do(pair.c.send, framed(b"ignored"))
    assert pair.client.quiet


def test_what_was_sent_before_close_still_leaves(lt):
    pair = Pair(lt)

    def send_and_close() -> None:
        pair.c.send(framed(b"last words"))
        pair.c.close()

    lt.do(send_and_close)
    assert pair.server.next("frame") == b"last words"
    pair.server.next("closed")


def test_closing_inside_frame_received_drops_the_frames_behind(lt):
    pair = Pair(lt, on_frame=lambda c, frame: c.close())
    pair.send(b"one", b"two")
    assert pair.server.next("frame") == b"one"
    assert pair.server.next("closed") is None
    assert pair.server.quiet


def test_pausing_inside_frame_received_holds_the_frames_behind_in_order(lt):
    pair = Pair(lt, on_frame=lambda c, frame: c.pause_reading())
    pair.send(b"one", b"two", b"three")
    for expected in (b"one", b"two", b"three"):
        assert pair.server.next("frame") == expected
        lt.do(lambda: None)
        assert pair.server.quiet
        lt.do(pair.s.resume_reading)


def test_what_comes_after_a_pause_stays_behind_what_was_held_by_it(lt):
    """Both may be there in the one turn of the loop in which reading is resumed."""
    paused = []

    def pause_once(c: Connection, frame: memoryview) -> None:
        if not paused:
            paused.append(c)
            c.pause_reading()

    pair = Pair(lt, on_frame=pause_once)
    pair.send(b"one", b"two")
    assert pair.server.next("frame") == b"one"
    pair.send(b"three")

    def resume() -> None:
        pair.s.resume_reading()
        pair.s._ready(READ)

    lt.do(resume)
    assert [pair.server.next("frame"), pair.server.next("frame")] == [b"two", b"three"]


def test_a_sender_sees_back_pressure_and_hears_when_it_is_over(lt):
    pair = Pair(lt)
    lt.do(pair.s.pause_reading)
    payload = bytes(1 << 20)
    for _ in range(16):
        pair.send(payload)
    queued = lt.do(lambda: pair.c.queued_bytes)
    assert 0 < queued <= 16 * (4 + len(payload))
    lt.do(pair.s.resume_reading)
    for _ in range(16):
        assert len(pair.server.next("frame")) == len(payload)
    assert pair.client.next("drained") is pair.c
    while lt.do(lambda: pair.c.queued_bytes):  # a mover tells later than its bytes arrive
        pass


def test_a_send_of_very_many_pieces_arrives(lt):
    pair = Pair(lt)
    pieces = [b"%08d" % n * 16 for n in range(3_000)]
    lt.do(pair.c.send, [struct.pack(">i", 3_000 * 128), *pieces])
    assert pair.server.next("frame") == b"".join(pieces)


def test_a_peer_that_never_reads_is_cut_off(lt):
    pair = Pair(lt)
    lt.do(pair.s.pause_reading)
    piece = bytes(60 << 20)
    for _ in range(6):
        pair.lt.do(pair.c.send, [piece])
    assert "does not read" in str(pair.client.next("closed"))


def test_a_defect_in_a_handler_closes_its_connection_only():
    lt = LoopThread()

    def broken(c: Connection, frame: memoryview) -> None:
        raise ValueError("planted")

    bad, good = Pair(lt, on_frame=broken), Pair(lt)
    bad.send(b"x")
    assert "planted" in str(bad.server.next("closed"))
    good.send(b"still here")
    assert good.server.next("frame") == b"still here"
    lt.stop()
    assert [str(error) for _, error in lt.errors] == ["planted"]


def test_a_silent_connection_is_closed_after_its_idle_time(lt):
    pair = Pair(lt)
    lt.do(pair.s.close_when_idle, 30)
    assert "nothing came" in str(pair.server.next("closed"))
    assert isinstance(pair.client.next("closed"), ConnectionFailedError)


def test_idle_time_may_be_switched_off(lt):
    pair = Pair(lt)

    def on_and_off() -> None:
        pair.s.close_when_idle(0)
        pair.s.close_when_idle(None)

    lt.do(on_and_off)
    pair.send(b"x")
    assert pair.server.next("frame") == b"x"


def test_connecting_to_a_closed_port_says_so(lt):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        client = Recorder()
        lt.do(lt.loop.connect, "127.0.0.1", port, client, max_frame_bytes=100)
        error = client.next("closed")
    assert isinstance(error, ConnectionFailedError)
    assert f"127.0.0.1:{port}" in str(error)


def test_a_name_is_resolved_off_the_loop_and_each_address_is_tried(lt, monkeypatch):
    server = Recorder()
    listener = lt.do(lt.loop.listen, "127.0.0.1", 0, lambda c: server, max_frame_bytes=100)
    asked: queue.SimpleQueue = queue.SimpleQueue()

    def two_addresses(host, port, type):
        asked.put(lt.loop.on_loop_thread)
        family = socket.AF_INET
        return [(family, type, 6, "", ("127.0.0.1", at)) for at in (1, port)]

    monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
    client = Recorder()
    lt.do(lt.loop.connect, "kohort.invalid", listener.port, client, max_frame_bytes=100)
    client.next("connected")
    assert asked.get(timeout=PATIENCE_S) is False


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse when a queue is full")
def test_an_address_that_does_not_answer_leaves_time_for_the_next(lt, monkeypatch):
    """A name with a dead first address was never reached, however often it was tried."""
    server = Recorder()
    listener = lt.do(lt.loop.listen, "127.0.0.1", 0, lambda c: server, max_frame_bytes=100)
    family = socket.AF_INET
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent, ExitStack() as stack:
        dead = silent.getsockname()
        for _ in range(3):  # its queue is full: the kernel drops what comes
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(dead)

        def two_addresses(host, port, type):
            return [(family, type, 6, "", at) for at in (dead, ("127.0.0.1", port))]

        monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
        client = Recorder()
        lt.do(
            lambda: lt.loop.connect(
                "kohort.invalid", listener.port, client, max_frame_bytes=100, timeout_ms=2_000
            )
        )
        client.next("connected")


def test_a_name_that_does_not_resolve_says_so(lt, monkeypatch):
    def fails(host, port, type):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fails)
    client = Recorder()
    lt.do(lt.loop.connect, "no.such.host", 9092, client, max_frame_bytes=100)
    assert "no.such.host" in str(client.next("closed"))


def test_closing_while_connecting_is_told_once(lt):
    client = Recorder()

    def connect_and_close() -> None:
        lt.loop.connect("127.0.0.1", 1, client, max_frame_bytes=100).close()

    lt.do(connect_and_close)
    assert client.next("closed") is None
    lt.do(lambda: None)
    assert client.quiet


def test_a_port_in_use_is_a_clear_error(lt):
    first = lt.do(lt.loop.listen, "127.0.0.1", 0, lambda c: Recorder(), max_frame_bytes=100)
    with pytest.raises(ConfigError, match="another process has this port"):
        lt.do(lt.loop.listen, "127.0.0.1", first.port, lambda c: Recorder(), max_frame_bytes=1)


def test_connections_beyond_the_limit_are_refused_and_counted(lt):
    server = Recorder()
    listener = lt.do(
        lt.loop.listen,
        "127.0.0.1",
        0,
        lambda c: server,
        max_frame_bytes=100,
        max_connections=1,
    )
    address = ("127.0.0.1", listener.port)
    with socket.create_connection(address, PATIENCE_S) as first:
        server.next("connected")
        with socket.create_connection(address, PATIENCE_S) as second:
            assert second.recv(1) == b""
        assert listener.refused_count == 1
        first.close()
        server.next("closed")
    with socket.create_connection(address, PATIENCE_S):
        server.next("connected")


def test_a_defect_in_accept_refuses_that_connection_only():
    lt = LoopThread()
    handlers = [ValueError("planted"), Recorder()]

    def accept(c: Connection) -> Recorder:
        handler = handlers.pop(0)
        if isinstance(handler, Exception):
            raise handler
        return handler

    second = handlers[1]
    listener = lt.do(lt.loop.listen, "127.0.0.1", 0, accept, max_frame_bytes=100)
    with socket.create_connection(("127.0.0.1", listener.port), PATIENCE_S) as sock:
        assert sock.recv(1) == b""
    with socket.create_connection(("127.0.0.1", listener.port), PATIENCE_S):
        second.next("connected")
        assert listener.open_count == 1
    lt.stop()
    assert isinstance(second.next("closed"), ClosedError | ConnectionFailedError)
    assert [str(error) for _, error in lt.errors] == ["planted"]
