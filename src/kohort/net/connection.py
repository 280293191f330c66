"""One stream of frames: a 4-byte size, then that many bytes, both ways.

Rules:
- A frame's size is checked before anything is allocated; a bad one closes the connection.
- Small frames share one read; a frame that does not fit is read straight into a buffer of its exact
  size, from the kernel's pool: fresh memory costs more than the reading. After a large frame the
  next one is read to its place from its first byte on, in the hope that it is no larger, and so are
  those behind it, as long as they are there whole, up to a megabyte a turn. In every case a frame
  owns its memory, which is never written again while anything refers to it (C13).
- `send` only queues; the loop writes at the end of the turn, all buffers of a connection together.
  Where the loop has movers, they send what is large; the rest of the connection waits for them.
- `closed` is called exactly once, never from inside `close`, and nothing is called after it.
- While reading is paused, frames that are already here wait too, in order. The kernel hears of a
  pause only when something comes: most pauses are over before the peer says another word.

The socket is used through `Transport`, the place where TLS goes between.

Shell: sockets.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from struct import Struct
from typing import Any, Final, Protocol

from kohort.errors import ConnectionFailedError, KohortError, ProtocolError
from kohort.net.poller import READ, WRITE
from kohort.net.ports import LoopPort, TimerPort
from kohort.net.resolver import Address
from kohort.records.implementation import allocate

Buffer = bytes | bytearray | memoryview

_RECV_BYTES: Final = 65_536  # one read of small frames; below malloc's mmap threshold
_PLACED_BYTES_MAX: Final = 1 << 20  # of the frame that may come; beyond, one copy hardly counts
_WAKE_BYTES_MAX: Final = 1 << 20  # of a big frame, before we want to hear of it
_TURN_BYTES_MAX: Final = 1 << 20  # of large frames, before their requests are handled
_FILL_BYTES_MAX: Final = 4 << 20  # read for one big frame before others get their turn
_MOVED_BYTES_MIN: Final = 262_144  # from here the copying costs more than another thread does
_JOIN_BYTES_MAX: Final = 65_536  # up to here one copy and `send` is cheaper than `sendmsg`
_IOV_MAX: Final = 512
_QUEUED_BYTES_MAX: Final = 256 << 20
_CONGESTION: Final = getattr(socket, "TCP_CONGESTION", None)
_LOW_MARKS: Final = sys.platform == "linux"
"""Elsewhere the kernel's buffer does not grow with the mark, and may be full below it for ever."""
_size_of = Struct(">i").unpack_from


class ConnectionHandler(Protocol):
    """What a user of a connection implements; called on the loop's thread."""

    def connected(self, c: Connection, /) -> None:
        """The stream is open (at once for an accepted connection)."""
        ...

    def frame_received(self, c: Connection, frame: memoryview, /) -> None:
        """One whole frame without its size; the memory is the handler's to keep."""
        ...

    def closed(self, c: Connection, error: KohortError | None, /) -> None:
        """The stream has ended; `error` is None only when `close()` was called without one."""
        ...

    def drained(self, c: Connection, /) -> None:
        """Everything queued has gone to the kernel, after some of it had to wait."""
        ...


class Transport(Protocol):
    """A non-blocking byte stream; a plain socket is one."""

    def fileno(self) -> int: ...
    def recv(self, n: int, /) -> bytes: ...
    def recv_into(self, buffer: memoryview, /) -> int: ...
    def send(self, data: Buffer, /) -> int: ...
    def sendmsg(self, buffers: Sequence[Buffer], /) -> int: ...
    def close(self) -> None: ...


class Acceptor(Protocol):
    """The listener of an accepted connection, as the connection sees it."""

    def connection_ended(self, connection: Connection) -> None:
        """The connection is closed."""
        ...

    def frame_began(self, connection: Connection, size: int) -> None:
        """A large frame begins."""
        ...

    def frame_ended(self, connection: Connection) -> None:
        """It is whole, or never will be."""
        ...


class ClientTls(Protocol):
    """Makes the connections of a client that encrypts."""

    def connection(
        self, loop: LoopPort, handler: ConnectionHandler, peer: str, max_frame_bytes: int
    ) -> Connection:
        """A connection that is not open yet."""
        ...


class ServerTls(Protocol):
    """Makes the connections of a listener that encrypts."""

    def connection(
        self,
        loop: LoopPort,
        handler: ConnectionHandler,
        peer: str,
        max_frame_bytes: int,
        listener: Acceptor,
    ) -> Connection:
        """A connection that was accepted."""
        ...


class Connection:
    """A framed stream on a loop. Made by `Loop.connect` and by a `Listener`."""

    __slots__ = (
        "_address_timer",
        "_addresses",
        "_deadline",
        "_dirty",
        "_expected",
        "_filled",
        "_frame",
        "_handler",
        "_head",
        "_idle_timer",
        "_listener",
        "_loop",
        "_low",
        "_mask",
        "_moving",
        "_out",
        "_parting",
        "_paused",
        "_rest",
        "_transport",
        "_until_ms",
        "id",
        "is_closed",
        "is_connected",
        "last_read_ms",
        "max_frame_bytes",
        "peer",
        "queued_bytes",
    )

    def __init__(
        self,
        loop: LoopPort,
        handler: ConnectionHandler,
        peer: str,
        max_frame_bytes: int,
        listener: Acceptor | None = None,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._handler = handler
        self.peer = peer
        """`host:port` of the other side, as text."""
        self.max_frame_bytes = max_frame_bytes
        """The largest frame that is accepted; may be raised, for example after a login."""
        self.id = loop.adopt(self)
        """Unique on this loop, never used again."""
        self.is_connected = False
        self.is_closed = False
        self.queued_bytes = 0
        """Bytes that were sent and are not yet the kernel's."""
        self.last_read_ms = loop.turn_ms
        self._transport: Transport | None = None
        self._mask = 0
        self._out: deque[Buffer] = deque()
        self._dirty = False
        self._moving = 0  # how many bytes, the first of `_out`, a mover has to send
        self._parting: tuple[Transport, bool] | None = None  # closed as soon as it has ended
        self._paused = False
        self._head = b""  # a part of a frame's size
        self._frame: memoryview | None = None  # the frame being filled
        self._filled = 0
        self._expected = 0  # the size of the frame before, when that was large
        self._low = 1  # bytes that make the stream readable
        self._rest: memoryview | None = None  # read, not yet parsed, because reading is paused
        self._addresses: list[Address] = []
        self._address_timer: TimerPort | None = None
        self._until_ms = 0  # when the stream is to be open
        self._deadline: TimerPort | None = None
        self._idle_timer: TimerPort | None = None

    @property
    def peer_subject(self) -> str | None:
        """The distinguished name in the other side's certificate; None without TLS or one."""
        return None

    # -- for the handler

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Queue one frame, already size-prefixed, in pieces of bytes. Ignored once closed.

        A connection that holds more than 256 MiB unsent is closed: its peer does not read.
        """
        if self.is_closed:
            return
        self._out.extend(buffers)
        size = 0
        for piece in buffers:
            size += len(piece)
        self.queued_bytes += size
        if not self._dirty:
            self._dirty = True
            self._loop.flush_soon(self)
        if self.queued_bytes > _QUEUED_BYTES_MAX:
            self._fail(f"{self.queued_bytes} bytes wait to be sent and {self.peer} does not read")

    def close(self, error: KohortError | None = None) -> None:
        """End the stream; `closed` is called soon. Queued bytes get one last chance to leave."""
        if self.is_closed:
            return
        self.is_closed = True
        transport, self._transport = self._transport, None
        for timer in (self._deadline, self._address_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._frame = self._rest = None
        if transport is not None:
            self._loop.unwatch(transport.fileno())
        if transport is not None and self._moving:
            self._parting = transport, error is None
        else:
            self._part(transport, error is None)
        if self._listener is not None:
            self._listener.connection_ended(self)
        self._loop.call_soon(self._handler.closed, self, error)

    def _part(self, transport: Transport | None, orderly: bool) -> None:
        if transport is not None:
            if orderly and self.is_connected and self._out:
                self._write(transport)
            transport.close()
        self._out.clear()
        self.queued_bytes = 0
        self._loop.disown(self.id)

    def abandon(self) -> None:
        """In the child of a fork: let go of the socket, which stays the parent's."""
        self.is_closed = True
        if self._parting is not None:
            self._parting[0].close()
        if self._transport is not None:
            self._transport.close()

    def pause_reading(self) -> None:
        """Take no further frame until `resume_reading`; may be called inside `frame_received`."""
        self._paused = True

    def resume_reading(self) -> None:
        """Take frames again, the ones that already arrived first."""
        if self._paused and not self.is_closed:
            self._paused = False
            if self._rest is not None:
                self._loop.call_soon(self._resume_rest)
            elif self.is_connected:
                self._interest(self._mask | READ)

    def close_when_idle(self, idle_ms: int | None) -> None:
        """Close when nothing is read for `idle_ms` (None: never)."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if idle_ms is not None and not self.is_closed:
            self._idle_timer = self._loop.call_at(
                self._loop.now_ms() + idle_ms, self._check_idle, idle_ms
            )

    # -- opening

    def begin_connect(self, addresses: list[Address] | ConnectionFailedError) -> None:
        """Called by the resolver."""
        if self.is_closed:
            return
        if isinstance(addresses, ConnectionFailedError):
            self.close(addresses)
            return
        self._addresses = addresses
        self._try_next_address("no address")

    def connect_deadline(self, timeout_ms: int) -> None:
        """Close when the stream is not open within `timeout_ms`."""
        self._until_ms = self._loop.now_ms() + timeout_ms
        self._deadline = self._loop.call_at(
            self._until_ms,
            self._fail,
            f"no connection to {self.peer} within {timeout_ms} ms; is the address right?",
        )

    def accepted(self, sock: socket.socket, handler: ConnectionHandler) -> None:
        """Called by the listener: `sock` is an open stream."""
        self._handler = handler
        self._open(sock)

    def _try_next_address(self, last: object) -> None:
        while self._addresses:
            family, address = self._addresses.pop(0)
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                last = error
                continue
            sock.setblocking(False)
            code = sock.connect_ex(address)
            if code in (0, errno.EINPROGRESS):
                self._transport = sock
                self._mask = WRITE
                self._loop.watch(sock.fileno(), WRITE, self._connect_ready)
                self._bound_address()
                return
            sock.close()
            last = OSError(code, errno.errorcode.get(code, "?"))
        self._fail(f"cannot connect to {self.peer}: {last}; is the broker running there?")

    def _bound_address(self) -> None:
        """An address that does not answer leaves the addresses behind it their share of the time.

        A firewall drops, a host is dead: nothing says so, unlike with one that refuses.
        """
        if self._addresses:
            now_ms = self._loop.now_ms()
            share_ms = max(1, (self._until_ms - now_ms) // (len(self._addresses) + 1))
            self._address_timer = self._loop.call_at(now_ms + share_ms, self._leave_address)

    def _leave_address(self) -> None:
        self._address_timer = None
        sock, self._transport = self._transport, None
        if sock is not None:
            self._loop.unwatch(sock.fileno())
            sock.close()
            self._try_next_address("no answer")

    def _connect_ready(self, mask: int) -> None:
        if self._address_timer is not None:
            self._address_timer.cancel()
            self._address_timer = None
        sock: Any = self._transport
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._loop.unwatch(sock.fileno())
        self._transport = None
        if code:
            sock.close()
            self._try_next_address(os.strerror(code))
            return
        self._open(sock)

    def _open(self, sock: socket.socket) -> None:
        _tune(sock)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._transport = sock
        self.is_connected = True
        self.last_read_ms = self._loop.turn_ms
        self._mask = 0 if self._paused else READ
        self._loop.watch(sock.fileno(), self._mask, self._ready)
        self._guarded(self._handler.connected, self)

    # -- reading

    def _ready(self, mask: int) -> None:
        if mask == READ and not self._paused and self._rest is None:
            self._read()  # nearly always; closed connections are not watched
            return
        if mask & WRITE:
            self._dirty = True
            self.flush()
        if mask & ~WRITE and not self.is_closed:
            if not self._paused and self._rest is None:
                self._read()
            elif mask & ~(READ | WRITE):  # hang-up is reported whether or not we ask for it
                self._fail(f"{self.peer} closed the connection")
            else:
                self._interest(self._mask & ~READ)

    def _guarded(self, fn: Any, *args: Any) -> None:
        """Run a piece of the handler; a defect in it closes this connection, not the loop."""
        try:
            fn(*args)
        except Exception as error:  # any error of the handler: the loop continues
            self.callback_failed(error)

    def callback_failed(self, error: Exception) -> None:
        """Called when the handler raised: it is reported, and this connection closed."""
        self._loop.report(f"the handler of {self.peer}", error)
        if not isinstance(error, KohortError):
            error = ProtocolError(f"the handler of the connection to {self.peer} raised {error!r}")
        self.close(error)

    def _read(self) -> None:
        transport = self._transport
        assert transport is not None
        self.last_read_ms = self._loop.turn_ms
        if self._frame is not None:
            self._fill(transport, self._frame)
            return
        if self._expected and not self._head:
            self._read_placed(transport)
            return
        data: bytes = self._received(transport.recv, _RECV_BYTES)
        if not data:
            return
        if not self._head and len(data) >= 4:
            (size,) = _size_of(data)
            if size == len(data) - 4 and 0 < size <= self.max_frame_bytes:
                # One whole frame: almost always so where a peer waits for its answer.
                self._handler.frame_received(self, memoryview(data)[4:])
                return
        if self._head:
            data, self._head = self._head + data, b""
        self._parse(memoryview(data))
        if self._frame is not None and len(data) >= _RECV_BYTES and not self.is_closed:
            self._fill(transport, self._frame)

    def _received(self, receive: Callable[[Any], Any], what: Any) -> Any:
        """What came, bytes or how many; nothing where the stream has nothing, or has ended."""
        try:
            received = receive(what)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._fail(f"the connection to {self.peer} broke: {error}")
            return 0
        if not received:
            self._fail(f"{self.peer} closed the connection")
        return received

    def _read_placed(self, transport: Transport) -> None:
        """Read frames as large as the one before to their places, while they are there whole."""
        budget = _TURN_BYTES_MAX
        while budget > 0:
            room = allocate(self._expected + 4, filled_soon=True)
            count: int = self._received(transport.recv_into, room)
            if not count:
                return
            self._place(room, count)
            budget -= count
            more = count == len(room) and self._expected and self._frame is None
            if not more or self._head or self._paused or self.is_closed:
                return

    def _parse(self, view: memoryview) -> None:
        """Hand out the whole frames of `view` and keep the rest."""
        at, end = 0, len(view)
        received, size_max = self._handler.frame_received, self.max_frame_bytes
        while end - at >= 4:
            if self._paused or self.is_closed:
                break
            (size,) = _size_of(view, at)
            if not 0 < size <= size_max:
                self.close(
                    ProtocolError(
                        f"{self.peer} announced a frame of {size} bytes; "
                        f"1 to {size_max} are allowed"
                    )
                )
                return
            at += 4
            if size > end - at:
                self._begin_frame(size, view[at:])
                return
            received(self, view[at : at + size])
            at += size
            size_max = self.max_frame_bytes
        if self._paused and not self.is_closed:
            self._rest = view[at:]
        elif at < end:
            self._head = bytes(view[at:])

    def _place(self, room: memoryview, count: int) -> None:
        """Take `count` bytes that were read into room for a frame as large as the one before."""
        size = _size_of(room)[0] if count >= 4 else 0
        self._expected = 0
        if not _RECV_BYTES <= size <= self.max_frame_bytes:
            self._parse(memoryview(bytes(room[:count])))  # a small one must not hold so much
        elif size + 4 > len(room):
            self._begin_frame(size, room[4:count])
        else:
            self._expected = size
            frame = room[4 : 4 + size]
            if count < size + 4:
                self._frame, self._filled = frame, count - 4
                self._wake_at(size - self._filled)
            else:
                self._handler.frame_received(self, frame)
                if count > size + 4:
                    self._parse(memoryview(bytes(room[4 + size : count])))

    def _begin_frame(self, size: int, part: memoryview) -> None:
        self._expected = size if _RECV_BYTES <= size <= _PLACED_BYTES_MAX else 0
        if size > _PLACED_BYTES_MAX and self._listener is not None:
            self._listener.frame_began(self, size)
        self._frame = allocate(size)
        self._filled = len(part)
        self._frame[: self._filled] = part
        self._wake_at(size - self._filled)

    def _fill(self, transport: Transport, frame: memoryview) -> None:
        """Read on into the frame under way, up to its last byte and not beyond."""
        filled, size, budget = self._filled, len(frame), _FILL_BYTES_MAX
        try:
            while filled < size and budget > 0:
                n = transport.recv_into(frame[filled:])
                if n == 0:
                    self._fail(f"{self.peer} closed the connection inside a frame")
                    return
                filled += n
                budget -= n
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(f"the connection to {self.peer} broke: {error}")
            return
        self._filled = filled
        self._wake_at(size - filled)
        if filled == size:
            self._frame = None
            if size > _PLACED_BYTES_MAX and self._listener is not None:
                self._listener.frame_ended(self)
            self._handler.frame_received(self, frame)

    def _wake_at(self, missing: int) -> None:
        """Ask to be woken only for many readable bytes, or for all that the frame still lacks.

        Else the sender's first packet wakes us, and we take turns with it packet by packet.
        """
        low = min(missing, _WAKE_BYTES_MAX) if missing >= _RECV_BYTES else 1
        # Not for a subclass: TLS reads ahead, and what it holds would be missing below the mark.
        if low != self._low and _LOW_MARKS and type(self._transport) is socket.socket:
            with suppress(OSError):  # of a broken stream; the next read tells of it
                self._transport.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low)
            self._low = low

    def _resume_rest(self) -> None:
        if self._rest is None or self._paused or self.is_closed:
            return
        rest, self._rest = self._rest, None
        self._guarded(self._parse, rest)
        if not self._paused and not self.is_closed:
            self._interest(self._mask | READ)

    def _check_idle(self, idle_ms: int) -> None:
        idle_for_ms = self._loop.now_ms() - self.last_read_ms
        if idle_for_ms >= idle_ms:
            self._fail(f"nothing came from {self.peer} for {idle_for_ms} ms")
        else:
            self._idle_timer = self._loop.call_at(
                self.last_read_ms + idle_ms, self._check_idle, idle_ms
            )

    # -- writing

    def flush(self) -> None:
        """Called by the loop at the end of a turn: write the queue."""
        self._dirty = False
        transport = self._transport
        if transport is None or not self.is_connected or self._moving:
            return
        movers = self._loop.movers
        if (
            movers is not None
            and self.queued_bytes >= _MOVED_BYTES_MIN
            and isinstance(transport, socket.socket)
        ):
            self._interest(self._mask & ~WRITE)
            pieces = list(islice(self._out, _IOV_MAX))
            self._moving = sum(map(len, pieces))
            movers.send(transport, pieces, self._moved)
            return
        if not self._write(transport):
            return
        if self._out:
            if not self._mask & WRITE:
                self._interest(self._mask | WRITE)
        elif self._mask & WRITE:
            self._interest(self._mask & ~WRITE)
            self._guarded(self._handler.drained, self)

    def _moved(self, result: int | OSError) -> None:
        """Called by a mover with the number of bytes sent."""
        handed, self._moving = self._moving, 0
        if isinstance(result, int):
            self.queued_bytes -= result
            self._drop_sent(result)
        if self._parting is not None:
            (transport, orderly), self._parting = self._parting, None
            self._part(transport, orderly)
        elif isinstance(result, OSError) and not isinstance(result, BlockingIOError):
            self._fail(f"the connection to {self.peer} broke: {result}")
        elif result == handed and self.queued_bytes >= _MOVED_BYTES_MIN:
            self.flush()  # the stream is not full: more came meanwhile
        elif self._out:
            self._interest(self._mask | WRITE)
        else:
            self._guarded(self._handler.drained, self)

    def _write(self, transport: Transport) -> bool:
        """Write until nothing is left or the kernel is full; False when the stream broke."""
        out = self._out
        try:
            while out:
                if self.queued_bytes <= _JOIN_BYTES_MAX:
                    data = out[0] if len(out) == 1 else b"".join(out)
                    sent = transport.send(data)
                    out.clear()
                    self.queued_bytes -= sent
                    if sent < len(data):
                        out.append(memoryview(data)[sent:])
                        return True
                else:
                    sent = transport.sendmsg(list(islice(out, _IOV_MAX)))
                    self.queued_bytes -= sent
                    self._drop_sent(sent)
        except BlockingIOError:
            return True
        except OSError as error:
            if not self.is_closed:
                self._fail(f"the connection to {self.peer} broke: {error}")
            return False
        return True

    def _drop_sent(self, sent: int) -> None:
        out = self._out
        while sent:
            first = out[0]
            if sent < len(first):
                out[0] = memoryview(first)[sent:]
                return
            sent -= len(first)
            out.popleft()

    def _interest(self, mask: int) -> None:
        if mask != self._mask and self._transport is not None:
            self._mask = mask
            self._loop.rewatch(self._transport.fileno(), mask)

    def _fail(self, text: str) -> None:
        self.close(ConnectionFailedError(text))


def _tune(sock: socket.socket) -> None:
    """The options of an open stream. Within a machine nothing is lost and nothing need be paced.

    The peer may have gone already, which macOS says here: the next read tells of it.
    """
    with suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if _CONGESTION is not None:
        with suppress(OSError):  # or the system has no choice to offer
            if sock.getpeername()[0] == sock.getsockname()[0]:
                sock.setsockopt(socket.IPPROTO_TCP, _CONGESTION, b"reno")
