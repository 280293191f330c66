"""The options by which `format("kohort")` decodes keys and values: parsed and refused. Pure.

Rules:
- Both parts have the same options: `valueFormat` and `keyFormat`, and so on.
- No record is dropped silently: `mode=DROPMALFORMED` is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kohort.errors import ConfigError
from kohort.setting_keys import nearest

OPTIONS: Final = (
    "valueFormat",
    "valueSchema",
    "valueSubject",
    "valueMessage",
    "keyFormat",
    "keySchema",
    "keySubject",
    "keyMessage",
    "schemaRegistry",
    "schemaEvolution",
    "mode",
)
FORMATS: Final = ("json", "json-schema", "avro", "protobuf", "debezium")
EVOLUTIONS: Final = ("ignore", "fail", "rescue", "widen")
_JSON: Final = ("json", "json-schema")
_MEANT_FOR: Final = {"rescue": _JSON, "widen": ("avro",), "fail": (*_JSON, "avro")}
"""The formats that a policy is for; the others are for all."""
PERMISSIVE: Final = "PERMISSIVE"
FAILFAST: Final = "FAILFAST"


@dataclass(frozen=True)
class Format:
    """How one part of the records is decoded.

    Args:
        part: `key` or `value`.
        name: one of `FORMATS`.
        schema: its schema as text; None when the registry has it.
        evolution: of what the schema does not have: `ignore`, `fail`, `rescue` or `widen`.
        registry: the address of the schema registry whose wire format the bytes have.
        subject: whose schema in the registry is read when `schema` is None.
        message: of Protobuf, the message's full name; None for the first of its file.
    """

    part: str
    name: str
    schema: str | None
    evolution: str = "ignore"
    registry: str | None = field(default=None, repr=False)  # it may hold a password
    subject: str | None = None
    message: str | None = None


@dataclass(frozen=True)
class Names:
    """What the settings of a part are called where they are given."""

    format: str
    schema: str
    subject: str
    message: str
    registry: str = "schemaRegistry"
    evolution: str = "schemaEvolution"

    @classmethod
    def of_part(cls, part: str) -> Names:
        """The options of `format("kohort")`."""
        return cls(f"{part}Format", f"{part}Schema", f"{part}Subject", f"{part}Message")


@dataclass(frozen=True)
class Formats:
    """How the records are decoded; without either part they stay bytes."""

    value: Format | None = None
    key: Format | None = None
    permissive: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns after the connector's own."""
        if not (self.value or self.key):
            return ()
        rescues = any(f and f.evolution == "rescue" for f in (self.value, self.key))
        found = ("_rescued",) if rescues else ()
        if self.permissive:
            found += ("_error",)
            found += ("_raw_key",) if self.key else ()
            found += ("_raw_value",) if self.value else ()
        return found


def parse_formats(found: Mapping[str, str], topics: Sequence[str] = ()) -> Formats:
    """The formats among the source's options.

    Args:
        topics: what is read; the subject of a schema is by default that of the only one.

    Raises ConfigError.
    """
    value, key = (_part(found, part, topics) for part in ("value", "key"))
    mode = found.get("mode", PERMISSIVE).upper()
    if mode == "DROPMALFORMED":
        raise ConfigError(
            "mode=DROPMALFORMED would lose records silently; read with mode=PERMISSIVE and "
            "leave them out by .where('_error IS NULL')"
        )
    if mode not in (PERMISSIVE, FAILFAST):
        raise ConfigError(f"mode={found['mode']!r}: {PERMISSIVE} or {FAILFAST}")
    for name in ("mode", "schemaEvolution", "schemaRegistry"):
        if name in found and not (value or key):
            raise ConfigError(f"{name} says how values are decoded; give valueFormat or keyFormat")
    return Formats(value, key, mode == PERMISSIVE)


def _part(found: Mapping[str, str], part: str, topics: Sequence[str]) -> Format | None:
    names = Names.of_part(part)
    if names.format not in found:
        for option in (names.schema, names.subject, names.message):
            if option in found:
                raise ConfigError(f"{option} needs {names.format} ({', '.join(FORMATS)})")
        return None
    return parse_format(found, part, names, topics)


def parse_format(
    found: Mapping[str, str], part: str, names: Names, topics: Sequence[str] = ()
) -> Format:
    """The format of one part.

    Args:
        found: settings by the names in `names`.
        topics: what is read; the subject is by default that of the only one.

    Raises ConfigError.
    """
    schema, registry = found.get(names.schema), found.get(names.registry)
    name = _one_of(found, names.format, FORMATS)
    evolution = _evolution(found, name, names)
    if name == "debezium":
        registry = None
    subject = found.get(names.subject)
    if registry is not None and subject is None and len(topics) == 1:
        subject = f"{topics[0]}-{part}"
    if schema is None and registry is None:
        what = ", as DDL: id BIGINT, name STRING" if name in ("json", "debezium") else ""
        or_else = "" if name == "debezium" else f"; or {names.registry}"
        raise ConfigError(f"{names.format}={name} needs {names.schema}{what}{or_else}")
    if subject is None and (schema is None or evolution == "widen"):
        raise ConfigError(
            f"{names.format}={name}: give {names.subject}, the registry's subject whose schema is "
            f"read (by default that of the only topic), or {names.schema}"
        )
    if schema is not None and evolution == "widen":
        raise ConfigError(
            f"{names.evolution}=widen reads the registry's schemas; leave {names.schema} out"
        )
    message = found.get(names.message)
    if message is not None and name != "protobuf":
        raise ConfigError(f"{names.message} is for protobuf, not for {name}")
    return Format(part, name, schema, evolution, registry, subject, message)


def _evolution(found: Mapping[str, str], name: str, names: Names) -> str:
    evolution = _one_of(found, names.evolution, EVOLUTIONS)
    if name not in _MEANT_FOR.get(evolution, (name,)):
        raise ConfigError(
            f"{names.evolution}={evolution} is for {', '.join(_MEANT_FOR[evolution])}, not for "
            f"{name}"
        )
    if evolution == "widen" and names.registry not in found:
        raise ConfigError(f"{names.evolution}=widen needs {names.registry}")
    return evolution


def _one_of(found: Mapping[str, str], option: str, known: tuple[str, ...]) -> str:
    text = found.get(option, known[0]).lower()
    if text not in known:
        near = nearest(text, known)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(f"{option}={found[option]!r}: one of {', '.join(known)}{hint}")
    return text
