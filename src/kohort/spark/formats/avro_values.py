"""The default of a field in an Avro schema, which is JSON, to the bytes of the value. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

Resolve = Callable[[Any], Any]
_JSON: Final[dict[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "string": (str,),
    "enum": (str,),
    "bytes": (str,),
    "fixed": (str,),
}
"""What the JSON of each type's values is; bytes are a character each."""


def encoded(resolved: Resolve, node: Any, value: Any) -> bytes:
    """The bytes of a default.

    Args:
        resolved: the definition behind a schema's name.
        node: the schema of the value.
        value: the default, as its JSON was read.

    Raises ValueError, TypeError or KeyError when it is none of the schema's.
    """
    node = resolved(node)
    kind = node["type"]
    if kind == "union":
        return _of_union(resolved, node["members"], value)
    if kind == "record":
        return b"".join(
            encoded(resolved, f["schema"], value[f["name"]] if f["name"] in value else f["default"])
            for f in node["fields"]
        )
    if kind == "array":
        items = b"".join(encoded(resolved, node["items"], item) for item in value)
        return _blocks(len(value), items)
    if kind == "map":
        items = b"".join(
            _text(key.encode()) + encoded(resolved, node["values"], item)
            for key, item in value.items()
        )
        return _blocks(len(value), items)
    return _plain(node, value)


def _of_union(resolved: Resolve, members: list[Any], value: Any) -> bytes:
    """A value of the first branch that takes it."""
    for branch, member in enumerate(members):
        try:
            return _varint(branch) + encoded(resolved, member, value)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    raise ValueError(f"no branch of the union takes {value!r}")


def _plain(node: Any, value: Any) -> bytes:
    kind = node["type"]
    if type(value) not in _JSON[kind]:
        raise ValueError(f"{value!r} is not of type {kind}")
    if kind == "null":
        return b""
    if kind == "boolean":
        return bytes([value])
    if kind in ("int", "long"):
        return _varint(value)
    if kind in ("float", "double"):
        return struct.pack("<f" if kind == "float" else "<d", value)
    if kind == "enum":
        return _varint(node["symbols"].index(value))
    data = value.encode("utf-8" if kind == "string" else "latin-1")
    if kind == "fixed" and len(data) != node["size"]:
        raise ValueError(f"{value!r} is not {node['size']} bytes")
    return data if kind == "fixed" else _text(data)


def _blocks(count: int, items: bytes) -> bytes:
    return (_varint(count) + items if count else b"") + _varint(0)


def _text(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    found = bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)
