"""What a scan of a segment decides: which bytes are the log and where garbage begins. Pure.

Rules:
- The log ends at the first batch that is incomplete, damaged, or not above the one before it.
- A scan reads windows of bounded size; a batch larger than the window is read on its own.
- `verify` checks every CRC; without it only the chain of headers is walked (for an index).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kohort.broker.log.files import Buffer, LogFile
from kohort.errors import CorruptRecordError
from kohort.lean import dataclass
from kohort.records import BatchHeader, check_batch, read_batch_header
from kohort.records.layout import HEADER_BYTES

WINDOW_BYTES = 1 << 20
_OFFSETS_MAX = (1 << 31) - 1  # of one segment: the index has 32 bits for them
_EPOCH_MAX = 1 << 30
_PREFIX_BYTES = 17  # enough to see a batch's length and format


@dataclass(frozen=True, slots=True)
class ScanEnd:
    """Where the valid batches of a file end, and why they end there (None: at its last byte)."""

    position: int
    next_offset: int
    reason: str | None


def walk(
    read: Callable[[int, int], Buffer], start: int, end: int, window: int = WINDOW_BYTES
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Every whole batch between two positions, with its bytes.

    Ends before a part of a batch; raises CorruptRecordError at bytes that are none. The header's
    `position` is that within the file.
    """
    position = start
    while position < end:
        buffer = memoryview(read(position, min(window, end - position)))
        at = 0
        while True:
            header = read_batch_header(buffer, at)
            if header is None:
                break
            yield _moved(header, position + at), buffer[at : at + header.size]
            at += header.size
        position += at
        if at == 0:
            whole = _one_batch(read, buffer, position, end)
            if whole is None:
                return
            yield _moved(BatchHeader(whole, 0), position), whole
            position += len(whole)


def headers(
    read: Callable[[int, int], Buffer], start: int, end: int, window: int = 8192
) -> Iterator[BatchHeader]:
    """Every batch header between two positions, without reading more of a large batch than it."""
    position = start
    while position + HEADER_BYTES <= end:
        buffer = memoryview(read(position, min(window, end - position)))
        at = 0
        while at + HEADER_BYTES <= len(buffer):
            header = BatchHeader(buffer, at)
            if header.magic != 2 or header.length < HEADER_BYTES - 12:
                raise CorruptRecordError(f"no record batch at byte {position + at}")
            if position + at + header.size > end:
                return
            at += header.size
            yield _moved(header, position + at - header.size)
        if at == 0:
            return
        position += at


def find(
    read: Callable[[int, int], Buffer], start: int, end: int, offset: int, window: int = 8192
) -> tuple[BatchHeader | None, BatchHeader | None]:
    """The batch at `start`, and the first from there on that reaches `offset`; None: there is none.

    Every fetch asks, hence a loop of its own beside `headers`. Raises CorruptRecordError at bytes
    behind the first batch that are none.
    """
    first: BatchHeader | None = None
    position = start
    while position + HEADER_BYTES <= end:
        buffer = read(position, min(window, end - position))
        at, last = 0, len(buffer) - HEADER_BYTES
        if last < 0:
            break
        while at <= last:
            header = BatchHeader(buffer, at)
            length = header.length
            if header.magic != 2 or length < HEADER_BYTES - 12:
                if first is None:
                    return None, None
                raise CorruptRecordError(f"no record batch at byte {position + at}")
            header.position = position + at
            at += length + 12
            if position + at > end:
                return first, None
            if first is None:
                first = header
            if header.base_offset + header.last_offset_delta >= offset:
                return first, header
        position += at
    return first, None


def scan(
    file: LogFile,
    base_offset: int,
    note: Callable[[BatchHeader, memoryview], None],
    *,
    contiguous: bool,
) -> ScanEnd:
    """Walk a segment's file to its end, checking every CRC; `note` hears each batch.

    `contiguous`: nothing was ever compacted, so that a gap between two batches is damage (base
    offsets and epochs are outside the CRC).
    """
    position, next_offset, epoch = 0, base_offset, 0
    try:
        for header, batch in walk(file.read, 0, file.size):
            gap = header.base_offset - next_offset
            if gap < 0 or (gap and contiguous) or header.next_offset - base_offset > _OFFSETS_MAX:
                return ScanEnd(
                    position, next_offset, f"offset {header.base_offset} where it should continue"
                )
            if not epoch <= header.partition_leader_epoch <= _EPOCH_MAX:
                return ScanEnd(
                    position, next_offset, f"leader epoch {header.partition_leader_epoch}"
                )
            epoch = header.partition_leader_epoch
            found_at, header.position = header.position, 0
            check_batch(batch, header)
            header.position = found_at
            note(header, batch)
            position, next_offset = found_at + header.size, header.next_offset
    except CorruptRecordError as error:
        return ScanEnd(position, next_offset, str(error))
    if position < file.size:
        return ScanEnd(position, next_offset, "a batch ends beyond the file")
    return ScanEnd(position, next_offset, None)


def _one_batch(
    read: Callable[[int, int], Buffer], buffer: memoryview, position: int, end: int
) -> memoryview | None:
    if len(buffer) < _PREFIX_BYTES:
        return None
    size = int.from_bytes(buffer[8:12], "big") + 12
    if position + size > end:
        return None
    return memoryview(read(position, size))


def _moved(header: BatchHeader, position: int) -> BatchHeader:
    header.position = position
    return header
