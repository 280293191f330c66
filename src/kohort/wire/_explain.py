"""Finds the field that made an encoder fail, so that the error can name it.

Runs only after a failure: walks the message beside its schema and checks every value for type,
range, length, nullability and place in the version.
"""

from __future__ import annotations

import struct
from typing import Any, cast

from kohort.errors import EncodeError, ProtocolError, UnsupportedVersionError
from kohort.wire import _schema
from kohort.wire._base import Message
from kohort.wire._runtime import STRING_BYTES_MAX, NoPlace, records_parts


class _Found(Exception):
    """Carries the explanation out of the walk."""

    def __init__(self, error: ProtocolError) -> None:
        self.error = error


def explain(message: Message, version: int, cause: Exception) -> ProtocolError:
    """The error to raise for a failed encoding of `message`."""
    definition = _schema.load(message.NAME)
    title = f"{message.NAME} v{version}"
    walker = _Walker(definition, version, title)
    try:
        walker.struct(definition.root, message, "")
    except _Found as fault:
        return fault.error
    if isinstance(cause, ProtocolError):
        return type(cause)(f"{title}: {cause}")
    text = "a value has no place" if isinstance(cause, NoPlace) else str(cause)
    return EncodeError(f"{title} cannot be encoded: {text}")


class _Walker:
    def __init__(self, definition: _schema.Definition, version: int, title: str) -> None:
        self.version = version
        self.flexible = version in definition.flexible
        self.title = title

    def fail(self, path: str, why: str) -> None:
        raise _Found(EncodeError(f"{self.title}: {path} {why}"))

    def struct(self, schema: _schema.Struct, value: Any, path: str) -> None:
        for field in schema.fields:
            at = f"{path}.{field.name}" if path else field.name
            try:
                item = getattr(value, field.name)
            except AttributeError:
                self.fail(path or schema.name, f"is a {type(value).__name__}, not a {schema.name}")
                raise
            if self.version not in field.versions:
                self.absent(field, item, at)
            elif field.array:
                self.array(field, item, at)
            else:
                self.single(field, item, at, nullable=self.version in field.nullable)
        if value.unknown_tags:
            self.tags(value.unknown_tags, path or schema.name)

    def tags(self, tags: Any, path: str) -> None:
        if not self.flexible:
            raise _Found(
                UnsupportedVersionError(
                    f"{self.title}: {path} has unknown tagged fields: version is not flexible"
                )
            )
        for tag in tags:
            try:
                number, raw = tag
                bytes(raw)
            except (TypeError, ValueError):
                self.fail(path, f"has a bad unknown tagged field: {tag!r}")
            else:
                if not isinstance(number, int) or not 0 <= number < 1 << 31:
                    self.fail(path, f"has a bad tag number: {number!r}")

    def absent(self, field: _schema.Field, value: Any, path: str) -> None:
        if field.ignorable or _is_default(field, value):
            return
        raise _Found(
            UnsupportedVersionError(
                f"{self.title} has no field {path}, so it must keep its default, not {value!r}"
            )
        )

    def array(self, field: _schema.Field, value: Any, path: str) -> None:
        if value is None:
            if self.version not in field.nullable:
                self.fail(path, "is None, which this version does not allow")
            return
        if not isinstance(value, (list, tuple)):
            self.fail(path, f"is a {type(value).__name__}, not a list")
        for index, item in enumerate(cast("list[Any]", value)):
            self.single(field, item, f"{path}[{index}]", nullable=False)

    def single(self, field: _schema.Field, value: Any, path: str, *, nullable: bool) -> None:
        if value is None:
            if not nullable:
                self.fail(path, "is None, which this version does not allow")
        elif field.struct is not None:
            self.struct(field.struct, value, path)
        elif field.base in _schema.NUMBERS:
            self.number(field, value, path)
        elif field.base == "string":
            self.string(value, path)
        elif field.base == "records":
            try:
                records_parts(value)
            except TypeError as error:
                self.fail(path, f"cannot be sent: {error}")
        elif not isinstance(value, (bytes, bytearray, memoryview)):
            self.fail(path, f"is a {type(value).__name__}, not bytes")

    def number(self, field: _schema.Field, value: Any, path: str) -> None:
        if field.base == "uuid":
            if not isinstance(value, bytes) or len(value) != 16:
                self.fail(path, f"= {value!r} is not a uuid of 16 raw bytes")
            return
        try:
            struct.pack(">" + _schema.NUMBERS[field.base], value)
        except struct.error:
            self.fail(path, f"= {value!r} does not fit {field.base}")

    def string(self, value: Any, path: str) -> None:
        if not isinstance(value, str):
            self.fail(path, f"is a {type(value).__name__}, not a str")
            return
        try:
            size = len(value.encode())
        except UnicodeEncodeError as error:
            self.fail(path, f"is not text that UTF-8 can hold ({error.reason})")
            return
        if size > STRING_BYTES_MAX:
            self.fail(path, f"is {size} bytes long: limit is {STRING_BYTES_MAX}")


def _is_default(field: _schema.Field, value: Any) -> bool:
    if field.default == "null" or (field.base == "records" and not field.array):
        return value is None
    if field.array:
        return value == []
    if field.struct is not None:
        cls = cast("Any", type(value))
        return bool(value == (cls.DEFAULT if hasattr(cls, "DEFAULT") else cls()))
    if field.default is not None:
        default = {"true": True, "false": False}.get(field.default)
        return value == (float(field.default) if default is None else default)
    return not any(value) if field.base == "uuid" else not value
