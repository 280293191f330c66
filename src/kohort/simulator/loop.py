"""The network loop of a simulated client: the face of `kohort.net.Loop`, on virtual time.

Rules:
- The client code above it is the real one, from `ClusterClient` upwards; only sockets, threads and
  clocks are replaced.
- An error in a callback propagates to the caller of the world: it is a defect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from kohort.client.cluster.network_thread import NetworkThread
from kohort.net import Connection, ConnectionHandler, Loop, Timer
from kohort.simulator.machine import WALL_MS, Machine
from kohort.simulator.schedule import Handle

if TYPE_CHECKING:
    from kohort.net.connection import ClientTls


class NetworkPort(Protocol):
    """Where a loop connects."""

    def connect(
        self, loop: SimLoop, host: str, handler: ConnectionHandler, timeout_ms: int
    ) -> Connection:
        """A client's connection to a node, by its host name."""
        ...


class SimTimer(Timer):
    """A call to come on a client's loop."""

    __slots__ = ("_handle",)

    def __init__(self, when_ms: int) -> None:
        self.when_ms = when_ms
        self._handle: Handle | None = None

    def bind(self, machine: Machine, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Let the call come."""
        self._handle = machine.at(self.when_ms, self._fire, fn, args)

    def _fire(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self._handle is not None:
            self._handle = None
            fn(*args)

    def cancel(self) -> None:
        """Do not call."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    @property
    def active(self) -> bool:
        """True until the call is made or cancelled."""
        return self._handle is not None


class SimLoop(Loop):
    """The loop of one simulated process. Base attributes that touch the machine are not made."""

    def __init__(self, machine: Machine, network: NetworkPort) -> None:
        self.machine = machine
        self.network = network
        self.now_ms = machine.now_ms
        self.forked = False

    @property
    def turn_ms(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The time at which the present event happens."""
        return self.machine.now_ms()

    def wall_ms(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The process's idea of the time of day."""
        return WALL_MS + self.machine.now_ms()

    def call_soon(self, fn: Callable[..., object], *args: Any) -> None:
        """Call `fn(*args)` as the next event of this process."""
        self.machine.soon(fn, *args)

    def call_soon_threadsafe(self, fn: Callable[..., object], *args: Any) -> None:
        """The same: there are no threads here."""
        self.machine.soon(fn, *args)

    def call_at(self, when_ms: int, fn: Callable[..., object], *args: Any) -> Timer:
        """Call `fn(*args)` when the process's clock shows `when_ms`."""
        timer = SimTimer(when_ms)
        timer.bind(self.machine, fn, args)
        return timer

    def connect(
        self,
        host: str,
        port: int,
        handler: ConnectionHandler,
        *,
        max_frame_bytes: int,
        timeout_ms: int = 10_000,
        tls: ClientTls | None = None,
    ) -> Connection:
        """Begin to connect to a simulated node."""
        del port, max_frame_bytes, tls
        return self.network.connect(self, host, handler, timeout_ms)


class SimThread(NetworkThread):
    """What a client takes for its network thread: calls are carried out as events."""

    def __init__(self, loop: SimLoop, uniform: Callable[[], float]) -> None:
        self.loop = loop
        self.uniform = uniform
        self._stopped = False

    def release(self) -> None:
        """The process continues; nothing ends with the last client."""
