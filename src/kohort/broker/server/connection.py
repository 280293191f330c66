"""A node's sockets: its listener, and a peer for each connection.

Rules:
- Answers of one connection leave in the order of its requests. Requests that wait for the disk do
  not stop those behind them; parked ones do, as in Kafka.
- Who is at the other end is known before anything else is asked (`Session`); a connection that
  takes too long over it is closed.
- What cannot be understood closes the connection, with one log line; it never ends the broker. A
  batch with acks=0 that is refused closes it, too.

Shell: sockets.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kohort.broker.apis import APIS
from kohort.broker.base.config import BrokerConfig
from kohort.broker.base.env import Cancellable
from kohort.broker.base.request import ANONYMOUS, Api, Call, HintCursor
from kohort.broker.fast_path.fast_path import permits, take
from kohort.broker.node.node import Node
from kohort.broker.security.authentication import SASL_AUTHENTICATE, Session
from kohort.broker.state.failpoints import Event, Moment
from kohort.errors import AuthenticationError, DecodeError, KohortError, ProtocolError
from kohort.net import Connection, Listener, Loop
from kohort.wire import Message, decode_body, decode_request_header, encode_response
from kohort.wire.api_versions import unsupported_api_versions

if TYPE_CHECKING:
    from kohort.broker.fast_path._fast_path import Entry, GroupCall
    from kohort.broker.faults.gate import FaultInjector
    from kohort.net.tls import TlsServer

log = logging.getLogger("kohort.broker")

_API_VERSIONS, _PRODUCE = 18, 0
_COPIED_BYTES = 16_384


class ClientConnection:
    """One client's connection: decodes, asks the node, and sends the answers in order."""

    def __init__(self, endpoint: NodeEndpoint, connection: Connection) -> None:
        self._endpoint = endpoint
        self._node = endpoint.node
        self._config = endpoint.node.config
        self._failpoints = endpoint.node.failpoints
        self._gate = endpoint.gate
        self._connection = connection
        self.address = connection.peer.rpartition(":")[0]
        self.host = f"/{self.address}"
        self.principal = ANONYMOUS
        """Who is at the other end."""
        self._session: Session | None = None
        self._guarded = False
        self._limit: Cancellable | None = None
        self._hint_cursor = HintCursor()
        self._fast_path = endpoint.node.fast_path
        self._authorizer = endpoint.node.acls.authorizer
        self._take = take
        """Reads usual small requests, where they may use the fast path."""
        self._max_in_flight = self._config.max_requests_in_flight
        self._request_max_bytes = self._config.request_max_bytes
        self._calls: deque[Call | Entry | GroupCall] = deque()
        self._parked: Call | None = None
        self._quiet = False
        self._unsent = False
        self._stopped = False
        """Nothing is read from the connection now."""

    def connected(self, c: Connection, /) -> None:
        node, config = self._node, self._config
        self._session = Session(node.authenticator, c.peer_subject, self._known)
        self.principal = self._session.principal
        self._guarded = config.uses_sasl
        if self._guarded:
            c.max_frame_bytes = config.sasl_server_max_receive_size
            due_ms = node.env.now_ms() + config.authentication_timeout_ms
            self._limit = node.env.call_at(due_ms, self._not_known)
        c.close_when_idle(self._config.connections_max_idle_ms)

    def _known(self, principal: str) -> None:
        """The client has logged in."""
        self.principal = principal
        self._connection.max_frame_bytes = self._config.socket_request_max_bytes
        if self._limit is not None:
            self._limit.cancel()

    def _not_known(self) -> None:
        limit_ms = self._config.authentication_timeout_ms
        self._connection.close(
            AuthenticationError(f"{self._connection.peer} did not log in within {limit_ms} ms")
        )

    def drained(self, c: Connection, /) -> None:
        if self._unsent:
            self._unsent = False
            self._read_on()

    def closed(self, c: Connection, error: KohortError | None, /) -> None:
        if isinstance(error, ProtocolError | AuthenticationError):
            log.warning("closed the connection of %s: %s", c.peer, error)
        if self._limit is not None:
            self._limit.cancel()
        for call in self._calls:
            if call.given_up is not None:
                call.given_up()
        self._calls.clear()
        self._endpoint.left(self)

    def frame_received(self, c: Connection, frame: memoryview, /) -> None:
        gate = self._gate
        watched = gate is not None and gate.watching
        if (
            self._take is not None
            and not watched
            and not self._failpoints.set
            and not (self._guarded and self._is_refused(_PRODUCE))
        ):
            entry = self._take(self, frame)
            if (
                entry is not None
                and (self._authorizer is None or permits(self._authorizer, self._node, entry))
                and self._is_permitted(entry)
            ):
                if len(self._calls) >= self._max_in_flight:
                    self._pause()
                return
        if self._fast_path.waiting:
            self._fast_path.run()  # what came before this
        try:
            request = self._decoded(c, frame)
        except ProtocolError as error:  # the client's doing: its connection ends, and no more
            c.close(error)
            return
        if request is None:
            return
        api, call, message = request
        if self._failpoints.set and self._is_fatal(Moment.RECEIVED, message, call):
            return
        self._calls.append(call)
        if gate is not None and watched:
            gate.pass_on(api, self._node, message, call, self)
        else:
            self._node.serve(api, message, call)
        if call.answered:
            return
        if call.may_park:
            self._parked = call
            self._pause()
        elif len(self._calls) >= self._max_in_flight:
            self._pause()

    def _is_refused(self, api_key: int) -> str | None:
        """Why a client that has not logged in (or must again) may not send this request."""
        assert self._session is not None, "it is connected"
        return self._session.refuses(api_key, self._node.env.wall_ms())

    def _is_permitted(self, entry: Entry | GroupCall) -> bool:
        """Serve a usual request; False: it must go the general way, and nothing was done."""
        calls = self._calls
        if entry.api == 0:
            self._fast_path.add(entry)  # it is answered later
            calls.append(entry)
        elif not self._node.groups.try_fast(entry):
            return False
        elif calls or not entry.answered:
            calls.append(entry)
        elif type(entry.response) is list:
            c = self._connection
            c.send(entry.response)
            if c.queued_bytes > self._config.connection_max_unsent_bytes:
                self.answered(entry)
        else:
            calls.append(entry)
            self.answered(entry)
        return True

    def take_slow_path(self, entry: Entry) -> None:
        """Serve a request that was taken for a usual one as any other, in its place."""
        try:
            request = self._decoded(self._connection, entry.frame)
        except ProtocolError as error:
            self._connection.close(error)
            return
        assert request is not None, "an API that is served here"
        api, call, message = request
        self._node.serve(api, message, call.fork(partial(self._answered_for, entry)))

    def _answered_for(self, entry: Entry, call: Call) -> None:
        entry.response, entry.answered = call.response, True
        self.answered(entry)

    def _decoded(
        self, c: Connection, frame: bytes | memoryview
    ) -> tuple[Api, Call, Message] | None:
        """The request in a frame; None when it was answered here."""
        if len(frame) < _COPIED_BYTES:
            frame = bytes(frame)  # reading small fields out of bytes is faster than out of a view
        if self._guarded and self._session is not None and self._session.bare:
            return self._token(bytes(frame))
        head = decode_request_header(frame)
        key, version, correlation_id, client_id, _ = head
        if self._guarded and (refused := self._is_refused(key)) is not None:
            raise ProtocolError(refused)
        api = APIS.get(key)
        if api is None or not api.min_version <= version <= api.max_version:
            if key != _API_VERSIONS:
                raise DecodeError(f"API key {key} version {version} is not served here")
            c.send(unsupported_api_versions(correlation_id))
            return None
        if len(frame) > self._request_max_bytes and key != _PRODUCE:
            raise DecodeError(
                f"a request of {len(frame)} bytes; {self._request_max_bytes} are allowed"
            )
        message = decode_body(frame, head)
        call = Call(
            version,
            correlation_id,
            client_id or "",
            self.host,
            api.may_park,
            self.answered,
            self._hint_cursor,
            self.principal,
            self._session,
        )
        call.silent = key == _PRODUCE and message.acks == 0  # type: ignore[attr-defined]
        return api, call, message

    def _token(self, data: bytes) -> tuple[Api, Call, Message]:
        """A message of a login after SaslHandshake v0: nothing but itself, and so is its answer."""
        from kohort.wire.messages.sasl_authenticate_request import SaslAuthenticateRequest

        api = APIS[SASL_AUTHENTICATE]
        call = Call(
            0,
            0,
            "",
            self.host,
            api.may_park,
            self._token_answered,
            self._hint_cursor,
            self.principal,
            self._session,
        )
        return api, call, SaslAuthenticateRequest(auth_bytes=data)

    def _token_answered(self, call: Call) -> None:
        from kohort.wire.messages.sasl_authenticate_response import SaslAuthenticateResponse

        answer, call.response = call.response, None
        # a refusal has no place here: the connection ends, as Apache Kafka's does
        if isinstance(answer, SaslAuthenticateResponse) and not answer.error_code:
            self._connection.send([len(answer.auth_bytes).to_bytes(4, "big"), answer.auth_bytes])
        self.answered(call)

    def _is_fatal(self, moment: Moment, message: Message, call: Call | Entry | GroupCall) -> bool:
        return self._failpoints.fatal(Event(moment, self._node.node_id, message, call.client_id))

    def cut(self) -> None:
        """Close the connection; what has been answered already leaves."""
        self._connection.close()

    def quiesce(self) -> None:
        """Read nothing more from this client."""
        self._quiet = True
        self._pause()

    def answered(self, call: Call | Entry | GroupCall) -> None:
        """One of the requests was answered; the answers that are next in order leave."""
        calls, connection = self._calls, self._connection
        if connection.is_closed:
            return
        while calls and calls[0].answered:
            done = calls.popleft()
            response = done.response
            if response is None:
                continue
            if isinstance(response, list):  # of the fast path
                connection.send(response)
            elif isinstance(done, Call) and done.silent:
                if _is_refusal(response):
                    # As in Kafka: nothing else makes the client ask for the leader again.
                    log.info("%s sent a batch with acks=0 that is refused", connection.peer)
                    connection.close()
                    return
            elif (
                self._failpoints.set and self._is_fatal(Moment.ANSWERING, response, done)
            ) or not self._send(done, response):
                return
        if not calls and self._session is not None and self._session.refused:
            connection.close()
            return
        if call is self._parked:
            self._parked = None
        if connection.queued_bytes > self._config.connection_max_unsent_bytes:
            self._unsent = True
            self._pause()
            # The loop writes at the end of a turn, and reports to `drained` only data that had to
            # wait.
            env = self._node.env
            env.call_soon(env.call_soon, self._look_at_unsent)
        if self._stopped:
            self._read_on()

    def _send(self, call: Call | Entry | GroupCall, response: Message) -> bool:
        try:
            parts = encode_response(response, call.api_version, call.correlation_id)
        except ProtocolError as error:  # our defect; without an answer the client would wait
            log.exception("an answer to %s cannot be encoded", self._connection.peer)
            self._connection.close(error)
            return False
        self._connection.send(parts)
        return True

    def _look_at_unsent(self) -> None:
        if self._connection.queued_bytes <= self._config.connection_max_unsent_bytes:
            self.drained(self._connection)

    def _pause(self) -> None:
        self._stopped = True
        self._connection.pause_reading()

    def _read_on(self) -> None:
        """Take further requests, unless something prevents it."""
        held = self._quiet or self._unsent or self._parked is not None
        if not held and len(self._calls) < self._max_in_flight:
            self._stopped = False
            self._connection.resume_reading()


def _is_refusal(response: Message) -> bool:
    """Whether a batch of a Produce request was refused."""
    from kohort.wire.messages.produce_response import ProduceResponse  # its handler has it by now

    return isinstance(response, ProduceResponse) and any(
        part.error_code for topic in response.responses for part in topic.partition_responses
    )


class NodeEndpoint:
    """The listener of one node, which keeps its port when it listens again."""

    def __init__(
        self,
        loop: Loop,
        config: BrokerConfig,
        port: int,
        after_flushes: Callable[[Callable[[], None]], None],
        tls: TlsServer | None = None,
        gate: FaultInjector | None = None,
    ) -> None:
        """Listens at once. `after_flushes` runs its callback when every waiting flush is
        reported."""
        self._loop = loop
        self._config = config
        self._after_flushes = after_flushes
        self._tls = tls
        self.gate = gate
        self._by_ip: Counter[str] = Counter()
        self.host = config.advertised_host or config.host
        self.peers: dict[ClientConnection, None] = {}
        """In the order in which they came, so that a simulated run repeats itself."""
        self._listener = self._listen(port)
        self.port = self._listener.port
        self._node: Node | None = None

    @property
    def node(self) -> Node:
        """Whom it serves."""
        assert self._node is not None, "nobody connects before the loop runs"
        return self._node

    def serve(self, node: Node) -> None:
        """Connections from now on are this node's."""
        self._node = node
        node.host, node.port = self.host, self.port

    def _listen(self, port: int) -> Listener:
        return self._loop.listen(
            self._config.host,
            port,
            self._accept,
            max_frame_bytes=self._config.socket_request_max_bytes,
            max_connections=self._config.max_connections,
            max_unfinished_bytes=self._config.queued_max_request_bytes,
            tls=self._tls,
        )

    def _accept(self, connection: Connection) -> ClientConnection:
        peer = ClientConnection(self, connection)
        configs = self.node.broker_configs
        if self._by_ip[peer.host] >= configs.acting("max.connections.per.ip", self.node.node_id):
            connection.close()
            return peer
        self._by_ip[peer.host] += 1
        self.peers[peer] = None
        return peer

    def left(self, peer: ClientConnection) -> None:
        """A connection has ended."""
        self.peers.pop(peer, None)
        self._by_ip[peer.host] -= 1
        if not self._by_ip[peer.host]:
            del self._by_ip[peer.host]

    def listen(self) -> None:
        """Listen again. Raises ConfigError."""
        if self._listener.is_closed:
            self._listener = self._listen(self.port)

    def quiesce(self) -> None:
        """Take no more requests; those that wait for the disk are still answered."""
        self._listener.close()
        for peer in self.peers:
            peer.quiesce()

    def cut(self) -> None:
        """Close everything at once."""
        self._listener.close()
        for peer in list(self.peers):
            peer.cut()

    def leave(self) -> None:
        """Take nothing more, answer what waits for the disk, then close everything."""
        self.quiesce()
        leaving = list(self.peers)
        self._after_flushes(lambda: _cut(leaving))


def _cut(peers: list[ClientConnection]) -> None:
    for peer in peers:
        peer.cut()
