"""One segment: a file of record batches, named by its first offset, and its index.

Rules:
- Only the last segment of a log (the active one) is appended to; the others never change, so their
  index files are written once, when they are sealed. Those of the active one are written by a clean
  end, unless it is short: so thousands of small partitions cost a file each, not five.
- Kafka's index files carry no checksum; `.indexcrc` beside them is theirs. An index that does not
  match it, or that points to another batch than it says, is built again by walking the segment's
  headers (spec L6). The index of aborted transactions cannot be built from one segment alone: it
  is durable where it has entries, and the log builds all of them again where one is damaged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from zlib import crc32

from kohort.broker.log.files import Buffer, Files, LogFile, replace_file
from kohort.broker.log.index import NO_TIMESTAMP, SegmentIndex
from kohort.broker.log.recovery import find, headers, walk
from kohort.broker.log.txn_index import (
    TXN_INDEX_SUFFIX,
    AbortedTransaction,
    decode_aborted,
    encode_aborted,
)
from kohort.errors import CorruptRecordError
from kohort.records import BatchHeader

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
INDEX_CRC_SUFFIX = ".indexcrc"
SNAPSHOT_SUFFIX = ".snapshot"


def file_name(offset: int, suffix: str = LOG_SUFFIX) -> str:
    """Kafka's name of a segment's file: the offset in twenty digits."""
    return f"{offset:020d}{suffix}"


class Segment:
    """A segment. `next_offset` is the offset after its last batch."""

    __slots__ = (
        "_aborted",
        "_files",
        "_index",
        "_interval",
        "_max_timestamp",
        "base_offset",
        "directory",
        "file",
        "first_append_ms",
        "has_aborted",
        "indexed",
        "next_offset",
    )

    def __init__(
        self, files: Files, directory: str, base_offset: int, file: LogFile, interval: int
    ) -> None:
        self._files = files
        self._interval = interval
        self._index: SegmentIndex | None = None
        self._aborted: list[AbortedTransaction] | None = None
        self.has_aborted = False
        """Whether this segment has the marker of an aborted transaction."""
        self.directory = directory
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.file = file
        self._max_timestamp: int | None = None
        self.indexed = False
        """Whether its index files are on the disk, and of what it holds now."""
        self.first_append_ms: int | None = None
        """Wall time of the first append by this process, for rolling by time."""

    @classmethod
    def create(cls, files: Files, directory: str, base_offset: int, interval: int) -> Segment:
        file = files.open(f"{directory}/{file_name(base_offset)}", create=True)
        segment = cls(files, directory, base_offset, file, interval)
        segment.start_index()
        return segment

    @property
    def size(self) -> int:
        return self.file.size

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in the segment, -1 while it is empty."""
        if self._max_timestamp is None:
            self._max_timestamp = self.index.max_timestamp
        return self._max_timestamp

    @property
    def index(self) -> SegmentIndex:
        """The index; read from its files, or built again, when it is not in memory."""
        if self._index is None:
            self._index = self._read_index() or self.rebuild_index()
        return self._index

    def forget_index(self) -> None:
        """Free a sealed segment's index; the next lookup reads it again."""
        if self._index is not None and self._max_timestamp is None:
            self._max_timestamp = self._index.max_timestamp
        self._index = self._aborted = None

    # -- aborted transactions

    @property
    def aborted(self) -> list[AbortedTransaction] | None:
        """Those whose marker is here; None when the index is damaged: see `set_aborted`."""
        if self._aborted is None and self.has_aborted:
            self._read_index()
            return self._aborted
        return self._aborted or []

    def add_aborted(self, entry: AbortedTransaction) -> None:
        """A transaction ended here in being aborted."""
        entries = self._aborted or []
        entries.append(entry)
        self.set_aborted(entries)

    def set_aborted(self, entries: list[AbortedTransaction]) -> None:
        """Every aborted transaction whose marker is here, rebuilt from the log."""
        self._aborted, self.has_aborted = entries, bool(entries)

    def start_index(self) -> SegmentIndex:
        """An empty index in place of the old one, to be filled by a scan."""
        self.indexed = False
        self._index = SegmentIndex(self.base_offset, self._interval)
        self.set_aborted([])
        self._max_timestamp = NO_TIMESTAMP
        self.next_offset = self.base_offset
        return self._index

    def note(self, header: BatchHeader) -> None:
        """A batch is at `header.position`."""
        self.indexed = False
        index = self._index or self.index
        last = header.base_offset + header.last_offset_delta
        index.add(last, header.position, header.length + 12, header.max_timestamp)
        self.next_offset = last + 1
        self._max_timestamp = index.max_timestamp

    def note_all(self, batches: Sequence[tuple[int, int, int, int]]) -> None:
        """The same of several in a row: each `(last offset, position, size, max timestamp)`."""
        self.indexed = False
        index = self._index or self.index
        index.add_all(batches)
        self.next_offset = batches[-1][0] + 1
        self._max_timestamp = index.max_timestamp

    def rebuild_index(self) -> SegmentIndex:
        """The index, built by walking the headers (their CRCs are not checked)."""
        index = self._index = SegmentIndex(self.base_offset, self._interval)
        for header in headers(self.file.read, 0, self.size):
            index.add(header.last_offset, header.position, header.size, header.max_timestamp)
        index.seal()
        self._max_timestamp = index.max_timestamp
        return index

    def _path(self, suffix: str) -> str:
        return f"{self.directory}/{file_name(self.base_offset, suffix)}"

    def _read_index(self) -> SegmentIndex | None:
        offsets = self._files.read_all(self._path(INDEX_SUFFIX))
        times = self._files.read_all(self._path(TIME_INDEX_SUFFIX))
        crc = self._files.read_all(self._path(INDEX_CRC_SUFFIX))
        aborted = self._files.read_all(self._path(TXN_INDEX_SUFFIX)) or b""
        if offsets is None or times is None or crc != _crc(offsets, times, aborted):
            return None
        self.set_aborted(decode_aborted(aborted))
        return SegmentIndex.decode(self.base_offset, self._interval, offsets, times, self.size)

    @property
    def is_short(self) -> bool:
        """Whether it has no place in its index: walking it takes no longer than reading that."""
        return not self.index.offsets and not self.has_aborted

    def load_tail(self, names: Collection[str]) -> bool:
        """Find the end of a cleanly closed segment; False: scan it instead.

        `names` are those in its directory. Without index files it must be a short one.
        """
        self.indexed = file_name(self.base_offset, INDEX_CRC_SUFFIX) in names
        try:
            index = self._read_index() if self.indexed else self.rebuild_index()
        except CorruptRecordError:
            return False
        if index is None or (not self.indexed and not self.is_short):
            return False
        self._index = index
        self._max_timestamp = index.max_timestamp
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

    def write_index(self) -> None:
        """Write the index files; those that can be built again need not be durable."""
        index = self.index
        index.seal()
        offsets, times = index.encode()
        aborted = encode_aborted(self.aborted or ())
        if aborted:
            replace_file(self._files, self._path(TXN_INDEX_SUFFIX), aborted, durable=True)
        replace_file(self._files, self._path(INDEX_SUFFIX), offsets, durable=False)
        replace_file(self._files, self._path(TIME_INDEX_SUFFIX), times, durable=False)
        crc = _crc(offsets, times, aborted)
        replace_file(self._files, self._path(INDEX_CRC_SUFFIX), crc, durable=False)
        self.indexed = True

    def remove_index(self) -> None:
        """The index files of a segment that is about to change are wrong from now on."""
        names = self._files.list(self.directory)
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, INDEX_CRC_SUFFIX, TXN_INDEX_SUFFIX):
            if file_name(self.base_offset, suffix) in names:
                self._files.remove(self._path(suffix))

    def remove(self) -> None:
        """Delete the segment; its index, without which it would say less, is to go after it."""
        self.file.close()
        self._files.remove(self.file.path)

    # -- lookups

    def batch_at(self, offset: int) -> BatchHeader | None:
        """The first batch whose last offset is not below `offset`."""
        position, entry = self.index.position_for(offset)
        first, batch = find(self.file.read, position, self.size, offset)
        if entry >= 0 and (first is None or first.last_offset != entry):
            self.rebuild_index()
            _, batch = find(self.file.read, 0, self.size, offset)
        return batch

    def end_for(self, start: int, max_bytes: int, end: int) -> int:
        """Where a read of at most `max_bytes` from the batch at `start` ends: between two batches.

        At least one whole batch is in it, also when that one is larger.
        """
        if end - start <= max_bytes:
            return end
        boundary = self.index.boundary_before(start + max_bytes)
        if boundary > start:
            return boundary
        first = next(headers(self.file.read, start, end), None)
        return end if first is None else max(start + max_bytes, start + first.size)

    def offset_behind(self, end: int) -> int:
        """The offset behind the last batch before `end`, which lies between two batches."""
        next_offset = -1
        for header in headers(self.file.read, self.index.boundary_before(end - 1), end):
            next_offset = header.next_offset
        return next_offset

    def batches_from_time(
        self, timestamp: int, from_offset: int, end: int
    ) -> Iterator[tuple[BatchHeader, Buffer]]:
        """The batches that hold a timestamp not below the given one and are not all deleted."""
        offset = max(self.index.offset_for_time(timestamp), from_offset)
        start = self.batch_at(offset)
        if start is None:
            return
        for header in headers(self.file.read, start.position, end):
            if header.max_timestamp >= timestamp and header.last_offset >= from_offset:
                yield header, self.file.read(header.position, header.size)

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch with its bytes; the header's position is that within the file."""
        return walk(self.file.read, 0, self.size)


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
            self._used.popitem(last=False)[0].forget_index()


def _crc(offsets: bytes, times: bytes, aborted: bytes) -> bytes:
    """The content of `.indexcrc`."""
    return crc32(aborted, crc32(times, crc32(offsets))).to_bytes(4, "big")
