"""The connections of one client: one for each node and kind, opened when first needed.

A connection to a bootstrap address becomes that of its node once metadata names it; one to an
address that a node has left is closed. Lives on the network thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kohort.client.cluster.connection import ConnectionKind, Peer, PeerOwner, PeerState
from kohort.client.cluster.credentials import Credentials
from kohort.client.cluster.metadata import Node
from kohort.client.common.config import ClientConfig
from kohort.errors import ClosedError, ConnectionFailedError
from kohort.net import Loop

_SILENT: Final = {
    PeerState.CONNECTING: "no answer to connecting yet; is a firewall in between?",
    PeerState.NEGOTIATING: "connected, but it does not answer as a Kafka broker does",
    PeerState.AUTHENTICATING: "connected, but the login is not answered",
}
_WANTED: Final = frozenset({PeerState.BACKING_OFF, *_SILENT})
_FIRST_BOOTSTRAP: Final = -2  # bootstrap addresses are nodes -2, -3, ... until ids are known


class Connections:
    """The connections of one client."""

    def __init__(
        self,
        loop: Loop,
        owner: PeerOwner,
        config: ClientConfig,
        uniform: Callable[[], float],
        credentials: Credentials,
    ) -> None:
        self._loop = loop
        self._owner = owner
        self._config = config
        self._uniform = uniform
        self._credentials = credentials
        self._peers: dict[tuple[int, ConnectionKind], Peer] = {}
        self._bootstrap = {
            _FIRST_BOOTSTRAP - n: Node(_FIRST_BOOTSTRAP - n, host, port)
            for n, (host, port) in enumerate(config.addresses)
        }
        self._nodes: Mapping[int, Node] = {}
        """Those of the present metadata."""
        self._learned: dict[int, Node] = {}

    def node(self, node_id: int) -> Node | None:
        """The address of a node, from metadata or learned otherwise."""
        return self._nodes.get(node_id) or self._learned.get(node_id)

    def feature(self, node_id: int, name: str) -> int:
        """The level of a feature, as the node reported it on connecting; 0 when it did not."""
        levels = [p.features.get(name, 0) for (n, _), p in self._peers.items() if n == node_id]
        return max(levels, default=0)

    def local_directory(self, node_id: int, kind: ConnectionKind) -> str | None:
        """Where the broker at the other end of this connection lets its files be read."""
        peer = self._peers.get((node_id, kind))
        return None if peer is None else peer.local_directory

    def learn(self, node: Node) -> None:
        """Remember an address that an answer named (FindCoordinator), until metadata has it."""
        self._learned[node.node_id] = node
        self._drop_moved()

    def get(self, node_id: int, kind: ConnectionKind) -> Peer | None:
        """The connection to a node; None: its address is not known."""
        peer = self._peers.get((node_id, kind))
        if peer is None:
            node = self._bootstrap.get(node_id) or self.node(node_id)
            if node is None:
                return None
            address = (node.host, node.port)
            name = f"{node.host}:{node.port}" if node_id in self._bootstrap else str(node)
            peer = Peer(
                self._loop,
                self._owner,
                self._config,
                node_id,
                address,
                name,
                kind,
                self._uniform,
                self._credentials,
            )
            self._peers[node_id, kind] = peer
        return peer

    def any(self, kind: ConnectionKind) -> Peer:
        """The least busy open connection, else the most promising address."""
        nodes = list(self._nodes) or list(self._bootstrap)
        peers = [peer for n in nodes if (peer := self.get(n, kind)) is not None]
        if all(peer.failures for peer in peers):
            # KIP-1102: every known broker is gone, so begin with the bootstrap addresses again.
            peers += [peer for n in self._bootstrap if (peer := self.get(n, kind)) is not None]
        return min(peers, key=self._cost)

    def _cost(self, peer: Peer) -> tuple[int, float, float]:
        if peer.state is PeerState.READY:
            return (0, len(peer.pipeline), self._uniform())
        if peer.state in _SILENT:
            return (1, peer.failures, self._uniform())
        if peer.state is PeerState.IDLE:
            return (2, peer.failures, self._uniform())
        return (3, peer.retry_at_ms, self._uniform())

    @property
    def is_cut_off(self) -> bool:
        """True while connections are wanted and none is open. May be asked from any thread."""
        states = {peer.state for peer in list(self._peers.values())}
        return PeerState.READY not in states and bool(states & _WANTED)

    def can_reach(self, node_id: int) -> bool:
        """False while a node is connected to in vain. May be asked from any thread."""
        states = {peer.state for (node, _), peer in list(self._peers.items()) if node == node_id}
        return not states or bool(states - _WANTED)

    def follow(self, nodes: Mapping[int, Node]) -> None:
        """Metadata names these nodes now."""
        self._nodes = nodes
        self._adopt_bootstrap()
        self._drop_moved()

    def forget_learned(self, nodes: Mapping[int, Node]) -> None:
        """Metadata has the addresses of these nodes itself."""
        self._learned = {n: node for n, node in self._learned.items() if n not in nodes}

    def _adopt_bootstrap(self) -> None:
        """The nodes are known now: a connection to a bootstrap address becomes its node's."""
        by_address = {(node.host, node.port): node for node in self._nodes.values()}
        for (node_id, kind), peer in list(self._peers.items()):
            node = by_address.get(peer.address) if node_id in self._bootstrap else None
            if node is not None and (node.node_id, kind) not in self._peers:
                del self._peers[node_id, kind]
                peer.name = str(node)
                self._peers[node.node_id, kind] = peer
            elif node_id in self._bootstrap and not len(peer.pipeline):
                del self._peers[node_id, kind]
                peer.close(ClosedError("the cluster's own addresses are known now"))

    def _drop_moved(self) -> None:
        """Close the connections of nodes that listen elsewhere now."""
        for (node_id, kind), peer in list(self._peers.items()):
            if node_id in self._bootstrap:
                continue
            node = self.node(node_id)
            if node is None and len(peer.pipeline):
                continue  # let it finish or fail by itself
            if node is None or (node.host, node.port) != peer.address:
                del self._peers[node_id, kind]
                peer.close(ConnectionFailedError(f"{peer.name} is no longer at that address"))

    def errors(self) -> dict[str, object]:
        """Every address that was tried in vain, and why it failed. May be asked from any thread."""
        return {
            f"{peer.address[0]}:{peer.address[1]}": peer.last_error or _SILENT[peer.state]
            for peer in list(self._peers.values())
            if peer.last_error is not None or peer.state in _SILENT
        }

    def close(self, error: ClosedError) -> None:
        """Close every connection; everything under way fails with `error`."""
        for peer in self._peers.values():
            peer.close(error)
        self._peers.clear()
