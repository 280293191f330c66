"""The simulated network: connections between clients and nodes, and everything that befalls them.

Rules:
- A connection keeps its order, as TCP does; two do not. Every frame takes a random time.
- A frame is never lost while its connection lives: losing one means cutting the connection, and the
  two sides may learn of that at different times, or one of them never.
- What a block (a partition of the network) holds back arrives when it ends, unless its connection
  was closed meanwhile.
- Rules of a scenario name frames: the nth request or answer of an API, of one client or of any.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kohort.errors import ConnectionFailedError, KohortError
from kohort.net import Connection, ConnectionHandler
from kohort.simulator.event_log import Journal
from kohort.simulator.loop import SimLoop
from kohort.simulator.machine import Machine
from kohort.simulator.schedule import Random, Schedule
from kohort.wire import API_NAMES, Message

Bytes = bytes | bytearray | memoryview
REQUEST, ANSWER = "request", "answer"


@dataclass
class FrameRule:
    """What befalls the nth frame that fits; `left` counts down to it."""

    what: str
    """drop, delay, repeat, or hold (until `Network.let_go`)."""
    way: str
    api: str
    client: str | None
    left: int
    ms: int = 0
    spent: bool = False


class NodeEnd(Protocol):
    """A node, as the network sees it."""

    machine: Machine
    number: int

    def accepted(self, channel: Channel) -> None:
        """A client has connected."""
        ...

    def received(self, channel: Channel, frame: bytes, again: bool) -> None:
        """A request arrived."""
        ...

    def disconnected(self, channel: Channel) -> None:
        """A client's connection is gone."""
        ...


class Asked(NamedTuple):
    """What a request's answer needs; the token of a shard's replies."""

    number: int
    channel: Channel
    api_version: int
    correlation_id: int
    request: Message
    silent: bool
    """Nobody hears the answer (a repeated request)."""


class Channel:
    """A connection as the network sees it: two ends, each open until it knows better."""

    def __init__(self, number: int, loop: SimLoop, node: NodeEnd) -> None:
        self.number = number
        self.loop = loop
        self.node = node
        self.machine = node.machine
        self.client = loop.machine.name
        self.sender = loop.machine
        self.up_ms = self.down_ms = 0
        self.client_open = True
        self.node_open = False
        self.asked: deque[str] = deque()
        """APIs of requests that the node has not answered, the oldest first."""

    def receive(self, asked: Asked, response: Message) -> bool:
        """Take an answer that needs no connection; False when it has to be sent."""
        del asked, response
        return False


class SimConnection(Connection):
    """The client's end, with the face that the client's code uses."""

    __slots__ = ("_network", "channel", "handler")

    def __init__(self, network: Network, number: int, handler: ConnectionHandler, peer: str):
        self._network = network
        self.channel: Channel | None = None
        self.handler = handler
        self.peer = peer
        self.id = number
        self.is_connected = False
        self.is_closed = False

    def send(self, buffers: Sequence[Bytes]) -> None:
        """Send one frame."""
        if not self.is_closed and self.channel is not None:
            self._network.send(self.channel, b"".join(bytes(b) for b in buffers)[4:])

    def close(self, error: KohortError | None = None) -> None:
        """Close; the handler is called as the real one calls it, later and once."""
        if not self.is_closed:
            self.is_closed = True
            self._network.client_closes(self, error)


class Network:
    """All connections of a world."""

    def __init__(self, schedule: Schedule, journal: Journal) -> None:
        self.schedule = schedule
        self.journal = journal
        self.chance: Random = schedule.split("network")
        self.latency_ms: tuple[int, int] = (1, 5)
        self.nodes: dict[int, NodeEnd] = {}
        self.rules: list[FrameRule] = []
        self.blocks: dict[tuple[str, int], int] = {}
        """(client, node) to the end of the block between them."""
        self.watchers: list[Callable[[str, str, str, int], None]] = []
        """Called with (way, api, client, node) as each frame arrives."""
        self._channels: dict[int, tuple[Channel, SimConnection]] = {}
        self._held: list[tuple[Channel, SimConnection, str, bytes]] = []
        self._count = 0

    # -- connecting ------------------------------------------------------------------------------

    def connect(
        self, loop: SimLoop, host: str, handler: ConnectionHandler, timeout_ms: int
    ) -> Connection:
        """A client's connection to a node, by its host name (`node-2`)."""
        self._count += 1
        connection = SimConnection(self, self._count, handler, host)
        node = self.nodes[int(host.removeprefix("node-"))]
        blocked = self._blocked_until(loop.machine.name, node.number)
        if blocked is not None and blocked > self.schedule.now_ms + timeout_ms:
            due_ms = self.schedule.now_ms + timeout_ms
            self.schedule.at(due_ms, loop.machine.run, self._refused, (connection, "no answer"))
            return connection
        channel = connection.channel = Channel(self._count, loop, node)
        at_ms = max(self.schedule.now_ms + self._latency(), blocked or 0)
        channel.up_ms = at_ms
        self.schedule.at(at_ms, self._arrives, channel, connection)
        return connection

    def _arrives(self, channel: Channel, connection: SimConnection) -> None:
        channel.machine = channel.node.machine
        run = channel.loop.machine.run
        if channel.machine.dead:
            self.schedule.after(self._latency(), run, self._refused, (connection, "refused"))
            return
        channel.node_open = True
        self._channels[channel.number] = channel, connection
        channel.machine.run(channel.node.accepted, (channel,))
        channel.down_ms = self.schedule.now_ms + self._latency()
        self.schedule.at(channel.down_ms, run, self._connected, (connection,))

    def _connected(self, connection: SimConnection) -> None:
        if not connection.is_closed:
            connection.is_connected = True
            connection.handler.connected(connection)

    def _refused(self, connection: SimConnection, why: str) -> None:
        if not connection.is_closed:
            connection.is_closed = True
            error = ConnectionFailedError(f"{connection.peer}: {why}")
            connection.handler.closed(connection, error)

    # -- frames ----------------------------------------------------------------------------------

    def send(self, channel: Channel, frame: bytes) -> None:
        """A request on its way to the node."""
        api = API_NAMES[int.from_bytes(frame[:2], "big")]
        rule = self._rule(REQUEST, api, channel.client)
        if rule is not None and rule.what == "drop":
            self._tell(channel, f"the network loses {api} of {channel.client}")
            self.cut_channel(channel)
            return
        at_ms = self._due(channel.up_ms, channel, rule)
        channel.up_ms = at_ms
        self.schedule.at(at_ms, self._up, channel, api, frame, False)
        if rule is not None and rule.what == "repeat":
            self.schedule.at(at_ms + max(1, rule.ms), self._up, channel, api, frame, True)

    def _up(self, channel: Channel, api: str, frame: bytes, again: bool) -> None:
        if not channel.node_open or (not channel.client_open and api == "OffsetCommit"):
            # A commit that arrives after its sender gave it up could set an offset back, whatever
            # the sender does; Apache Kafka has no cure for that either.
            return
        if again:
            self._tell(channel, f"the network repeats {api} of {channel.client}")
        else:
            channel.asked.append(api)
        self.journal.note("up", channel.client, channel.node.number, api, zlib.crc32(frame))
        for watch in self.watchers:
            watch(REQUEST, api, channel.client, channel.node.number)
        channel.machine.run(channel.node.received, (channel, frame, again))

    def answer(self, channel: Channel, frame: bytes) -> None:
        """An answer on its way to the client."""
        if not channel.node_open:
            return
        api = channel.asked.popleft()
        entry = self._channels.get(channel.number)
        if entry is None:
            return
        if any(held is channel for held, *_ in self._held):
            self._held.append((channel, entry[1], api, frame))
            return
        rule = self._rule(ANSWER, api, channel.client)
        if rule is not None and rule.what == "drop":
            self._tell(channel, f"the network loses the answer to {api} of {channel.client}")
            self.cut_channel(channel)
            return
        if rule is not None and rule.what == "hold":
            self._tell(channel, f"the network holds the answer to {api} of {channel.client}")
            self._held.append((channel, entry[1], api, frame))
            return
        at_ms = self._due(channel.down_ms, channel, rule)
        channel.down_ms = at_ms
        run = channel.loop.machine.run
        self.schedule.at(at_ms, run, self._down, (channel, entry[1], api, frame))

    def _down(self, channel: Channel, connection: SimConnection, api: str, frame: bytes) -> None:
        if connection.is_closed or not channel.client_open:
            return
        self.journal.note("down", channel.client, channel.node.number, api, zlib.crc32(frame))
        connection.handler.frame_received(connection, memoryview(frame))
        for watch in self.watchers:
            watch(ANSWER, api, channel.client, channel.node.number)

    def let_go(self) -> None:
        """Everything that was held arrives now, on the connections that still live."""
        for rule in self.rules:
            rule.spent = rule.spent or rule.what == "hold"
        held, self._held = self._held, []
        for channel, connection, api, frame in held:
            at_ms = max(channel.down_ms, self.schedule.now_ms + self._latency())
            channel.down_ms = at_ms
            run = channel.loop.machine.run
            self.schedule.at(at_ms, run, self._down, (channel, connection, api, frame))

    def _due(self, after_ms: int, channel: Channel, rule: FrameRule | None) -> int:
        at_ms = max(self.schedule.now_ms + self._latency(), after_ms)
        if rule is not None and rule.what == "delay":
            at_ms += rule.ms
        blocked = self._blocked_until(channel.client, channel.node.number)
        return at_ms if blocked is None else max(at_ms, blocked)

    def _rule(self, way: str, api: str, client: str) -> FrameRule | None:
        for rule in self.rules:
            if rule.spent or rule.way != way or rule.api != api:
                continue
            if rule.client is not None and rule.client != client:
                continue
            rule.left -= 1
            if rule.left <= 0:
                rule.spent = rule.what != "hold"
                return rule
        return None

    # -- the end of connections ------------------------------------------------------------------

    def client_closes(self, connection: SimConnection, error: KohortError | None) -> None:
        """The client's code closed its end."""
        channel = connection.channel
        if channel is None or not channel.client_open:
            return
        channel.client_open = False
        self._channels.pop(channel.number, None)
        run = channel.loop.machine.run
        on_closed = connection.handler.closed
        self.schedule.at(self.schedule.now_ms, run, on_closed, (connection, error))
        at_ms = max(channel.up_ms, self.schedule.now_ms + self._latency())
        blocked = self._blocked_until(channel.client, channel.node.number)
        self.schedule.at(max(at_ms, blocked or 0), self._node_learns, channel)

    def cut_channel(
        self, channel: Channel, *, client_ms: int | None = 0, node_ms: int | None = 0
    ) -> None:
        """Break a connection; each side learns of it after this long (None: never by itself)."""
        entry = self._channels.pop(channel.number, None)
        if entry is None:
            return
        now_ms = self.schedule.now_ms
        if client_ms is not None:
            run = channel.loop.machine.run
            at_ms = now_ms + client_ms + self._latency()
            self.schedule.at(at_ms, run, self._client_learns, entry)
        if node_ms is not None:
            self.schedule.at(now_ms + node_ms + self._latency(), self._node_learns, channel)
        else:
            channel.node_open = False

    def _client_learns(self, channel: Channel, connection: SimConnection) -> None:
        if connection.is_closed or not channel.client_open:
            return
        channel.client_open = False
        connection.is_closed = True
        error = ConnectionFailedError(f"{connection.peer}: connection reset")
        connection.handler.closed(connection, error)

    def _node_learns(self, channel: Channel) -> None:
        if channel.node_open:
            channel.node_open = False
            channel.machine.run(channel.node.disconnected, (channel,))

    def cut(self, client: str | None, node: int | None, chance: Random) -> int:
        """Break the connections between a client and a node (None: any); how many there were."""
        channels = [
            channel
            for channel, _ in self._channels.values()
            if client in (None, channel.client) and node in (None, channel.node.number)
        ]
        for channel in channels:
            sides = chance.choice(((0, 0), (0, 0), (0, chance.randint(50, 2_000)), (0, None)))
            self.cut_channel(channel, client_ms=sides[0], node_ms=sides[1])
        return len(channels)

    def process_dies(self, machine: Machine) -> None:
        """A process is gone: its nodes learn soon (the system closes its sockets)."""
        for channel, connection in list(self._channels.values()):
            if channel.sender is machine:  # a twin has the same name
                connection.is_closed = True
                channel.client_open = False
                self.cut_channel(channel, client_ms=None)

    def node_dies(self, node: int, *, silent: bool) -> None:
        """A node is gone. Silently (power, cable): clients learn only by their own time-outs."""
        for channel, _ in list(self._channels.values()):
            if channel.node.number == node:
                channel.node_open = False
                learns_ms = None if silent else self.chance.randint(0, 20)
                self.cut_channel(channel, client_ms=learns_ms, node_ms=None)

    # -- blocks ----------------------------------------------------------------------------------

    def block(self, client: str, node: int, duration_ms: int) -> None:
        """No frame passes between them for this long."""
        until_ms = self.schedule.now_ms + duration_ms
        key = client, node
        self.blocks[key] = max(self.blocks.get(key, 0), until_ms)

    def heal(self) -> None:
        """No block and no rule any more; what was held arrives."""
        self.blocks.clear()
        self.rules.clear()
        self.let_go()

    def _blocked_until(self, client: str, node: int) -> int | None:
        until_ms = self.blocks.get((client, node))
        return until_ms if until_ms is not None and until_ms > self.schedule.now_ms else None

    def _latency(self) -> int:
        return self.chance.randint(*self.latency_ms)

    def _tell(self, channel: Channel, what: str) -> None:
        self.journal.tell(f"{what} (node {channel.node.number})")
