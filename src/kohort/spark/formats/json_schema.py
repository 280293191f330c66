"""JSON Schema to the type that its values are read as. Pure.

Rules (spec 6.6):
- Objects are structs, arrays lists, integers BIGINT, numbers DOUBLE; the formats date and date-time
  are DATE and TIMESTAMP. A type or null is that type: every column may be null.
- What is not one type (a choice, an object without named properties) is left out of the struct;
  `schemaEvolution=rescue` keeps it as text, and `valueSchema` says it otherwise.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa

from kohort.errors import ConfigError
from kohort.spark.formats.types import TIMESTAMP, list_of

_DEPTH_MAX: Final = 50
_PLAIN: Final = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_TEXT: Final = {"date": pa.date32(), "date-time": TIMESTAMP}


def type_of(text: str) -> pa.DataType:
    """The struct of a JSON Schema. Raises ConfigError when it is none, or not of objects."""
    try:
        root = json.loads(text)
        found = _type(root, root, 0)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ConfigError(f"this is no JSON Schema ({error}): {text[:200]}") from error
    if found is None or not pa.types.is_struct(found):
        raise ConfigError(
            "the JSON Schema must be of an object with named properties; give valueSchema"
        )
    return found


def _type(node: Any, root: Any, depth: int) -> pa.DataType | None:
    """The type of a schema; None when it is not one type."""
    if depth > _DEPTH_MAX or not isinstance(node, dict):
        return None
    if "$ref" in node:
        return _type(_referred(str(node["$ref"]), root), root, depth + 1)
    choices = node.get("oneOf") or node.get("anyOf")
    if choices:
        others = [each for each in choices if each.get("type") != "null"]
        return _type(others[0], root, depth + 1) if len(others) == 1 else None
    kind = node.get("type")
    if isinstance(kind, list):
        kinds = [each for each in kind if each != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    if kind == "object" and node.get("properties"):
        below = {name: _type(each, root, depth + 1) for name, each in node["properties"].items()}
        return pa.struct([pa.field(name, type_) for name, type_ in below.items() if type_])
    if kind == "array":
        item = _type(node.get("items"), root, depth + 1)
        return None if item is None else list_of(item)
    if kind == "string":
        if node.get("contentEncoding") == "base64":
            return pa.binary()
        return _TEXT.get(node.get("format", ""), pa.string())
    return _PLAIN.get(kind or "")


def _referred(ref: str, root: Any) -> Any:
    """The schema that `#/$defs/name` refers to. Other documents are never looked up."""
    if not ref.startswith("#/"):
        return None
    node = root
    for part in ref[2:].split("/"):
        node = node[part.replace("~1", "/").replace("~0", "~")]
    return node
