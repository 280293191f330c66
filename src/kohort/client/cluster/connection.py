"""A connection to a broker that comes back: its handshake, its requests.

Rules:
- States: IDLE (no connection, none needed), CONNECTING (TLS included), NEGOTIATING
  (ApiVersions is asked), AUTHENTICATING (where SASL is used), READY, BACKING_OFF (the last try
  failed; the next one comes by itself when something waits).
- Every new connection negotiates versions again: the broker may have been upgraded meanwhile.
- When a try fails, everything that waits fails with it, so that callers may choose another broker.
- A login that is refused is not tried again: its error reaches the cluster, which ends with it.
- Where the broker gives a login an end (KIP-368), the next one begins before it, over the same
  connection, when everything asked was answered: nothing may come in between (KAFKA-9854).
- A completion of an earlier connection is dropped by its identity (design decision 4).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Literal, Protocol

import kohort
from kohort.client.cluster.credentials import Credentials
from kohort.client.cluster.damaged_answers import DamagedAnswers
from kohort.client.cluster.in_flight import PendingRequest, Pipeline
from kohort.client.cluster.login import Login, reauthenticate_after_ms
from kohort.client.cluster.version_negotiation import (
    Ranges,
    directory_of,
    features_of,
    pick,
    ranges_of,
)
from kohort.client.common.backoff import Backoff
from kohort.client.common.config import ClientConfig
from kohort.errors import (
    AuthenticationError,
    BrokerError,
    ClosedError,
    ConnectionFailedError,
    DamagedAnswerError,
    EncodeError,
    KafkaTimeoutError,
    KohortError,
    ProtocolError,
    UnsupportedVersionError,
)
from kohort.metrics.events import ConnectionLost, ConnectionOpened, Events, RequestDone
from kohort.net import Connection, Loop, Timer
from kohort.sasl.mechanism import ClientExchange
from kohort.wire import (
    Message,
    decode_response,
    encode_request,
    response_class,
    response_correlation_id,
)
from kohort.wire.api_versions import decode_api_versions
from kohort.wire.messages.api_versions_request import ApiVersionsRequest

ConnectionKind = Literal["general", "fetch", "fetch-2", "fetch-3", "group", "produce"]
"""Requests that may have to wait have connections apart from those that must not wait."""


class PeerState(Enum):
    """The state of a connection."""

    IDLE = "idle"
    CONNECTING = "connecting"
    NEGOTIATING = "negotiating"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    BACKING_OFF = "backing off"
    CLOSED = "closed"


_SHAKING = (PeerState.NEGOTIATING, PeerState.AUTHENTICATING)


class PeerOwner(Protocol):
    """What a peer tells the cluster."""

    def requests_failed(
        self, peer: Peer, requests: list[PendingRequest], error: KohortError
    ) -> None:
        """These requests were not answered by `peer` and will not be."""
        ...

    @property
    def events(self) -> Events:
        """The callbacks of a connection."""
        ...

    @property
    def damaged(self) -> DamagedAnswers:
        """Who counts answers that cannot be decoded."""
        ...


class Peer:
    """A broker's address, and the connection of one kind to it."""

    def __init__(
        self,
        loop: Loop,
        owner: PeerOwner,
        config: ClientConfig,
        node_id: int,
        address: tuple[str, int],
        name: str,
        kind: ConnectionKind,
        uniform: Callable[[], float],
        credentials: Credentials,
    ) -> None:
        self._loop = loop
        self._credentials = credentials
        self._uniform = uniform
        self._owner = owner
        self._config = config
        self.node_id = node_id
        self.address = address
        self.kind: ConnectionKind = kind
        self.name = name
        """How errors call it, for example `broker 1 (localhost:9092)`."""
        self.state = PeerState.IDLE
        self.pipeline = Pipeline()
        self.last_error: KohortError | None = None
        self.retry_at_ms = 0
        """The end of the present back-off."""
        self.ranges: Ranges = {}
        self.features: dict[str, int] = {}
        """The feature levels in force in the cluster (KIP-584), as the broker reported them."""
        self.local_directory: str | None = None
        """Where the broker lets us read its files, as it reported (ADR 0015)."""
        self._backoff = Backoff(
            config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, uniform
        )
        self._connection: Connection | None = None
        self._handshake = (-1, -1, 0)  # correlation id, version, deadline
        self._deadline: Timer | None = None
        self._retry: Timer | None = None
        self._idle: Timer | None = None
        self._used_ms = 0
        self._login: Login | None = None
        self._login_request: Message | None = None  # by the login; its answer is waited for
        self._renewal: Timer | None = None
        self._renewing = False
        self._was_answered = False  # over this connection, after its handshakes

    @property
    def failures(self) -> int:
        """Failed tries since the last good connection."""
        return self._backoff.failures

    # -- for the cluster

    def send(self, request: PendingRequest) -> None:
        """Send when the connection is open; opens it if necessary. Raises UsageError (limit)."""
        self.pipeline.add(request)
        self._watch_deadline(request.deadline_ms)
        if self.state is PeerState.READY:
            self._send_waiting()
        elif self.state is PeerState.IDLE:
            self._connect()

    def close(self, error: KohortError) -> None:
        """Close permanently; everything in flight fails with `error`."""
        if self.state is PeerState.CLOSED:
            return
        self.state = PeerState.CLOSED
        for timer in (self._deadline, self._retry, self._idle, self._renewal):
            if timer is not None:
                timer.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._fail_all(error)

    # -- the connection's events

    def connected(self, c: Connection, /) -> None:
        """The stream is open: ask for the versions."""
        if c is self._connection:
            self.state = PeerState.NEGOTIATING
            self._ask_versions(ApiVersionsRequest.STABLE_VERSION)

    def frame_received(self, c: Connection, frame: memoryview, /) -> None:
        """An answer came."""
        if c is not self._connection:
            return
        if self.state is PeerState.NEGOTIATING:
            self._versions_answered(frame)
            return
        if self.state is PeerState.AUTHENTICATING:
            self._login_answered(frame)
            return
        try:
            request = self.pipeline.answered(response_correlation_id(frame))
        except ProtocolError as error:
            self._lose(error)
            return
        answer_class = request.answer
        assert answer_class is not None, "only requests with an answer are in flight"
        answer: Message | KohortError
        try:
            answer = decode_response(answer_class, request.version, frame)[1]
        except ProtocolError as error:
            self._damaged(request, len(frame), error)
            return
        if self._owner.damaged:
            self._owner.damaged.sound(request.api.NAME)
        self._used_ms = self._loop.turn_ms
        self._emit_done(request, len(frame), answer)
        self._was_answered = True
        request.done(answer)
        if self._renewing and not self.pipeline.in_flight and c is self._connection:
            self._log_in()

    def _damaged(self, request: PendingRequest, size: int, error: ProtocolError) -> None:
        """An answer cannot be decoded: as if it had been lost with its connection."""
        asked = request.api.NAME.removesuffix("Request")
        lost = DamagedAnswerError(
            f"{self.name} answered {asked} with {size} bytes that cannot be decoded: {error}; the "
            "connection was given up. If this comes often, something between here and the broker "
            "changes bytes"
        )
        lost.__cause__ = error
        self._owner.damaged.note(request.api.NAME, lost, self._loop.now_ms())
        self._emit_done(request, size, lost)
        request.done(lost)
        self._lose(error)

    def closed(self, c: Connection, error: KohortError | None, /) -> None:
        """The stream is gone."""
        if c is self._connection:
            self._lost(self._explained(error))

    def _explained(self, error: KohortError | None) -> KohortError:
        """Why the stream ended, with a guess at the cause if the broker hung up after our
        request."""
        if isinstance(error, AuthenticationError):
            return error.at(self.name)
        if error is None:
            return ConnectionFailedError(f"the connection to {self.name} was closed")
        talked = self.state in (PeerState.NEGOTIATING, PeerState.AUTHENTICATING, PeerState.READY)
        if talked and not self._was_answered and self._config.security_protocol == "PLAINTEXT":
            return ConnectionFailedError(
                f"{error} before it answered anything; does its listener ask for TLS or SASL? "
                "check security_protocol"
            )
        return error

    def drained(self, c: Connection, /) -> None:
        """Nothing waits for this: requests are bounded by their callers."""

    # -- connecting

    def _connect(self) -> None:
        self.state = PeerState.CONNECTING
        self._retry = None
        self._was_answered = self._renewing = False
        host, port = self.address
        self._connection = self._loop.connect(
            host,
            port,
            self,
            max_frame_bytes=self._config.receive_message_max_bytes,
            timeout_ms=self._config.socket_connection_setup_timeout_ms,
            tls=self._credentials.tls(host),
        )

    def _ask_versions(self, version: int) -> None:
        assert self._connection is not None
        request = ApiVersionsRequest(
            client_software_name="kohort", client_software_version=kohort.__version__
        )
        deadline_ms = self._loop.now_ms() + self._config.request_timeout_ms
        self._handshake = (self.pipeline.next_id(), version, deadline_ms)
        # KIP-511: versions below 3 have no place for the software's name.
        message = request if version >= 3 else ApiVersionsRequest()
        self._connection.send(
            encode_request(message, version, self._handshake[0], self._config.client_id)
        )
        self._watch_deadline(deadline_ms)

    def _versions_answered(self, frame: memoryview) -> None:
        expected, version, _ = self._handshake
        try:
            answer = decode_api_versions(frame, version)
            if answer.correlation_id != expected:
                raise ProtocolError(
                    f"{self.name} answered ApiVersions with correlation id "
                    f"{answer.correlation_id}, expected {expected}; is it a Kafka broker?"
                )
        except ProtocolError as error:
            self._lose(error)
            return
        if answer.message is None:
            self._ask_versions(answer.retry_version or 0)
            return
        if answer.message.error_code:
            self._lose(BrokerError(answer.message.error_code, f"ApiVersions from {self.name}"))
            return
        self.ranges = ranges_of(answer.message)
        self.features = features_of(answer.message)
        self.local_directory = directory_of(answer.message)
        if self._credentials.logs_in:
            self._log_in()
        else:
            self._opened()

    def _opened(self, *, again: bool = False) -> None:
        self._backoff.succeeded()
        self.state = PeerState.READY
        self._used_ms = self._loop.now_ms()
        if not again:
            self._owner.events.emit(ConnectionOpened(self.node_id))
        self._arm_idle()
        self._send_waiting()

    # -- the login

    def _log_in(self) -> None:
        self.state = PeerState.AUTHENTICATING
        if self._idle is not None:
            self._idle.cancel()
        self._login = self._login_request = None
        deadline_ms = self._loop.now_ms() + self._config.request_timeout_ms
        self._handshake = (-1, -1, deadline_ms)
        self._watch_deadline(deadline_ms)
        connection = self._connection

        def begin(exchange: ClientExchange | KohortError) -> None:
            if connection is not self._connection or connection is None:
                return
            if isinstance(exchange, KohortError):
                self._lose(exchange)
                return
            self._login = Login(exchange, self.ranges, self.name)
            try:
                self._say(*self._login.first())
            except KohortError as error:
                self._lose(error)

        self._credentials.begin(self._loop, begin)

    def _say(self, message: Message, version: int) -> None:
        assert self._connection is not None
        correlation_id = self.pipeline.next_id()
        self._handshake = (correlation_id, version, self._handshake[2])
        self._login_request = message
        self._connection.send(
            encode_request(message, version, correlation_id, self._config.client_id)
        )

    def _login_answered(self, frame: memoryview) -> None:
        expected, version, _ = self._handshake
        asked, login = self._login_request, self._login
        try:
            if asked is None or login is None or response_correlation_id(frame) != expected:
                raise ProtocolError(f"{self.name} sent an answer without a request")
            answer = decode_response(response_class(asked.API_KEY), version, frame)[1]
            following = login.answered(answer)
        except KohortError as error:
            self._lose(error)
            return
        if following is not None:
            self._say(*following)
            return
        self._login = self._login_request = None
        again, self._renewing = self._renewing, False
        if login.lifetime_ms:
            after_ms = reauthenticate_after_ms(login.lifetime_ms, self._uniform())
            self._renewal = self._loop.call_at(self._loop.now_ms() + after_ms, self._renew)
        self._opened(again=again)

    def _renew(self) -> None:
        """Log in again; nothing is sent from now on until that is done."""
        if self.state is PeerState.READY:
            self._renewing = True
            if not self.pipeline.in_flight:
                self._log_in()

    # -- sending

    def _send_waiting(self) -> None:
        pipeline = self.pipeline
        while pipeline.waiting and self._connection is not None and not self._renewing:
            request = pipeline.waiting.popleft()
            try:
                version = pick(request.api, self.ranges, self.name, request.at_most)
                message = request.build(version)
                if message is None:
                    continue
                correlation_id = pipeline.sent(request, version)
                frame = encode_request(message, version, correlation_id, self._config.client_id)
                request.sent_ms, request.sent_bytes = self._loop.now_ms(), sum(map(len, frame))
            except Exception as error:  # any error: this request fails, later ones continue
                if pipeline.in_flight and pipeline.in_flight[-1] is request:
                    pipeline.in_flight.pop()
                if isinstance(error, UnsupportedVersionError):
                    self._owner.damaged.note(request.api.NAME, error, self._loop.now_ms())
                self._loop.call_soon(request.done, _not_encoded(request.api.NAME, error))
                continue
            self._connection.send(frame)
            if request.answer is None:
                self._loop.call_soon(request.done, message)
        self._used_ms = self._loop.turn_ms

    # -- deadlines

    def _watch_deadline(self, deadline_ms: int) -> None:
        if self._deadline is None or not self._deadline.active:
            self._deadline = self._loop.call_at(deadline_ms, self._deadline_reached)
        elif deadline_ms < self._deadline.when_ms:
            self._deadline.cancel()
            self._deadline = self._loop.call_at(deadline_ms, self._deadline_reached)

    def _deadline_reached(self) -> None:
        now_ms = self._loop.now_ms()
        waiting, in_flight = self.pipeline.expire(now_ms)
        if waiting:
            self._owner.requests_failed(self, waiting, self._too_late("was not sent in time"))
        if in_flight:
            error = self._too_late(f"did not answer {in_flight[0].api.NAME} in time")
            for request in in_flight:
                self._emit_done(request, 0, error)
            self._owner.requests_failed(self, in_flight, error)
            self._lose(error)
        elif self.state in _SHAKING and now_ms >= self._handshake[2]:
            asked = "ApiVersions" if self.state is PeerState.NEGOTIATING else "the login"
            self._lose(self._too_late(f"did not answer {asked} in time"))
        if self.state in _SHAKING:
            self._watch_deadline(self._handshake[2])
        deadline_ms = self.pipeline.next_deadline()
        if deadline_ms is not None and self.state is not PeerState.CLOSED:
            self._watch_deadline(deadline_ms)

    def _too_late(self, what: str) -> KafkaTimeoutError:
        cause = f"; last error: {self.last_error}" if self.last_error is not None else ""
        return KafkaTimeoutError(f"{self.name} {what} (state: {self.state.value}){cause}")

    def _arm_idle(self) -> None:
        due_ms = self._used_ms + self._config.connections_max_idle_ms
        self._idle = self._loop.call_at(due_ms, self._idle_reached)

    def _idle_reached(self) -> None:
        if self.state is not PeerState.READY:
            return
        now_ms = self._loop.now_ms()
        if len(self.pipeline):
            self._used_ms = now_ms
        if now_ms - self._used_ms < self._config.connections_max_idle_ms:
            self._arm_idle()
            return
        connection, self._connection = self._connection, None
        assert connection is not None
        connection.close()
        if self._renewal is not None:
            self._renewal.cancel()
        self.state = PeerState.IDLE

    # -- losing

    def _lose(self, error: KohortError) -> None:
        """Give the connection up because of what came over it, or did not."""
        connection = self._connection
        if connection is not None:
            self._connection = None
            connection.close(error)
            self._lost(error)

    def _lost(self, error: KohortError) -> None:
        self._connection = None
        self.last_error = error
        self._owner.events.emit(ConnectionLost(self.node_id, error))
        self._login = self._login_request = None
        for timer in (self._idle, self._renewal):
            if timer is not None:
                timer.cancel()
        wait_ms = self._backoff.failed()
        self.retry_at_ms = self._loop.now_ms() + wait_ms
        self.state = PeerState.BACKING_OFF
        self._retry = self._loop.call_at(self.retry_at_ms, self._backed_off)
        self._fail_all(error)

    def _backed_off(self) -> None:
        if self.pipeline.waiting:
            self._connect()
        else:
            self.state = PeerState.IDLE

    def _fail_all(self, error: KohortError) -> None:
        waiting, in_flight = self.pipeline.take_all()
        if not isinstance(error, ConnectionFailedError | ClosedError | AuthenticationError):
            broken = isinstance(error, ProtocolError)
            lost = DamagedAnswerError if broken else ConnectionFailedError
            error = lost(f"the connection to {self.name} was given up: {error}")
            if broken and in_flight:  # the first of them is the one whose answer came
                self._owner.damaged.note(in_flight[0].api.NAME, error, self._loop.now_ms())
        for request in in_flight:
            self._emit_done(request, 0, error)
        self._owner.requests_failed(self, in_flight + waiting, error)

    def _emit_done(
        self, request: PendingRequest, bytes_in: int, answer: Message | KohortError
    ) -> None:
        latency_ms = self._loop.now_ms() - request.sent_ms
        error = answer if isinstance(answer, KohortError) else None
        throttle_ms: int = getattr(answer, "throttle_time_ms", 0)
        self._owner.events.emit(
            RequestDone(
                self.node_id,
                request.api.NAME.removesuffix("Request"),
                latency_ms,
                request.sent_bytes,
                bytes_in,
                throttle_ms,
                error,
            )
        )


def _not_encoded(api: str, error: Exception) -> KohortError:
    if isinstance(error, KohortError):
        return error
    failure = EncodeError(f"a {api} cannot be written: {error}; was a call given a wrong type?")
    failure.__cause__ = error
    return failure
