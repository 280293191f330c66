"""Records as lines of text, both ways: what `consume` prints and `produce --jsonl` reads.

Rules:
- A record in JSON loses nothing: text is text, bytes that are not UTF-8 are in base64 under
  `key_base64` and `value_base64`; headers are a list, since a name may occur twice.
- What `consume` prints as `jsonl`, `produce --jsonl` reads; `topic`, `offset` and
  `timestamp_type` tell where a record came from and are not written back.
- For people (`full`) control characters are escaped, so that a record cannot drive a terminal.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol, cast

from kohort.errors import ConfigError
from kohort.lean import dataclass
from kohort.setting_keys import nearest

Header = tuple[str, bytes | None]
FORMS: Final = ("jsonl", "value", "key-value", "full")
READ_FIELDS: Final = frozenset(
    {"key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp"}
)
PASSED_OVER: Final = frozenset({"topic", "offset", "timestamp_type", "key_error", "value_error"})
NULL: Final = b"null"
MAX_PARTITION: Final = (1 << 31) - 1
_NO_TIME: Final = -1
"""The timestamp of a record that has none."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A key or value that was decoded: what it means, as JSON has it."""

    value: Any

    @property
    def text(self) -> str:
        """Its JSON; what JSON cannot hold (bytes, decimals, times, NaN) as text."""
        return _dumped(self.value)


def _dumped(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain, allow_nan=False)
    except ValueError:  # only such a value pays for a copy
        return json.dumps(_without_nan(value), ensure_ascii=False, default=_plain)


def _without_nan(value: Any) -> Any:
    """The value with NaN and the infinities as text: JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    if isinstance(value, dict):
        fields = cast("dict[Any, Any]", value)
        return {name: _without_nan(one) for name, one in fields.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in cast("Sequence[Any]", value)]
    return value


def _utf8(text: str) -> bytes:
    r"""Text as bytes: half of a surrogate pair as `\ud83d`, which is what JSON calls it."""
    return text.encode("utf-8", "backslashreplace")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    return str(value)


class Printed(Protocol):
    """The part of a record that is printed."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | Parsed | None: ...
    @property
    def value(self) -> bytes | Parsed | None: ...
    @property
    def headers(self) -> Sequence[Header]: ...


Form = Callable[[Printed], bytes]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record to produce; None for what the producer decides."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def form_of(name: str, key_separator: bytes) -> Form:
    """The function that makes one line, with its end, of a record."""
    if name == "value":
        return lambda record: _raw(record.value) + b"\n"
    if name == "key-value":
        return lambda r: _raw(r.key) + key_separator + _raw(r.value) + b"\n"
    if name == "full":
        return lambda record: as_full(record).encode() + b"\n"
    return lambda record: _utf8(as_json(record)) + b"\n"


def as_json(record: Printed) -> str:
    """One record as one JSON object on one line."""
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    _put(fields, "key", record.key)
    _put(fields, "value", record.value)
    headers: list[dict[str, Any]] = []
    for name, value in record.headers:
        header: dict[str, Any] = {"name": name}
        _put(header, "value", value)
        headers.append(header)
    fields["headers"] = headers
    for part, error in getattr(record, "errors", ()):
        fields[f"{part}_error"] = error
    return _dumped(fields)


def as_full(record: Printed) -> str:
    """One record for people: place, time, key, value, headers."""
    headers = "".join(f"  {_visible(name)}={_shown(value)}" for name, value in record.headers)
    return (
        f"{record.topic}-{record.partition} {record.offset}  {iso_time(record.timestamp)}  "
        f"{_shown(record.key)}  {_shown(record.value)}{headers}"
    )


def iso_time(ms: int | None) -> str | None:
    """ISO 8601 in UTC with milliseconds; None for a time that is not there."""
    if ms is None or ms < 0:
        return None
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{ms}ms"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_json(line: bytes) -> Outgoing:
    """A record of a line of JSON. Raises ConfigError that says what is wrong with it."""
    try:
        document: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"a JSON object is needed, not {line[:40]!r}")
    fields = cast("dict[str, Any]", document)
    for name in fields:
        if name not in READ_FIELDS | PASSED_OVER:
            near = nearest(name, READ_FIELDS)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(f"unknown field {name!r}{hint}")
    headers: Any = fields.get("headers") or ()
    if not isinstance(headers, list | tuple):
        raise ConfigError('headers must be a list, as [{"name": "n", "value": "v"}]')
    timed = fields.get("timestamp") != _NO_TIME
    return Outgoing(
        value=_bytes_of(fields, "value"),
        key=_bytes_of(fields, "key"),
        headers=tuple(_header(h) for h in cast("Sequence[Any]", headers)),
        partition=_whole(fields, "partition", MAX_PARTITION),
        timestamp_ms=_whole(fields, "timestamp", (1 << 63) - 1) if timed else None,
    )


def separator_of(text: str) -> bytes:
    r"""A separator as it is typed: `\t`, `\n` and `\0` are a tab, a line's end and a zero byte."""
    for typed, meant in (("\\t", "\t"), ("\\n", "\n"), ("\\0", "\0")):
        text = text.replace(typed, meant)
    return text.encode()


def read_line(line: bytes, key_separator: bytes | None, null: bytes | None) -> Outgoing:
    """A record of a line of text. Raises ConfigError when it lacks the separator."""
    if key_separator is None:
        return Outgoing(None if line == null else line)
    key, separator, value = line.partition(key_separator)
    if not separator:
        shown = key_separator.decode("utf-8", "backslashreplace")
        raise ConfigError(f"no key separator {shown!r} in {_cut(line)!r}")
    return Outgoing(None if value == null else value, None if key == null else key)


def parse_header(text: str) -> Header:
    """`name=value` as a header."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--header {text!r} is not NAME=VALUE")
    return name, value.encode()


def merged(record: Outgoing, headers: Iterable[Header], partition: int | None) -> Outgoing:
    """The record with the command's own headers behind its own, and the command's partition."""
    return Outgoing(
        record.value,
        record.key,
        (*record.headers, *headers),
        record.partition if partition is None else partition,
        record.timestamp_ms,
    )


def as_text(data: bytes | Parsed) -> str:
    """Text of a key, value or header; bytes that are no text as escapes."""
    return (
        data.text if isinstance(data, Parsed) else bytes(data).decode("utf-8", "backslashreplace")
    )


def _raw(data: bytes | Parsed | None) -> bytes:
    if isinstance(data, Parsed):
        return _utf8(data.text)
    return NULL if data is None else bytes(data)


def _put(fields: dict[str, Any], name: str, data: bytes | Parsed | None) -> None:
    if data is None or isinstance(data, Parsed):
        fields[name] = None if data is None else data.value
        return
    try:
        fields[name] = bytes(data).decode()
    except UnicodeDecodeError:
        fields[f"{name}_base64"] = base64.b64encode(data).decode()


def _shown(data: bytes | Parsed | None) -> str:
    return "null" if data is None else _visible(as_text(data))


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _bytes_of(fields: dict[str, Any], name: str) -> bytes | None:
    coded = fields.get(f"{name}_base64")
    if coded is not None:
        if fields.get(name) is not None:
            raise ConfigError(f"{name} and {name}_base64 are both given")
        try:
            return base64.b64decode(coded, validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise ConfigError(f"{name}_base64 is not base64: {error}") from None
    value = fields.get(name)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _encoded(name, text)


def _encoded(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} is not text that UTF-8 can hold: {error.reason}") from None


def _header(header: Any) -> Header:
    if not isinstance(header, dict) or not isinstance(
        cast("dict[str, Any]", header).get("name"), str
    ):
        raise ConfigError(f'a header must be as {{"name": "n", "value": "v"}}, not {header!r}')
    fields = cast("dict[str, Any]", header)
    _encoded("a header's name", fields["name"])
    return fields["name"], _bytes_of(fields, "value")


def _whole(fields: dict[str, Any], name: str, most: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ConfigError(f"{name} must be a whole number of at least 0, not {value!r}")
    return value


def _cut(line: bytes) -> str:
    text = line[:60].decode("utf-8", "backslashreplace")
    return text + "…" if len(line) > 60 else text
