"""Asking a broker the recorded requests, and its answers as flat, comparable facts.

Rules:
- A request is told as plain data (`ask("Metadata", "a topic", topics=[{"name": "t"}])`); what a
  version has no place for is left out, so one request serves all versions of its API.
- An answer becomes `{place: value}`, as `topics[t].partitions[0].error_code: NONE`. What must
  differ from run to run (ids, times, ports, texts of errors) is replaced by what kind of thing it
  is.
- Elements of arrays are named by what identifies them, not by where they stand: brokers are free
  in their order.
- "Not now" (a coordinator that is loading, a leader that is not there yet) is asked again.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from kohort.broker.apis import APIS
from kohort.errors import ErrorCode
from kohort.records import Chunk
from kohort.wire import ZERO_UUID, Message, decode_response, encode_request, message_class
from kohort.wire._schema import Definition, Struct, load, snake

E = ErrorCode
NOT_NOW = {
    E.COORDINATOR_LOAD_IN_PROGRESS,
    E.COORDINATOR_NOT_AVAILABLE,
    E.NOT_COORDINATOR,
    E.LEADER_NOT_AVAILABLE,
}
TRIES = 100
PAUSE_S = 0.1
SILENT_S = 5.0
SETTLE_S = 0.4
IDENTITY = (
    "name",
    "topic",
    "topic_name",
    "topic_id",
    "api_key",
    "resource_name",
    "group_id",
    "transactional_id",
    "member_id",
    "key",
    "feature",
    "log_dir",
    "entity_type",
    "node_id",
    "broker_id",
    "partition_index",
    "partition",
    "partition_id",
    "index",
    "producer_id",
    "replica_id",
    "entity",
    "listener",
)
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![\w-])[\w-]{22}(?![\w-])")
YEAR_2001_MS = 1_000_000_000_000
Flat = dict[str, str]


class World:
    """One broker under examination. `answers`: request -> its flat answer."""

    def __init__(self, bootstrap: str, login: tuple[str, str] | None = None) -> None:
        """`login`: a user's name and password (SASL_PLAINTEXT, PLAIN)."""
        host, _, port = bootstrap.rpartition(":")
        self._login = login
        self.address = (host, int(port))
        self.answers: dict[str, Flat] = {}
        self.topic_ids: dict[str, bytes] = {}
        self._connection: socket.socket | None = None

    # -- asking

    def each(
        self, api: str, label: str, /, *, since: int = 0, until: int = 99, **fields: Any
    ) -> None:
        """Ask in every version that both serve. For what changes nothing."""
        oldest, newest = served(api)
        for version in range(max(since, oldest), min(until, newest) + 1):
            self.ask(api, label, version, **fields)

    def ask(self, api: str, label: str, version: int | None = None, /, **fields: Any) -> Any:
        """Ask in one version (None: the newest), keep the answer as told, and give it raw."""
        used = served(api)[1] if version is None else version
        answer = self.call(api, used, **fields)
        what = f"{api}.{used} {label}"
        assert what not in self.answers, f"{what} is recorded twice"
        self.answers[what] = self.flat(answer, used)
        return answer

    def settle(self) -> None:
        """Let brokers hear what the controller has just decided."""
        threading.Event().wait(SETTLE_S)

    def until(self, condition: Callable[[], bool]) -> None:
        """Let them hear of something that can be asked for."""
        for _ in range(TRIES):
            if condition():
                return
            self.settle()
        raise AssertionError("the broker does not hear of what was decided")

    def call(self, api: str, version: int | None = None, /, **fields: Any) -> Any:
        """Ask without keeping the answer."""
        used = served(api)[1] if version is None else version
        request = build(f"{api}Request", used, fields)
        pause = threading.Event()
        answer = None
        for _ in range(TRIES):
            answer = self._exchange(request, used)
            if isinstance(answer, str) or not NOT_NOW & set(codes_in(answer)):
                return answer
            pause.wait(PAUSE_S)
        raise AssertionError(f"{request} is not answered: {answer}")

    def _exchange(self, request: Message, version: int) -> Message | str:
        """The answer; "none" when the broker ends the connection, or is silent."""
        if self._connection is None:
            self._connection = socket.create_connection(self.address, timeout=SILENT_S)
            if self._login is not None:
                self._log_in(*self._login)
        self._connection.sendall(b"".join(encode_request(request, version, 1, "recorder")))
        frame = self._read()
        if frame is None:
            self.close()
            return "none"
        response = message_class(request.NAME.removesuffix("Request") + "Response")
        return decode_response(response, version, frame)[1]

    def _log_in(self, user: str, password: str) -> None:
        token = f"\0{user}\0{password}".encode()
        for request in (
            build("SaslHandshakeRequest", 1, {"mechanism": "PLAIN"}),
            build("SaslAuthenticateRequest", 1, {"auth_bytes": token}),
        ):
            answer = self._exchange(request, 1)
            assert set(codes_in(answer)) == {0}, answer

    def _read(self) -> bytes | None:
        assert self._connection is not None
        try:
            with self._connection.makefile("rb") as stream:
                size = stream.read(4)
                return stream.read(int.from_bytes(size)) if len(size) == 4 else None
        except (ConnectionResetError, TimeoutError):
            return None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- what requests need to know

    def topic_id(self, name: str) -> bytes:
        """Of a topic that is there."""
        for _ in range(TRIES):
            if name in self.topic_ids:
                break
            [topic] = self.call("Metadata", topics=[{"name": name}]).topics
            if topic.error_code:  # the broker has not heard of it yet
                self.settle()
            else:
                self.topic_ids[name] = bytes(topic.topic_id)
        return self.topic_ids[name]

    # -- comparing

    def flat(self, answer: Message | str, version: int) -> Flat:
        """The answer as facts."""
        if isinstance(answer, str):
            return {"answer": answer}
        found: Flat = {}
        self._flatten(answer, _definition(answer.NAME).root, version, "", found)
        return found

    def _flatten(self, value: Any, shape: Struct, version: int, at: str, found: Flat) -> None:
        for field in shape.fields:
            if version not in field.versions:
                continue
            place = f"{at}.{field.name}" if at else field.name
            inner = getattr(value, field.name)
            if not field.array or inner is None:
                if field.struct is not None and inner is not None:
                    self._flatten(inner, field.struct, version, place, found)
                else:
                    found[place] = self.plain(field.name, inner)
            elif field.struct is None:
                found[place] = ", ".join(sorted(self.plain(field.name, v) for v in inner)) or "none"
            else:
                self._elements(inner, field.struct, version, place, found)

    def _elements(
        self, values: Iterable[Any], shape: Struct, version: int, place: str, found: Flat
    ) -> None:
        seen: dict[str, int] = {}
        for value in values:
            name = self._identity(value)
            seen[name] = seen.get(name, 0) + 1
            again = f"#{seen[name]}" if seen[name] > 1 else ""
            self._flatten(value, shape, version, f"{place}[{name}{again}]", found)
        if not seen:
            found[place] = "none"

    def _identity(self, value: Any) -> str:
        named: list[str] = []
        for name in IDENTITY:
            part = getattr(value, name, None)
            if part is None or part in ("", ZERO_UUID):
                continue
            if isinstance(part, list):
                part = "+".join(sorted(self._identity(p) for p in part))
            named.append(self.plain(name, part))
            if name != "entity_type":
                break
        if getattr(value, "entity_type", None) is not None and hasattr(value, "entity_name"):
            named.append(str(value.entity_name))
        return " ".join(named)

    def plain(self, name: str, value: Any) -> str:
        """A value without what differs from run to run."""
        if name.endswith("error_code"):
            return ErrorCode.name_of(value)
        if value is None or isinstance(value, bool):
            return str(value)
        if name.endswith(("error_message", "documentation")):
            return "<text>" if value else repr(value)
        if name in (
            "port",
            "session_id",
            "subscription_id",
            "producer_id",
            "total_bytes",
            "usable_bytes",
        ):
            return "<number>" if value not in (0, -1) else str(value)
        if name in ("host", "cluster_id", "log_dir", "client_host"):
            return "<text>" if value else repr(value)
        if isinstance(value, int):
            return "<time>" if abs(value) > YEAR_2001_MS and abs(value) < 1 << 60 else str(value)
        if name.endswith("_id") and isinstance(value, bytes | memoryview):
            return self._uuid(bytes(value))
        if name == "records":
            return _records(value)
        if isinstance(value, bytes | memoryview):
            return bytes(value).hex()
        return UUID.sub("<uuid>", str(value))

    def _uuid(self, value: bytes) -> str:
        if value == ZERO_UUID:
            return "<no id>"
        known = next((name for name, i in self.topic_ids.items() if i == value), None)
        return "<an id>" if known is None else f"<id of {known}>"


def _records(value: Any) -> str:
    data = b"" if value is None else bytes(value)
    if not data:
        return "none"
    chunk = Chunk("t", 0, data, 0)
    found: list[str] = []
    while not chunk.exhausted:
        found += [f"{r.offset}={(r.value or b'').decode()}" for r in chunk.next_records(1_000)]
    return " ".join(found)


def codes_in(value: Any) -> Iterable[int]:
    """Every error code anywhere in an answer."""
    if isinstance(value, list):
        for part in value:
            yield from codes_in(part)
    for name in getattr(value, "FIELDS", ()):
        field = getattr(value, name)
        if name.endswith("error_code"):
            yield field
        else:
            yield from codes_in(field)


@cache
def _definition(name: str) -> Definition:
    return load(name)


@cache
def served(api: str) -> tuple[int, int]:
    request = message_class(f"{api}Request")
    if request.API_KEY not in APIS:
        return request.MIN_VERSION, request.STABLE_VERSION
    return APIS[request.API_KEY].min_version, APIS[request.API_KEY].max_version


def build(name: str, version: int, fields: Mapping[str, Any]) -> Message:
    """A message from plain data, without what the version has no place for."""
    definition = _definition(name)
    module = __import__(f"kohort.wire.messages.{snake(name)}", fromlist=[name])
    built = _built(module, definition.root, version, fields)
    assert isinstance(built, Message)
    return built


def _built(module: Any, shape: Struct, version: int, fields: Mapping[str, Any]) -> Any:
    known = {field.name: field for field in shape.fields}
    assert set(fields) <= set(known), f"{shape.name} has no {set(fields) - set(known)}"
    values: dict[str, Any] = {}
    for name, value in fields.items():
        field = known[name]
        if version not in field.versions:
            continue
        if field.struct is None or value is None:
            values[name] = value
        elif field.array:
            values[name] = [_built(module, field.struct, version, part) for part in value]
        else:
            values[name] = _built(module, field.struct, version, value)
    return getattr(module, shape.name)(**values)
