"""One segment: a file of record batches, named by its first offset, and its index."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from kohort.broker.log.files import Buffer, Files, LogFile
from kohort.broker.log.recovery import find, headers, walk
from kohort.broker.log.stored_index import INDEX_CRC_SUFFIX, StoredIndex, file_name
from kohort.errors import CorruptRecordError
from kohort.records import BatchHeader
from kohort.records.layout import HEADER_BYTES

SNAPSHOT_SUFFIX = ".snapshot"


class Segment:
    """A segment. `next_offset` is the offset after its last batch."""

    __slots__ = (
        "_files",
        "base_offset",
        "directory",
        "file",
        "first_append_ms",
        "index",
        "next_offset",
    )

    def __init__(
        self, files: Files, directory: str, base_offset: int, file: LogFile, interval: int
    ) -> None:
        self._files = files
        self.directory = directory
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.file = file
        self.index = StoredIndex(files, directory, base_offset, file, interval)
        self.first_append_ms: int | None = None
        """Wall time of the first append; None while it is not known, see `began_ms`."""

    @classmethod
    def create(cls, files: Files, directory: str, base_offset: int, interval: int) -> Segment:
        file = files.open(f"{directory}/{file_name(base_offset)}", create=True)
        segment = cls(files, directory, base_offset, file, interval)
        segment.index.start()
        return segment

    @property
    def size(self) -> int:
        return self.file.size

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in the segment, -1 while it is empty."""
        return self.index.max_timestamp

    def note(self, header: BatchHeader) -> None:
        """A batch is at `header.position`."""
        stored = self.index
        stored.on_disk = False
        index = stored.in_memory or stored.get()
        last = header.base_offset + header.last_offset_delta
        index.add(last, header.position, header.length + 12, header.max_timestamp)
        self.next_offset = last + 1
        stored.latest_ms = index.max_timestamp

    def note_all(self, batches: Sequence[tuple[int, int, int, int]]) -> None:
        """The same of several in a row: each `(last offset, position, size, max timestamp)`."""
        stored = self.index
        stored.on_disk = False
        index = stored.in_memory or stored.get()
        index.add_all(batches)
        self.next_offset = batches[-1][0] + 1
        stored.latest_ms = index.max_timestamp

    def load_tail(self, names: Collection[str]) -> bool:
        """Find the end of a cleanly closed segment; False: scan it instead.

        `names` are those in its directory. Without index files it must be a short one.
        """
        stored = self.index
        stored.on_disk = file_name(self.base_offset, INDEX_CRC_SUFFIX) in names
        try:
            index = stored.read() if stored.on_disk else stored.rebuild()
        except CorruptRecordError:
            return False
        if index is None or (not stored.on_disk and not stored.is_short):
            return False
        stored.in_memory = index
        stored.latest_ms = index.max_timestamp
        position = 0
        try:
            if index.offsets:
                first = next(headers(self.file.read, index.last_position, self.size), None)
                expected = index.offsets[-1] + self.base_offset
                if first is None or first.last_offset != expected:
                    return False
            for header in headers(self.file.read, index.last_position, self.size):
                if header.max_timestamp > index.max_timestamp:
                    return False  # it was appended to since
                self.next_offset = header.next_offset
                position = header.position + header.size
        except CorruptRecordError:
            return False
        return position == self.size

    def remove(self) -> None:
        """Delete the segment; its index, without which it would say less, is to go after it."""
        self.file.close()
        self._files.remove(self.file.path)

    # -- lookups

    def batch_at(self, offset: int) -> BatchHeader | None:
        """The first batch whose last offset is not below `offset`."""
        position, entry = self.index.get().position_for(offset)
        first, batch = find(self.file.read, position, self.size, offset)
        if entry >= 0 and (first is None or first.last_offset != entry):
            self.index.rebuild()
            _, batch = find(self.file.read, 0, self.size, offset)
        return batch

    def end_for(self, start: int, max_bytes: int, end: int) -> int:
        """Where a read of at most `max_bytes` from the batch at `start` ends: between two batches.

        At least one whole batch is in it, also when that one is larger.
        """
        if end - start <= max_bytes:
            return end
        boundary = self.index.get().boundary_before(start + max_bytes)
        if boundary > start:
            return boundary
        first = next(headers(self.file.read, start, end), None)
        return end if first is None else max(start + max_bytes, start + first.size)

    def offset_behind(self, end: int) -> int:
        """The offset behind the last batch before `end`, which lies between two batches."""
        next_offset = -1
        for header in headers(self.file.read, self.index.get().boundary_before(end - 1), end):
            next_offset = header.next_offset
        return next_offset

    def batches_from_time(
        self, timestamp: int, from_offset: int, end: int
    ) -> Iterator[tuple[BatchHeader, Buffer]]:
        """The batches that hold a timestamp not below the given one and are not all deleted."""
        offset = max(self.index.get().offset_for_time(timestamp), from_offset)
        start = self.batch_at(offset)
        if start is None:
            return
        for header in headers(self.file.read, start.position, end):
            if header.max_timestamp >= timestamp and header.last_offset >= from_offset:
                yield header, self.file.read(header.position, header.size)

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch with its bytes; the header's position is that within the file."""
        return walk(self.file.read, 0, self.size)


def began_ms(segment: Segment, now_ms: int) -> int:
    """When the first batch of a segment was appended, for rolling by time.

    Of one that a process before this has begun, the batch says so, as in Kafka: else its age would
    be 0 after every start. Where that cannot be, it is as if it had begun now.
    """
    if segment.first_append_ms is not None:
        return segment.first_append_ms
    stamped = -1
    with suppress(OSError, CorruptRecordError):  # its readers get the error
        for header in headers(segment.file.read, 0, segment.size, HEADER_BYTES):
            stamped = header.max_timestamp
            break
    began = segment.first_append_ms = stamped if 0 <= stamped <= now_ms else now_ms
    return began


class IndexMemory:
    """Which sealed segments have their index in memory: at most so many, the last used ones."""

    def __init__(self, max_segments: int) -> None:
        self._max_segments = max_segments
        self._used: OrderedDict[Segment, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used)

    def used(self, segment: Segment) -> None:
        """A sealed segment's index was needed just now."""
        self._used[segment] = None
        self._used.move_to_end(segment)
        if len(self._used) > self._max_segments:
            self._used.popitem(last=False)[0].index.forget()
