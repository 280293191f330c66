"""Writes the Python source of an encoder for one message at one version.

Rules of the generated code:
- One function, nested loops, no call per struct. It appends buffers to the list `out`; runs of
  fixed-size fields are one `pack`, together with the length that follows them.
- Indices of large record buffers in `out` go to `large`, so that a frame can be sent without
  copying them.
- A field that the version lacks must hold its default, unless the schema calls it ignorable.
- Nothing else is checked on the way: what does not fit raises, and `kohort.wire._explain` then
  finds the field at fault.
"""

from __future__ import annotations

from struct import Struct as Packer
from typing import Any

from kohort.wire import _runtime
from kohort.wire._schema import Definition, Field, Struct, is_shared


class EncoderWriter:
    """Collects lines, names and pending fixed-size values."""

    def __init__(self, definition: Definition, version: int) -> None:
        self.version = version
        self.flexible = version in definition.flexible
        self.lines: list[str] = []
        self.depth = 1
        self.names: dict[str, Any] = {}
        self.count = 0
        self.run: list[tuple[str, str]] = []
        self.star: tuple[str, str, str, list[tuple[str, str]]] | None = None
        self.out = "out"

    # -- small tools

    def emit(self, line: str) -> None:
        """Adds a line at the present depth."""
        self.lines.append("    " * self.depth + line)

    def fresh(self, stem: str) -> str:
        """A new local name."""
        self.count += 1
        return f"{stem}{self.count}"

    def packed(self, *more: tuple[str, str]) -> str | None:
        """The pending run, and more, as one expression; None when there is nothing."""
        run = [*self.run, *more]
        if not run:
            return None
        codes = "".join(code for code, _ in run)
        if codes == "x":
            return "ZERO_BYTE"
        name = "p_" + codes.replace("?", "t").replace("16s", "U")
        self.names[name] = Packer(">" + codes).pack
        return f"{name}({', '.join(value for code, value in run if code != 'x')})"

    def flush(self) -> None:
        """Emits the pending run, behind a pending array of numbers if there is one."""
        if self.star is not None:
            self.flush_star()
            return
        expression = self.packed()
        self.run = []
        if expression is not None:
            self.emit(f"{self.out}.append({expression})")

    def flush_star(self) -> None:
        """Emits the pending array of numbers between the runs before and behind it.

        A short array is one `pack` together with both runs; the count itself ends the first run.
        """
        assert self.star is not None
        code, v, n, before = self.star
        behind, self.run, self.star = self.run, [], None
        plus = 1 if self.flexible else 0
        prefix = "B" if plus else "i"
        first, last = "".join(c for c, _ in before) + prefix, "".join(c for c, _ in behind)
        name = f"s_{first}_{code}_{last}".replace("?", "t").replace("16s", "U")
        self.names[name] = [
            Packer(">" + first + code * k + last).pack for k in range(_runtime.SMALL_ARRAYS)
        ]
        values = [value for c, value in before if c != "x"]
        values += [f"{n} + 1" if plus else n, f"*{v}"]
        values += [value for c, value in behind if c != "x"]
        self.emit(f"if {n} < {_runtime.SMALL_ARRAYS}:")
        self.emit(f"    {self.out}.append({name}[{n}]({', '.join(values)}))")
        self.emit("else:")
        self.depth += 1
        self.run = before if plus else [*before, ("i", n)]
        self.flush()
        if plus:
            self.emit(f"{self.out}.append(uvarint_bytes({n} + 1))")
        self.emit(f"{self.out}.append(pack_numbers({code!r}, {v}))")
        self.run = behind
        self.flush()
        self.depth -= 1

    def compact(self, field: Field) -> bool:
        """Whether the field's length is a varint here."""
        return self.flexible and not field.classic

    def may_be_null(self, field: Field) -> bool:
        """Whether null is allowed at this version."""
        return self.version in field.nullable

    def prefix(self, n: str, helper: str) -> None:
        """Emits the pending run and the varint `n`."""
        if self.star is not None:
            self.flush()
        short = self.packed(("B", n)) if self.run else f"BYTE[{n}]"
        self.emit(f"if {n} < 128: {self.out}.append({short})")
        self.emit("else:")
        self.depth += 1
        self.flush()
        self.emit(f"{self.out}.append({helper}({n}))")
        self.depth -= 1

    # -- structs

    def struct(self, struct: Struct, source: str) -> None:
        """Writes the struct in local `source`; leaves nothing pending."""
        self.absent(struct, source)
        for field in struct.present(self.version):
            self.field(field, f"{source}.{field.name}")
        if self.flexible:
            self.tags(struct, source)
        else:
            self.flush()

    def absent(self, struct: Struct, source: str) -> None:
        """Refuses values that this version has no place for."""
        tests = [
            self.differs(field, f"{source}.{field.name}")
            for field in struct.absent(self.version)
            if not field.ignorable
        ]
        if not self.flexible:
            tests.append(f"{source}.unknown_tags")
        if tests:
            self.emit(f"if {' or '.join(tests)}: raise NoPlace")

    def differs(self, field: Field, value: str) -> str:
        """An expression that is true when the value is not the default."""
        if field.default == "null" or (field.base == "records" and not field.array):
            return f"{value} is not None"
        if field.array:
            return f"{value} != []" if field.ever_null else value
        if field.struct is not None:
            self.names[f"C_{field.base}"] = field.base
            if is_shared(field):
                self.names[f"D_{field.base}"] = field.base
                return f"({value} is not D_{field.base} and {value} != D_{field.base})"
            return f"{value} != C_{field.base}()"
        if field.default is not None:
            literal = {"true": "True", "false": "False"}.get(field.default, field.default)
            return f"{value} != {literal}"
        if field.base == "uuid":
            return f"{value} != ZERO"
        if field.base in ("string", "bytes"):
            empty = "''" if field.base == "string" else "b''"
            return f"{value} != {empty}" if field.ever_null else value
        return value

    def tags(self, struct: Struct, source: str) -> None:
        """Writes the tagged section at the end of a struct."""
        known = struct.tagged(self.version)
        tests = [f"{source}.unknown_tags"]
        tests += [self.differs(field, f"{source}.{field.name}") for field in known]
        self.emit(f"if {' or '.join(tests)}:")
        run, star = list(self.run), self.star
        self.depth += 1
        self.flush()
        tags = "()"
        if known:
            tags = self.fresh("k")
            self.emit(f"{tags} = []")
        for field in known:
            self.emit(f"if {self.differs(field, f'{source}.{field.name}')}:")
            self.depth += 1
            self.tagged(field, f"{source}.{field.name}", tags)
            self.depth -= 1
        self.emit(f"write_tags({self.out}, {tags}, {source}.unknown_tags)")
        self.depth -= 1
        self.run, self.star = [*run, ("x", "")], star
        self.emit("else:")
        self.depth += 1
        self.flush()
        self.depth -= 1

    def tagged(self, field: Field, value: str, tags: str) -> None:
        """Writes one tagged value into a list of its own and adds it to `tags`."""
        outer, self.out = self.out, self.fresh("s")
        self.emit(f"{self.out} = []")
        self.field(field, value, in_tag=True)
        self.flush()
        self.emit(f"{tags}.append(({field.tag}, b''.join({self.out})))")
        self.out = outer

    # -- fields

    def field(self, field: Field, value: str, *, in_tag: bool = False) -> None:
        """Writes one field."""
        if field.array:
            self.array(field, value)
        elif field.fixed:
            if field.base == "uuid":
                self.emit(f"if len({value}) != 16: raise NoPlace")
            self.run.append((field.fixed, value))
        elif field.struct is not None:
            self.nested(field, value, in_tag=in_tag)
        elif field.base == "records":
            self.records(field, value)
        else:
            self.variable(field, value)

    def nested(self, field: Field, value: str, *, in_tag: bool) -> None:
        """A struct that is a field; nullable ones carry a marker."""
        assert field.struct is not None
        local = self.fresh("o")
        self.flush()
        self.emit(f"{local} = {value}")
        if not self.may_be_null(field):
            self.struct(field.struct, local)
            return
        # In line the marker is an int8 (-1 or 1); in a tagged field a varint (0 or 1).
        null = "ZERO_BYTE" if in_tag else "BYTE[255]"
        self.emit(f"if {local} is None: {self.out}.append({null})")
        self.emit("else:")
        self.depth += 1
        self.emit(f"{self.out}.append(BYTE[1])")
        self.struct(field.struct, local)
        self.depth -= 1

    def variable(self, field: Field, value: str) -> None:
        """A string or bytes, with its length in front."""
        s, n = self.fresh("s"), self.fresh("n")
        compact = self.compact(field)
        encoded = ".encode()" if field.base == "string" else ""
        plus = " + 1" if compact else ""
        self.emit(f"{s} = {value}")
        if self.may_be_null(field):
            null = "0" if compact else "-1"
            self.emit(f"if {s} is None: {s} = b''; {n} = {null}")
            tail = f"{s} = {s}{encoded}; " if encoded else ""
            self.emit(f"else: {tail}{n} = len({s}){plus}")
        else:
            if encoded:
                self.lines[-1] = "    " * self.depth + f"{s} = {value}{encoded}"
            self.emit(f"{n} = len({s}){plus}")
        if compact:
            self.prefix(n, "string_prefix" if field.base == "string" else "uvarint_bytes")
        else:
            self.run.append(("h" if field.base == "string" else "i", n))
            self.flush()
        self.emit(f"{self.out}.append({s})")

    def records(self, field: Field, value: str) -> None:
        """Record batches: any buffer or buffers, never copied here."""
        s, n = self.fresh("s"), self.fresh("n")
        compact = self.compact(field)
        self.emit(f"{s} = {value}")
        self.emit(f"if {s} is None:")
        if self.may_be_null(field):
            self.emit(f"    {s} = (); {n} = {0 if compact else -1}")
        else:
            self.emit("    raise NoPlace")
        self.emit(f"else: {s}, {n} = records_parts({s})")
        if compact:
            self.emit(f"if {value} is not None: {n} += 1")
            self.prefix(n, "uvarint_bytes")
        else:
            self.run.append(("i", n))
            self.flush()
        part = self.fresh("b")
        self.emit(f"for {part} in {s}:")
        self.emit(f"    if len({part}) > {_runtime.LARGE_BYTES}: large.append(len({self.out}))")
        self.emit(f"    {self.out}.append({part})")

    def array(self, field: Field, value: str) -> None:
        """An array: count, then elements."""
        v, n = self.fresh("v"), self.fresh("n")
        compact = self.compact(field)
        code = None if field.struct else Field(f"{field.wire_name} {field.base} 0+").fixed
        if code is not None and not self.may_be_null(field):
            if self.star is not None:
                self.flush()
            self.emit(f"{v} = {value}")
            self.emit(f"{n} = len({v})")
            if field.base == "uuid":
                self.emit(f"check_uuids({v})")
            self.star, self.run = (code, v, n, self.run), []
            return
        plus = " + 1" if compact else ""
        self.emit(f"{v} = {value}")
        if self.may_be_null(field):
            self.emit(f"if {v} is None: {v} = (); {n} = {0 if compact else -1}")
            self.emit(f"else: {n} = len({v}){plus}")
        else:
            self.emit(f"{n} = len({v}){plus}")
        if compact:
            self.prefix(n, "uvarint_bytes")
        else:
            self.run.append(("i", n))
            self.flush()
        self.elements(field, v)

    def elements(self, field: Field, v: str) -> None:
        """The elements of an array."""
        single = Field(f"{field.wire_name} {field.base} 0+")
        single.classic = field.classic
        if field.struct is None and single.fixed is not None:
            if field.base == "uuid":
                self.emit(f"check_uuids({v})")
            self.emit(f"{self.out}.append(pack_numbers({single.fixed!r}, {v}))")
            return
        local = self.fresh("o")
        self.emit(f"for {local} in {v}:")
        self.depth += 1
        if field.struct is not None:
            self.struct(field.struct, local)
        else:
            self.variable(single, local)
        self.depth -= 1


def encoder_source(definition: Definition, version: int) -> tuple[str, dict[str, Any]]:
    """Source of `encode(o, out, large)` and the names that it needs."""
    writer = EncoderWriter(definition, version)
    writer.struct(definition.root, "o")
    if not writer.lines:
        writer.emit("pass")
    return "\n".join(["def encode(o, out, large):", *writer.lines]) + "\n", writer.names
