"""The nodes of a process: which run, which the cluster considers alive, and how they come and go.

Rules:
- A killed node is silent at once: its connections are cut, its shards are gone, what it had not
  answered stays unanswered (G10). Its partitions get other leaders when that is noticed, after
  `broker_session_timeout_ms`; until then clients are sent to it, as in Kafka.
- A node that comes back before that was noticed has failed all the same: it leads nothing in an
  epoch of its former life.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from kohort.broker.base.env import Cancellable
from kohort.broker.node.coordinators import Coordinators
from kohort.broker.node.leader_changes import LeaderChanges
from kohort.broker.node.node import Node
from kohort.broker.state.leadership import NO_NODE
from kohort.broker.state.load_gate import LoadBarrier
from kohort.errors import UsageError

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


def open_nodes(state: BrokerState, node: type[Node] = Node) -> Nodes:
    """Start the nodes over their shared state, and let each hear of the other's changes."""
    nodes = Nodes(state, node)
    nodes.begin()
    coordinators = nodes.coordinators
    state.topics.changed = coordinators.topics_changed
    state.group_configs.changed = coordinators.groups_configured
    state.acls.changed = coordinators.access_changed
    state.wall_clock_read = coordinators.set_wall_offset
    state.before_close = nodes.close
    return nodes


class Nodes:
    """The nodes, by id; on their one thread."""

    def __init__(self, state: BrokerState, node: type[Node] = Node) -> None:
        self._state = state
        self._node = node
        self.loading = LoadBarrier()
        self._endpoints: dict[int, Endpoint] = {}
        self._noticing: dict[int, Cancellable] = {}
        """Nodes whose death will be noticed."""
        self._racks = state.config.racks()
        self._running: dict[int, Node] = {}
        self.coordinators = Coordinators(state, self._running)
        self.leaders = LeaderChanges(state, self._running, self.coordinators)
        state.failpoints.kill = self.kill

    def begin(self) -> None:
        """Make the nodes, then the shards that they lead: those look for each other."""
        for node_id in self._state.leadership.nodes:
            self._running[node_id] = self._new(node_id)
        for node in self:
            node.begin()

    def _new(self, node_id: int) -> Node:
        node = self._node(self._state, self, node_id, self._racks.get(node_id))
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
        return min(self._state.leadership.alive, default=NO_NODE)

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
        self.leaders.apply(self._state.leadership.failed(node_id))

    def stop(self, node_id: int) -> None:
        """End a node in order: others lead first, then it answers what it still has, and closes."""
        self._require_known(node_id)
        node = self._running.get(node_id)
        if node is None:
            return
        self.leaders.apply(self._state.leadership.failed(node_id))
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
        self.leaders.apply(self._state.leadership.returned(node_id))

    def _require_known(self, node_id: int) -> None:
        known = self._state.leadership.nodes
        if node_id not in known:
            raise UsageError(f"there is no node {node_id}; there are {', '.join(map(str, known))}")

    def close(self) -> None:
        """Shut all of them down."""
        for timer in self._noticing.values():
            timer.cancel()
        for node in self:
            node.close()
