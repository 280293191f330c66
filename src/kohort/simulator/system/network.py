"""The simulated network between real clients and the broker's real connections.

Rules:
- A connection keeps the order of its frames, as TCP does. Each frame takes a random time.
- A frame is lost only with its connection. The two sides may learn of a cut at different times, or
  one of them never (a half-open connection).
- A block holds frames back until it ends.
- Where one side is of the release before, the answer to ApiVersions names what both know.
- A commit of a connection that its client has given up is lost (`_commit_arrives`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from kohort.errors import ConnectionFailedError, KohortError
from kohort.net import Connection, ConnectionHandler
from kohort.simulator.loop import SimLoop
from kohort.simulator.machine import Machine
from kohort.simulator.schedule import Random, Schedule
from kohort.simulator.system.releases import lowered

if TYPE_CHECKING:
    from kohort.net.connection import ClientTls
    from kohort.simulator.system.recorder import Recorder

Bytes = bytes | bytearray | memoryview
_OFFSET_COMMIT = (8).to_bytes(2, "big")
Accept = Callable[[Connection], ConnectionHandler]


class Listener:
    """A port that a node listens on; the face of `kohort.net.Listener`."""

    def __init__(self, network: Network, port: int, machine: Machine, accept: Accept) -> None:
        self.port = port
        self.machine = machine
        self.accept = accept
        self.is_closed = False
        network.listeners[port] = self

    def close(self) -> None:
        """Take no more connections."""
        self.is_closed = True


class End(Connection):
    """One end of a connection, with the face of `kohort.net.Connection`."""

    __slots__ = (
        "_network",
        "_paused",
        "_waiting",
        "due_ms",
        "handler",
        "is_clients",
        "machine",
        "other",
        "sides",
    )

    def __init__(self, network: Network, machine: Machine, peer: str, number: int) -> None:
        self._network = network
        self.is_clients = False
        self.machine = machine
        self.peer = peer
        self.id = number
        self.other: End | None = None
        self.handler: ConnectionHandler | None = None
        self.is_connected = False
        self.is_closed = False
        self.queued_bytes = 0
        self.max_frame_bytes = 1 << 30
        self.due_ms = 0
        """When the last frame to this end arrives: the next one comes no sooner."""
        self.sides: list[Mapping[int, int]] = []
        """What older sides know, until the answer to ApiVersions, the first one, has said it."""
        self._paused = False
        self._waiting: deque[bytes] = deque()

    def send(self, buffers: Sequence[Bytes]) -> None:
        """Send one frame, whose first four bytes are its size."""
        if not self.is_closed and self.other is not None:
            frame = b"".join(bytes(b) for b in buffers)
            assert int.from_bytes(frame[:4], "big") == len(frame) - 4, "one whole frame"
            self._network.carry(self, self.other, frame[4:])

    def close(self, error: KohortError | None = None) -> None:
        """Close; the handler hears of it later and once."""
        if not self.is_closed:
            self.is_closed = True
            self._network.closed(self, error)

    def pause_reading(self) -> None:
        """Take no frames."""
        self._paused = True

    def resume_reading(self) -> None:
        """Take those that wait, as the next event of this process."""
        if self._paused:
            self._paused = False
            if self._waiting:
                self.machine.soon(self._take_waiting)

    def close_when_idle(self, idle_ms: int | None) -> None:
        """Connections are not closed for being idle here."""

    def arrived(self, frame: bytes) -> None:
        """A frame from the other side."""
        if self.is_closed:
            return
        if self.is_clients and self._network.recorder is not None:
            self._network.recorder.received(self.id, frame)
        self._waiting.append(frame)
        self._take_waiting()

    def _take_waiting(self) -> None:
        while self._waiting and not self._paused and not self.is_closed:
            assert self.handler is not None, "frames come after the connection"
            self.handler.frame_received(self, memoryview(self._waiting.popleft()))

    def lost(self, why: str) -> None:
        """The connection has ended without this side's doing."""
        if not self.is_closed:
            self.is_closed = True
            if self.handler is not None:
                self.handler.closed(self, ConnectionFailedError(f"{self.peer}: {why}"))


class Network:
    """All connections of a world."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.chance: Random = schedule.split("network")
        self.latency_ms: tuple[int, int] = (0, 3)
        self.recorder: Recorder | None = None
        self.listeners: dict[int, Listener] = {}
        self._blocks: dict[tuple[str, int], int] = {}
        """(client, port) to the end of the block between them."""
        self._connections: dict[int, tuple[End, End, int]] = {}
        """Client's end, node's end, port."""
        self._count = 0
        self.newest_apis: dict[str, Mapping[int, int]] = {}
        """By process: the newest versions of APIs that a release before this one knows."""

    # -- connections

    def connect(
        self, machine: Machine, port: int, handler: ConnectionHandler, timeout_ms: int
    ) -> Connection:
        """Begin to connect to a port."""
        self._count += 1
        number, now_ms = self._count, self.schedule.now_ms
        client = End(self, machine, f"node:{port}", number)
        client.handler = handler
        client.is_clients = True
        due_ms = self._arrival(machine.name, port, now_ms)
        if due_ms > now_ms + timeout_ms:
            self.schedule.at(now_ms + timeout_ms, machine.run, client.lost, ("no answer",))
        else:
            self.schedule.at(due_ms, self._reaches, client, port)
        return client

    def _reaches(self, client: End, port: int) -> None:
        listener = self.listeners.get(port)
        if client.is_closed:
            return
        if listener is None or listener.is_closed or listener.machine.dead:
            due_ms = self.schedule.now_ms + self._latency()
            self.schedule.at(due_ms, client.machine.run, client.lost, ("refused",))
            return
        node = End(self, listener.machine, f"{client.machine.name}:1", client.id)
        client.other, node.other = node, client
        self._connections[client.id] = client, node, port
        listener.machine.run(self._accepted, (listener, node))
        client.sides = self._older(client, node)
        client.due_ms = self._arrival(client.machine.name, port, self.schedule.now_ms)
        self.schedule.at(client.due_ms, client.machine.run, self._connected, (client,))

    def _older(self, client: End, node: End) -> list[Mapping[int, int]]:
        known = (self.newest_apis.get(end.machine.name) for end in (client, node))
        return [newest for newest in known if newest]

    @staticmethod
    def _accepted(listener: Listener, node: End) -> None:
        node.is_connected = True
        node.handler = listener.accept(node)
        if not node.is_closed:
            node.handler.connected(node)

    @staticmethod
    def _connected(client: End) -> None:
        if not client.is_closed and client.handler is not None:
            client.is_connected = True
            client.handler.connected(client)

    # -- frames

    def carry(self, sender: End, receiver: End, frame: bytes) -> None:
        """A frame on its way."""
        entry = self._connections.get(sender.id)
        if entry is None:
            return
        client, _, port = entry
        if sender is client and self.recorder is not None:
            self.recorder.sent(client.id, client.machine.name, frame)
        if client.sides and receiver is client:
            frame, client.sides = lowered(frame, *client.sides), []
        arrival_ms = self._arrival(client.machine.name, port, self.schedule.now_ms)
        receiver.due_ms = max(receiver.due_ms, arrival_ms)
        if sender is client and frame[:2] == _OFFSET_COMMIT:
            self.schedule.at(receiver.due_ms, self._commit_arrives, sender, receiver, frame)
        else:
            self.schedule.at(receiver.due_ms, receiver.machine.run, receiver.arrived, (frame,))

    @staticmethod
    def _commit_arrives(client: End, node: End, frame: bytes) -> None:
        """One that its client has given up may come after a later one and set the offset back,
        as in Apache Kafka: it is lost on the way."""
        if not client.is_closed:
            node.machine.run(node.arrived, (frame,))

    def closed(self, end: End, error: KohortError | None) -> None:
        """One side has closed: its own handler hears of it, then the other side."""
        now_ms = self.schedule.now_ms
        if end.handler is not None:
            self.schedule.at(now_ms, end.machine.run, end.handler.closed, (end, error))
        entry = self._connections.pop(end.id, None)
        if entry is not None and end.other is not None:
            other = end.other
            due_ms = max(other.due_ms, self._arrival(entry[0].machine.name, entry[2], now_ms))
            self.schedule.at(due_ms, other.machine.run, other.lost, ("closed",))

    # -- faults

    def cut(self, chance: Random, port: int | None = None) -> int:
        """Cut the connections to a port (None: all); each side learns in its own time, or never."""
        entries = [e for e in list(self._connections.values()) if port in (None, e[2])]
        for client, node, _ in entries:
            self._connections.pop(client.id, None)
            slow, never = chance.randint(10, 2_000), None
            client_ms, node_ms = chance.choice(((0, 0), (0, slow), (slow, 0), (0, never)))
            self._learns(client, client_ms)
            self._learns(node, node_ms)
        return len(entries)

    def _learns(self, end: End, after_ms: int | None) -> None:
        if after_ms is not None:
            due_ms = self.schedule.now_ms + after_ms
            self.schedule.at(due_ms, end.machine.run, end.lost, ("connection reset",))

    def process_died(self, machine: Machine) -> None:
        """A process is gone: the other sides of its connections learn soon."""
        for client, node, _ in list(self._connections.values()):
            if machine in (client.machine, node.machine):
                self._connections.pop(client.id, None)
                survivor = node if client.machine is machine else client
                self._learns(survivor, self.chance.randint(0, 20))

    def block(self, client: str, port: int, duration_ms: int) -> None:
        """Hold back everything between a client and a port for a time."""
        key = client, port
        until_ms = self.schedule.now_ms + duration_ms
        self._blocks[key] = max(self._blocks.get(key, 0), until_ms)

    def heal(self) -> None:
        """End every block; frames are quick again."""
        self._blocks.clear()
        self.latency_ms = (0, 3)

    def _arrival(self, client: str, port: int, now_ms: int) -> int:
        return max(now_ms + self._latency(), self._blocks.get((client, port), 0))

    def _latency(self) -> int:
        return self.chance.randint(*self.latency_ms)


class SystemLoop(SimLoop):
    """The network loop of one simulated client process."""

    def __init__(self, machine: Machine, network: Network) -> None:
        self.machine = machine
        self.now_ms = machine.now_ms
        self.forked = False
        self._system = network

    @property
    def on_loop_thread(self) -> bool:
        """Tasks may wait: the network's work is done by other events."""
        return False

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
        del host, max_frame_bytes, tls
        return self._system.connect(self.machine, port, handler, timeout_ms)
