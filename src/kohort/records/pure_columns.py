"""Columns in Arrow's layout, written row by row in pure Python: what `_columns.pxi` does."""

from __future__ import annotations

from array import array
from collections.abc import Collection

from kohort.records.columns import BinaryColumn, Columns, HeaderColumn, sound_keys


def allocate(size: int, filled_soon: bool = False) -> memoryview:
    """A writable buffer of `size` bytes. The kernel's is not zeroed, and from a pool of its own;
    `filled_soon` says that all of it is about to be written."""
    return memoryview(bytearray(size))


class BinaryWriter:
    """One column of byte strings."""

    def __init__(self) -> None:
        self.offsets = array("i", [0])
        self.data = bytearray()
        self.bits = bytearray()
        self.rows = self.nulls = 0

    def add(self, value: bytes | None) -> None:
        """One more row; None is null."""
        if self.rows % 8 == 0:
            self.bits.append(0)
        if value is None:
            self.nulls += 1
        else:
            self.bits[-1] |= 1 << self.rows % 8
            self.data += value
        self.rows += 1
        self.offsets.append(len(self.data))

    def column(self) -> BinaryColumn:
        """The rows so far."""
        validity = bytes(self.bits) if self.nulls else None
        return BinaryColumn(validity, self.offsets.tobytes(), bytes(self.data), self.nulls)


class ColumnWriter:
    """The columns that were asked for."""

    def __init__(self, names: Collection[str]) -> None:
        self.rows = 0
        self._wanted = frozenset(names)
        self._offsets = array("q")
        self._timestamps = array("q")
        self._timestamp_types = array("b")
        self._key, self._value = BinaryWriter(), BinaryWriter()
        self._lists = array("i", [0])
        self._header_key, self._header_value = BinaryWriter(), BinaryWriter()
        self._first = self._last = 0

    def add(
        self,
        offset: int,
        timestamp: int,
        timestamp_type: int,
        key: bytes | None,
        value: bytes | None,
        headers: Collection[tuple[bytes, bytes | None]],
    ) -> None:
        """One more row."""
        if self.rows == 0:
            self._first = offset
        self._last = offset
        self.rows += 1
        self._offsets.append(offset)
        self._timestamps.append(timestamp)
        self._timestamp_types.append(timestamp_type)
        self._key.add(key)
        self._value.add(value)
        for name, content in headers:
            self._header_key.add(name)
            self._header_value.add(content)
        self._lists.append(self._header_key.rows)

    def columns(self, topic: str, partition: int) -> Columns:
        """What was added, without the columns that were not asked for."""
        wanted = self._wanted
        headers = None
        if "headers" in wanted:
            keys = sound_keys(self._header_key.column())
            headers = HeaderColumn(self._lists.tobytes(), keys, self._header_value.column())
        return Columns(
            topic,
            partition,
            self.rows,
            self._first,
            self._last,
            self._offsets.tobytes() if "offset" in wanted else None,
            self._timestamps.tobytes() if "timestamp" in wanted else None,
            self._timestamp_types.tobytes() if "timestamp_type" in wanted else None,
            self._key.column() if "key" in wanted else None,
            self._value.column() if "value" in wanted else None,
            headers,
        )
