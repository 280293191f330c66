"""The shell of the nodes of a process: their one thread, its clocks, its signals.

Rules:
- `start` returns when the broker answers; `stop` shuts down cleanly, `kill` does not.

Shell: sockets, threads, time, randomness, signals.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import resource
import signal
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from kohort.broker.base.config import BrokerConfig, Durability
from kohort.broker.base.env import Cancellable
from kohort.broker.log.files import Files, MemoryFile, MemoryFiles, Syncable
from kohort.broker.log.flusher import FlushDone, Flusher, Waiting
from kohort.broker.log.os_files import OsFiles
from kohort.broker.node.nodes import Nodes, open_nodes
from kohort.broker.server.connection import NodeEndpoint
from kohort.broker.state.broker_state import UNKNOWN_VOLUME, BrokerState
from kohort.errors import ClosedError, KafkaTimeoutError, KohortError, StorageError
from kohort.net import Loop
from kohort.signals import handled

if TYPE_CHECKING:
    from kohort.broker.faults.gate import FaultInjector

log = logging.getLogger("kohort.broker")

T = TypeVar("T")
_MOVERS = min(3, os.cpu_count() or 1)  # Kafka has three network threads
_READY_TIMEOUT_S, _STOP_TIMEOUT_S = 30.0, 30.0
_MACOS_DESCRIPTORS_MAX = 10_240
"""The most open files on macOS (OPEN_MAX), also where the hard limit is higher."""
_OTHER_DESCRIPTORS = 64
"""Small files, modules that are imported late, the loop's own."""


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

    def flush(self, file: Syncable, done: FlushDone) -> None:
        if not self._waiting:
            self._loop.call_last(self._submit)  # once a turn, for everybody of that turn
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
        """Call `fn` once everything that waits for a flush or a write by now has been reported.

        Shards write what they replayed in this turn at its end, perhaps after this call, or when a
        flush under way has ended: two flushes, one after the other, leave nothing behind.
        """

        def again(error: OSError | None) -> None:
            self.flush(MemoryFile(""), on_flush)

        def on_flush(error: OSError | None) -> None:
            fn(*args)

        self.call_soon(self.flush, MemoryFile(""), again)

    def stop(self) -> None:
        """End the flusher's thread."""
        self._flusher.stop()


class Broker:
    """An embedded broker, of one node or several, on a thread of its own.

        with Broker(BrokerConfig(data_dir="data")) as broker:
            print(broker.bootstrap)

    `ports` are those of the nodes, where they are to be others than `config.port` and those after
    it. `gate` is where faults come in (`kohort.broker.faults.gate`). `start` raises ConfigError for
    a port in use, DataDirectoryInUseError, StorageError.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        files: Files | None = None,
        ports: Sequence[int] = (),
        gate: FaultInjector | None = None,
    ) -> None:
        self.config = config
        self._gate = gate
        self._files_override = files
        first = config.port
        counted = [first + n if first else 0 for n in range(config.nodes)]
        self._wanted_ports = [*ports[: config.nodes], *counted[len(ports) :]]
        self._files: Files | None = None
        self._loop: Loop | None = None
        self._env: LoopEnv | None = None
        self._thread: threading.Thread | None = None
        self._state: BrokerState | None = None
        self._nodes: Nodes | None = None
        self._endpoints: list[NodeEndpoint] = []
        self._fault: BaseException | None = None

    @property
    def state(self) -> BrokerState:
        """What the nodes share, and they; for the broker's own thread."""
        if self._state is None:
            raise ClosedError("the broker is not running; call start()")
        return self._state

    @property
    def nodes(self) -> Nodes:
        """The nodes; for the broker's own thread."""
        if self._nodes is None:
            raise ClosedError("the broker is not running; call start()")
        return self._nodes

    @property
    def gate(self) -> FaultInjector | None:
        """Where faults are injected, if they may be."""
        return self._gate

    @property
    def ports(self) -> list[int]:
        """The port of each node."""
        if not self._endpoints:
            raise ClosedError("the broker is not running; call start()")
        return [endpoint.port for endpoint in self._endpoints]

    @property
    def port(self) -> int:
        """The port of the first node."""
        return self.ports[0]

    @property
    def addresses(self) -> list[str]:
        """`host:port` of each node."""
        host = self.config.advertised_host or self.config.host
        return [f"{host}:{port}" for port in self.ports]

    @property
    def bootstrap(self) -> str:
        """`host:port` of every node, with commas between, for clients."""
        return ",".join(self.addresses)

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
            loop = self._new_loop()
            undo.callback(loop.stop)
            env = self._new_env(loop)
            undo.callback(env.stop)
            tls = self.config.tls_server()
            endpoints = [
                NodeEndpoint(loop, self.config, port, env.after_flushes, tls, self._gate)
                for port in self._wanted_ports
            ]
            files = self._open_files()
            undo.callback(files.close)
            state = BrokerState(self.config, files, env, self._gate)
            nodes = open_nodes(state)
            if isinstance(files, OsFiles):
                state.links = files.links
            if self.config.data_dir is not None:
                state.volume_of = functools.partial(_volume, self.config.data_dir)
            undo.pop_all()
        for node_id, endpoint in zip(self.config.node_ids(), endpoints, strict=True):
            nodes.attach(node_id, endpoint)
        self._files, self._loop, self._endpoints = files, loop, endpoints
        self._env, self._state, self._nodes = env, state, nodes
        self._thread = self._spawn(loop)
        self._thread.start()

    # What a broker on virtual time does otherwise (`kohort.testing.clock`).

    def _new_loop(self) -> Loop:
        return Loop(movers=_MOVERS)

    def _new_env(self, loop: Loop) -> LoopEnv:
        return LoopEnv(loop)

    def _spawn(self, loop: Loop) -> threading.Thread:
        return threading.Thread(target=loop.run, name="kohort-broker", daemon=True)

    def _await(self, closed: threading.Event) -> None:
        """An orderly end takes as long as the disk does; who cannot wait kills the process."""
        while not closed.wait(_STOP_TIMEOUT_S):
            if self._thread is None or not self._thread.is_alive():
                return
            log.info("ending: flushing, %d logs are closed so far", self.state.closed)

    def _open_files(self) -> Files:
        files = self._plain_files()
        return files if self._gate is None else self._gate.around(files)

    def _plain_files(self) -> Files:
        if self._files_override is not None:
            return self._files_override
        if self.config.durability == Durability.MEMORY.value:
            return MemoryFiles()
        assert self.config.data_dir is not None
        files = OsFiles(self.config.data_dir, max_open=self.config.max_open_files)
        if self.config.local_reads and self._gate is None:
            files.links.begin()
        return files

    def call(self, fn: Callable[..., T], *args: Any) -> T:
        """Call `fn(*args)` on the broker's thread and return what it returns; from any thread.

        Raises what it raises, ClosedError when the broker does not run, KafkaTimeoutError.
        """
        loop = self._loop
        if loop is None:
            raise ClosedError("the broker is not running; call start()")
        if loop.on_loop_thread:
            return fn(*args)
        result: Future[T] = Future()
        loop.call_soon_threadsafe(_answer_into, result, fn, args)
        try:
            return result.result(_STOP_TIMEOUT_S)
        except TimeoutError as error:
            if result.done():  # it is what `fn` raised
                raise
            raise KafkaTimeoutError(
                f"the broker's thread did not answer within {_STOP_TIMEOUT_S:.0f} s; is something "
                "blocking it?"
            ) from error

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
        self._await(closed)
        loop.stop()
        thread.join(_STOP_TIMEOUT_S)
        env.stop()
        assert self._files is not None
        self._files.close()
        self._loop = self._thread = self._env = self._state = self._nodes = self._files = None
        self._endpoints = []
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise StorageError(f"the broker did not shut down cleanly: {fault}") from fault

    def _quiesce(self, clean: bool, closed: threading.Event) -> None:
        """Take no more requests; those that wait for the disk are still answered."""
        assert self._env is not None
        for endpoint in self._endpoints:
            endpoint.quiesce()
        if clean:
            self._env.after_flushes(self._close_node, closed)
        else:
            closed.set()

    def _close_node(self, closed: threading.Event) -> None:
        try:
            self.state.close()
        except (OSError, KohortError) as error:
            self._fault = error
        finally:
            closed.set()


def _answer_into(result: Future[T], fn: Callable[..., T], args: tuple[Any, ...]) -> None:
    try:
        result.set_result(fn(*args))
    except BaseException as error:  # it belongs to the thread that asked
        result.set_exception(error)


def _volume(directory: str) -> tuple[int, int]:
    try:
        usage = os.statvfs(directory)
    except OSError:  # taken away under us: the logs will say so
        return UNKNOWN_VOLUME
    return usage.f_blocks * usage.f_frsize, usage.f_bavail * usage.f_frsize


def _want_descriptors(config: BrokerConfig) -> None:
    """Let this process open what its limits on files and connections come to, if it may."""
    needed = config.max_open_files + config.max_connections + _OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    granted = soft
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    for requested in (most, min(most, _MACOS_DESCRIPTORS_MAX)):
        if requested > granted:
            # The system may allow less than the limit says, by another rule.
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (requested, hard))
                granted = requested
    if granted < needed:
        log.warning(
            "this process may open %d files; %d log files and %d connections may want more: raise "
            "the limit (ulimit -Hn), or lower max_open_files and max_connections",
            granted,
            config.max_open_files,
            config.max_connections,
        )


def serve(
    config: BrokerConfig,
    ready: Callable[[Broker], object] | None = None,
    gate: FaultInjector | None = None,
) -> None:
    """Run a broker until SIGTERM or SIGINT, then shut it down cleanly. For the main thread.

    A second signal ends the process at once, as if it had been killed.

    `ready` is called with the broker once it answers; faults come in by `gate`.
    """
    _want_descriptors(config)
    broker = Broker(config, gate=gate)
    requested: list[int] = []
    bell = SimpleQueue[None]()  # unlike an Event's, its lock is not held when a handler runs

    def end(number: int) -> None:
        if requested:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        requested.append(number)
        bell.put(None)

    with handled(end), broker:
        if ready is not None:
            ready(broker)
        while not requested:  # again and again: a signal just before a sleep does not end it
            with contextlib.suppress(Empty):
                bell.get(timeout=1.0)
