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
from kohort.wire._schema import SIZES, Definition, Field, Struct, is_shared, least_bytes

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
        self.star: tuple[str, str, str] | None = None

    # -- small tools

    def emit(self, line: str) -> None:
        """Adds a line at the present depth."""
        self.lines.append("    " * self.depth + line)

    def fresh(self, stem: str) -> str:
        """A new local name."""
        self.count += 1
        return f"{stem}{self.count}"

    def flush(self) -> None:
        """Emits the pending run as one unpack, behind a pending array of numbers, if any."""
        if self.star is not None:
            self.flush_star()
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

    def flush_star(self) -> None:
        """Emits the pending array of numbers and the run behind it.

        `n` is still the count + 1 (compact) or the count as it was read. Few elements are read
        together with the run, into a starred target; many, null and hostile counts by steps.
        """
        assert self.star is not None
        code, target, n = self.star
        run, self.run, self.star = self.run, [], None
        plus = 1 if self.flexible else 0
        width, behind = SIZES[code], "".join(code for code, _ in run)
        name = f"a_{plus}{code}_{behind}".replace("?", "t").replace("16s", "U")
        self.names[name] = [None] * plus + [
            Packer(">" + code * k + behind).unpack_from for k in range(_runtime.SMALL_ARRAYS)
        ]
        self.emit(f"if {plus} <= {n} < {_runtime.SMALL_ARRAYS + plus}:")
        self.depth += 1
        targets = ", ".join([f"*{target}", *(local for _, local in run)])
        self.emit(f"{targets}{'' if run else ','} = {name}[{n}](buf, p)")
        size = sum(SIZES[code] for code, _ in run) - plus * width
        self.emit(f"p += {n} * {width} + {size}" if width > 1 else f"p += {n} + {size}")
        self.emit(f"left -= {n} - {plus}" if plus else f"left -= {n}")
        self.depth -= 1
        self.emit("else:")
        self.depth += 1
        if plus:
            self.emit(f"if not 0 < {n} < 128: {n}, p = size(buf, p, {n})")
            self.emit(f"{n} -= 1")
        self.check(n, width)
        self.emit(f"{target} = numbers({code!r}, {width}, buf, p, {n})")
        self.emit(f"p += {n} * {width}")
        self.run = run
        self.flush()
        self.depth -= 1

    def check(self, n: str, width: int) -> None:
        """Compares the count `n` with the limit, and with the bytes left."""
        self.emit(f"left -= {n}")
        low = "" if self.flexible else f"{n} < 0 or "
        needed = n if width == 1 else f"{n} * {width}"
        self.emit(f"if {low}left < 0 or {needed} > end - p: bad_count({n}, p, end, left)")

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
        self.emit(f"{target} = new({self.cls(struct)})")
        self.fill(struct, target)

    def cls(self, struct: Struct) -> str:
        """The name of the struct's class in the generated code."""
        self.names[f"C_{struct.name}"] = struct.name
        return f"C_{struct.name}"

    def fill(self, struct: Struct, target: str) -> None:
        """Reads the fields of the struct whose object is in `target`."""
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
            if is_shared(field):
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
        seen, tag, e = self.fresh("k"), self.fresh("g"), self.fresh("e")
        self.emit(f"{seen} = []")
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
        self.emit(f"    {seen}.append(({tag}, bytes(buf[p:{e}])))")
        self.emit(f"    p = {e}")
        self.depth -= 1
        self.emit(f"if {seen}: {target}.unknown_tags = in_order({seen})")
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
        code = None if field.struct else self.code(field)
        if code is not None and not nullable:
            self.star = (code, target, n)
            return
        if nullable:
            self.emit(f"if {n}:" if compact else f"if {n} != -1:")
            self.depth += 1
            if compact:
                self.emit(f"if {n} > 127: {n}, p = uvarint(buf, p, {n})")
        elif compact:
            self.emit(f"if not 0 < {n} < 128: {n}, p = size(buf, p, {n})")
        if compact:
            self.emit(f"{n} -= 1")
        self.check(n, least_bytes(field, self.version, self.flexible))
        if code is not None:
            self.emit(f"{target} = numbers({code!r}, {SIZES[code]}, buf, p, {n})")
            self.emit(f"p += {n} * {SIZES[code]}")
        elif field.struct is not None:
            self.structs(field.struct, target, n)
        else:
            self.variables(field, target, n)
        if nullable:
            self.depth -= 1
            self.emit(f"else: {target} = None")

    def structs(self, struct: Struct, target: str, n: str) -> None:
        """`n` structs: their objects are made at once, then filled one by one."""
        items, local = self.fresh("l"), self.fresh("o")
        cls = self.cls(struct)
        many = f"[*map(new, repeat({cls}, {n}))]"
        self.emit(f"{items} = {many} if {n} > 1 else [new({cls})] if {n} else []")
        fixed = all(f.fixed for f in struct.present(self.version))
        if fixed:
            self.fixed_structs(struct, items, local, n)
            self.depth += 1
        self.emit(f"for {local} in {items}:")
        self.depth += 1
        self.fill(struct, local)
        self.depth -= 1
        if fixed:
            self.depth -= 1
        self.emit(f"{target} = {items}")

    def fixed_structs(self, struct: Struct, items: str, local: str, n: str) -> None:
        """The quick way for structs of one size: many at once, while none has tagged fields."""
        present = struct.present(self.version)
        codes = [f.fixed or "" for f in present] + (["B"] if self.flexible else [])
        width = sum(SIZES[code] for code in codes)
        name = "i_" + "".join(codes).replace("?", "t").replace("16s", "U")
        self.names[name] = Packer(">" + "".join(codes)).iter_unpack
        stop = f"p + {n} * {width}"
        untagged = ""
        if self.flexible:
            column = f"buf[p + {width - 1}:{stop}:{width}]"
            column = f"bytes({column})" if self.view else column
            untagged = f" and {column}.count(0) == {n}"
        self.emit(f"if {n} > 3{untagged}:")
        self.depth += 1
        targets = [f"{local}.{f.name}" for f in present] + (["_"] if self.flexible else [])
        values = f"({', '.join(targets)}{',' if len(targets) == 1 else ''})"
        self.emit(f"for {local}, {values} in zip({items}, {name}(buf[p:{stop}])):")
        self.depth += 1
        self.defaults(struct, local)
        self.depth -= 1
        self.emit(f"p = {stop}")
        self.depth -= 1
        self.emit("else:")

    def variables(self, field: Field, target: str, n: str) -> None:
        """`n` strings or byte strings."""
        items, local = self.fresh("l"), self.fresh("o")
        self.emit(f"{items} = []")
        self.emit(f"for _ in repeat(None, {n}):")
        self.depth += 1
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


def decoder_source(
    definition: Definition, version: int, *, view: bool
) -> tuple[str, dict[str, Any]]:
    """Source of `decode(buf, mem, p, end, left, most)` and the names that it needs."""
    writer = DecoderWriter(definition, version, view=view)
    writer.struct(definition.root, "o")
    if any(name.startswith("a_") for name in writer.names):
        # Short arrays of numbers are only counted on the way.
        writer.emit("if left < 0: bad_count(-left, p, end, left)")
    writer.emit("return o, p")
    head = "def decode(buf, mem, p, end, left, most):"
    return "\n".join([head, *writer.lines]) + "\n", writer.names
