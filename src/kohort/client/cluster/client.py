"""The cluster as one client sees it: metadata, connections, requests.

Rules:
- Lives on the network thread; every method is called there (`NetworkThread.call`).
- A connection for each node and kind, so that a heartbeat never waits behind a fetch. Connections
  open when they are first needed and come back after a back-off.
- A request to `ANY` goes to the broker that is least busy; while it has not been sent it moves on
  when that broker cannot be reached, until its deadline. A request to a node fails with the node.
- `done` is called exactly once, never from inside `request`.
- A refused login is final: every request fails with that error, and `refused` is called.
  Asking again would be refused again, and may lock the user out.

Shell: randomness (jitter and the choice among equal brokers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from kohort.client.cluster.connection import ConnectionKind, Peer
from kohort.client.cluster.connections import Connections
from kohort.client.cluster.credentials import Credentials
from kohort.client.cluster.damaged_answers import DamagedAnswers
from kohort.client.cluster.in_flight import Build, Done, PendingRequest
from kohort.client.cluster.metadata import (
    ALL,
    AllTopics,
    ClusterMetadata,
    MetadataListener,
    MetadataSchedule,
    Node,
    is_complete,
    merge,
    with_leader,
)
from kohort.client.common.backoff import Backoff
from kohort.client.common.config import ClientConfig
from kohort.client.common.jitter import uniform
from kohort.errors import (
    AuthenticationError,
    BrokerError,
    ClosedError,
    ConnectionFailedError,
    ErrorCode,
    KohortError,
    UsageError,
)
from kohort.metrics.events import Events
from kohort.net import Loop, Timer
from kohort.wire import Message, response_class
from kohort.wire.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from kohort.wire.messages.metadata_response import MetadataResponse

__all__ = ["ALL", "ANY", "ClusterClient", "ConnectionKind", "Versioned"]

ANY: Final = -1_000_000
"""The target of a request that any broker can answer."""


class Versioned:
    """A request whose shape depends on the version: `build(version)` makes it when it is sent."""

    __slots__ = ("api", "at_most", "build")

    def __init__(self, api: type[Message], build: Build, *, at_most: int | None = None) -> None:
        self.api = api
        self.build = build
        self.at_most = at_most


UNREACHABLE_WARNING_MS: Final = 3_000
"""Report it when no connection has existed for this long."""

Refreshed = Callable[[ClusterMetadata | KohortError], object]


class _Waiter(NamedTuple):
    """A caller of `refresh`: served by the answer to request `number` or a later one."""

    number: int
    done: Refreshed
    timer: Timer


class ClusterClient:
    """Requests and metadata for one consumer, producer or admin."""

    def __init__(
        self,
        loop: Loop,
        config: ClientConfig,
        *,
        auto_create_topics: bool = False,
        uniform: Callable[[], float] = uniform,
        credentials: Credentials | None = None,
    ) -> None:
        self.loop = loop
        self.events = Events()
        """Everything that happens to this client, for observers."""
        self.damaged = DamagedAnswers()
        """Answers that could not be decoded."""
        self.config = config
        self.connections = Connections(
            loop,
            self,
            config,
            uniform,
            Credentials(config) if credentials is None else credentials,
        )
        self.refusal: AuthenticationError | None = None
        """Why this client may not talk to the cluster."""
        self.refused: Callable[[AuthenticationError], object] = lambda error: None
        """Called once, when a login is refused."""
        self.metadata = ClusterMetadata()
        """The present snapshot; replaced, never changed."""
        self.metadata_error: KohortError | None = None
        """Why the last try to get metadata failed; None after a success."""
        self.is_closed = False
        self._auto_create = auto_create_topics
        self._missing: frozenset[str] = frozenset()
        self.warn: Callable[[str], object] | None = None
        """Called when no broker has been reached for a while, and when one is again."""
        self._down_since_ms: int | None = None
        self._warned_down = False
        self.uniform = uniform
        """The chance of everything that jitters here and in what is built on it."""
        self._listeners: list[MetadataListener] = []
        self._waiters: list[_Waiter] = []
        self._schedule = MetadataSchedule(
            config.metadata_max_age_ms,
            Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, uniform),
        )
        self._timer: Timer | None = None

    # -- requests

    def request(
        self,
        target: int,
        message: Message | Versioned,
        done: Done,
        *,
        timeout_ms: int | None = None,
        kind: ConnectionKind = "general",
        answered: bool = True,
    ) -> None:
        """Send to node `target` or to `ANY`; `done` receives the answer or a KohortError.

        `timeout_ms` (default `request_timeout_ms`) counts from now, connecting included. Give a
        request that waits at the broker (Fetch, JoinGroup) the broker's wait and some more.
        `answered=False` is for Produce with `acks=0`: `done` receives the request when it is sent.
        """
        if self.is_closed:
            self.loop.call_soon(done, ClosedError("the client was closed"))
            return
        if self.refusal is not None:
            self.loop.call_soon(done, self.refusal)
            return
        if isinstance(message, Versioned):
            api, build, at_most = message.api, message.build, message.at_most
        else:
            api, build, at_most = type(message), _always(message), None
        wait_ms = self.config.request_timeout_ms if timeout_ms is None else timeout_ms
        pending = PendingRequest(
            api,
            response_class(api.API_KEY) if answered else None,
            build,
            done,
            self.loop.now_ms() + wait_ms,
            at_most=at_most,
            routed=target == ANY,
        )
        self._route(target, pending, kind)

    def _route(self, target: int, pending: PendingRequest, kind: ConnectionKind) -> None:
        peer = self.connections.any(kind) if target == ANY else self.connections.get(target, kind)
        if peer is None:
            error = ConnectionFailedError(
                f"node {target} is not in the cluster now; its address is not known"
            )
            self.loop.call_soon(pending.done, error)
            self.refresh_soon()
            return
        try:
            peer.send(pending)
        except UsageError as error:
            self.loop.call_soon(pending.done, error)

    def requests_failed(
        self, peer: Peer, requests: list[PendingRequest], error: KohortError
    ) -> None:
        """Called by a connection; unsent requests to ANY move to another broker until their
        deadline."""
        if isinstance(error, AuthenticationError):
            self._refuse(error)
            for request in requests:
                self.loop.call_soon(request.done, error)
            return
        now_ms = self.loop.now_ms()
        for request in requests:
            unsent = request.correlation_id == -1
            if request.routed and unsent and now_ms < request.deadline_ms and not self.is_closed:
                self.loop.call_soon(self._reroute, request, peer)
            elif request.routed and unsent and not self.is_closed:
                self.loop.call_soon(request.done, self.unreachable())
            else:
                self.loop.call_soon(request.done, error)
        if not self.is_closed and isinstance(error, ConnectionFailedError):
            self._note_down(now_ms)
            self.refresh_soon()

    def _note_down(self, now_ms: int) -> None:
        """A connection has failed: say so once, when none has been open for a while."""
        if not self.connections.is_cut_off or self.warn is None:
            return
        if self._down_since_ms is None:
            self._down_since_ms = now_ms
        elif now_ms - self._down_since_ms >= UNREACHABLE_WARNING_MS and not self._warned_down:
            self._warned_down = True
            self.warn(f"{self.unreachable()}; retrying")

    def _note_up(self) -> None:
        if self._warned_down and self.warn is not None:
            self.warn("the cluster can be reached again")
        self._down_since_ms, self._warned_down = None, False

    def _refuse(self, error: AuthenticationError) -> None:
        """This client may not talk to the cluster: nothing is tried any more."""
        if self.refusal is not None or self.is_closed:
            return
        self.refusal = error
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.timer.cancel()
            self.loop.call_soon(waiter.done, error)
        self.loop.call_soon(self.refused, error)

    def _reroute(self, request: PendingRequest, failed: Peer) -> None:
        if self.is_closed:
            request.done(ClosedError("the client was closed"))
            return
        if self.refusal is not None:
            request.done(self.refusal)
            return
        self._route(ANY, request, failed.kind)

    def unreachable(self) -> ConnectionFailedError:
        """No broker answered: every address that was tried, and why it failed."""
        tried = self.connections.errors()
        causes = "; ".join(f"{address} ({error})" for address, error in tried.items())
        if not causes and self.metadata_error is not None:
            causes = str(self.metadata_error)
        return ConnectionFailedError(
            f"no broker could be reached: {causes or 'none answered in time'}. Check "
            f"bootstrap_servers={','.join(self.config.bootstrap_servers)} and that it runs"
        )

    # -- metadata

    def watch_topics(self, names: Iterable[str] | AllTopics) -> None:
        """Replace the topics whose metadata is kept; new names are asked for at once."""
        watched = names if isinstance(names, AllTopics) else frozenset(names)
        self._schedule.watch(watched, self.loop.now_ms())
        self._tick()

    @property
    def watched_topics(self) -> frozenset[str] | AllTopics:
        """The topics last passed to `watch_topics`."""
        return self._schedule.watched

    def refresh(
        self,
        done: Refreshed,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Ask at once; `done` receives a snapshot requested after this call, or an error.

        Tries on every address until `timeout_ms` (default `default_api_timeout_ms`) has passed.
        """
        if self.is_closed:
            self.loop.call_soon(done, ClosedError("the client was closed"))
            return
        if self.refusal is not None:
            self.loop.call_soon(done, self.refusal)
            return
        now_ms = self.loop.now_ms()
        wait_ms = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        number = self._schedule.ask(now_ms)
        timer = self.loop.call_at(now_ms + wait_ms, self._refresh_too_late, done)
        self._waiters.append(_Waiter(number, done, timer))
        self._tick()

    def refresh_soon(self) -> None:
        """Ask after a back-off: an answer hinted that a leader, topic or node has changed."""
        if not self.is_closed:
            self._schedule.ask_soon(self.loop.now_ms())
            self._tick()

    def leader_hint(
        self, topic: str, partition: int, leader: int, epoch: int, nodes: Iterable[Node] = ()
    ) -> None:
        """Take over a newer leader that a Fetch or Produce answer named (KIP-951)."""
        self._publish(with_leader(self.metadata, topic, partition, leader, epoch, nodes))

    def add_listener(self, listener: MetadataListener) -> None:
        """Call `listener(snapshot)` with every new snapshot."""
        self._listeners.append(listener)

    def _tick(self) -> None:
        if self.is_closed or self.refusal is not None:
            return
        if self._schedule.tick(self.loop.now_ms()):
            number, watched = self._schedule.sent, self._schedule.watched
            self.request(
                ANY,
                Versioned(MetadataRequest, lambda v: self._metadata_request(watched, v)),
                lambda answer: self._metadata_answered(number, answer),
            )
        deadline_ms = self._schedule.next_deadline()
        if self._timer is not None:
            if self._timer.active and self._timer.when_ms == deadline_ms:
                return
            self._timer.cancel()
        self._timer = None if deadline_ms is None else self.loop.call_at(deadline_ms, self._tick)

    def _metadata_request(
        self, watched: frozenset[str] | AllTopics, version: int
    ) -> MetadataRequest:
        topics = (
            None
            if isinstance(watched, AllTopics)
            else [MetadataRequestTopic(name=name) for name in sorted(watched)]
        )
        if version == 0 and topics is None:
            topics = []  # in v0 an empty list means all topics
        # Before v4 the broker alone decides. A topic that is missing is known as missing before the
        # broker is asked to create it, so that a wrong name is noticed.
        create = version < 4 or (
            self._auto_create
            and not isinstance(watched, AllTopics)
            and watched <= self._missing | self.metadata.topics.keys()
        )
        return MetadataRequest(topics=topics, allow_auto_topic_creation=create)

    def _metadata_answered(self, number: int, answer: Message | KohortError) -> None:
        now_ms = self.loop.now_ms()
        if isinstance(answer, MetadataResponse) and not answer.error_code and answer.brokers:
            fresh = merge(self.metadata, answer)
            news = fresh.topics != self.metadata.topics or fresh.nodes != self.metadata.nodes
            self._schedule.answered(is_complete(fresh), now_ms, news=news)
            self.connections.forget_learned(fresh.nodes)
            self.metadata_error = None
            self._note_up()
            self._publish(fresh)
            missing = frozenset(n for n, code in fresh.errors.items() if code == _UNKNOWN_TOPIC)
            if self._auto_create and missing - self._missing:
                self._schedule.ask(now_ms)
            self._missing = missing
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if waiter.number <= number:
                    waiter.timer.cancel()
                    self.loop.call_soon(waiter.done, self.metadata)
                else:
                    self._waiters.append(waiter)
        else:
            self.metadata_error = (
                answer if isinstance(answer, KohortError) else _no_metadata(answer)
            )
            self._schedule.failed(now_ms)
        self._tick()

    def _publish(self, fresh: ClusterMetadata) -> None:
        if fresh is self.metadata:
            return
        self.metadata = fresh
        self.connections.follow(fresh.nodes)
        for listener in self._listeners:
            self.loop.call_soon(listener, fresh)

    def _refresh_too_late(self, done: Refreshed) -> None:
        self._waiters = [waiter for waiter in self._waiters if waiter.done is not done]
        done(self.unreachable())

    # -- the end

    def close(self) -> None:
        """Close every connection; everything under way fails with ClosedError."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        error = ClosedError("the client was closed")
        self.connections.close(error)
        for waiter in self._waiters:
            waiter.timer.cancel()
            self.loop.call_soon(waiter.done, error)
        self._waiters.clear()


_UNKNOWN_TOPIC: Final = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _no_metadata(answer: Message) -> BrokerError:
    code = answer.error_code if isinstance(answer, MetadataResponse) else 0
    return BrokerError(code or ErrorCode.BROKER_NOT_AVAILABLE, "asking for metadata")


def _always(message: Message) -> Build:
    return lambda version: message
