"""Writes the Python source of a decoder for one message at one version.

Rules of the generated code:
- One function, nested loops, no call per struct. Runs of fixed-size fields are one
  `unpack_from`, together with the first byte (or all bytes) of the length that follows them.
- `p` is the position, `end` the size of the input, `left` the elements still allowed, `most` the
  tagged fields allowed in one struct.
- A count is compared with `left` and, times the least size of an element, with the bytes left
  before a list grows.
- Fields that the version lacks get their defaults.
"""

from __future__ import annotations

from struct import Struct as Packer
from typing import Any

from kohort.wire import _runtime
from kohort.wire._schema import SIZES, Definition, Field, Struct

NATURAL = {"bool": "False", "float64": "0.0", "string": "''", "bytes": "b''", "uuid": "ZERO"}


class DecoderWriter:
    """Collects lines, names and pending fixed-size reads."""

    def __init__(self, definition: Definition, version: int, *, view: bool) -> None:
        self.version = version
        self.flexible = version in definition.flexible
        self.view = view
        self.lines: list[str] = []
        self.depth = 1
        self.names: dict[str, Any] = {}
        self.count = 0
        self.run: list[tuple[str, str]] = []

    # -- small tools

    def emit(self, line: str) -> None:
        """Adds a line at the present depth."""
        self.lines.append("    " * self.depth + line)

    def fresh(self, stem: str) -> str:
        """A new local name."""
        self.count += 1
        return f"{stem}{self.count}"

    def flush(self) -> None:
        """Emits the pending run as one unpack."""
        if not self.run:
            return
        codes = "".join(code for code, _ in self.run)
        width = sum(SIZES[code] for code, _ in self.run)
        targets = [target for _, target in self.run]
        self.run = []
        if codes == "B":
            self.emit(f"{targets[0]} = buf[p]")
            self.emit("p += 1")
            return
        name = "u_" + codes.replace("?", "t").replace("16s", "U")
        self.names[name] = Packer(">" + codes).unpack_from
        comma = "," if len(targets) == 1 else ""
        self.emit(f"{', '.join(targets)}{comma} = {name}(buf, p)")
        self.emit(f"p += {width}")

    def read(self, code: str, target: str) -> None:
        """Queues a fixed-size read into `target`."""
        self.run.append((code, target))

    def compact(self, field: Field) -> bool:
        """Whether the field's length is a varint here."""
        return self.flexible and not field.classic

    def may_be_null(self, field: Field) -> bool:
        """Whether null is allowed at this version."""
        return self.version in field.nullable

    # -- structs

    def struct(self, struct: Struct, target: str) -> None:
        """Reads one struct into the local `target`; leaves nothing pending."""
        cls = f"C_{struct.name}"
        self.names[cls] = struct.name
        self.emit(f"{target} = new({cls})")
        self.defaults(struct, target)
        for field in struct.present(self.version):
            self.field(field, f"{target}.{field.name}")
        if self.flexible:
            self.tags(struct, target)
        self.flush()

    def defaults(self, struct: Struct, target: str) -> None:
        """Sets fields that are absent or tagged at this version, and `unknown_tags`."""
        groups: dict[str, list[str]] = {"None": ["unknown_tags"]}
        for field in [*struct.absent(self.version), *struct.tagged(self.version)]:
            expression = self.default(field)
            if (field.array and expression == "[]") or expression.endswith("()"):
                self.emit(f"{target}.{field.name} = {expression}")
            else:
                groups.setdefault(expression, []).append(field.name)
        for expression, names in groups.items():
            chain = " = ".join(f"{target}.{name}" for name in names)
            self.emit(f"{chain} = {expression}")

    def default(self, field: Field) -> str:
        """The default value as an expression of the generated code."""
        if field.default == "null" or (field.base == "records" and not field.array):
            return "None"
        if field.array:
            return "[]"
        if field.struct is not None:
            self.names[f"C_{field.base}"] = field.base
            if field.tag >= 0 and all(
                not f.array and f.struct is None for f in field.struct.fields
            ):
                self.names[f"D_{field.base}"] = field.base
                return f"D_{field.base}"
            return f"C_{field.base}()"
        if field.default is not None:
            return {"true": "True", "false": "False"}.get(field.default, field.default)
        return NATURAL.get(field.base, "0")

    def tags(self, struct: Struct, target: str) -> None:
        """Reads the tagged section at the end of a struct."""
        known = struct.tagged(self.version)
        t = self.fresh("t")
        self.read("B", t)
        self.flush()
        self.emit(f"if {t}:")
        self.depth += 1
        if not known:
            self.emit(f"{target}.unknown_tags, p = unknown_tags(buf, p, {t}, most)")
            self.depth -= 1
            return
        self.emit(f"if {t} > 127: {t}, p = uvarint(buf, p, {t})")
        self.emit(f"if {t} > most + {len(known)}: bad_count({t}, p, end, most - {t})")
        found, tag, e = self.fresh("k"), self.fresh("g"), self.fresh("e")
        self.emit(f"{found} = []")
        self.emit(f"for _ in range({t}):")
        self.depth += 1
        self.emit(f"{tag}, {e}, p = tag_head(buf, p)")
        self.emit(f"{e} += p")
        word = "if"
        for field in known:
            self.emit(f"{word} {tag} == {field.tag}:")
            word = "elif"
            self.depth += 1
            self.field(field, f"{target}.{field.name}", in_tag=True)
            self.flush()
            self.emit(f"if p != {e}: bad_tag({tag}, p, {e})")
            self.depth -= 1
        self.emit("else:")
        self.emit(f"    {found}.append(({tag}, bytes(buf[p:{e}])))")
        self.emit(f"    p = {e}")
        self.depth -= 1
        self.emit(f"if {found}: {target}.unknown_tags = in_order({found})")
        self.depth -= 1

    # -- fields

    def field(self, field: Field, target: str, *, in_tag: bool = False) -> None:
        """Reads one field into `target`."""
        if field.array:
            self.array(field, target)
        elif field.fixed:
            self.read(field.fixed, target)
        elif field.struct is not None:
            self.nested(field, target, in_tag=in_tag)
        else:
            self.variable(field, target)

    def nested(self, field: Field, target: str, *, in_tag: bool) -> None:
        """A struct that is a field; nullable ones carry a marker."""
        assert field.struct is not None
        local = self.fresh("o")
        if not self.may_be_null(field):
            self.flush()
            self.struct(field.struct, local)
            self.emit(f"{target} = {local}")
            return
        marker = self.fresh("n")
        # In line the marker is an int8 (-1 or 1); in a tagged field a varint (0 or 1).
        null = "0" if in_tag else "-1"
        self.read("B" if in_tag else "b", marker)
        self.flush()
        self.emit(f"if {marker} == {null}: {target} = None")
        self.emit(f"elif {marker} != 1: bad_size({marker}, p, end)")
        self.emit("else:")
        self.depth += 1
        self.struct(field.struct, local)
        self.emit(f"{target} = {local}")
        self.depth -= 1

    def variable(self, field: Field, target: str) -> None:
        """A string, bytes or records, with its length in front."""
        n = self.fresh("n")
        nullable = self.may_be_null(field)
        if self.compact(field):
            self.read("B", n)
            self.flush()
            helper = "string_size" if field.base == "string" else "size"
            if nullable:
                self.emit(f"if {n}:")
                self.depth += 1
                self.emit(f"if {n} > 127: {n}, p = {helper}(buf, p, {n})")
            else:
                self.emit(f"if not 0 < {n} < 128: {n}, p = {helper}(buf, p, {n})")
            stop = f"(p := p + {n} - 1)"
        else:
            self.read("h" if field.base == "string" else "i", n)
            self.flush()
            if nullable:
                self.emit(f"if {n} >= 0:")
                self.depth += 1
                if field.base != "string":
                    self.emit(f"if {n} > end - p: bad_size({n}, p, end)")
            elif field.base == "string":
                self.emit(f"if {n} < 0: bad_size({n}, p, end)")
            else:
                self.emit(f"if not 0 <= {n} <= end - p: bad_size({n}, p, end)")
            stop = f"(p := p + {n})"
        self.emit(f"{target} = {self.slice(field, stop)}")
        if nullable:
            self.depth -= 1
            if not self.compact(field):
                self.emit(f"elif {n} != -1: bad_size({n}, p, end)")
            self.emit(f"else: {target} = None")

    def slice(self, field: Field, stop: str) -> str:
        """The value between `p` and `stop`, by type."""
        if field.base == "string":
            return f"str(buf[p:{stop}], 'utf-8')" if self.view else f"buf[p:{stop}].decode()"
        if field.base == "records":
            return f"mem[p:{stop}]"
        return f"bytes(buf[p:{stop}])" if self.view else f"buf[p:{stop}]"

    def array(self, field: Field, target: str) -> None:
        """An array: count, checks, elements."""
        n = self.fresh("n")
        compact = self.compact(field)
        nullable = self.may_be_null(field)
        self.read("B" if compact else "i", n)
        self.flush()
        if nullable:
            self.emit(f"if {n}:" if compact else f"if {n} != -1:")
            self.depth += 1
            if compact:
                self.emit(f"if {n} > 127: {n}, p = uvarint(buf, p, {n})")
        elif compact:
            self.emit(f"if not 0 < {n} < 128: {n}, p = size(buf, p, {n})")
        if compact:
            self.emit(f"{n} -= 1")
        self.emit(f"left -= {n}")
        low = "" if compact else f"{n} < 0 or "
        width = self.least(field)
        needed = n if width == 1 else f"{n} * {width}"
        self.emit(f"if {low}left < 0 or {needed} > end - p: bad_count({n}, p, end, left)")
        self.elements(field, target, n)
        if nullable:
            self.depth -= 1
            self.emit(f"else: {target} = None")

    def elements(self, field: Field, target: str, n: str) -> None:
        """The elements of an array of `n`."""
        code = None if field.struct else self.code(field)
        if code is not None:
            width = SIZES[code]
            name = f"a_{code.replace('?', 't').replace('16s', 'U')}"
            self.names[name] = [packer.unpack_from for packer in _runtime.arrays(code)]
            many = f"numbers({code!r}, {width}, buf, p, {n})"
            self.emit(
                f"{target} = [*{name}[{n}](buf, p)] if {n} < {_runtime.SMALL_ARRAYS} else {many}"
            )
            self.emit(f"p += {n} * {width}" if width > 1 else f"p += {n}")
            return
        items = self.fresh("l")
        self.emit(f"{items} = []")
        self.emit(f"for _ in repeat(None, {n}):")
        self.depth += 1
        local = self.fresh("o")
        if field.struct is not None:
            self.struct(field.struct, local)
        else:
            element = Field(f"{field.wire_name} {field.base} 0+")
            element.classic = field.classic
            self.variable(element, local)
        self.emit(f"{items}.append({local})")
        self.depth -= 1
        self.emit(f"{target} = {items}")

    def code(self, field: Field) -> str | None:
        """The `struct` code of an array's elements."""
        single = Field(f"{field.wire_name} {field.base} 0+")
        return single.fixed

    def least(self, field: Field) -> int:
        """The least size of one element on the wire."""
        if field.struct is not None:
            return max(1, self.least_struct(field.struct))
        code = self.code(field)
        if code is not None:
            return SIZES[code]
        return 1 if self.compact(field) else (2 if field.base == "string" else 4)

    def least_struct(self, struct: Struct) -> int:
        """The least size of a struct on the wire."""
        total = 1 if self.flexible else 0
        for field in struct.present(self.version):
            if field.array:
                total += 1 if self.compact(field) else 4
            elif field.struct is not None:
                total += 1 if self.may_be_null(field) else self.least_struct(field.struct)
            else:
                total += self.least(field)
        return total


def decoder_source(
    definition: Definition, version: int, *, view: bool
) -> tuple[str, dict[str, Any]]:
    """Source of `decode(buf, mem, p, end, left, most)` and the names that it needs."""
    writer = DecoderWriter(definition, version, view=view)
    writer.struct(definition.root, "o")
    writer.emit("return o, p")
    head = "def decode(buf, mem, p, end, left, most):"
    return "\n".join([head, *writer.lines]) + "\n", writer.names
