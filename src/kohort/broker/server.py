"""The shell of a node: its sockets, its thread, its clocks, its signals.

Rules:
- Answers of one connection leave in the order of its requests. Requests that wait for the disk do
  not stop those behind them; parked ones do, as in Kafka.
- What cannot be understood closes the connection, with one log line; it never ends the broker.
- `start` returns when the broker answers; `stop` shuts down cleanly, `kill` does not.

Shell: sockets, threads, time, randomness, signals.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from kohort.broker.apis import APIS
from kohort.broker.calls import Api, Call
from kohort.broker.config import BrokerConfig, Durability
from kohort.broker.env import Cancellable
from kohort.broker.flusher import FlushDone, Flusher, Waiting
from kohort.broker.log.files import Files, LogFile, MemoryFile, MemoryFiles
from kohort.broker.log.os_files import OsFiles
from kohort.broker.node import Node
from kohort.errors import ClosedError, DecodeError, KohortError, ProtocolError, StorageError
from kohort.net import Connection, Listener, Loop
from kohort.wire import Message, decode_body, decode_request_header, encode_response
from kohort.wire.api_versions import unsupported_api_versions

log = logging.getLogger("kohort.broker")

_API_VERSIONS, _PRODUCE = 18, 0
_COPIED_BYTES = 16_384
_READY_TIMEOUT_S, _STOP_TIMEOUT_S = 30.0, 30.0


class LoopEnv:
    """`Env` on a readiness loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._flusher = Flusher(loop.call_soon_threadsafe)
        self._waiting: Waiting = []
        self.now_ms = loop.now_ms
        self.call_soon = loop.call_soon

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_at(self, when_ms: int, fn: Callable[..., object], *args: Any) -> Cancellable:
        return self._loop.call_at(when_ms, fn, *args)

    def flush(self, file: LogFile, done: FlushDone) -> None:
        if not self._waiting:
            self._loop.call_soon(self._submit)  # once a turn, for everybody of that turn
        self._waiting.append((file, done))

    def _submit(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._flusher.submit(waiting)

    def new_uuid(self) -> bytes:
        return uuid.uuid4().bytes

    @property
    def flushes(self) -> int:
        """How often a file was flushed."""
        return self._flusher.flushes

    def after_flushes(self, fn: Callable[..., object], *args: Any) -> None:
        """Call `fn` once everything that waits for a flush by now has been told."""
        self.flush(MemoryFile(""), lambda _: _call(fn, *args))

    def stop(self) -> None:
        """End the flusher's thread."""
        self._flusher.stop()


class Peer:
    """One client's connection: decodes, asks the node, and sends the answers in order."""

    def __init__(self, server: Broker, connection: Connection) -> None:
        self._server = server
        self._connection = connection
        self._host = "/" + connection.peer.rpartition(":")[0]
        self._calls: deque[Call] = deque()
        self._parked: Call | None = None
        self._quiet = False
        self._unsent = False

    def connected(self, c: Connection, /) -> None:
        c.close_when_idle(self._server.config.connections_max_idle_ms)

    def drained(self, c: Connection, /) -> None:
        if self._unsent:
            self._unsent = False
            self._read_on()

    def closed(self, c: Connection, error: KohortError | None, /) -> None:
        if isinstance(error, ProtocolError):
            log.warning("closed the connection of %s: %s", c.peer, error)
        for call in self._calls:
            if call.given_up is not None:
                call.given_up()
        self._calls.clear()
        self._server.peers.discard(self)

    def frame_received(self, c: Connection, frame: memoryview, /) -> None:
        try:
            request = self._decoded(c, frame)
        except ProtocolError as error:  # the client's doing: its connection ends, and no more
            c.close(error)
            return
        if request is None:
            return
        api, call, message = request
        self._calls.append(call)
        api.handle(self._server.running_node, message, call)
        if call.answered:
            return
        if call.may_park:
            self._parked = call
            c.pause_reading()
        elif len(self._calls) >= self._server.config.max_requests_in_flight:
            c.pause_reading()

    def _decoded(
        self, c: Connection, frame: bytes | memoryview
    ) -> tuple[Api, Call, Message] | None:
        """The request in a frame; None when it was answered here."""
        if len(frame) < _COPIED_BYTES:
            frame = bytes(frame)  # reading small fields out of bytes is faster than out of a view
        head = decode_request_header(frame)
        api = APIS.get(head.api_key)
        if api is None or not api.min_version <= head.api_version <= api.max_version:
            if head.api_key != _API_VERSIONS:
                raise DecodeError(
                    f"API key {head.api_key} version {head.api_version} is not served here"
                )
            c.send(unsupported_api_versions(head.correlation_id))
            return None
        limit = self._server.config.request_max_bytes
        if head.api_key != _PRODUCE and len(frame) > limit:
            raise DecodeError(f"a request of {len(frame)} bytes; {limit} are allowed")
        message = decode_body(frame, head)
        call = Call(
            head.api_version, head.correlation_id, head.client_id or "", self._host, api.may_park,
            self._answered,
        )  # fmt: skip
        return api, call, message

    def quiesce(self) -> None:
        """Read nothing more from this client."""
        self._quiet = True
        self._connection.pause_reading()

    def _answered(self, call: Call) -> None:
        calls, connection = self._calls, self._connection
        if connection.is_closed:
            return
        while calls and calls[0].answered:
            done = calls.popleft()
            if done.response is not None and not self._send(done, done.response):
                return
        if call is self._parked:
            self._parked = None
        if connection.queued_bytes > self._server.config.connection_max_unsent_bytes:
            self._unsent = True
            connection.pause_reading()
            # The loop writes at the end of a turn, and `drained` is told only of what had to wait.
            env = self._server.running_node.env
            env.call_soon(env.call_soon, self._look_at_unsent)
        self._read_on()

    def _send(self, call: Call, response: Message) -> bool:
        try:
            parts = encode_response(response, call.api_version, call.correlation_id)
        except ProtocolError as error:  # our defect; without an answer the client would wait
            log.exception("an answer to %s cannot be encoded", self._connection.peer)
            self._connection.close(error)
            return False
        self._connection.send(parts)
        return True

    def _look_at_unsent(self) -> None:
        if self._connection.queued_bytes <= self._server.config.connection_max_unsent_bytes:
            self.drained(self._connection)

    def _read_on(self) -> None:
        """Take further requests, unless something stands against it."""
        held = self._quiet or self._unsent or self._parked is not None
        if not held and len(self._calls) < self._server.config.max_requests_in_flight:
            self._connection.resume_reading()


class Broker:
    """An embedded broker on a thread of its own.

        with Broker(BrokerConfig(data_dir="data")) as broker:
            print(broker.bootstrap)

    `start` raises ConfigError for a port in use, DataDirectoryInUseError, StorageError.
    """

    def __init__(self, config: BrokerConfig, *, files: Files | None = None) -> None:
        self.config = config
        self._given_files = files
        self._files: Files | None = None
        self._loop: Loop | None = None
        self._env: LoopEnv | None = None
        self._listener: Listener | None = None
        self._thread: threading.Thread | None = None
        self._node: Node | None = None
        self.peers: set[Peer] = set()
        self._fault: BaseException | None = None

    @property
    def running_node(self) -> Node:
        """The node; for the broker's own thread."""
        if self._node is None:
            raise ClosedError("the broker is not running; call start()")
        return self._node

    @property
    def port(self) -> int:
        """The port that is bound."""
        if self._listener is None:
            raise ClosedError("the broker is not running; call start()")
        return self._listener.port

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients."""
        return f"{self.config.advertised_host or self.config.host}:{self.port}"

    @property
    def flushes(self) -> int:
        """How often a file was flushed so far."""
        return 0 if self._env is None else self._env.flushes

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, open the data directory, recover it if need be, and serve.

        In this order, because a port in use must leave no trace in a data directory.
        """
        if self._thread is not None:
            raise ClosedError("the broker is running already")
        with contextlib.ExitStack() as undo:
            loop = Loop()
            undo.callback(loop.stop)
            listener = loop.listen(
                self.config.host,
                self.config.port,
                self._accept,
                max_frame_bytes=self.config.socket_request_max_bytes,
                max_connections=self.config.max_connections,
            )
            files = self._open_files()
            undo.callback(self._close_files, files)
            env = LoopEnv(loop)
            undo.callback(env.stop)
            node = Node(self.config, files, env)
            undo.pop_all()
        node.port = listener.port
        self._files, self._loop, self._listener = files, loop, listener
        self._env, self._node = env, node
        self._thread = threading.Thread(target=loop.run, name="kohort-broker", daemon=True)
        self._thread.start()

    def _open_files(self) -> Files:
        if self._given_files is not None:
            return self._given_files
        if self.config.durability == Durability.MEMORY.value:
            return MemoryFiles()
        assert self.config.data_dir is not None
        return OsFiles(self.config.data_dir, max_open=self.config.max_open_files)

    @staticmethod
    def _close_files(files: Files) -> None:
        if isinstance(files, OsFiles):
            files.close()

    def _accept(self, connection: Connection) -> Peer:
        peer = Peer(self, connection)
        self.peers.add(peer)
        return peer

    def stop(self) -> None:
        """Shut down cleanly: answer who waits, flush, leave the clean-shutdown marker."""
        self._shut_down(clean=True)

    def kill(self) -> None:
        """End at once, as if the process had been killed; for tests."""
        self._shut_down(clean=False)

    def _shut_down(self, *, clean: bool) -> None:
        loop, thread, env = self._loop, self._thread, self._env
        if loop is None or thread is None or env is None:
            return
        closed = threading.Event()
        loop.call_soon_threadsafe(self._quiesce, clean, closed)
        closed.wait(_STOP_TIMEOUT_S)
        loop.stop()
        thread.join(_STOP_TIMEOUT_S)
        env.stop()
        assert self._files is not None
        self._close_files(self._files)
        self._loop = self._thread = self._env = self._node = self._listener = self._files = None
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise StorageError(f"the broker did not shut down cleanly: {fault}") from fault

    def _quiesce(self, clean: bool, closed: threading.Event) -> None:
        """Take no more requests; those that wait for the disk are still answered."""
        assert self._listener is not None
        assert self._env is not None
        self._listener.close()
        for peer in self.peers:
            peer.quiesce()
        if clean:
            self._env.after_flushes(self._close_node, closed)
        else:
            closed.set()

    def _close_node(self, closed: threading.Event) -> None:
        try:
            self.running_node.close()
        except (OSError, KohortError) as error:
            self._fault = error
        finally:
            closed.set()


def _call(fn: Callable[..., object], *args: Any) -> None:
    fn(*args)


def serve(config: BrokerConfig, ready: Callable[[Broker], object] | None = None) -> None:
    """Run a broker until SIGTERM or SIGINT, then shut it down cleanly. For the main thread.

    `ready` is called with the broker once it answers.
    """
    broker = Broker(config)
    wanted = threading.Event()

    def end(number: int, frame: object) -> None:
        wanted.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with broker:
            if ready is not None:
                ready(broker)
            wanted.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
