"""The broker's own shell around a group shard on a simulated node, and what it reports to checks.

Rules:
- Hosting is `Groups` and `GroupHost`, the code that ships; this module supplies their ports
  (clocks, timers, the load barrier, topics) and overrides a method only to report what it did.
- A node has a machine of its own: what a flush or another node's progress wakes in its hosts waits
  while it is stalled, and is lost with its process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

from kohort.broker.base.config import OFFSETS_TOPIC
from kohort.broker.base.request import Responder
from kohort.broker.coordinator.group_coordinator import Groups
from kohort.broker.coordinator.group_shard_host import GroupHost
from kohort.broker.coordinator.partition_marker import write_marker
from kohort.broker.log.log import Appended
from kohort.broker.log.txn_index import Marker
from kohort.broker.state.failpoints import Failpoints
from kohort.broker.state.group_hints import HeartbeatHints
from kohort.broker.state.partition import Partition
from kohort.errors import BrokerError, ErrorCode
from kohort.group.coordinator.state.config import GroupConfig, GroupTimeouts
from kohort.group.coordinator.state.effects import Effects, GroupRecord
from kohort.group.coordinator.state.topics_image import TopicsImage
from kohort.simulator.env import SimEnv
from kohort.simulator.event_log import Journal
from kohort.simulator.group_log import GroupLog
from kohort.simulator.machine import Machine
from kohort.simulator.network import Asked
from kohort.simulator.plan import Settings
from kohort.simulator.schedule import Random
from kohort.simulator.views import GroupLook, group_ids, look_at
from kohort.wire import Message

if TYPE_CHECKING:
    from kohort.broker.coordinator.services import HostServices


class HostHooks(Protocol):
    """What hears of a shard's events: the checks."""

    def loaded(self, host: WatchedHost) -> None:
        """A shard has replayed its log."""
        ...

    def arrived(self, host: WatchedHost, asked: Asked) -> None:
        """A request reached a shard that answers."""
        ...

    def appended(self, host: WatchedHost, first: int) -> None:
        """Records from `first` on are in the log and were replayed."""
        ...

    def answered(self, host: WatchedHost, asked: Asked, response: Message) -> None:
        """A shard's answer leaves the node."""
        ...

    def ticked(self, host: WatchedHost, before: dict[str, GroupLook]) -> None:
        """A shard's timers have fired."""
        ...


class GroupLogs(Protocol):
    """The cluster, as far as hosts use it."""

    @property
    def group_logs(self) -> list[GroupLog]: ...


class HostWorld(Protocol):
    """The world, as far as hosts use it."""

    @property
    def settings(self) -> Settings: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def loading_held(self) -> bool: ...
    @property
    def checks(self) -> HostHooks: ...
    @property
    def cluster(self) -> GroupLogs: ...
    def topics_image(self) -> TopicsImage: ...


class HostNode(Protocol):
    """The node of a host."""

    machine: Machine
    number: int
    chance: Random
    groups: NodeGroups

    @property
    def world(self) -> HostWorld: ...
    def answer(self, asked: Asked, response: Message) -> None: ...
    def coordinate(self, asked: Asked, client_id: str) -> None:
        """Give the broker's coordinator a request."""
        ...


class Asking:
    """Who hears the answer to one request; `Responder`."""

    hides: Callable[[str], bool] | None = None

    def __init__(self, node: HostNode, asked: Asked, client_id: str) -> None:
        self.asked = asked
        self.api_version = asked.api_version
        self.client_id = client_id
        self.client_host = f"/{asked.channel.client}"
        self.host: WatchedHost | None = None
        """Who deals with it; None: it is refused."""
        self._node = node
        self._machine = node.machine

    def answer(self, response: Message | None) -> None:
        """Answer, unless the process that was asked is gone."""
        assert response is not None, "each of a coordinator's requests has an answer"
        if self._machine.dead:
            return
        if self.host is not None:
            self._node.world.checks.answered(self.host, self.asked, response)
        self._node.answer(self.asked, response)


class WatchedHost(GroupHost):
    """The broker's host of one shard; it reports its events."""

    def __init__(self, node: HostNode, services: HostServices, log: GroupLog) -> None:
        self.node = node
        self.log = log
        self._checks = node.world.checks
        self._machine = node.machine
        super().__init__(services, log.partition)

    @property
    def unwritten(self) -> bool:
        """Whether something was replayed that is not in the log yet."""
        return bool(self._batch)

    def handle(self, request: Message, responder: Responder) -> None:
        """Give the shard a request."""
        assert isinstance(responder, Asking), "requests are ours"
        responder.host = self
        if self.loaded:
            self._checks.arrived(self, responder.asked)
        super().handle(request, responder)

    def marker_written(self, producer_id: int, committed: bool) -> None:
        """The log contains a marker."""
        super().marker_written(producer_id, committed)
        self._checks.appended(self, self.log.read_on())

    def progressed(self) -> None:
        """More of the partition is durable; the process hears of that when it runs."""
        self._machine.soon(super().progressed)

    def _durable(self, result: Appended | BrokerError) -> None:
        self._machine.soon(super()._durable, result)

    def _ready(self) -> None:
        if self.partition.end_offset >= self._end():
            self._checks.loaded(self)
        super()._ready()

    def _write(self) -> bool:
        unwritten = self.unwritten
        written = super()._write()
        if unwritten and written:
            self._checks.appended(self, self.log.read_on())
        return written

    def _replay(self, records: Sequence[GroupRecord], offset: int, producer_id: int) -> None:
        super()._replay(records, offset, producer_id)
        self._checks.appended(self, self.log.read_on())

    def _start_again(self, effects: Effects, code: int) -> None:
        self.node.world.journal.tell(
            f"node {self.node.number} cannot append to partition {self.log.index} of "
            f"__consumer_offsets ({ErrorCode.name_of(code)})"
        )
        super()._start_again(effects, code)

    def _tick(self) -> None:
        shard = self.shard
        before = {
            name: group for name in group_ids(shard) if (group := look_at(shard, name)) is not None
        }
        super()._tick()
        if self.shard is shard:
            self._checks.ticked(self, before)


class NodeGroups(Groups):
    """The broker's coordinator of groups on one node."""

    def __init__(self, node: HostNode) -> None:
        self._sim_node = node
        self.loading = _Loading(node)
        super().__init__(cast("HostServices", _Services(node, self)))  # as far as hosts use it

    def new_host(self, partition: Partition) -> WatchedHost:
        """A host for the shard of a partition."""
        log = self._sim_node.world.cluster.group_logs[partition.index]
        return WatchedHost(self._sim_node, self._node, log)

    def watched(self, index: int) -> WatchedHost | None:
        """The host of a partition, where there is one."""
        return cast("WatchedHost | None", self.host_at(index))

    def end_transaction(self, index: int, producer_id: int, *, committed: bool) -> None:
        """Write a transaction's marker, as the transaction coordinator does; a loading shard takes
        none."""
        with suppress(BrokerError):
            marker, where = Marker(committed, 0), (OFFSETS_TOPIC, index)
            write_marker(self._node, where, producer_id, 0, marker, lambda _result: None)

    def lost_end(self, partition: Partition) -> None:
        """The log has lost its end, and a host may know more: it answers nothing of that."""
        host = self.host_at(partition.index)
        if host is not None:
            host.abandon()
            self.resigned(partition)


class _Services:
    """What a host has of its node: the part of `HostServices` that it uses."""

    def __init__(self, node: HostNode, groups: NodeGroups) -> None:
        self.node_id = node.number
        self.env = SimEnv(node.machine, node.chance, lambda: 0)
        self.config = _Config(node.world.settings.group_config)
        self.group_configs = _NoTimeouts()
        self.failpoints = Failpoints()
        self.heartbeat_hints = HeartbeatHints()
        self.topics = _Topics(node.world)
        self.nodes = _Nodes(groups)


class _Config:
    """`BrokerConfig`."""

    def __init__(self, groups: GroupConfig) -> None:
        self._groups = groups

    def group_config(self) -> GroupConfig:
        """The coordinator's part."""
        return self._groups


class _NoTimeouts:
    """`GroupConfigs`: no group has values of its own."""

    def timeouts(self) -> Mapping[str, GroupTimeouts]:
        """None."""
        return {}


class _ShardTopic:
    """`Topic`, of `__consumer_offsets`."""

    def __init__(self, partitions: list[Partition]) -> None:
        self.partitions = partitions


class _Topics:
    """`Topics`: the offsets topic, and the image of all others."""

    def __init__(self, world: HostWorld) -> None:
        self._world = world

    @property
    def image(self) -> TopicsImage:
        """The cluster's topics."""
        return self._world.topics_image()

    def get(self, name: str) -> _ShardTopic:
        """The topic of the shards."""
        assert name == OFFSETS_TOPIC, "hosts ask for no other"
        return _ShardTopic([log.partition for log in self._world.cluster.group_logs])

    def partition(self, name: str, index: int) -> Partition:
        """One partition of it."""
        return self.get(name).partitions[index]


class _Nodes:
    """`ClusterNodes`: what loading passes, and where markers are reported."""

    def __init__(self, groups: NodeGroups) -> None:
        self.loading = groups.loading
        self.coordinators = self
        self._groups = groups

    def takes_markers(self, partition: Partition) -> bool:
        """Whether the shard is loaded and takes transaction markers."""
        host = self._groups.host_at(partition.index)
        return host is None or host.takes_marker()

    def marker_written(self, partition: Partition, producer_id: int, committed: bool) -> None:
        """Report a marker to its shard."""
        host = self._groups.host_at(partition.index)
        if host is not None:
            host.marker_written(producer_id, committed)


class _Loading:
    """`LoadBarrier`: a load takes its time, and the plan may hold it."""

    def __init__(self, node: HostNode) -> None:
        self._node = node
        self._machine = node.machine
        self._held: list[Callable[[], Any]] = []

    def pass_on(self, load: Callable[[], None]) -> None:
        """Load after a while, or when loads are released."""
        world, machine = self._node.world, self._machine
        if world.loading_held:
            self._held.append(load)
        else:
            delay_ms = self._node.chance.randint(*world.settings.load_ms)
            machine.at(machine.now_ms() + delay_ms, load)

    def release(self) -> None:
        """What was held loads now."""
        held, self._held = self._held, []
        for load in held:
            self._machine.soon(load)
