"""A request on its way through the node: who asked, and how the answer gets back.

Rules:
- Every call is answered exactly once, with a message or with nothing. That of a `silent` one does
  not leave; where it is a refusal the connection ends instead.
- A call that waits for an event (a fetch for data, a join for the others) is parked: the requests
  behind it on its connection wait too, as in Kafka. One that waits for the disk is not parked:
  later ones continue, and answers keep the order of the requests.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, Protocol

from kohort.broker.base.security_config import is_loopback
from kohort.errors import ErrorCode
from kohort.wire import Message, request_class

ANONYMOUS: Final = "User:ANONYMOUS"
"""Who asks over a connection that did not authenticate."""


class LoginSession(Protocol):
    """The login of a connection, as the SASL APIs use it; `security.authentication.Session`."""

    @property
    def mechanisms(self) -> list[str]: ...

    def handshake(self, mechanism: str, *, bare: bool = False) -> ErrorCode: ...

    def authenticate(self, data: bytes, wall_ms: int) -> LoginStep: ...


class LoginStep(Protocol):
    """The answer to one message of a login."""

    @property
    def data(self) -> bytes: ...

    @property
    def lifetime_ms(self) -> int: ...


class Responder(Protocol):
    """Who hears an answer: a `Call`, or one part of a call that was split."""

    api_version: int
    client_id: str
    client_host: str
    hides: Callable[[str], bool] | None

    def answer(self, response: Message | None) -> None: ...


class HintCursor:
    """The number of the last heartbeat hint that a connection has seen."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen = 0


class Call:
    """One request."""

    __slots__ = (
        "_on_answer",
        "answered",
        "api_version",
        "client_host",
        "client_id",
        "correlation_id",
        "given_up",
        "hides",
        "hint_cursor",
        "may_park",
        "principal",
        "response",
        "session",
        "silent",
    )

    def __init__(
        self,
        api_version: int,
        correlation_id: int,
        client_id: str,
        client_host: str,
        may_park: bool,
        on_answer: Callable[[Call], None],
        hint_cursor: HintCursor | None = None,
        principal: str = ANONYMOUS,
        session: LoginSession | None = None,
    ) -> None:
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.client_host = client_host
        self.may_park = may_park
        self.hint_cursor = hint_cursor or HintCursor()
        self.principal = principal
        """Who asks, as Kafka writes it, for example `User:alice`."""
        self.hides: Callable[[str], bool] | None = None
        """Whether a topic is not for this principal to see; None: there is no authorizer."""
        self.session = session
        """Its connection's, where there is one."""
        self.silent = False
        """The client wants no answer (Produce with acks=0)."""
        self._on_answer = on_answer
        self.answered = False
        self.response: Message | None = None
        self.given_up: Callable[[], None] | None = None
        """Called when the client has gone before the answer."""

    @property
    def is_local(self) -> bool:
        """Whether it came over the loopback device."""
        return is_loopback(self.client_host.removeprefix("/").strip("[]"))

    def answer(self, response: Message | None) -> None:
        """Answer the request; None sends nothing."""
        assert not self.answered, "a call is answered once"
        self.answered = True
        self.response = response
        self.given_up = None
        self._on_answer(self)

    def watch(self, on_answer: Callable[[Call], None]) -> None:
        """Call a function with the answer just before it leaves."""
        leave = self._on_answer

        def seen(call: Call) -> None:
            on_answer(call)
            leave(call)

        self._on_answer = seen

    def fork(self, on_answer: Callable[[Call], None]) -> Call:
        """A call of the same request whose answer goes elsewhere; this one stays unanswered."""
        other = copy.copy(self)
        other._on_answer = on_answer
        return other


class SubRequest:
    """One part of a request that was split by shard; the last one to be answered tells all."""

    __slots__ = ("_fan_in", "api_version", "client_host", "client_id", "hides")

    def __init__(self, gather: FanIn, call: Responder) -> None:
        self._fan_in = gather
        self.api_version = call.api_version
        self.client_id = call.client_id
        self.client_host = call.client_host
        self.hides = call.hides

    def answer(self, response: Message | None) -> None:
        """The answer of one shard."""
        self._fan_in.take(response)


class FanIn:
    """Collects the answers to the parts of a call, and then tells them all, in any order."""

    __slots__ = ("_answers", "_done", "_missing")

    def __init__(self, count: int, done: Callable[[list[Any]], None]) -> None:
        self._answers: list[Any] = []
        self._missing = count
        self._done = done
        if count == 0:
            done([])

    def take(self, response: Message | None) -> None:
        """One answer."""
        self._answers.append(response)
        self._missing -= 1
        if self._missing == 0:
            self._done(self._answers)


Handler = Callable[[Any, Any, Call], None]
"""`handle(node, request, call)` of an API's module."""


class Api:
    """One Kafka API as this broker serves it: the versions, and who answers."""

    __slots__ = ("handle", "key", "max_version", "may_park", "min_version", "module")

    def __init__(
        self, key: int, min_version: int, max_version: int, module: str, may_park: bool
    ) -> None:
        self.key = key
        """Kafka's number of the API."""
        self.min_version = min_version
        self.max_version = max_version
        self.module = module
        self.may_park = may_park
        """Whether it may wait for an event; see the rules above."""
        self.handle: Handler = self._first
        """What answers a request."""

    @property
    def request(self) -> type[Message]:
        """The class of its requests."""
        return request_class(self.key)

    def _first(self, node: object, request: Message, call: Call) -> None:
        self.handle = import_module(self.module).handle
        self.handle(node, request, call)
