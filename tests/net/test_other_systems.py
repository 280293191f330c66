"""What macOS and BSD lack or do otherwise, simulated: connections and accepting go on."""

from __future__ import annotations

import errno
import socket
import struct
from typing import Any

import pytest

from kohort.net import connection as connections
from kohort.net import listener as listeners
from kohort.net.poller import SelectorPoller
from tests.net.conftest import LoopThread, Recorder
from tests.patience import PATIENCE_S


class Tired(socket.socket):
    """macOS refuses to set anything on a stream whose peer has gone."""

    def setsockopt(self, *_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


def test_a_stream_whose_peer_has_gone_may_refuse_to_be_tuned() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
        Tired(fileno=ours.detach()) as tired,
    ):
        connections._tune(tired)


def test_low_water_marks_are_set_only_where_the_buffer_grows_with_them(
    lt: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the size of the buffer (or its half, when memory is short) nothing would ever wake."""
    monkeypatch.setattr(connections, "_LOW_MARKS", False)
    server = Recorder()
    listener = lt.do(lt.loop.listen, "127.0.0.1", 0, lambda c: server, max_frame_bytes=8 << 20)
    with socket.create_connection(("127.0.0.1", listener.port), timeout=PATIENCE_S) as sock:
        stream = server.next("connected")
        payload = bytes(3 << 20)
        sock.sendall(struct.pack(">i", len(payload)) + payload[:100_000])
        lt.do(lambda: None)
        low = lt.do(stream._transport.getsockopt, socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        sock.sendall(payload[100_000:])
        assert server.next("frame") == payload
    assert low == 1


def test_who_has_gone_before_it_was_accepted_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS accepts it all the same, without an address; the next one is served."""
    real = socket.socket.accept
    left = [1]

    class Nameless(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            sock, address = real(self)
            if left:
                left.pop()
                return sock, None
            return sock, address

    monkeypatch.setattr(listeners.socket, "socket", Nameless)
    thread = LoopThread()
    try:
        server = Recorder()
        listener = thread.do(
            thread.loop.listen, "127.0.0.1", 0, lambda c: server, max_frame_bytes=100
        )
        address = ("127.0.0.1", listener.port)
        with (
            socket.create_connection(address, timeout=PATIENCE_S) as gone,
            socket.create_connection(address, timeout=PATIENCE_S),
        ):
            server.next("connected")
            assert gone.recv(1) == b"", "let go of"
            assert thread.do(lambda: listener.open_count) == 1
    finally:
        thread.stop()
    assert thread.errors == []


def next_event(recorder: Recorder, kind: str) -> Any:
    """The next event but for those of empty queues."""
    while True:
        got, value = recorder.events.get(timeout=PATIENCE_S)
        if got != "drained":
            assert got == kind, (got, value)
            return value


def test_a_loop_over_selectors_carries_large_frames_both_ways_at_once() -> None:
    """kqueue's face: no hang-up bits, an interest of nothing is not registered."""
    thread = LoopThread(poller=SelectorPoller())
    try:
        size = 6 << 20
        server, client = Recorder(), Recorder()
        listener = thread.do(
            thread.loop.listen, "127.0.0.1", 0, lambda c: server, max_frame_bytes=8 << 20
        )
        thread.do(thread.loop.connect, "127.0.0.1", listener.port, client, max_frame_bytes=8 << 20)
        one, other = client.next("connected"), server.next("connected")
        for _ in range(3):
            for side in (one, other):
                thread.do(side.send, [struct.pack(">i", size), bytes(size)])
            thread.do(other.pause_reading)
            assert len(next_event(client, "frame")) == size
            thread.do(other.resume_reading)
            assert len(next_event(server, "frame")) == size
        thread.do(other.pause_reading)
        thread.do(one.close)
        next_event(client, "closed")
        thread.do(other.resume_reading)
        next_event(server, "closed")
    finally:
        thread.stop()
    assert thread.errors == []
