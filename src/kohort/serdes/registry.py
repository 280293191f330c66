"""The schema registry: schemas by id, ids by schema, over its REST API (as Confluent's).

Rules:
- A registry's answer about an id never changes, so it is kept (`cached_max` of them, the least used
  goes). A refusal is kept for `_RETRY_S`, a retriable one for `_SOON_S`.
- An unknown id or version may become known, since registries follow one another: for `_RETRY_S` it
  is retriable.
- Several addresses are tried in turn; what may be tried again is retriable (`registry_http`).
- Calls block, for at most `timeout_s` an address; safe from several threads, which ask once for the
  same answer and wait for no other (`single_flight`).

Shell: HTTP, threads, the clock.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from kohort.errors import ConfigError, SchemaRegistryError
from kohort.serdes.registry_http import RegistryHttp, is_absent, misread
from kohort.serdes.single_flight import SingleFlight

if TYPE_CHECKING:
    import ssl

_RETRY_S: Final = 10.0
_SOON_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one uses: by `name` there, stored as `version` of `subject`."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema's text, its kind (AVRO, JSON or PROTOBUF), and what it refers to."""

    text: str
    kind: str = "AVRO"
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class _Refusal:
    """What was refused: for the first time in a row at `since_s`, asked again from `until_s` on."""

    error: SchemaRegistryError
    since_s: float
    until_s: float


class SchemaRegistry:
    """A client of a schema registry.

    Args:
        url: one address or several, with commas; `http://user:password@host` for basic
            authentication.
        token: a bearer token instead, or what gives one for each request.
        timeout_s: the longest wait for one address.
        tls: an `ssl.SSLContext` for https; the system's trust by default.
        cached_max: how many schemas are kept.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | Callable[[], str] | None = None,
        timeout_s: float = 10.0,
        tls: ssl.SSLContext | None = None,
        cached_max: int = 1_000,
    ) -> None:
        self._url = url
        self._http = RegistryHttp(url, token, timeout_s, tls)
        self._token, self._timeout_s = token, timeout_s
        self._tls, self._max = tls, cached_max
        self._lock = threading.Lock()
        self._flights = SingleFlight()
        self._cache: OrderedDict[Any, Any] = OrderedDict()
        self._refusals: OrderedDict[Any, _Refusal] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        """By configuration: another process has connections and a cache of its own."""
        if self._tls is not None:
            raise ConfigError(
                "a SchemaRegistry with tls= cannot be sent to another process, since an SSLContext "
                "cannot; make it there, or trust its certificate by the environment variable "
                "SSL_CERT_FILE"
            )
        return _registry, (self._url, self._token, self._timeout_s, self._max)

    def by_id(self, schema_id: int, *, serialized: bool = False) -> Schema:
        """The schema of an id. Raises SchemaRegistryError when there is none.

        Args:
            schema_id: the id in front of a value.
            serialized: a Protobuf schema as its descriptor in base64, instead of its source.
        """
        path = f"/schemas/ids/{schema_id}{_SERIALIZED if serialized else ''}"
        return self._kept((_FOLLOWED, path), lambda: self._schema(path, everywhere=True))

    def by_version(self, subject: str, version: int, *, serialized: bool = False) -> Schema:
        """The schema of a subject's version, for references; `serialized` as in `by_id`."""
        path = f"/subjects/{_quoted(subject)}/versions/{version}{_SERIALIZED if serialized else ''}"
        return self._kept((_FOLLOWED, path), lambda: self._schema(path, everywhere=True))

    def latest_id(self, subject: str) -> int:
        """The id of the newest schema of a subject; requested at every call."""
        return self._number("id", f"/subjects/{_quoted(subject)}/versions/latest")

    def latest(self, subject: str) -> Schema:
        """The newest schema of a subject; requested at every call."""
        return self._schema(f"/subjects/{_quoted(subject)}/versions/latest")

    def versions(self, subject: str) -> list[int]:
        """The versions that a subject has, oldest first; requested at every call."""
        newest = self._number("version", f"/subjects/{_quoted(subject)}/versions/latest")
        return [v for v in range(1, newest + 1) if self._has(subject, v)]

    def _has(self, subject: str, version: int) -> bool:
        """Whether a version is there: single ones may have been deleted."""
        try:
            self.by_version(subject, version)
        except SchemaRegistryError as error:
            if not is_absent(error):
                raise
            return False
        return True

    def register(self, subject: str, schema: Schema) -> int:
        """The id of a schema, registered under the subject if it is new.

        Raises SchemaRegistryError when it is not compatible with the subject's earlier ones.
        """
        path = f"/subjects/{_quoted(subject)}/versions"
        key = ("register", subject, schema)
        schema_id = self._kept(key, lambda: self._number("id", path, _body(schema)))
        with self._lock:  # refused before it was registered
            self._refusals.pop(("look up", subject, schema), None)
            self._refusals.pop(("number", subject, schema), None)
        return schema_id

    def look_up(self, subject: str, schema: Schema) -> int:
        """The id of a schema that is registered under the subject. Raises SchemaRegistryError if
        not."""
        path = f"/subjects/{_quoted(subject)}"
        key = ("look up", subject, schema)
        return self._kept(key, lambda: self._number("id", path, _body(schema)))

    def version_of(self, subject: str, schema: Schema) -> int:
        """The version that a registered schema has under its subject."""
        path = f"/subjects/{_quoted(subject)}"
        key = ("number", subject, schema)
        return self._kept(key, lambda: self._number("version", path, _body(schema)))

    # -- inside

    def _kept(self, key: Any, ask: Callable[[], Any]) -> Any:
        known = self._known(key)
        if known is not None:
            return known
        with self._flights.of(key):
            known = self._known(key)
            if known is not None:
                return known
            try:
                known = ask()
            except SchemaRegistryError as error:
                self._refuse(key, error)
                raise
            with self._lock:
                self._refusals.pop(key, None)
                self._cache[key] = known
                while len(self._cache) > self._max:
                    self._cache.popitem(last=False)
        return known

    def _known(self, key: Any) -> Any:
        """What was answered before, None for nothing. Raises what was refused a moment ago."""
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
            refusal = self._refusals.get(key)
            if refusal is not None and time.monotonic() < refusal.until_s:
                raise copy(refusal.error)  # the same one would have a longer traceback each time
        return None

    def _refuse(self, key: Any, error: SchemaRegistryError) -> None:
        """Keep a refusal, and decide whether a later try may succeed."""
        now_s = time.monotonic()
        with self._lock:
            before = self._refusals.pop(key, None)
            since_s = now_s
            if before is not None and is_absent(before.error) and is_absent(error):
                since_s = before.since_s
            comes = key[0] == _FOLLOWED and is_absent(error) and now_s < since_s + _RETRY_S
            error.retriable = error.retriable or comes
            until_s = now_s + (_SOON_S if error.retriable else _RETRY_S)
            self._refusals[key] = _Refusal(copy(error), since_s, until_s)
            while len(self._refusals) > self._max:
                self._refusals.popitem(last=False)

    def _schema(self, path: str, *, everywhere: bool = False) -> Schema:
        answer = self._call(path, everywhere=everywhere)
        try:
            references = tuple(
                Reference(str(r["name"]), str(r["subject"]), int(r["version"]))
                for r in answer.get("references") or ()
            )
        except (KeyError, TypeError, ValueError):
            raise misread(path) from None
        text = answer.get("schema")
        if not isinstance(text, str):
            raise misread(path)
        return Schema(text, str(answer.get("schemaType") or "AVRO"), references)

    def _call(
        self, path: str, body: dict[str, Any] | None = None, *, everywhere: bool = False
    ) -> dict[str, Any]:
        """All requests pass here: a derived class may ask again."""
        return self._http.call(path, body, everywhere=everywhere)

    def _number(self, name: str, path: str, body: dict[str, Any] | None = None) -> int:
        """A number that an answer has by this name."""
        number = self._call(path, body).get(name)
        if not isinstance(number, int):
            raise misread(path)
        return number


def _registry(
    url: str, token: str | Callable[[], str] | None, timeout_s: float, cached_max: int
) -> SchemaRegistry:
    return SchemaRegistry(url, token=token, timeout_s=timeout_s, cached_max=cached_max)


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def _body(schema: Schema) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": schema.text}
    if schema.kind != "AVRO":  # registries before 5.5 know no other kind, and no such field
        body["schemaType"] = schema.kind
    if schema.references:
        body["references"] = [
            {"name": r.name, "subject": r.subject, "version": r.version} for r in schema.references
        ]
    return body


def resolved(registry: SchemaRegistry, schema: Schema) -> Sequence[Schema]:
    """The schemas that this one refers to, directly or not, each before those that use it."""
    return list(dict.fromkeys(below for _, below in referenced(registry, schema)))


def referenced(
    registry: SchemaRegistry, schema: Schema, depth: int = 0
) -> Iterator[tuple[str, Schema]]:
    """As `resolved`, each with the name that it is referred to by, and as often as it is."""
    if depth > _DEPTH_MAX:
        raise SchemaRegistryError(f"references are nested deeper than {_DEPTH_MAX}")
    for reference in schema.references:
        below = registry.by_version(reference.subject, reference.version)
        yield from referenced(registry, below, depth + 1)
        yield reference.name, below


_DEPTH_MAX: Final = 32
_FOLLOWED: Final = "followed"
"""What a registry never changes, and one that follows another may not have yet."""
_SERIALIZED: Final = "?format=serialized"
