"""Byte for byte and field by field against `kio` (issue A, wire: differential tests).

Both directions: what we encode, kio decodes to the same values; what kio then encodes are the same
bytes, which we decode to the message that we began with. Rules that are kio's own:
- error codes are an enum, so random ones are taken from Kafka's table;
- durations and points in time are `timedelta` and `datetime`, so int64 values stay within them.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import importlib
import io
import uuid
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer

from kohort.wire import ZERO_UUID, Message, decode, encode, message_class
from kohort.wire import _schema as schema
from tests.wire.values import ALL_NAMES, Maker

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

# Messages that kio has no schema for.
NOT_IN_KIO = {name for name in ALL_NAMES if name.endswith(("Key", "Value"))}
NOT_IN_KIO_VERSIONS: set[tuple[str, int]] = set()


def kio_name(name: str) -> str:
    """kio's package for a message, and its module in a version."""
    for suffix in ("Request", "Response", "Header"):
        if name.endswith(suffix) and name not in ("RequestHeader", "ResponseHeader"):
            return schema.snake(name.removesuffix(suffix))
    return schema.snake(name)


def kio_class(cls: type[Message], version: int) -> Any:
    """kio's entity of the same message and version, None if it has none."""
    name = cls.NAME
    kind = "request" if name.endswith("Request") else "response"
    if not name.endswith(("Request", "Response")):
        kind = "header" if name.endswith("Header") else "data"
    try:
        module = importlib.import_module(f"kio.schema.{kio_name(name)}.v{version}.{kind}")
    except ModuleNotFoundError:
        return None
    return getattr(module, name)


def differences(ours: Any, theirs: Any, facts: schema.Struct | None, version: int) -> list[str]:
    """Where kio's value is not our value; structs are compared field by field, in order."""
    if facts is not None and dataclasses.is_dataclass(theirs):
        return struct_differences(ours, theirs, facts, version)
    if isinstance(theirs, tuple):
        assert isinstance(ours, list)
        if len(ours) != len(theirs):
            return [f"{len(ours)} elements, not {len(theirs)}"]
        pairs = zip(ours, theirs, strict=True)
        return [text for one, other in pairs for text in differences(one, other, facts, version)]
    if isinstance(theirs, enum.Enum):
        theirs = theirs.value
    elif isinstance(theirs, datetime.timedelta):
        theirs = theirs // datetime.timedelta(milliseconds=1)
    elif isinstance(theirs, datetime.datetime):
        theirs = (theirs - EPOCH) // datetime.timedelta(milliseconds=1)
    elif isinstance(theirs, uuid.UUID):
        theirs = theirs.bytes
    elif theirs is None and isinstance(ours, int):
        theirs = -1
    elif theirs is None and ours == ZERO_UUID:
        theirs = ZERO_UUID
    return [] if ours == theirs else [f"{ours!r} is not {theirs!r}"]


def struct_differences(ours: Any, theirs: Any, facts: schema.Struct, version: int) -> list[str]:
    """The differences of two structs, each with its path."""
    mine = [field for field in facts.fields if version in field.versions]
    names = [field.name for field in dataclasses.fields(theirs)]
    assert len(mine) == len(names), (facts.name, [f.name for f in mine], names)
    found: list[str] = []
    for field, name in zip(mine, names, strict=True):
        # kio drops the unit of durations: `session_timeout` is our `session_timeout_ms`.
        assert field.name.startswith(name.rstrip("_")), (field.name, name)
        texts = differences(getattr(ours, field.name), getattr(theirs, name), field.struct, version)
        found += [f"{field.name}: {text}" for text in texts]
    return found


@pytest.mark.rows(32)
@pytest.mark.parametrize("name", [name for name in ALL_NAMES if name not in NOT_IN_KIO])
def test_bytes_and_values_agree_in_both_directions(name: str) -> None:
    cls = message_class(name)
    facts = schema.load(name).root
    for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
        entity = kio_class(cls, version)
        if (name, version) in NOT_IN_KIO_VERSIONS:
            assert entity is None
            continue
        assert entity is not None, (name, version)
        read, write = entity_reader(entity), entity_writer(entity)
        for seed in range(4):
            ours = Maker(seed, plain=True).message(cls, version)
            data = encode(ours, version)
            theirs, size = read(data, 0)
            assert size == len(data)
            assert struct_differences(ours, theirs, facts, version) == []
            buffer = io.BytesIO()
            write(buffer, theirs)
            assert buffer.getvalue() == data, (version, seed)
            assert decode(cls, version, buffer.getvalue()) == ours
