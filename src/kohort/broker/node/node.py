"""A broker node without its sockets: who it is, and the shards that it hosts.

Rules:
- Everything runs on one thread, that of the nodes' `BrokerState`.
- A request is decoded, handed to its API's module, and answered through its `Call`.
- A node serves a partition only while it leads it; the logs are the process's, not the node's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kohort.broker.apis import APIS
from kohort.broker.base.request import Api, Call
from kohort.broker.coordinator.group_coordinator import Groups
from kohort.broker.coordinator.shard_host import CoordinatorShards
from kohort.broker.coordinator.transaction_coordinator import Transactions
from kohort.broker.fast_path.fast_path import FastPath
from kohort.broker.state.fetch_sessions import FetchSessions
from kohort.broker.state.partition import Partition
from kohort.broker.state.topics import Topic
from kohort.wire import Message

if TYPE_CHECKING:
    from kohort.broker.coordinator.services import ClusterNodes
    from kohort.broker.log.local_links import LocalLinks
    from kohort.broker.security.users import Users
    from kohort.broker.state.broker_state import BrokerState


class Node:
    """One node of a process, as long as it lives; one that is restarted is another object."""

    def __init__(
        self, state: BrokerState, nodes: ClusterNodes, node_id: int, rack: str | None
    ) -> None:
        self._state = state
        self.nodes = nodes
        self.node_id = node_id
        self.rack = rack
        self.config = state.config
        self.env = state.env
        self.topics = state.topics
        self.leadership = state.leadership
        self.failpoints = state.failpoints
        self.heartbeat_hints = state.heartbeat_hints
        self.acls = state.acls
        self.quotas = state.quotas
        self.broker_configs = state.broker_configs
        self.group_configs = state.group_configs
        self.authenticator = state.authenticator
        self.gate = state.gate
        self.host = self.config.advertised_host or self.config.host
        self.port = self.config.port
        self.alive = True
        """Whether it may still do anything; a dead node's requests under way may not."""
        self.fetch_sessions = FetchSessions(
            self.config.max_incremental_fetch_session_cache_slots,
            self.config.min_incremental_fetch_session_eviction_ms,
            self._new_session_id,
        )
        self.fast_path = FastPath(self)
        self.groups = Groups(self)
        self.transactions = Transactions(self)

    def _new_session_id(self) -> int:
        return int.from_bytes(self.env.new_uuid()[-4:]) & 0x7FFF_FFFF

    @property
    def cluster_id(self) -> str:
        return self._state.cluster_id

    @property
    def users(self) -> Users:
        return self._state.users

    @property
    def links(self) -> LocalLinks | None:
        return self._state.links

    def volume(self) -> tuple[int, int]:
        """Size and free bytes of the data directory's volume; -1 where unknown."""
        return self._state.volume()

    @property
    def hosted(self) -> tuple[CoordinatorShards[Any], ...]:
        """The shards of each kind."""
        return (self.groups, self.transactions)

    def handle(self, request: Message, call: Call) -> None:
        """Serve a request of a version that its API's module lists."""
        self.serve(APIS[request.API_KEY], request, call)

    def serve(self, api: Api, request: Message, call: Call) -> None:
        """The same with the API looked up: ask what the principal may do, then have it done."""
        if self.acls.authorizer is not None:
            from kohort.broker.authorization import screen  # most brokers ask nobody

            screened = screen(self, self.acls.authorizer, request, call)
            if screened is None:
                return
            call = screened
        api.handle(self, request, call)

    # -- leadership

    def begin(self) -> None:
        """Load what it leads; from now on the others find it."""
        for shards in self.hosted:
            shards.begin()

    def leads(self, partition: Partition) -> bool:
        """Whether this node, which may have died meanwhile, leads a partition."""
        return self.alive and partition.leader == self.node_id

    def elected(self, partition: Partition) -> None:
        """This node leads a partition from now on."""
        for shards in self.hosted:
            if shards.topic == partition.topic.name:
                shards.elected(partition)

    def resigned(self, partition: Partition) -> None:
        """This node no longer leads a partition."""
        for shards in self.hosted:
            if shards.topic == partition.topic.name:
                shards.resigned(partition)

    def abandon(self) -> None:
        """The node has died: nothing in its memory does another thing."""
        self.alive = False
        for shards in self.hosted:
            shards.abandon()

    def close(self) -> None:
        """The node is shut down: who waits is sent away."""
        self.alive = False
        for shards in self.hosted:
            shards.close()

    # -- what it shares with the others

    def next_producer_id(self) -> int:
        """See `BrokerState.next_producer_id`."""
        return self._state.next_producer_id()

    def offsets_topic(self) -> Topic:
        """See `BrokerState.offsets_topic`."""
        return self._state.offsets_topic()

    def transactions_topic(self) -> Topic:
        """See `BrokerState.transactions_topic`."""
        return self._state.transactions_topic()

    def auto_create(self, name: str) -> Topic:
        """See `BrokerState.auto_create`."""
        return self._state.auto_create(name)

    def keep_log_start(self, partition: Partition, offset: int) -> None:
        """See `BrokerState.keep_log_start`."""
        self._state.keep_log_start(partition, offset)
