"""The nodes of a process: who lives, who is believed to, and what a change of leaders comes to.

Rules:
- A killed node is silent at once: its connections are cut, its shards are gone, what it had not
  answered stays unanswered (G10). Its partitions get other leaders when that is noticed, after
  `broker_session_timeout_ms`; until then clients are sent to it, as in Kafka.
- A node that comes back before that was noticed has failed all the same: it leads nothing in an
  epoch of its former life.
- Changes of leaders are kept in the registry of topics first; then, partition by partition, the
  old leader's shard resigns before the new one's is made (G11), and who waits for records of the
  partition looks again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kohort.broker.base.config import OFFSETS_TOPIC
from kohort.broker.base.env import Cancellable
from kohort.broker.coordinator.shard_host import ShardHost
from kohort.broker.node.node import Node
from kohort.broker.state.leadership import NOBODY, Change
from kohort.broker.state.load_gate import LoadBarrier
from kohort.broker.state.partition import Partition
from kohort.errors import BrokerError, ErrorCode, UsageError

if TYPE_CHECKING:
    from kohort.broker.state.broker_state import BrokerState

log = logging.getLogger("kohort.broker")


class Endpoint(Protocol):
    """A node's sockets."""

    host: str
    port: int

    def serve(self, node: Node) -> None:
        """Connections from now on are this node's."""
        ...

    def cut(self) -> None:
        """Close everything at once."""
        ...

    def leave(self) -> None:
        """Take nothing more, answer what waits for the disk, then close everything."""
        ...

    def listen(self) -> None:
        """Listen again, on the same port. Raises ConfigError."""
        ...


def open_nodes(state: BrokerState) -> Nodes:
    """Start the nodes over their shared state, and let each hear of the other's changes."""
    nodes = Nodes(state)
    nodes.begin()
    state.topics.changed = nodes.topics_changed
    state.group_configs.changed = nodes.groups_configured
    state.acls.changed = nodes.access_changed
    state.wall_clock_read = nodes.set_wall_offset
    state.before_close = nodes.close
    return nodes


class Nodes:
    """The nodes, by id; on their one thread."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.loading = LoadBarrier()
        self._endpoints: dict[int, Endpoint] = {}
        self._noticing: dict[int, Cancellable] = {}
        """Nodes whose death will be noticed."""
        self._racks = state.config.racks()
        self._running: dict[int, Node] = {}
        state.failpoints.kill = self.kill

    def begin(self) -> None:
        """Make the nodes, then the shards that they lead: those look for each other."""
        for node_id in self._state.leadership.nodes:
            self._running[node_id] = self._new(node_id)
        for node in self:
            node.begin()

    def _new(self, node_id: int) -> Node:
        node = Node(self._state, self, node_id, self._racks.get(node_id))
        endpoint = self._endpoints.get(node_id)
        if endpoint is not None:
            endpoint.serve(node)
        return node

    def attach(self, node_id: int, endpoint: Endpoint) -> None:
        """Give a node its sockets."""
        self._endpoints[node_id] = endpoint
        endpoint.serve(self._running[node_id])

    # -- what is known

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._running.values()))

    def get(self, node_id: int) -> Node | None:
        """A node that runs."""
        return self._running.get(node_id)

    def believed(self) -> list[tuple[int, str, int, str | None]]:
        """`(id, host, port, rack)` of the nodes that clients see."""
        alive = self._state.leadership.alive
        return [self.address(n) for n in self._state.leadership.nodes if n in alive]

    def address(self, node_id: int) -> tuple[int, str, int, str | None]:
        """`(id, host, port, rack)` of a node, alive or not."""
        endpoint, node = self._endpoints.get(node_id), self._running.get(node_id)
        rack = self._racks.get(node_id)
        if endpoint is not None:
            return node_id, endpoint.host, endpoint.port, rack
        config = self._state.config
        if node is not None:
            return node_id, node.host, node.port, rack
        return node_id, config.advertised_host or config.host, config.port, rack

    def controller_id(self) -> int:
        """The first node that is believed to live, or -1."""
        return min(self._state.leadership.alive, default=NOBODY)

    # -- life and death

    def kill(self, node_id: int) -> None:
        """End a node at once. Does nothing when it does not run. Raises UsageError: no such."""
        self._require_known(node_id)
        node = self._running.pop(node_id, None)
        if node is None:
            return
        endpoint = self._endpoints.get(node_id)
        if endpoint is not None:
            endpoint.cut()
        node.abandon()
        env = self._state.env
        due = env.now_ms() + self._state.config.broker_session_timeout_ms
        self._noticing[node_id] = env.call_at(due, self._notice, node_id)

    def _notice(self, node_id: int) -> None:
        timer = self._noticing.pop(node_id, None)
        if timer is not None:
            timer.cancel()
        log.info("node %d is gone; its partitions get other leaders", node_id)
        self._apply(self._state.leadership.failed(node_id))

    def stop(self, node_id: int) -> None:
        """End a node in order: others lead first, then it answers what it still has, and closes."""
        self._require_known(node_id)
        node = self._running.get(node_id)
        if node is None:
            return
        self._apply(self._state.leadership.failed(node_id))
        del self._running[node_id]
        node.close()
        endpoint = self._endpoints.get(node_id)
        if endpoint is not None:
            endpoint.leave()

    def restart(self, node_id: int) -> None:
        """Start a node that was killed or stopped, on its port. Raises ConfigError, UsageError."""
        self._require_known(node_id)
        if node_id in self._running:
            raise UsageError(f"node {node_id} runs already; stop or kill it first")
        if node_id in self._noticing:
            self._notice(node_id)
        endpoint = self._endpoints.get(node_id)
        if endpoint is not None:
            endpoint.listen()
        self._running[node_id] = self._new(node_id)
        self._apply(self._state.leadership.returned(node_id))

    def _require_known(self, node_id: int) -> None:
        known = self._state.leadership.nodes
        if node_id not in known:
            raise UsageError(f"there is no node {node_id}; there are {', '.join(map(str, known))}")

    # -- leaders

    def move_leader(self, topic: str, partition: int, to: int | None) -> int:
        """Let a node (None: the next) lead a partition; returns its id. Raises BrokerError."""
        change = self._state.leadership.move(topic, partition, to)
        self._apply([change])
        return change.leader

    def elect_preferred(self, partitions: Iterable[tuple[str, int]] | None = None) -> list[Change]:
        """Let preferred leaders lead again, where they live; of some partitions, or of all."""
        changes = self._state.leadership.prefer(partitions)
        self._apply(changes)
        return changes

    def place(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Give a partition that is there other replicas. Raises BrokerError."""
        existing = self._state.topics.get(topic)
        assert existing is not None, "the caller has looked"
        leadership = self._state.leadership
        before = leadership.at(topic, partition)
        if before.replicas == tuple(replicas):
            return
        change = leadership.place(topic, partition, replicas)
        try:
            self._state.topics.placed_otherwise(existing)
        except BrokerError:
            leadership.put_back(topic, partition, before)
            raise
        if change is not None:
            self._apply([change])

    def _apply(self, changes: Sequence[Change]) -> None:
        """Keep the changes, then carry them out."""
        if not changes:
            return
        topics = self._state.topics
        named = [topics.get(name) for name in {change.topic for change in changes}]
        try:
            topics.led_otherwise(topic for topic in named if topic is not None)
        except BrokerError as error:
            # The live nodes must continue; a crash now may use these epochs a second time.
            log.error("could not store which node leads which partition: %s", error)
        for change in changes:
            self._carry_out(change)

    def _carry_out(self, change: Change) -> None:
        partition = self._state.topics.partition(change.topic, change.partition)
        if partition is None:
            return
        partition.follow(self._state.leadership.at(change.topic, change.partition))
        for node in self:
            if node.node_id != change.leader:
                node.resigned(partition)
        new = self._running.get(change.leader)
        if new is not None:
            new.elected(partition)
        partition.wake()

    # -- coordinators

    def coordinating(self, group_id: str) -> Partition:
        """The partition of `__consumer_offsets` that a group lives in. Raises BrokerError."""
        for node in self:
            return node.groups.partition_of(group_id)
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no node runs")

    def move_coordinator(self, group_id: str, to: int | None) -> int:
        """Let a node (None: the next) coordinate a group; returns its id. Raises BrokerError."""
        return self.move_leader(OFFSETS_TOPIC, self.coordinating(group_id).index, to)

    def takes_markers(self, partition: Partition) -> bool:
        """Whether a transaction's marker may be written to a partition of an internal topic now.

        Not while its shard is being loaded: that might replay the marker twice, or never.
        """
        host = self._shard_at(partition)
        return host is None or host.takes_marker()

    def marker_written(self, partition: Partition, producer_id: int, committed: bool) -> None:
        """A transaction's marker was appended to a partition: a live shard there must know."""
        host = self._shard_at(partition)
        if host is not None:
            host.marker_written(producer_id, committed)

    def _shard_at(self, partition: Partition) -> ShardHost[Any] | None:
        node = self._running.get(partition.leader)
        for shards in node.hosted if node is not None else ():
            if shards.topic == partition.topic.name:
                return shards.host_at(partition.index)
        return None

    # -- for all of them

    def topics_changed(self) -> None:
        """Topics were made, deleted or grown."""
        for node in self:
            node.groups.topics_changed()

    def groups_configured(self) -> None:
        """Groups have another configuration of their own."""
        for node in self:
            node.groups.configured()

    def access_changed(self) -> None:
        """Who may do what has changed."""
        for node in self:
            node.groups.access_changed()

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Committed offsets of deleted topics go too."""
        gone = list(names)
        for node in self:
            node.groups.topics_deleted(gone)

    def set_wall_offset(self, offset_ms: int) -> None:
        """The wall clock may have been set."""
        for node in self:
            for shards in node.hosted:
                shards.set_wall_offset(offset_ms)

    def close(self) -> None:
        """Shut all of them down."""
        for timer in self._noticing.values():
            timer.cancel()
        for node in self:
            node.close()
