"""Movers: what is large is sent beside the loop, in order, and no descriptor is closed under them.

`Held` stands where the movers stand and makes their calls when the test says so.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading

import pytest

from kohort.errors import ClosedError, ConnectionFailedError
from kohort.net import Connection
from kohort.net.movers import Movers, parts_of
from kohort.net.poller import WRITE
from tests.net.conftest import LoopThread, Recorder
from tests.patience import PATIENCE_S

LARGE = 1 << 20


class Held:
    """Calls that wait until the test makes them; on the loop's thread only."""

    def __init__(self) -> None:
        self.calls = []

    def send(self, stream, pieces, on_sent) -> None:
        self.calls.append((stream, pieces, on_sent))

    def stop(self) -> None:
        while self.calls:
            self.make()

    def make(self) -> None:
        """Make the oldest call, and tell what came of it."""
        stream, pieces, on_sent = self.calls.pop(0)
        try:
            on_sent(stream.sendmsg(pieces))
        except OSError as error:
            on_sent(error)

    def fail(self, error: OSError) -> None:
        self.calls.pop(0)[2](error)


class Served:
    """A raw client of a loop with movers, real or held."""

    def __init__(self, lt: LoopThread) -> None:
        self.lt, self.handler = lt, Recorder()
        listener = lt.do(
            lt.loop.listen, "127.0.0.1", 0, lambda c: self.handler, max_frame_bytes=1_000
        )
        self.sock = socket.create_connection(("127.0.0.1", listener.port), timeout=PATIENCE_S)
        self.c: Connection = self.handler.next("connected")

    def send(self, *payloads: bytes) -> None:
        def go() -> None:
            for payload in payloads:
                self.c.send([struct.pack(">i", len(payload)), payload])

        self.lt.do(go)
        self.lt.do(lambda: None)  # its turn has ended, so what was sent has been handed over

    def frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise EOFError(f"{len(data)} of {size} bytes")
            data += more
        return bytes(data)


def movers() -> set[threading.Thread]:
    """All of this process; clusters of other tests may have some that are not ours."""
    return {t for t in threading.enumerate() if t.name.startswith("kohort-mover")}


@pytest.fixture
def lt():
    others = movers()
    thread = LoopThread(movers=2)
    yield thread
    thread.stop()
    assert thread.errors == []
    assert movers() <= others


@pytest.fixture
def held(lt: LoopThread):
    held = Held()
    lt.loop.movers = held  # type: ignore[assignment]
    return held


def test_who_sends_little_has_no_thread_for_it(lt):
    one, others = Served(lt), movers()
    with one.sock:
        one.send(bytes(200_000))
        assert len(one.frame()) == 200_000
        assert movers() <= others
        one.send(bytes(LARGE))
        assert len(one.frame()) == LARGE
        assert len(movers() - others) == 2


@pytest.mark.parametrize(
    ("processors", "count", "parts"),
    [
        ([0, 1], 2, [{0}, {1}]),
        ([4], 2, [set(), {4}]),
        ([], 3, [set(), set(), set()]),
        (range(8), 3, [{0, 1}, {2, 3, 4}, {5, 6, 7}]),
    ],
)
def test_processors_are_shared_out_among_the_movers(processors, count, parts):
    assert parts_of(list(processors), count) == parts


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be placed here")
def test_movers_keep_to_their_part_of_what_the_process_may_use(monkeypatch):
    """And to none of it when it has been taken from the process meanwhile."""
    placed = []

    def place(thread: int, part: set[int]) -> None:
        placed.append((thread, part))
        raise OSError(errno.EINVAL, "not yours")

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {2, 3, 5})
    monkeypatch.setattr(os, "sched_setaffinity", place)
    results = []
    placing = Movers(2, lambda fn, result: fn(result))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        placing.send(ours, [b"so", b"me"], results.append)
        placing.stop()
        assert theirs.recv(10) == b"some"
    assert results == [4]
    assert sorted(placed, key=repr) == [(0, {2}), (0, {3, 5})]


def test_large_and_small_answers_of_many_connections_keep_their_order(lt):
    clients = [Served(lt) for _ in range(5)]
    payloads = [bytes([n]) * (LARGE if n % 3 else 5) for n in range(1, 13)]
    for client in clients:
        client.send(*payloads)
        client.send(b"last")
    for client in clients:
        with client.sock:
            assert [client.frame() for _ in payloads] == payloads
            assert client.frame() == b"last"
            while lt.do(lambda c=client.c: c.queued_bytes):
                pass
            client.handler.next("drained")


def test_a_slow_reader_holds_nobody_up_and_gets_everything(lt):
    """Its bytes wait in the queue, not in a mover: others are served by the same two."""
    slow = [Served(lt) for _ in range(4)]
    for client in slow:
        client.send(*[bytes(LARGE)] * 40)
    quick = Served(lt)
    with quick.sock:
        for _ in range(5):
            quick.send(bytes(LARGE))
            assert len(quick.frame()) == LARGE
    for client in slow:
        with client.sock:
            assert sum(len(client.frame()) for _ in range(40)) == 40 * LARGE


def test_others_are_served_while_a_mover_is_at_work(lt, held):
    busy, other = Served(lt), Served(lt)
    with busy.sock, other.sock:
        busy.send(bytes(LARGE))
        assert len(held.calls) == 1
        other.send(b"small")
        assert other.frame() == b"small"
        busy.send(b"behind")  # its own answers wait for their turn
        assert len(held.calls) == 1
        reader = threading.Thread(target=lambda: (busy.frame(), busy.frame()))
        reader.start()
        while reader.is_alive():
            lt.do(lambda: held.make() if held.calls else None)
        assert lt.do(lambda: busy.c.queued_bytes) == 0


def test_a_connection_closed_meanwhile_keeps_its_descriptor_until_its_call_has_ended(lt, held):
    """Else the mover would send to whoever got that number next."""
    one = Served(lt)
    with one.sock:
        one.send(b"first", bytes(LARGE), b"last")
        stream = held.calls[0][0]
        lt.do(one.c.close)
        assert one.handler.next("closed") is None
        assert stream.fileno() >= 0
        reader = threading.Thread(target=one.frame)
        reader.start()
        lt.do(held.make)
        assert stream.fileno() == -1
        assert lt.do(lambda: one.c.queued_bytes) == 0
        reader.join(PATIENCE_S)
        with pytest.raises((EOFError, ConnectionError)):
            assert [one.frame() for _ in range(3)] == []
    assert one.handler.quiet


def test_closing_meanwhile_gives_what_is_queued_its_last_chance(lt, held):
    one = Served(lt)
    with one.sock:
        one.send(bytes(300_000))
        one.send(b"last words")
        lt.do(one.c.close)
        reader_got: list[bytes] = []
        reader = threading.Thread(target=lambda: reader_got.extend((one.frame(), one.frame())))
        reader.start()
        lt.do(held.make)
        reader.join(PATIENCE_S)
    assert [len(reader_got[0]), reader_got[1]] == [300_000, b"last words"]


def test_closing_meanwhile_with_an_error_sends_nothing_more(lt, held):
    one = Served(lt)
    with one.sock:
        one.send(bytes(LARGE))
        error = ClosedError("enough")
        lt.do(one.c.close, error)
        assert one.handler.next("closed") is error
        lt.do(held.fail, BlockingIOError())
        assert one.sock.recv(1) == b""


def test_a_broken_stream_closes_the_connection_once(lt, held):
    one = Served(lt)
    with one.sock:
        one.send(bytes(LARGE))
        lt.do(held.fail, OSError(errno.EPIPE, "broken"))
        assert isinstance(one.handler.next("closed"), ConnectionFailedError)
    assert one.handler.quiet


def test_a_full_stream_is_tried_again_when_it_has_room(lt, held):
    one = Served(lt)
    with one.sock:
        one.send(bytes(LARGE))
        assert not lt.do(lambda: one.c._mask & WRITE)  # it would wake the loop for nothing
        lt.do(held.fail, BlockingIOError())
        while not lt.do(lambda: len(held.calls)):
            pass
        reader = threading.Thread(target=one.frame)
        reader.start()
        while reader.is_alive():
            lt.do(lambda: held.make() if held.calls else None)
        assert one.handler.next("drained") is one.c


def test_stopping_the_loop_ends_the_movers_first():
    others = movers()
    thread = LoopThread(movers=2)
    clients = [Served(thread) for _ in range(4)]
    for client in clients:
        client.send(*[bytes(LARGE)] * 20)
    thread.stop()
    assert movers() <= others
    for client in clients:
        assert isinstance(client.handler.next("closed"), ClosedError)
        assert client.handler.quiet
        client.sock.close()


def test_in_the_child_of_a_fork_a_stream_that_waits_for_its_mover_is_closed(lt, held):
    """Else the peer would not see the parent close it while the child lives."""
    one = Served(lt)
    with one.sock:
        one.send(bytes(LARGE))
        lt.do(one.c.close)
        stream = held.calls[0][0]
        child = os.fork()
        if child == 0:
            os._exit(0 if stream.fileno() == -1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert stream.fileno() >= 0
        lt.do(held.fail, BlockingIOError())
