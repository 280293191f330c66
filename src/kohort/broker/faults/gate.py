"""The gate between a connection and the APIs: faults are carried out here, requests are logged.

Rules:
- It is passed only while there is something to do (`watching`), so that a broker without faults
  and without a log pays one look at an attribute for each request.
- A request that a fault affects is answered through a copy of its call; the call itself waits in
  its connection, which keeps the order of answers. So an answer that never comes silences the
  connection, as a broker that hangs does.
- An error in a test's function is kept in `error`, and the request continues.
- While a fault names a topic that is fetched there are no fetch sessions: an incremental Fetch
  reads partitions that it does not name, so no fault would meet it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kohort.broker.base.request import Api, Call
from kohort.broker.coordinator.node_services import NodeServices
from kohort.broker.faults.faulty_files import Disk, FaultyFiles
from kohort.broker.faults.field_map import STAMPED, errors_in, joined, refused, seen, stamp
from kohort.broker.faults.request_log import LoggedRequest, RequestLog
from kohort.broker.faults.rules import NOTHING, Armed, Decision, Faults, Then, api_name
from kohort.broker.state.fetch_sessions import FINAL_EPOCH
from kohort.errors import ErrorCode, UsageError
from kohort.wire import API_NAMES, Message
from kohort.wire.messages.api_versions_response import ApiVersion, ApiVersionsResponse
from kohort.wire.messages.fetch_request import FetchRequest
from kohort.wire.messages.fetch_response import FetchResponse

if TYPE_CHECKING:
    from kohort.broker.log.files import Files

log = logging.getLogger("kohort.broker")

_OFFSET_FETCH, _FETCH = 9, 1


class Cuttable(Protocol):
    """A connection."""

    def cut(self) -> None:
        """Close it."""
        ...


class ServingNode(NodeServices, Protocol):
    """A node that answers requests."""

    def serve(self, api: Api, request: Message, call: Call) -> None:
        """Authorize a request and hand it to its API."""
        ...


class FaultInjector:
    """Faults and the request log of one broker, over all its nodes and lives."""

    def __init__(self, log_capacity: int = 0) -> None:
        self.faults = Faults()
        self.requests = RequestLog(log_capacity)
        self.disk = Disk()
        self.limits: dict[int, int] = {}
        """By API key the newest version that is offered; -1: none."""
        self.watching = log_capacity > 0
        """Whether requests must come by here; looked at for each of them."""
        self.faults.changed = self._look
        self.error: Exception | None = None
        """What a function of an ANSWER fault raised, first."""

    def around(self, files: Files) -> Files:
        """These files, on a disk that fails on request."""
        return FaultyFiles(files, self.disk)

    def _look(self) -> None:
        self.watching = self.requests.enabled or len(self.faults) > 0 or bool(self.limits)

    def limit(self, api: str, max_version: int) -> None:
        """Offer an API up to a version only (-1: not at all), as an older broker does.

        Raises UsageError for ApiVersions, whose versions are not agreed upon by itself.
        """
        name = api_name(api)
        key = next(key for key, known in API_NAMES.items() if known == name)
        if key == ApiVersionsResponse.API_KEY:
            raise UsageError("ApiVersions cannot be limited: clients ask it to learn the limits")
        if max_version < -1:
            raise UsageError(f"max_version={max_version}; -1 offers none")
        self.limits[key] = max_version
        self._look()

    def offered(self, listed: list[ApiVersion]) -> list[ApiVersion]:
        """What ApiVersions tells of a list of APIs."""
        tops = {v.api_key: min(v.max_version, self.limits.get(v.api_key, 32_767)) for v in listed}
        return [
            ApiVersion(api_key=v.api_key, min_version=v.min_version, max_version=tops[v.api_key])
            for v in listed
            if tops[v.api_key] >= v.min_version
        ]

    def clear(self) -> int:
        """Let nothing go wrong any longer; returns how many faults there were."""
        self.disk.clear()
        self.limits.clear()
        self._look()
        return self.faults.clear()

    def pass_on(
        self, api: Api, node: ServingNode, request: Message, call: Call, peer: Cuttable
    ) -> None:
        """Let an API handle a request, or what the faults say."""
        if isinstance(request, FetchRequest) and self.faults.about_fetched():
            if request.session_epoch > 0:
                call.answer(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
                return
            request.session_epoch = FINAL_EPOCH

        def name_of(topic_id: bytes) -> str:
            topic = node.topics.by_id(topic_id)
            return "" if topic is None else topic.name

        known = seen(node.node_id, call.client_id, request, call.api_version, name_of)
        if call.api_version > self.limits.get(api.key, call.api_version):
            peer.cut()  # as a broker does that does not know the version
            return
        decision = self.faults.decide(known) if len(self.faults) else NOTHING
        entry: LoggedRequest | None = None
        if self.requests.enabled:
            entry = self.requests.came(known, node.env.wall_ms())
            entry.fault = decision.armed.number if decision.armed else None
        else:
            self.requests.changed()
        if decision is NOTHING and not self.limits:
            if entry is not None:
                self._log_answer(call, entry, node)
            node.serve(api, request, call)
            return
        Passage(self, node, api, request, call, peer, decision, entry, name_of).go()

    def _log_answer(self, call: Call, entry: LoggedRequest, node: ServingNode) -> None:
        def answered(call: Call) -> None:
            self.requests.answered(entry, node.env.wall_ms(), errors_in(call.response))

        call.watch(answered)


class Passage:
    """One request on its way through the gate."""

    __slots__ = (
        "_api",
        "_armed",
        "_call",
        "_code",
        "_delay_ms",
        "_entry",
        "_gate",
        "_inner",
        "_name_of",
        "_node",
        "_peer",
        "_request",
    )

    def __init__(
        self,
        gate: FaultInjector,
        node: ServingNode,
        api: Api,
        request: Message,
        call: Call,
        peer: Cuttable,
        decision: Decision,
        entry: LoggedRequest | None,
        name_of: Callable[[bytes], str],
    ) -> None:
        self._gate = gate
        self._node = node
        self._api = api
        self._request = request
        self._call = call
        self._peer = peer
        self._delay_ms = decision.delay_ms
        self._armed: Armed | None = decision.armed
        self._code = decision.code
        self._entry = entry
        self._name_of = name_of
        self._inner: Call | None = None

    def go(self) -> None:
        """Do what is to be done."""
        armed = self._armed
        then = None if armed is None else armed.fault.then
        if armed is None or then in (Then.HOLD, Then.SILENCE):
            self._handle(self._request, self._done)
        elif then is Then.CUT:
            if armed.fault.handled:
                self._handle(self._request, lambda _: self._peer.cut())
            else:
                self._peer.cut()
        elif then is Then.FAIL:
            self._fail(armed)
        else:
            self._answer(armed)

    def _handle(self, request: Message, done: Callable[[Message | None], None]) -> None:
        inner = self._inner = self._call.fork(lambda call: done(call.response))
        self._call.given_up = self._give_up
        self._node.serve(self._api, request, inner)

    def _give_up(self) -> None:
        inner = self._inner
        if inner is not None and inner.given_up is not None:
            inner.given_up()

    def _done(self, response: Message | None) -> None:
        armed = self._armed
        if armed is not None and armed.fault.then is Then.SILENCE:
            return
        if armed is not None and armed.fault.then is Then.HOLD and not armed.removed:
            armed.held.append(lambda: self._leave(response))
            return
        if self._delay_ms:
            env = self._node.env
            env.call_at(env.now_ms() + self._delay_ms, self._leave, response)
        else:
            self._leave(response)

    def _leave(self, response: Message | None) -> None:
        if isinstance(response, ApiVersionsResponse) and self._gate.limits:
            response.api_keys = self._gate.offered(response.api_keys)
        if self._entry is not None:
            now_ms = self._node.env.wall_ms()
            self._gate.requests.answered(self._entry, now_ms, errors_in(response))
        self._call.answer(response)

    # -- answers of our own

    def _fail(self, armed: Armed) -> None:
        fault, request, code = armed.fault, self._request, self._code
        partly = request.API_KEY == _OFFSET_FETCH and fault.topic is not None
        refusal = None
        if not fault.handled and not partly and request.API_KEY not in STAMPED:
            refusal = refused(request, code, fault.wants, self._name_of)
        if refusal is None:
            if request.API_KEY == _FETCH:
                request.max_wait_ms = 0  # type: ignore[attr-defined]
            self._handle(request, self._stamped)
            return
        response, rest = refusal
        if rest is None:
            self._done(response)
        else:
            self._handle(rest, lambda answer: self._done(answer and joined(answer, response)))

    def _stamped(self, response: Message | None) -> None:
        assert self._armed is not None
        if response is not None:
            stamp(response, self._code, self._armed.fault.wants, self._name_of)
        self._done(response)

    def _answer(self, armed: Armed) -> None:
        assert armed.fault.answer is not None
        try:
            response = armed.fault.answer(self._request, self._call.api_version)
        except Exception as error:  # a test's own function must not end the broker
            log.exception("the function that answers %s", type(self._request).__name__)
            self._gate.error = self._gate.error or error
            response = None
        if response is None:
            self._handle(self._request, self._done)
        else:
            self._done(response)
