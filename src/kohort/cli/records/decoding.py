"""Keys and values of a schema registry's formats, both ways, and records chosen by their content.

Rules:
- A key or value that does not decode stays as it is, with the error beside it; only a registry that
  does not answer ends the command.
- Patterns are searched in text: of a decoded value in its JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kohort.cli.common.formats import Header, Outgoing, Parsed, Printed, as_text
from kohort.errors import ConfigError, ConnectionFailedError, KohortError, UsageError

if TYPE_CHECKING:
    from kohort.serdes import RegistrySerde
    from kohort.serdes.basic import Part

Accepts = Callable[[Printed], bool]
Encode = Callable[[Outgoing], Outgoing]


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """A record whose key or value was decoded; `errors` says by name what was not, and why."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | Parsed | None
    value: bytes | Parsed | None
    headers: Sequence[Header]
    errors: tuple[tuple[str, str], ...] = ()


class Decoder:
    """Decodes keys, values or both of records.

    Args:
        serde: reads the bytes.
        parts: `key`, `value` or both.
    """

    def __init__(self, serde: RegistrySerde, parts: Iterable[Part]) -> None:
        self._serde, self._parts = serde, tuple(parts)

    def __call__(self, record: Printed) -> Printed:
        """The record with what was decoded. Raises ConnectionFailedError."""
        errors: list[tuple[str, str]] = []
        parts: dict[Part, Any] = {"key": record.key, "value": record.value}
        for part in self._parts:
            data = parts[part]
            if data is None:
                continue
            try:
                parts[part] = Parsed(self._serde.deserialize(record.topic, bytes(data), part))
            except ConnectionFailedError:
                raise
            except KohortError as error:
                errors.append((part, str(error)))
        return DecodedRecord(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp,
            parts["key"],
            parts["value"],
            record.headers,
            tuple(errors),
        )


def decoder(url: str | None, parts: Sequence[Part]) -> Decoder | None:
    """What decodes with the registry at `url`; None without one. Raises ConfigError."""
    if url is None:
        return None
    from kohort.serdes import RegistrySerde, SchemaRegistry

    return Decoder(RegistrySerde(SchemaRegistry(url)), parts or ("value",))


def encoder(url: str | None, parts: Sequence[Part], topic: str) -> Encode | None:
    """What encodes JSON text by the registry at `url`; None without one.

    The function raises ConfigError for a value that is no JSON or does not fit its schema.
    """
    if url is None:
        return None
    from kohort.serdes import RegistrySerde, SchemaRegistry

    serde = RegistrySerde(SchemaRegistry(url))

    def of(data: bytes | None, part: Part) -> bytes | None:
        if data is None or part not in (parts or ("value",)):
            return data
        try:
            return serde.serialize(topic, json.loads(data), part)
        except ValueError as error:
            raise ConfigError(f"the {part} is not JSON: {error}") from None
        except UsageError as error:
            raise ConfigError(str(error)) from error

    return lambda record: replace(
        record, key=of(record.key, "key"), value=of(record.value, "value")
    )


def acceptance(key: str | None, value: str | None, headers: Sequence[str]) -> Accepts | None:
    """Whether a record has what is asked for in all of these places; None asks for nothing.

    Args:
        key: a regular expression for the key.
        value: for the value.
        headers: `NAME=REGEX`, each for a header of this name; `NAME` alone for its presence.

    Raises:
        ConfigError: a text that is no regular expression.
    """
    tests: list[Accepts] = []
    if key is not None:
        tests.append(_in_key(_pattern("--match-key", key)))
    if value is not None:
        tests.append(_in_value(_pattern("--match-value", value)))
    for text in headers:
        name, _, pattern = text.partition("=")
        tests.append(_in_header(name, _pattern("--match-header", pattern)))
    return (lambda record: all(test(record) for test in tests)) if tests else None


def _pattern(option: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(f"{option} {text!r} is not a regular expression: {error}") from None


def _in_key(pattern: re.Pattern[str]) -> Accepts:
    return lambda record: record.key is not None and bool(pattern.search(as_text(record.key)))


def _in_value(pattern: re.Pattern[str]) -> Accepts:
    return lambda record: record.value is not None and bool(pattern.search(as_text(record.value)))


def _in_header(name: str, pattern: re.Pattern[str]) -> Accepts:
    return lambda record: any(
        header == name and pattern.search(as_text(data or b"")) for header, data in record.headers
    )
