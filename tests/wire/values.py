"""Seeded random messages, made from the facts: every field that a version has gets a value."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kohort import wire
from kohort.errors import ErrorCode
from kohort.wire import Message, message_class
from kohort.wire import _schema as schema

SCHEMAS = Path(schema.__file__).parent / "schema"
ALL_NAMES = sorted(path.stem for path in SCHEMAS.glob("*.schema"))
TIME = re.compile("time|_ms|period")
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789-._äßπ漢😀"


def every_version() -> Iterator[tuple[type[Message], int]]:
    """All (message, version) pairs."""
    for name in ALL_NAMES:
        cls = message_class(name)
        for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
            yield cls, version


class Maker:
    """Makes random values; `plain` keeps to what every other codec can hold."""

    def __init__(self, seed: int, *, plain: bool = False, unknown: bool = False) -> None:
        self.random = random.Random(seed)
        self.plain = plain
        self.unknown = unknown and not plain

    def message(self, cls: type[Message], version: int) -> Message:
        definition = schema.load(cls.NAME)
        self.flexible = version in definition.flexible
        return self.struct(cls, definition.root, version, 0)

    def struct(self, cls: type[Any], facts: schema.Struct, version: int, depth: int) -> Any:
        import sys

        module = sys.modules[cls.__module__]
        values: dict[str, Any] = {}
        for field in facts.fields:
            if version not in field.versions:
                continue
            if version in field.tagged and self.random.random() < 0.4:
                continue
            values[field.name] = self.field(module, field, version, depth)
        made = cls(**values)
        if self.unknown and self.flexible and self.random.random() < 0.1:
            made.unknown_tags = [(90, b""), (200, self.random.randbytes(150))]
        return made

    def field(self, module: Any, field: schema.Field, version: int, depth: int) -> Any:
        if version in field.nullable and self.random.random() < 0.2:
            return None
        if not field.array:
            return self.single(module, field, version, depth)
        most = 3 if depth < 2 else 2
        count = self.random.randint(0, most)
        if field.struct is None and self.random.random() < 0.1:
            count = self.random.choice((31, 32, 33, 34, 130))
        elif depth == 0 and self.random.random() < 0.02:
            count = 130
        return [self.single(module, field, version, depth + 1) for _ in range(count)]

    def single(self, module: Any, field: schema.Field, version: int, depth: int) -> Any:
        pick = self.random
        if field.struct is not None:
            return self.struct(getattr(module, field.base), field.struct, version, depth + 1)
        if field.base == "string":
            if pick.random() < 0.03:
                return "x" * pick.choice((126, 127, 128, 300))
            return "".join(pick.choices(ALPHABET, k=pick.randint(0, 12)))
        if field.base in ("bytes", "records"):
            return pick.randbytes(pick.choice((0, 1, 7, 40, 126, 127, 128, 2000)))
        if field.base == "uuid":
            return pick.randbytes(16)
        if field.base == "bool":
            return pick.random() < 0.5
        if self.plain and "error_code" in field.name:
            return int(pick.choice(list(ErrorCode)))
        if self.plain and field.base == "int64" and TIME.search(field.name):
            return pick.randint(0, 10**12)
        code = schema.NUMBERS[field.base]
        raw = pick.randbytes(struct.calcsize(code)) if pick.random() < 0.6 else b""
        if field.base == "float64":
            return pick.random() * 1e9
        return struct.unpack(">" + code, raw)[0] if raw else pick.randint(0, 100)


def encoded(message: Message, version: int) -> bytes:
    """The body in one piece, the way a frame is sent."""
    return b"".join(wire.encode_parts(message, version))
