"""The index of one segment: in memory, in its files beside the segment, or built from its batches.

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

from zlib import crc32

from kohort.broker.log.files import Files, LogFile, replace_file
from kohort.broker.log.index import NO_TIMESTAMP, SegmentIndex
from kohort.broker.log.recovery import headers
from kohort.broker.log.txn_index import (
    TXN_INDEX_SUFFIX,
    AbortedTransaction,
    decode_aborted,
    encode_aborted,
)

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
INDEX_CRC_SUFFIX = ".indexcrc"


def file_name(offset: int, suffix: str = LOG_SUFFIX) -> str:
    """Kafka's name of a segment's file: the offset in twenty digits."""
    return f"{offset:020d}{suffix}"


class StoredIndex:
    """Where the batches of one segment are, by offset and by time, and its aborted transactions."""

    __slots__ = (
        "_aborted",
        "_base_offset",
        "_directory",
        "_files",
        "_interval",
        "_log",
        "has_aborted",
        "in_memory",
        "latest_ms",
        "on_disk",
    )

    def __init__(
        self, files: Files, directory: str, base_offset: int, log: LogFile, interval: int
    ) -> None:
        self._files = files
        self._directory = directory
        self._base_offset = base_offset
        self._log = log
        self._interval = interval
        self._aborted: list[AbortedTransaction] | None = None
        self.in_memory: SegmentIndex | None = None
        self.latest_ms: int | None = None
        """The largest timestamp, once it is known; it stays when the index leaves memory."""
        self.has_aborted = False
        """Whether the segment has the marker of an aborted transaction."""
        self.on_disk = False
        """Whether its files are on the disk, and of what the segment holds now."""

    def get(self) -> SegmentIndex:
        """The index; read from its files, or built again, when it is not in memory."""
        if self.in_memory is None:
            self.in_memory = self.read() or self.rebuild()
        return self.in_memory

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in the segment, -1 while it is empty."""
        if self.latest_ms is None:
            self.latest_ms = self.get().max_timestamp
        return self.latest_ms

    @property
    def is_short(self) -> bool:
        """Whether it has no entries: walking the segment takes no longer than reading them."""
        return not self.get().offsets and not self.has_aborted

    def forget(self) -> None:
        """Free the memory of a sealed segment's index; the next lookup reads it again."""
        if self.in_memory is not None and self.latest_ms is None:
            self.latest_ms = self.in_memory.max_timestamp
        self.in_memory = self._aborted = None

    def start(self) -> SegmentIndex:
        """An empty index in place of the old one, to be filled by a scan."""
        self.on_disk = False
        self.in_memory = SegmentIndex(self._base_offset, self._interval)
        self.set_aborted([])
        self.latest_ms = NO_TIMESTAMP
        return self.in_memory

    def rebuild(self) -> SegmentIndex:
        """The index, built by walking the headers (their CRCs are not checked)."""
        index = self.in_memory = SegmentIndex(self._base_offset, self._interval)
        for header in headers(self._log.read, 0, self._log.size):
            index.add(header.last_offset, header.position, header.size, header.max_timestamp)
        index.seal()
        self.latest_ms = index.max_timestamp
        return index

    # -- aborted transactions

    @property
    def aborted(self) -> list[AbortedTransaction] | None:
        """Those whose marker is here; None when the index is damaged: see `set_aborted`."""
        if self._aborted is None and self.has_aborted:
            self.read()
            return self._aborted
        return self._aborted or []

    def add_aborted(self, entry: AbortedTransaction) -> None:
        """A transaction ended in this segment in being aborted."""
        entries = self._aborted or []
        entries.append(entry)
        self.set_aborted(entries)

    def set_aborted(self, entries: list[AbortedTransaction]) -> None:
        """Every aborted transaction whose marker is in this segment, rebuilt from the log."""
        self._aborted, self.has_aborted = entries, bool(entries)

    # -- files

    def _path(self, suffix: str) -> str:
        return f"{self._directory}/{file_name(self._base_offset, suffix)}"

    def read(self) -> SegmentIndex | None:
        """The index in the files; None where one is missing or does not match its checksum."""
        offsets = self._files.read_all(self._path(INDEX_SUFFIX))
        times = self._files.read_all(self._path(TIME_INDEX_SUFFIX))
        crc = self._files.read_all(self._path(INDEX_CRC_SUFFIX))
        aborted = self._files.read_all(self._path(TXN_INDEX_SUFFIX)) or b""
        if offsets is None or times is None or crc != checksum(offsets, times, aborted):
            return None
        self.set_aborted(decode_aborted(aborted))
        size = self._log.size
        return SegmentIndex.decode(self._base_offset, self._interval, offsets, times, size)

    def write(self) -> None:
        """Write the files; those that can be built again need not be durable."""
        index = self.get()
        index.seal()
        offsets, times = index.encode()
        aborted = encode_aborted(self.aborted or ())
        if aborted:
            replace_file(self._files, self._path(TXN_INDEX_SUFFIX), aborted, durable=True)
        replace_file(self._files, self._path(INDEX_SUFFIX), offsets, durable=False)
        replace_file(self._files, self._path(TIME_INDEX_SUFFIX), times, durable=False)
        crc = checksum(offsets, times, aborted)
        replace_file(self._files, self._path(INDEX_CRC_SUFFIX), crc, durable=False)
        self.on_disk = True

    def remove(self) -> None:
        """Delete the files: the segment is about to change or is gone."""
        names = self._files.list(self._directory)
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, INDEX_CRC_SUFFIX, TXN_INDEX_SUFFIX):
            if file_name(self._base_offset, suffix) in names:
                self._files.remove(self._path(suffix))


def checksum(offsets: bytes, times: bytes, aborted: bytes) -> bytes:
    """The content of `.indexcrc`."""
    return crc32(aborted, crc32(times, crc32(offsets))).to_bytes(4, "big")
