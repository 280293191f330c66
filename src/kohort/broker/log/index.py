"""The sparse index of one segment: offset and time to position. Pure arithmetic.

Rules:
- An entry is made for a batch when `interval` bytes have been appended since the last entry. Its
  offset is the batch's last offset, its position the batch's first byte (as Kafka's own index).
- Timestamps are running maxima that point at the earliest batch that holds them, so the lookup is
  right for timestamps in any order: every batch before the entry is older than it.
- An index only speeds up lookups: each entry is checked against the batch that it points to, and a
  wrong index is rebuilt from the segment.

The files are Kafka's: `.index` holds (relative offset int32, position int32), `.timeindex` holds
(timestamp int64, relative offset int32).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from struct import iter_unpack, pack

NO_TIMESTAMP = -1


class SegmentIndex:
    """Positions by offset and by time within one segment."""

    __slots__ = (
        "_since",
        "_time_offsets",
        "_times",
        "base_offset",
        "interval",
        "max_timestamp",
        "max_timestamp_offset",
        "offsets",
        "positions",
    )

    def __init__(self, base_offset: int, interval: int) -> None:
        self.base_offset = base_offset
        self.interval = interval
        self.offsets = array("I")
        self.positions = array("I")
        self._times = array("q")
        self._time_offsets = array("I")
        self._since = 0
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset

    def add(self, last_offset: int, position: int, size: int, max_timestamp: int) -> None:
        """Take note of a batch appended at `position`."""
        self.add_all(((last_offset, position, size, max_timestamp),))

    def add_all(self, batches: Iterable[tuple[int, int, int, int]]) -> None:
        """The same for several in a row, each as the arguments of `add`."""
        since, interval = self._since, self.interval
        for last_offset, position, size, max_timestamp in batches:
            if max_timestamp > self.max_timestamp:
                self.max_timestamp = max_timestamp
                self.max_timestamp_offset = last_offset
            if since >= interval:
                self.offsets.append(last_offset - self.base_offset)
                self.positions.append(position)
                self._note_time()
                since = 0
            since += size
        self._since = since

    def _note_time(self) -> None:
        if not self._times or self.max_timestamp > self._times[-1]:
            self._times.append(self.max_timestamp)
            self._time_offsets.append(self.max_timestamp_offset - self.base_offset)

    def seal(self) -> None:
        """The segment is closed: its largest timestamp becomes the last entry."""
        if self.max_timestamp != NO_TIMESTAMP:
            self._note_time()

    def position_for(self, offset: int) -> tuple[int, int]:
        """`(position, last offset of the batch there)` from which to look for `offset`.

        The second is -1 where there is no entry and the search begins at the segment's start.
        """
        at = bisect_right(self.offsets, offset - self.base_offset) - 1
        if at < 0:
            return 0, -1
        return self.positions[at], self.offsets[at] + self.base_offset

    def offset_for_time(self, timestamp: int) -> int:
        """An offset such that all batches before the one that holds it are older than a time."""
        at = bisect_right(self._times, timestamp) - 1
        return self.base_offset if at < 0 else self._time_offsets[at] + self.base_offset

    def boundary_before(self, position: int) -> int:
        """The largest known start of a batch at or before `position`; 0 when none is known."""
        at = bisect_right(self.positions, position) - 1
        return 0 if at < 0 else self.positions[at]

    @property
    def last_position(self) -> int:
        """Where the last known batch begins."""
        return self.positions[-1] if self.positions else 0

    def encode(self) -> tuple[bytes, bytes]:
        """The content of `.index` and of `.timeindex`."""
        offsets = b"".join(
            pack(">ii", o, p) for o, p in zip(self.offsets, self.positions, strict=True)
        )
        times = b"".join(
            pack(">qi", t, o) for t, o in zip(self._times, self._time_offsets, strict=True)
        )
        return offsets, times

    @classmethod
    def decode(
        cls, base_offset: int, interval: int, offsets: bytes, times: bytes, segment_bytes: int
    ) -> SegmentIndex | None:
        """The index from its files, or None when they cannot be those of the segment."""
        if len(offsets) % 8 or len(times) % 12:
            return None
        index = cls(base_offset, interval)
        for offset, position in iter_unpack(">ii", offsets):
            if offset < 0 or not index.last_position <= position < segment_bytes:
                return None
            if index.offsets and (offset <= index.offsets[-1] or position <= index.positions[-1]):
                return None
            index.offsets.append(offset)
            index.positions.append(position)
        for timestamp, offset in iter_unpack(">qi", times):
            if offset < 0 or timestamp < 0 or (index._times and timestamp <= index._times[-1]):
                return None
            index._times.append(timestamp)
            index._time_offsets.append(offset)
        if index._times:
            index.max_timestamp = index._times[-1]
            index.max_timestamp_offset = index._time_offsets[-1] + base_offset
        return index
