"""The facts of every message, and the notation they are written in.

One file `schema/NAME.schema` holds one message:

    request JoinGroupRequest key=11 versions=0-9 flexible=6+     kind, name, key, valid versions
    struct Assignment 0+                                         a struct that several fields share
        Name string 0+                                           its fields, one step further in
    GroupInstanceId string 5+ null=5+ default=null ignorable     a field: name, type, versions
    Protocols []JoinGroupRequestProtocol 0+                      an array of a struct of its own
        Metadata bytes 0+

- Versions are `N`, `A-B`, `A+` or `none`. `null=` says where a field may be null; `tag=N` makes it
  a tagged field (where `tagged=` says, else in all its versions); `default=` is given only where it
  is not the type's own; `ignorable` fields may be dropped at a version that lacks them; `classic`
  marks the one field that keeps its two-byte length in flexible versions.
- Types are Kafka's: bool, int8 .. int64, uint16, uint32, float64, string, bytes, records, uuid.
- Names are Kafka's, in CamelCase; `snake` gives ours.

This module is only imported when a codec is generated or by the tools.
"""

from __future__ import annotations

import os
import re
from typing import Final

NEVER: Final = 1 << 15
"""A version that no message reaches: the open end of ranges, and "never flexible"."""

NUMBERS: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""Fixed-size types and their `struct` codes."""

SIZES: Final = {"?": 1, "B": 1, "b": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8, "16s": 16}


class Versions:
    """A range of versions, ends included."""

    __slots__ = ("first", "last")

    def __init__(self, text: str) -> None:
        if text == "none":
            self.first, self.last = NEVER, -1
        elif text.endswith("+"):
            self.first, self.last = int(text[:-1]), NEVER
        else:
            first, _, last = text.partition("-")
            self.first, self.last = int(first), int(last or first)

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


NO_VERSIONS: Final = Versions("none")


def _options(words: list[str]) -> dict[str, str]:
    """`name=value` words as a dict; a bare name has an empty value."""
    pairs = [word.partition("=") for word in words]
    return {name: value for name, _, value in pairs}


class Field:
    """One field: `base` is its type without `[]`; `struct` is set when that type is a struct."""

    __slots__ = (
        "array",
        "base",
        "classic",
        "default",
        "fields",
        "ignorable",
        "name",
        "nullable",
        "struct",
        "tag",
        "tagged",
        "versions",
        "wire_name",
    )

    def __init__(self, line: str) -> None:
        words = line.split()
        options = _options(words[3:])
        self.wire_name = words[0]
        self.name = snake(words[0])
        self.array = words[1].startswith("[]")
        self.base = words[1].removeprefix("[]")
        self.versions = Versions(words[2])
        self.nullable = Versions(options["null"]) if "null" in options else NO_VERSIONS
        self.tag = int(options.get("tag", -1))
        self.tagged = NO_VERSIONS if self.tag < 0 else Versions(options.get("tagged", words[2]))
        self.default: str | None = options.get("default")
        self.ignorable = "ignorable" in options
        self.classic = "classic" in options
        self.struct: Struct | None = None
        self.fields: list[Field] = []

    @property
    def ever_null(self) -> bool:
        """Whether the field may be null in any version."""
        return self.nullable is not NO_VERSIONS or self.default == "null"

    @property
    def fixed(self) -> str | None:
        """The `struct` code of a fixed-size field, None for all others."""
        return None if self.array else NUMBERS.get(self.base)


class Struct:
    """A named list of fields; the message itself is one, too."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: list[Field]) -> None:
        self.name = name
        self.fields = fields

    def present(self, version: int) -> list[Field]:
        """The fields that are encoded in order at `version`."""
        return [f for f in self.fields if version in f.versions and version not in f.tagged]

    def tagged(self, version: int) -> list[Field]:
        """The tagged fields of `version`, by tag."""
        tagged = [f for f in self.fields if version in f.versions and version in f.tagged]
        return sorted(tagged, key=lambda f: f.tag)

    def absent(self, version: int) -> list[Field]:
        """The fields that `version` does not have."""
        return [f for f in self.fields if version not in f.versions]


class Definition:
    """One message: its head line, its structs (innermost first) and its own fields as `root`."""

    __slots__ = ("flexible", "key", "kind", "name", "root", "structs", "unstable", "versions")

    def __init__(self, text: str) -> None:
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        head = lines[0].split()
        options = _options(head[2:])
        self.kind, self.name = head[0], head[1]
        self.key = int(options["key"])
        self.versions = Versions(options["versions"])
        self.flexible = Versions(options["flexible"])
        self.unstable = "unstable" in options
        self.structs: list[Struct] = []
        fields = self._tree(lines[1:])
        self.root = Struct(self.name, fields)
        self._resolve(fields)
        self.structs.append(self.root)

    def _tree(self, lines: list[str]) -> list[Field]:
        """Builds the fields by their indentation; shared structs go to `self.structs`."""
        top: list[Field] = []
        levels: list[list[Field]] = [top]
        for line in lines:
            depth = (len(line) - len(line.lstrip())) // 4
            if line.startswith("struct "):
                shared = Struct(line.split()[1], [])
                self.structs.append(shared)
                levels = [top, shared.fields]
                continue
            field = Field(line)
            levels[depth].append(field)
            del levels[depth + 1 :]
            levels.append(field.fields)
        return top

    def _resolve(self, fields: list[Field]) -> None:
        """Gives every field of a struct type its struct, whether shared or its own."""
        shared = {struct.name: struct for struct in self.structs}
        for struct in list(self.structs):
            self._resolve_in(struct.fields, shared)
        self._resolve_in(fields, shared)

    def _resolve_in(self, fields: list[Field], shared: dict[str, Struct]) -> None:
        for field in fields:
            if field.fields:
                self._resolve_in(field.fields, shared)
                field.struct = Struct(field.base, field.fields)
                self.structs.append(field.struct)
            elif field.base in shared:
                field.struct = shared[field.base]


def is_shared(field: Field) -> bool:
    """Whether the field's absent value is the one shared default of its struct."""
    return (
        field.struct is not None
        and not field.array
        and field.tag >= 0
        and all(not f.array and f.struct is None for f in field.struct.fields)
    )


def least_bytes(field: Field, version: int, flexible: bool) -> int:
    """The least size on the wire of a field, or of one element where it is an array."""
    if field.struct is not None:
        return max(1, _least_of_struct(field.struct, version, flexible))
    if field.base in NUMBERS:
        return SIZES[NUMBERS[field.base]]
    return 1 if flexible and not field.classic else (2 if field.base == "string" else 4)


def _least_of_struct(struct: Struct, version: int, flexible: bool) -> int:
    total = 1 if flexible else 0
    for field in struct.present(version):
        if field.array:
            total += 1 if flexible else 4
        elif field.struct is not None and version in field.nullable:
            total += 1
        elif field.struct is not None:
            total += _least_of_struct(field.struct, version, flexible)
        else:
            total += least_bytes(field, version, flexible)
    return total


def snake(name: str) -> str:
    """`TopicId` -> `topic_id`, `SHA256` -> `sha256`; our name for one of Kafka's."""
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def load(name: str) -> Definition:
    """Reads the facts of message `name` from the package data (also from inside a zip)."""
    return Definition(read_text(name))


def read_text(name: str) -> str:
    """The notation of message `name`."""
    path = os.path.join(os.path.dirname(__file__), "schema", f"{name}.schema")
    loader = __spec__.loader
    data: bytes = loader.get_data(path)  # type: ignore[union-attr]
    return data.decode()
