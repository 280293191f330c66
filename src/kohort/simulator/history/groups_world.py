"""The world of today's two protocols: the real coordinator and the real members, many of them.

Rules:
- `GroupShard` and the members are those of the broker and the client; nothing of the protocol is
  decided here. This shell carries messages, appends and replays records, runs the members' steps,
  and tells a member what it would hear of the cluster.
- There is one log. Who is cut off from the cluster cannot append to it: a deposed node's records
  are refused, and it unloads, as a broker does whose leader epoch is over.
- A consumer is fenced when the coordinator that may write would refuse its commit.
- What a cut link carried is lost, and its sender hears of it when the request's time is up. A
  node that dies breaks its connections at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

from kohort.errors import BrokerError, ConnectionFailedError, ErrorCode, KafkaTimeoutError
from kohort.group.coordinator.shard import GroupShard
from kohort.group.coordinator.state.effects import Effects, GroupRecord, Reply, RequestContext
from kohort.group.coordinator.state.topics_image import TopicImage, TopicsImage
from kohort.group.member.effects import Assign, Effect, Fatal, FindCoordinator, Revoke, Send
from kohort.simulator.history.members import GROUP, HOST, Machine, Protocol, topic_id
from kohort.simulator.history.network import Link, Station
from kohort.simulator.history.plan import Plan
from kohort.simulator.history.sizes import request_bytes, response_bytes
from kohort.simulator.history.world import World
from kohort.wire import Message
from kohort.wire.messages.find_coordinator_request import FindCoordinatorRequest
from kohort.wire.messages.find_coordinator_response import Coordinator, FindCoordinatorResponse

RECORD_MAX_BYTES = 64 << 20
"""Ten thousand members in one record of the classic protocol are more than Kafka's default."""


class Client:
    """A consumer's process: its machine, its link and connection, and when it wants to be woken."""

    __slots__ = ("alive", "connection", "link", "machine", "member", "name", "node", "wake_ms")

    def __init__(self, member: int, machine: Machine) -> None:
        self.member, self.machine = member, machine
        self.name = _name(member)
        self.link = Link()
        self.alive = True
        self.connection = 0
        self.node = -1
        self.wake_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that a node has and has not answered."""

    client: Client
    connection: int
    token: int
    kind: str
    late_ms: int


class Node:
    """A broker that coordinates, or did."""

    def __init__(self, number: int, shard: GroupShard, service_us: int) -> None:
        self.number, self.shard = number, shard
        self.station = Station(service_us)
        self.alive, self.deposed = True, False
        self.durable_ms = 0
        self.tick_ms: int | None = None
        self.asked: dict[int, Asked] = {}


class GroupsWorld(World):
    """Members and coordinators under one plan; `protocol` says which members."""

    def __init__(self, plan: Plan, protocol: Protocol) -> None:
        super().__init__(plan)
        self._protocol = protocol
        self._serial = count(1)
        self._log: dict[bytes, tuple[int, GroupRecord]] = {}
        self._offsets = 0
        self._clients: dict[int, Client] = {}
        self._nodes: dict[int, Node] = {}
        self._started: Counter[int] = Counter()
        size = plan.size.members
        known = {_member_id(n, 1): _name(n) for n in range(size)}
        before = protocol.known_before(known, self._image())
        self._write(before)
        self.from_the_log = bool(before)
        """Whether the group was there, settled, before its members started."""
        self._leader = self._load()
        self._jitter: Callable[[], float] = self.schedule.split("jitter").random

    # -- the plan's events -------------------------------------------------------------------------

    def fenced(self, member: int) -> bool:
        """What the node that may write to the log would say to a commit."""
        machine = self._clients[member].machine
        return not self._protocol.accepts(self._leader.shard, machine)

    def start(self, member: int) -> None:
        """A process starts, knows the topics, and subscribes to all of them."""
        self._started[member] += 1
        new_id = partial(_member_id, member, self._started[member])
        client = Client(member, self._protocol.member(self.timing, new_id, self._jitter))
        self._clients[member] = client
        self._look(client)
        topics = frozenset(self.topics)
        self._do(client, client.machine.subscribe(topics, self.schedule.now_ms))

    def leave(self, member: int) -> None:
        """It gives up everything, leaves, and ends."""
        client = self._clients[member]
        self._do(client, client.machine.close(self.schedule.now_ms))

    def crash(self, member: int) -> None:
        """Nothing comes from it any more, and nothing tells the coordinator."""
        client = self._clients[member]
        client.alive = False
        self.ledger.ownership.drop_all(member, self.schedule.now_ms)

    def grow(self, topic: str) -> None:
        """The coordinator's broker knows at once; clients after the next metadata refresh."""
        del topic
        now = self.schedule.now_ms
        for node in self._nodes.values():
            if node.alive and not node.deposed:
                self._took(node, node.shard.topics_changed(self._image(), now))
        for client in self._clients.values():
            self.schedule.at(
                now + self._draw.randrange(self.timing.metadata_ms), self._look, client
            )

    def slow(self, member: int, by_ms: int) -> None:
        """Answers come late."""
        if (client := self._clients.get(member)) is not None:
            client.link.slow_ms = by_ms

    def cut(self, member: int, cut: bool) -> None:
        """No way to the coordinator; other brokers can be reached."""
        self._clients[member].link.cut = cut

    def server_dies(self) -> None:
        """The coordinator's node: its connections break; another node loads the log."""
        self._leader.alive = False
        for client in self._clients.values():
            if client.alive and client.node == self._leader.number:
                client.connection += 1
                self.schedule.after(self.network.delay_ms(), self._lost, client)
        self.schedule.after(self.timing.failover_ms, self._fail_over)

    def depose(self) -> None:
        """The node can write no more; its clients do not know, nor does it."""
        self._leader.deposed = True
        self.schedule.after(self.timing.failover_ms, self._fail_over)

    def learns(self) -> None:
        """Deposed nodes unload: they send everybody to the new coordinator."""
        for node in self._nodes.values():
            if node.alive and node.deposed:
                self._took(node, node.shard.unload())

    # -- nodes -------------------------------------------------------------------------------------

    def _load(self) -> Node:
        timing = self.timing
        config = self._protocol.config(timing, RECORD_MAX_BYTES)
        number = len(self._nodes)
        shard = GroupShard(0, config, self._new_id)
        self._took_image(shard)
        for offset, record in self._log.values():
            shard.replay(record, offset)
        node = self._nodes[number] = Node(number, shard, timing.service_us)
        self._leader = node
        self._took(node, shard.loaded(self.schedule.now_ms))
        return node

    def _new_id(self) -> str:
        return f"{next(self._serial):036}"

    def _took_image(self, shard: GroupShard) -> None:
        shard.topics_changed(self._image(), self.schedule.now_ms)

    def _fail_over(self) -> None:
        self._load()

    def _image(self) -> TopicsImage:
        return TopicsImage.of(
            TopicImage(topic_id(name), name, size) for name, size in self.topics.items()
        )

    def _took(self, node: Node, effects: Effects) -> None:
        """Append, replay, answer; or, deposed, refuse and unload."""
        now = self.schedule.now_ms
        if effects.records and node.deposed:
            replies = node.shard.append_failed(effects, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._reply(node, [*replies, *node.shard.unload().replies])
            return
        if effects.records:
            first = self._write(effects.records)
            for offset, record in enumerate(effects.records, first):
                node.shard.replay(record, offset)
            node.durable_ms = now + self.timing.write_ms
        if effects.replies:
            self._reply(node, effects.replies)
        due = node.shard.next_deadline()
        if due is not None and (node.tick_ms is None or due < node.tick_ms):
            node.tick_ms = max(due, now)
            self.schedule.at(node.tick_ms, self._tick, node, node.tick_ms)

    def _write(self, records: list[GroupRecord]) -> int:
        """Append to the log, which is compacted all the while; the offset of the first."""
        first = self._offsets
        for offset, record in enumerate(records, first):
            self._log.pop(record.key, None)
            if record.value is not None:
                self._log[record.key] = (offset, record)
        self._offsets += len(records)
        return first

    def _tick(self, node: Node, at_ms: int) -> None:
        if node.tick_ms != at_ms or not node.alive:
            return
        node.tick_ms = None
        self._took(node, node.shard.tick(self.schedule.now_ms))

    def _reply(self, node: Node, replies: list[Reply]) -> None:
        now = self.schedule.now_ms
        leave_ms = max(node.station.done_ms(now, len(replies)), node.durable_ms)
        for token, response in replies:
            asked = node.asked.pop(token)  # pyright: ignore[reportArgumentType]
            size = response_bytes(response)
            kind = self._protocol.kind_of_answer(asked.kind, response)
            self.ledger.traffic.add(kind, 1, size)
            if asked.client.alive:
                at_ms = self.network.down(asked.client.link, leave_ms)
                self.schedule.at(at_ms, self._answered, asked, response)

    # -- requests ----------------------------------------------------------------------------------

    def _send(self, client: Client, effect: Send) -> None:
        now = self.schedule.now_ms
        message = effect.message
        kind = self._protocol.kind_of(message)
        self.ledger.traffic.add(kind, 1, request_bytes(message, client.name))
        node = self._nodes[effect.node_id]
        asked = Asked(client, client.connection, effect.token, kind, now + effect.timeout_ms)
        if not node.alive:
            self.schedule.after(2 * self.network.delay_ms(), self._failed, asked)
        elif client.link.cut:
            self.schedule.at(asked.late_ms, self._failed, asked)
        else:
            client.node = node.number
            self.schedule.at(self.network.up(client.link), self._arrive, node, asked, message)

    def _arrive(self, node: Node, asked: Asked, message: Message) -> None:
        if not node.alive or asked.connection != asked.client.connection:
            return
        token = next(self._serial)
        node.asked[token] = asked
        context = RequestContext(token, message.MAX_VERSION, asked.client.name, HOST)
        self._took(node, node.shard.handle(message, context, self.schedule.now_ms))

    def _answered(self, asked: Asked, response: Message) -> None:
        client = asked.client
        if not client.alive or client.connection != asked.connection:
            return
        if client.link.cut:
            self.schedule.at(asked.late_ms, self._failed, asked)
        else:
            now = self.schedule.now_ms
            self._do(client, client.machine.answered(asked.token, response, now))

    def _failed(self, asked: Asked) -> None:
        client = asked.client
        if client.alive and client.connection == asked.connection:
            now = self.schedule.now_ms
            error: ConnectionFailedError | KafkaTimeoutError
            if now >= asked.late_ms:
                error = KafkaTimeoutError("no answer in time")
            else:
                error = ConnectionFailedError("the node is gone")
            self._do(client, client.machine.answered(asked.token, error, now))

    def _lost(self, client: Client) -> None:
        if client.alive:
            self._do(client, client.machine.coordinator_lost(self.schedule.now_ms))

    def _find(self, client: Client) -> None:
        self.ledger.traffic.add("FindCoordinator", 2, _FOUND_BYTES + len(client.name))
        there_and_back = self.network.delay_ms() + self.network.delay_ms()
        self.schedule.after(there_and_back, self._found, client)

    def _found(self, client: Client) -> None:
        if not client.alive:
            return
        now = self.schedule.now_ms
        if self._leader.alive:
            self._do(client, client.machine.coordinator_found(self._leader.number, now))
        else:
            error = BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self._do(client, client.machine.coordinator_not_found(error, now))

    def _look(self, client: Client) -> None:
        if client.alive:
            self._do(client, self._protocol.look(client.machine, self.topics, self.schedule.now_ms))

    # -- members -----------------------------------------------------------------------------------

    def _do(self, client: Client, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(client, effect)
            elif isinstance(effect, Revoke | Assign):
                self.schedule.after(self.timing.step_ms, self._step, client, effect)
            elif isinstance(effect, FindCoordinator):
                self._find(client)
            elif isinstance(effect, Fatal):
                raise effect.error
        due = client.machine.next_deadline()
        if due is not None and (client.wake_ms is None or due < client.wake_ms):
            client.wake_ms = max(due, self.schedule.now_ms)
            self.schedule.at(client.wake_ms, self._wake, client, client.wake_ms)

    def _step(self, client: Client, step: Revoke | Assign) -> None:
        if not client.alive:
            return
        now = self.schedule.now_ms
        if isinstance(step, Revoke):
            self.ledger.ownership.drop(client.member, step.partitions, now)
            self._do(client, client.machine.revoked(step.token, now))
        else:
            self.ledger.ownership.take(client.member, step.added, now)
            self._do(client, client.machine.assigned(step.token, now))

    def _wake(self, client: Client, at_ms: int) -> None:
        if client.alive and client.wake_ms == at_ms:
            client.wake_ms = None
            now = self.schedule.now_ms
            effects = client.machine.polled(now)
            self._do(client, effects + client.machine.tick(now))


def _name(member: int) -> str:
    return f"c{member:05}"


def _member_id(member: int, start: int) -> str:
    """The id that a consumer makes for itself when it starts for the `start`th time (KIP-1082)."""
    return f"{member:05}-{start:030}"


_FOUND_BYTES = request_bytes(FindCoordinatorRequest(coordinator_keys=[GROUP]), "") + response_bytes(
    FindCoordinatorResponse(coordinators=[Coordinator(key=GROUP, host="broker-0", port=9092)])
)
