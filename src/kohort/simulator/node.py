"""A simulated node: what a consumer asks of a broker, answered from the world's logs.

Rules:
- Requests of one connection are answered one after the other and in order, as Kafka does; one that
  is parked holds back what is behind it.
- Groups are the business of the broker's own coordinator (`group_host`); the rest is the least that
  a consumer needs, with the errors that it has to live with: stale leaders, unknown epochs, no
  coordinator.
- A node learns of changes to the cluster late: see `SimCluster`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

from kohort.broker.state.fetch_sessions import FetchSessions
from kohort.errors import ErrorCode
from kohort.group.coordinator.handlers.error_responses import refusal_of
from kohort.group.coordinator.shard import REQUESTS
from kohort.group.coordinator.state.effects import RequestContext
from kohort.group.coordinator.state.routing import coordinator_partition
from kohort.simulator.group_host import Asking, GroupLogs, HostHooks, HostWorld, NodeGroups
from kohort.simulator.machine import Clock, Machine
from kohort.simulator.network import Asked, Channel, Network
from kohort.simulator.reading import (
    FetchWait,
    ReadingHooks,
    ReadingWorld,
    TopicLogs,
    fetch,
    list_offsets,
    offsets_for_epochs,
)
from kohort.simulator.schedule import Schedule
from kohort.wire import Message, decode_request, encode_response
from kohort.wire.messages.api_versions_request import ApiVersionsRequest
from kohort.wire.messages.api_versions_response import ApiVersion, ApiVersionsResponse
from kohort.wire.messages.fetch_request import FetchRequest
from kohort.wire.messages.find_coordinator_request import FindCoordinatorRequest
from kohort.wire.messages.find_coordinator_response import Coordinator, FindCoordinatorResponse
from kohort.wire.messages.list_offsets_request import ListOffsetsRequest
from kohort.wire.messages.metadata_request import MetadataRequest
from kohort.wire.messages.metadata_response import MetadataResponse
from kohort.wire.messages.offset_commit_request import OffsetCommitRequest
from kohort.wire.messages.offset_fetch_request import OffsetFetchRequest
from kohort.wire.messages.offset_for_leader_epoch_request import OffsetForLeaderEpochRequest

PORT = 9092
MAX_SESSION_ID = (1 << 31) - 1
_BY_ID_FROM = 10
_SERVED: tuple[type[Message], ...] = (
    ApiVersionsRequest,
    MetadataRequest,
    FindCoordinatorRequest,
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    *sorted(REQUESTS, key=lambda cls: cls.API_KEY),
)


def host_name(node: int) -> str:
    """The address of a node."""
    return f"node-{node}"


class _Conversation:
    """One connection's requests: the one being answered and those behind it."""

    __slots__ = ("busy", "closed", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[tuple[bytes, bool]] = deque()
        self.busy: Asked | None = None
        self.closed = False


class NodeHooks(HostHooks, ReadingHooks, Protocol):
    """What hears of a node's events: the checks."""


class ClusterView(TopicLogs, GroupLogs, Protocol):
    """The cluster, as far as a node uses it."""

    def metadata(self, request: MetadataRequest) -> MetadataResponse: ...
    def known_group_leader(self, asked: SimNode, partition: int) -> int | None: ...


class NodeWorld(HostWorld, ReadingWorld, Protocol):
    """The world, as far as a node uses it."""

    @property
    def schedule(self) -> Schedule: ...
    @property
    def network(self) -> Network: ...
    @property
    def numbers(self) -> Iterator[int]: ...
    @property
    def cluster(self) -> ClusterView: ...
    @property
    def checks(self) -> NodeHooks: ...


class SimNode:
    """One node; it may die and come back with the same number."""

    def __init__(self, world: NodeWorld, number: int, clock: Clock) -> None:
        self.world = world
        self.number = number
        self.chance = world.schedule.split(f"node {number}")
        self.clock = clock
        self.machine = Machine(world.schedule, f"node {number}", clock)
        self.groups = NodeGroups(self)
        self.waits: dict[str, list[FetchWait]] = {}
        self.sessions = self.no_sessions()
        self._talks: dict[int, _Conversation] = {}

    @property
    def alive(self) -> bool:
        """Whether its process runs (stalled or not)."""
        return not self.machine.dead

    def die(self) -> None:
        """The process is gone, and all it knew."""
        self.machine.die()
        self.waits.clear()
        self.sessions = self.no_sessions()
        self._talks.clear()

    def no_sessions(self) -> FetchSessions:
        """The fetch sessions of a process that has just begun."""
        settings = self.world.settings
        new_id = partial(self.chance.randint, 1, MAX_SESSION_ID)
        return FetchSessions(settings.fetch_slots, settings.fetch_eviction_ms, new_id)

    def start(self) -> None:
        """A new process under the old number."""
        self.machine = Machine(self.world.schedule, f"node {self.number}", self.clock)
        self.groups = NodeGroups(self)

    # -- the network's events --------------------------------------------------------------------

    def accepted(self, channel: Channel) -> None:
        """A client has connected."""
        self._talks[channel.number] = _Conversation()

    def disconnected(self, channel: Channel) -> None:
        """A client's connection is gone; its waiting requests are dropped where possible."""
        talk = self._talks.pop(channel.number, None)
        if talk is not None:
            talk.closed = True

    def received(self, channel: Channel, frame: bytes, again: bool) -> None:
        """A request arrived."""
        talk = self._talks.get(channel.number)
        if talk is None:
            return
        talk.waiting.append((frame, again))
        self._next(channel, talk)

    def _next(self, channel: Channel, talk: _Conversation) -> None:
        while talk.busy is None and talk.waiting:
            frame, again = talk.waiting.popleft()
            request = decode_request(frame)
            asked = Asked(
                next(self.world.numbers),
                channel,
                request.api_version,
                request.correlation_id,
                request.message,
                again,
            )
            if not again:
                talk.busy = asked
            self._serve(asked, request.client_id or "")

    def answer(self, asked: Asked, response: Message) -> None:
        """Answer a request, now; what waited behind it comes next."""
        if asked.channel.receive(asked, response):
            return
        talk = self._talks.get(asked.channel.number)
        if talk is None or asked.silent or talk.busy is not asked:
            return
        frame = b"".join(encode_response(response, asked.api_version, asked.correlation_id))[4:]
        self.world.network.answer(asked.channel, frame)
        talk.busy = None
        if talk.waiting:
            self.machine.soon(self._next, asked.channel, talk)

    # -- requests --------------------------------------------------------------------------------

    def _serve(self, asked: Asked, client_id: str) -> None:
        request = asked.request
        if isinstance(request, ApiVersionsRequest):
            self.answer(asked, self._versions())
        elif isinstance(request, MetadataRequest):
            self.answer(asked, self.world.cluster.metadata(request))
        elif isinstance(request, FindCoordinatorRequest):
            self.answer(asked, self._find_coordinator(request, asked.api_version))
        elif isinstance(request, FetchRequest):
            fetch(self, asked, request)
        elif isinstance(request, ListOffsetsRequest):
            self.answer(asked, list_offsets(self, request))
        elif isinstance(request, OffsetForLeaderEpochRequest):
            self.answer(asked, offsets_for_epochs(self, request))
        else:
            self.coordinate(asked, client_id)

    def _versions(self) -> ApiVersionsResponse:
        most = self.world.settings.newest
        keys = [
            ApiVersion(
                api_key=cls.API_KEY,
                min_version=cls.MIN_VERSION,
                max_version=min(cls.STABLE_VERSION, most.get(cls.NAME, cls.STABLE_VERSION)),
            )
            for cls in _SERVED
        ]
        return ApiVersionsResponse(api_keys=keys)

    def _find_coordinator(
        self, request: FindCoordinatorRequest, version: int
    ) -> FindCoordinatorResponse:
        keys = request.coordinator_keys if version >= 4 else [request.key]
        coordinators = [self._coordinator(key) for key in keys]
        if version >= 4:
            return FindCoordinatorResponse(coordinators=coordinators)
        one = coordinators[0]
        return FindCoordinatorResponse(
            error_code=one.error_code, node_id=one.node_id, host=one.host, port=one.port
        )

    def _coordinator(self, group_id: str) -> Coordinator:
        leader = self.world.cluster.known_group_leader(self, self._partition(group_id))
        if leader is None:
            code = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return Coordinator(key=group_id, node_id=-1, host="", port=-1, error_code=code)
        return Coordinator(key=group_id, node_id=leader, host=host_name(leader), port=PORT)

    def _partition(self, group_id: str) -> int:
        return coordinator_partition(group_id, len(self.world.cluster.group_logs))

    def coordinate(self, asked: Asked, client_id: str) -> None:
        """Give the broker's coordinator a request."""
        request: Any = asked.request
        names = self.world.cluster.names
        if asked.api_version >= _BY_ID_FROM:
            topics: list[Any] = []
            if isinstance(request, OffsetCommitRequest):
                topics = list(request.topics)
            elif isinstance(request, OffsetFetchRequest):
                topics = [topic for group in request.groups for topic in group.topics or ()]
            for topic in topics:
                topic.name = names.get(bytes(topic.topic_id), "")
            if any(not topic.name for topic in topics):
                context = RequestContext(asked, asked.api_version, client_id, "")
                code = int(ErrorCode.UNKNOWN_TOPIC_ID)
                self.answer(asked, refusal_of(request, context, code))
                return
        groups = getattr(request, "groups", None)
        first = groups[0] if groups else request
        group_id = first if isinstance(first, str) else first.group_id
        self.groups.handle(group_id, asked.request, Asking(self, asked, client_id))
