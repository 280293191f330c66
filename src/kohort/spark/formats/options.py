"""The options by which `format("kohort")` decodes keys and values: parsed and refused. Pure.

Rules:
- Both parts have the same options: `valueFormat` and `keyFormat`, and so on.
- What is lost is never lost in silence: `mode=DROPMALFORMED` is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kohort.config import nearest
from kohort.errors import ConfigError

OPTIONS: Final = (
    "valueFormat", "valueSchema", "keyFormat", "keySchema", "schemaEvolution", "mode",
)  # fmt: skip
FORMATS: Final = ("json",)
EVOLUTIONS: Final = ("ignore", "fail", "rescue")
PERMISSIVE: Final = "PERMISSIVE"
FAILFAST: Final = "FAILFAST"


@dataclass(frozen=True)
class Format:
    """How one part of the records is decoded.

    Args:
        part: `key` or `value`.
        name: one of `FORMATS`.
        schema: its schema as text.
        evolution: of what the schema does not have: `ignore`, `fail` or `rescue`.
    """

    part: str
    name: str
    schema: str
    evolution: str = "ignore"


@dataclass(frozen=True)
class Formats:
    """How the records are decoded; without either part they stay bytes."""

    value: Format | None = None
    key: Format | None = None
    permissive: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that stand behind the connector's own."""
        if not (self.value or self.key):
            return ()
        rescues = any(f and f.evolution == "rescue" for f in (self.value, self.key))
        found = ("_rescued",) if rescues else ()
        if self.permissive:
            found += ("_error",)
            found += ("_raw_key",) if self.key else ()
            found += ("_raw_value",) if self.value else ()
        return found


def parse_formats(found: Mapping[str, str]) -> Formats:
    """The formats among the source's options. Raises ConfigError."""
    evolution = _one_of(found, "schemaEvolution", EVOLUTIONS)
    value, key = (_part(found, part, evolution) for part in ("value", "key"))
    mode = found.get("mode", PERMISSIVE).upper()
    if mode == "DROPMALFORMED":
        raise ConfigError(
            "mode=DROPMALFORMED would lose records in silence; read with mode=PERMISSIVE and "
            "leave them out by .where('_error IS NULL')"
        )
    if mode not in (PERMISSIVE, FAILFAST):
        raise ConfigError(f"mode={found['mode']!r}: {PERMISSIVE} or {FAILFAST}")
    for name in ("mode", "schemaEvolution"):
        if name in found and not (value or key):
            raise ConfigError(f"{name} says how values are decoded; give valueFormat or keyFormat")
    return Formats(value, key, mode == PERMISSIVE)


def _part(found: Mapping[str, str], part: str, evolution: str) -> Format | None:
    name, schema = found.get(f"{part}Format"), found.get(f"{part}Schema")
    if name is None:
        if schema is not None:
            raise ConfigError(f"{part}Schema needs {part}Format ({', '.join(FORMATS)})")
        return None
    name = _one_of(found, f"{part}Format", FORMATS)
    if schema is None:
        raise ConfigError(f"{part}Format={name} needs {part}Schema, as DDL: id BIGINT, name STRING")
    return Format(part, name, schema, evolution)


def _one_of(found: Mapping[str, str], option: str, known: tuple[str, ...]) -> str:
    text = found.get(option, known[0]).lower()
    if text not in known:
        near = nearest(text, known)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(f"{option}={found[option]!r}: one of {', '.join(known)}{hint}")
    return text
