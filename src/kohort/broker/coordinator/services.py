"""Ports: what APIs and coordinators see of the node that serves them, and of the other nodes.

`node.Node` and `node.Nodes` fill them in. Nothing below `node` names a class of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from kohort.broker.base.config import BrokerConfig
    from kohort.broker.base.env import Env
    from kohort.broker.base.request import Responder
    from kohort.broker.log.local_links import LocalLinks
    from kohort.broker.security.acls import Acls
    from kohort.broker.security.users import Users
    from kohort.broker.state.broker_state import FaultPort
    from kohort.broker.state.client_quotas import ClientQuotas
    from kohort.broker.state.dynamic_broker_config import BrokerConfigs
    from kohort.broker.state.failpoints import Failpoints
    from kohort.broker.state.fetch_sessions import FetchSessions
    from kohort.broker.state.group_config import GroupConfigs
    from kohort.broker.state.group_hints import HeartbeatHints
    from kohort.broker.state.leadership import Change, Leadership
    from kohort.broker.state.partition import Partition
    from kohort.broker.state.topics import Topic, Topics
    from kohort.wire import Message

BY_ID_FROM: Final = 10
"""From this version on, OffsetCommit and OffsetFetch name topics by id."""

TopicPartition = tuple[str, int]
NodeAddress = tuple[int, str, int, str | None]
"""`(id, host, port, rack)`."""


class Coordinator(Protocol):
    """A node's coordinator of one kind."""

    def handle(self, key: str, request: Message, responder: Responder) -> None:
        """Answer a request for a group or a transactional id, or refuse it."""
        ...


class LoadBarrier(Protocol):
    """What a shard passes before it loads; tests may hold it there."""

    def pass_on(self, load: Callable[[], None]) -> None:
        """Load now, or when the barrier is released."""
        ...


class LeaderPort(Protocol):
    """Changes of partitions' leaders and replicas."""

    def elect_preferred(self, partitions: Iterable[tuple[str, int]] | None = None) -> list[Change]:
        """Give partitions back to their preferred leaders. Raises BrokerError."""
        ...

    def place(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Move a partition's replicas. Raises BrokerError."""
        ...


class CoordinatorsPort(Protocol):
    """The coordinators on all nodes of the process."""

    def topics_deleted(self, names: Iterable[str], done: Callable[[], None]) -> None:
        """Topics are gone; `done` is called when their committed offsets are, too."""
        ...

    def takes_markers(self, partition: Partition) -> bool:
        """Whether the shard of an internal partition is loaded and takes transaction markers."""
        ...

    def marker_written(self, partition: Partition, producer_id: int, committed: bool) -> None:
        """Tell the shard of an internal partition of a marker in it."""
        ...


class ClusterNodes(Protocol):
    """The nodes of the process."""

    @property
    def loading(self) -> LoadBarrier: ...

    def get(self, node_id: int) -> HostServices | None:
        """A node that runs."""
        ...

    def believed(self) -> list[NodeAddress]:
        """The nodes that clients learn of."""
        ...

    def address(self, node_id: int) -> NodeAddress:
        """A node, alive or not."""
        ...

    def controller_id(self) -> int:
        """The first node that is believed to live, or -1."""
        ...

    @property
    def leaders(self) -> LeaderPort:
        """Moves leaders and replicas of partitions."""
        ...

    @property
    def coordinators(self) -> CoordinatorsPort:
        """The coordinators on all nodes."""
        ...


class HostServices(Protocol):
    """One node, as its coordinators see it; `NodeServices` is what its APIs see."""

    @property
    def node_id(self) -> int: ...

    @property
    def rack(self) -> str | None: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    config: BrokerConfig
    env: Env
    topics: Topics
    leadership: Leadership
    failpoints: Failpoints
    heartbeat_hints: HeartbeatHints
    acls: Acls
    quotas: ClientQuotas
    broker_configs: BrokerConfigs
    group_configs: GroupConfigs
    fetch_sessions: FetchSessions
    gate: FaultPort | None

    @property
    def cluster_id(self) -> str: ...

    @property
    def nodes(self) -> ClusterNodes: ...

    @property
    def transactions(self) -> Coordinator: ...

    @property
    def users(self) -> Users: ...

    @property
    def links(self) -> LocalLinks | None: ...

    def leads(self, partition: Partition) -> bool:
        """Whether this node leads a partition and is alive."""
        ...

    def volume(self) -> tuple[int, int]:
        """Size and free bytes of the data directory's volume; -1 where unknown."""
        ...

    def next_producer_id(self) -> int:
        """A producer id that was never assigned before. Raises BrokerError."""
        ...

    def offsets_topic(self) -> Topic:
        """`__consumer_offsets`, created if it does not exist. Raises BrokerError."""
        ...

    def transactions_topic(self) -> Topic:
        """`__transaction_state`, created if it does not exist. Raises BrokerError."""
        ...

    def auto_create(self, name: str) -> Topic:
        """Create a topic because a client asked for it. Raises BrokerError."""
        ...

    def keep_log_start(self, partition: Partition, offset: int) -> None:
        """Make durable that a log starts there, or later. Raises BrokerError."""
        ...
