"""The second design's world: consumers, brokers of which one is elected, and ZooKeeper behind them.

Rules:
- Of ZooKeeper only what the brokers do with it is counted: election, the watch on the topics, and
  the group's generation and members; it has the same cost for a write as in the first design.
- A deposed coordinator cannot write to ZooKeeper, so it finishes no rebalance; but nothing that it
  answers to heartbeats and commits has to be written there.
- What a cut link carried is lost. A node that dies breaks its connections at once.
"""

from __future__ import annotations

from kohort.simulator.history.assigning import (
    Assigner,
    Do,
    Follower,
    Message,
    Read,
    Save,
    Send,
    Word,
)
from kohort.simulator.history.ledger import KEEP_ALIVE, NOTIFICATION
from kohort.simulator.history.network import Link, Station
from kohort.simulator.history.plan import Plan
from kohort.simulator.history.world import World

BROKERS = 3
FIND_BYTES, ZOOKEEPER_BYTES, NOTICE_BYTES = 90, 120, 60
"""A lookup and its answer; a small ZooKeeper request and its answer; a notification."""


class Client:
    """A consumer's process: its machine, link, connection, and the node it is connected to."""

    __slots__ = ("alive", "connection", "link", "machine", "member", "node", "wake_ms")

    def __init__(self, member: int, machine: Follower) -> None:
        self.member, self.machine = member, machine
        self.link = Link()
        self.alive = True
        self.connection = 0
        self.node: Node | None = None
        self.wake_ms: int | None = None


class Node:
    """A broker that coordinates, or did."""

    def __init__(self, assigner: Assigner, service_us: int) -> None:
        self.assigner = assigner
        self.station = Station(service_us)
        self.alive, self.deposed = True, False
        self.tick_ms: int | None = None


class AssigningWorld(World):
    """A coordinator on the server watches and assigns."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._clients: dict[str, Client] = {}
        self._saved: tuple[int, tuple[str, ...]] = (0, ())
        self._deposed: list[Node] = []
        self._leader = self._elect()

    # -- the plan's events -------------------------------------------------------------------------

    def fenced(self, member: int) -> bool:
        """What the coordinator that it is connected to would say to a commit."""
        client = self._clients[_name(member)]
        node = client.node
        return node is None or not node.assigner.accepts(
            client.machine.name, client.machine.generation
        )

    def start(self, member: int) -> None:
        """A process starts and looks for the coordinator."""
        timing = self.timing
        client = Client(member, Follower(_name(member), timing.session_ms, timing.heartbeat_ms))
        self._clients[client.machine.name] = client
        self._do(client, client.machine.start(self.schedule.now_ms))

    def leave(self, member: int) -> None:
        """It stops and says good-bye."""
        client = self._clients[_name(member)]
        self._do(client, client.machine.close())

    def crash(self, member: int) -> None:
        """Nothing comes from it any more."""
        self._clients[_name(member)].alive = False
        self.ledger.ownership.drop_all(member, self.schedule.now_ms)

    def grow(self, topic: str) -> None:
        """The coordinator's watch fires; it reads the topic."""
        del topic
        self.ledger.traffic.add(NOTIFICATION, 1, NOTICE_BYTES)
        self._zookeeper(1)
        self.schedule.after(3 * self.network.delay_ms(), self._grown, self._leader)

    def slow(self, member: int, by_ms: int) -> None:
        """What the coordinator says comes late."""
        if (client := self._clients.get(_name(member))) is not None:
            client.link.slow_ms = by_ms

    def cut(self, member: int, cut: bool) -> None:
        """No way to the coordinator; other brokers can be reached."""
        self._clients[_name(member)].link.cut = cut

    def server_dies(self) -> None:
        """The coordinator's node: connections break, and another is elected."""
        self._leader.alive = False
        self._break(self._leader)
        self.schedule.after(self.timing.failover_ms, self._elected)

    def depose(self) -> None:
        """The node loses ZooKeeper: another is elected; its clients do not know, nor does it."""
        self._leader.deposed = True
        self._deposed.append(self._leader)
        self.schedule.after(self.timing.failover_ms, self._elected)

    def learns(self) -> None:
        """It reaches ZooKeeper again, closes its connections, and is a coordinator no more."""
        for node in self._deposed:
            node.alive = False
            self._break(node)
        self._deposed.clear()

    # -- nodes -------------------------------------------------------------------------------------

    def _elect(self) -> Node:
        generation, members = self._saved
        timing = self.timing
        assigner = Assigner(self.topics, timing.session_ms, generation, members)
        assigner.begin(self.schedule.now_ms)
        # The others learn that the coordinator's node is gone, all try to become it, and the
        # one that does reads the group.
        self.ledger.traffic.add(NOTIFICATION, BROKERS - 1, NOTICE_BYTES * (BROKERS - 1))
        self._zookeeper(BROKERS + len(self.topics) + 1 + len(members))
        node = Node(assigner, timing.service_us)
        self._arm(node)
        return node

    def _elected(self) -> None:
        self._leader = self._elect()

    def _zookeeper(self, requests: int) -> None:
        self.ledger.traffic.add("zookeeper", 2 * requests, ZOOKEEPER_BYTES * requests)

    def _grown(self, node: Node) -> None:
        if node.alive and not node.deposed:
            self._carry_out(node, node.assigner.topics_changed(self.topics))

    def _break(self, node: Node) -> None:
        for client in self._clients.values():
            if client.alive and client.node is node:
                self._break_one(client)

    def _break_one(self, client: Client) -> None:
        client.connection += 1
        self.schedule.after(self.network.delay_ms(), self._lost, client, client.connection)

    def _carry_out(self, node: Node, effects: list[Send | Save]) -> None:
        now = self.schedule.now_ms
        sends = [effect for effect in effects if isinstance(effect, Send)]
        leave_ms = node.station.done_ms(now, len(sends))
        for effect in sends:
            self._send(node, effect, leave_ms)
        for effect in effects:
            if isinstance(effect, Save) and not node.deposed:
                self._zookeeper(1)
                took_ms = self.timing.write_ms + sum(self.timing.network_ms)
                self.schedule.after(took_ms, self._save, node, effect)
        self._arm(node)

    def _save(self, node: Node, save: Save) -> None:
        if node.alive and not node.deposed:
            self._saved = (save.generation, save.members)
            self._carry_out(node, node.assigner.saved())

    def _arm(self, node: Node) -> None:
        due = node.assigner.next_deadline() if node.tick_ms is None else None
        if due is not None:
            node.tick_ms = max(due, self.schedule.now_ms)
            self.schedule.at(node.tick_ms, self._tick, node)

    def _tick(self, node: Node) -> None:
        node.tick_ms = None
        if node.alive:
            self._carry_out(node, node.assigner.tick(self.schedule.now_ms))

    # -- messages ----------------------------------------------------------------------------------

    def _send_up(self, client: Client, message: Message) -> None:
        kind = KEEP_ALIVE if message.word is Word.HEARTBEAT else message.word.value
        self.ledger.traffic.add(kind, 1, message.size(client.machine.name))
        node = client.node
        if node is not None and node.alive and not client.link.cut:
            at_ms = self.network.up(client.link)
            self.schedule.at(at_ms, self._arrive, node, client, client.connection, message)

    def _arrive(self, node: Node, client: Client, connection: int, message: Message) -> None:
        if node.alive and client.connection == connection:
            now = self.schedule.now_ms
            self._carry_out(node, node.assigner.received(client.machine.name, message, now))

    def _send(self, node: Node, send: Send, leave_ms: int) -> None:
        client = self._clients[send.member]
        if client.node is not node:
            return
        kind = KEEP_ALIVE if send.message.word is Word.ALIVE else send.message.word.value
        self.ledger.traffic.add(kind, 1, send.message.size(send.member))
        if client.alive and not client.link.cut:
            at_ms = self.network.down(client.link, leave_ms)
            self.schedule.at(at_ms, self._delivered, client, client.connection, send.message)

    def _delivered(self, client: Client, connection: int, message: Message) -> None:
        if client.alive and client.connection == connection and not client.link.cut:
            self._do(client, client.machine.received(message, self.schedule.now_ms))

    def _find(self, client: Client) -> None:
        self.ledger.traffic.add("FindCoordinator", 2, FIND_BYTES)
        there_and_back = self.network.delay_ms() + self.network.delay_ms()
        self.schedule.after(there_and_back, self._found, client)

    def _found(self, client: Client) -> None:
        now = self.schedule.now_ms
        if not client.alive:
            return
        if self._leader.alive:
            client.node = self._leader
            client.connection += 1
            self._do(client, client.machine.found(now))
        else:
            self._do(client, client.machine.not_found(now))

    def _lost(self, client: Client, connection: int) -> None:
        if client.alive and client.connection == connection:
            self._do(client, client.machine.start(self.schedule.now_ms))

    # -- consumers ---------------------------------------------------------------------------------

    def _do(self, client: Client, effects: list[Message | Read | Do]) -> None:
        for effect in effects:
            if isinstance(effect, Message):
                self._send_up(client, effect)
            elif isinstance(effect, Read):
                self.schedule.after(self.timing.step_ms, self._take, client, effect)
            elif effect is Do.FIND:
                self._find(client)
            else:
                self.schedule.after(self.timing.step_ms, self._stopped, client)
        due = client.machine.next_deadline()
        if due is not None and (client.wake_ms is None or due < client.wake_ms):
            client.wake_ms = max(due, self.schedule.now_ms)
            self.schedule.at(client.wake_ms, self._wake, client, client.wake_ms)

    def _take(self, client: Client, read: Read) -> None:
        if client.alive:
            self.ledger.ownership.take(client.member, read.parts, self.schedule.now_ms)

    def _stopped(self, client: Client) -> None:
        if client.alive:
            effects = client.machine.stopped()
            if not client.machine.reading:
                self.ledger.ownership.drop_all(client.member, self.schedule.now_ms)
            self._do(client, effects)

    def _wake(self, client: Client, at_ms: int) -> None:
        if client.alive and client.wake_ms == at_ms:
            client.wake_ms = None
            self._do(client, client.machine.tick(self.schedule.now_ms))


def _name(member: int) -> str:
    return f"c{member:05}"
