"""Finding and cutting out damage in the segments of a partition, while no broker has it open.

Rules:
- A sound batch is whole, has a matching CRC, and continues the offsets of the one before it. The
  CRC does not cover the base offset: where offsets jump without a compaction, the batch behind has
  to continue them. Any bytes between two valid batches are damage.
- A repair keeps every sound batch at its offset. The damaged bytes go to a file beside the segment
  (`SEGMENT.POSITION.damaged`) first, the segment is replaced in one step: a crash at any point
  leaves something that can be repaired again.
- Offsets that were lost become a gap, as compaction leaves them: readers pass it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kohort.broker.log.files import Files, LogFile, replace_file
from kohort.broker.log.loading import COMPACTED_MARKER, segment_bases
from kohort.broker.log.stored_index import (
    INDEX_CRC_SUFFIX,
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    file_name,
)
from kohort.errors import CorruptRecordError
from kohort.lean import dataclass
from kohort.records import BatchHeader, check_batch
from kohort.records.layout import HEADER_BYTES

_WINDOW_BYTES = 1 << 20
_OFFSET_MAX = (1 << 48) - 1
_BATCH = re.compile(rb"(?=\x00\x00.{14}\x02)", re.DOTALL)
"""Where a batch may begin: an offset below 2^48, and 16 bytes on the magic byte of format 2."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that are no sound batch, or (`missing`) offsets that no file holds."""

    path: str
    position: int
    """Of the first damaged byte within the file."""
    size: int
    """Damaged bytes; 0 where a file is missing."""
    first_offset: int
    """The first offset that is lost; `next_offset` where none is."""
    next_offset: int
    """The offset of the next sound batch or segment; -1 where nothing follows."""

    @property
    def missing(self) -> bool:
        """True where a file is missing, False where bytes are damaged."""
        return self.size == 0

    @property
    def lost(self) -> str:
        """The offsets that are lost, as text."""
        if self.next_offset < 0:
            return f"from {self.first_offset} on"
        if self.next_offset == self.first_offset:
            return "none"
        return f"{self.first_offset} to {self.next_offset - 1}"


def damage_of(files: Files, directory: str) -> list[Damage]:
    """Everything that is wrong with the segments of a partition, in offset order.

    Args:
        files: The data directory.
        directory: The partition's directory in it, `TOPIC-N`.

    Raises OSError.
    """
    names = files.list(directory)
    bases = segment_bases(names)
    compacted = COMPACTED_MARKER in names
    damages: list[Damage] = []
    for base, following in zip(bases, [*bases[1:], -1], strict=True):
        path = f"{directory}/{file_name(base)}"
        damaged, end = _examine(files, path, Bounds(base, following, compacted))
        damages += damaged
        if following >= 0 and end < following and not (damaged or compacted):
            damages.append(Damage(path, 0, 0, end, following))
    return damages


def repair(files: Files, directory: str, damage: list[Damage]) -> None:
    """Cut the damaged bytes out of the segments, and let readers pass the offsets that are lost.

    Args:
        files: The data directory.
        directory: The partition's directory in it.
        damage: What `damage_of` found there.

    Raises OSError.
    """
    if any(each.first_offset != each.next_offset for each in damage):
        replace_file(files, f"{directory}/{COMPACTED_MARKER}", b"")
    by_path: dict[str, list[Damage]] = {}
    for each in damage:
        if not each.missing:
            by_path.setdefault(each.path, []).append(each)
    for path, damaged in by_path.items():
        _rewrite(files, path, damaged)
    files.sync_dir(directory)


def _rewrite(files: Files, path: str, damaged: list[Damage]) -> None:
    source = files.open(path)
    try:
        position = 0
        kept: list[tuple[int, int]] = []
        for each in damaged:
            kept.append((position, each.position))
            position = each.position + each.size
            aside = f"{path}.{each.position}.damaged"
            _copy(files, source, aside, [(each.position, position)])
        kept.append((position, source.size))
        _copy(files, source, f"{path}.tmp", kept)
    finally:
        source.close()
    stem = path.removesuffix(".log")
    for suffix in (INDEX_CRC_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        if files.read_all(stem + suffix) is not None:
            files.remove(stem + suffix)
    files.rename(f"{path}.tmp", path)


def _copy(files: Files, source: LogFile, path: str, spans: list[tuple[int, int]]) -> None:
    if files.read_all(path) is not None:
        files.remove(path)
    copy = files.open(path, create=True)
    try:
        for start, end in spans:
            for at in range(start, end, _WINDOW_BYTES):
                copy.append([bytes(source.read(at, min(_WINDOW_BYTES, end - at)))])
        copy.sync()
    finally:
        copy.close()


@dataclass(slots=True)
class Bounds:
    """What the next batch of a segment has to keep to."""

    next_offset: int
    following: int
    """The base offset of the next segment; -1: there is none."""
    compacted: bool
    damaged: bool = False
    """Damage precedes it, so that its offset need not be the next one."""

    @property
    def limit(self) -> int:
        """The offset that no batch may reach."""
        return self.following if self.following >= 0 else _OFFSET_MAX


def _examine(files: Files, path: str, bounds: Bounds) -> tuple[list[Damage], int]:
    """The damage of one segment, and the offset behind its last sound batch."""
    file = files.open(path)
    damages: list[Damage] = []
    position = 0
    try:
        while position < file.size:
            header = _sound(file, position, bounds)
            if header is None:
                bounds.damaged = True
                resumed, header = _next_sound(file, position, bounds)
                bounds.damaged = False
                goes_on = bounds.following if header is None else header.base_offset
                size = resumed - position
                damages.append(Damage(path, position, size, bounds.next_offset, goes_on))
                position = resumed
            if header is not None:
                position += header.size
                bounds.next_offset = header.next_offset
    finally:
        file.close()
    return damages, bounds.next_offset


def _sound(file: LogFile, position: int, bounds: Bounds) -> BatchHeader | None:
    """The header of the batch at a position, if it is sound."""
    header = _whole(file, position, bounds)
    if header is None or bounds.compacted or header.base_offset == bounds.next_offset:
        return header
    behind = position + header.size
    if behind == file.size:
        return header if bounds.damaged or header.next_offset == bounds.following else None
    after = _whole(file, behind, bounds)
    return header if after and after.base_offset == header.next_offset else None


def _whole(file: LogFile, position: int, bounds: Bounds) -> BatchHeader | None:
    """The header of the batch at a position, if its CRC matches and its offsets are possible."""
    header = _header(file, position)
    if header is None or not bounds.next_offset <= header.base_offset < bounds.limit:
        return None
    try:
        check_batch(memoryview(file.read(position, header.size)), header)
    except CorruptRecordError:
        return None
    return header if header.next_offset <= bounds.limit else None


def _header(file: LogFile, position: int) -> BatchHeader | None:
    """A header that fits into its file."""
    start = bytes(file.read(position, HEADER_BYTES))
    if len(start) < HEADER_BYTES:
        return None
    header = BatchHeader(start, 0)
    fits = header.length >= HEADER_BYTES - 12 and position + header.size <= file.size
    return header if header.magic == 2 and fits else None


def _next_sound(file: LogFile, position: int, bounds: Bounds) -> tuple[int, BatchHeader | None]:
    """Where the next sound batch begins; the end of the file where there is none.

    Behind a damaged batch whose length is right first: a record may hold the bytes of a batch.
    """
    header = _header(file, position)
    if header is not None:
        behind = position + header.size
        if behind == file.size:
            return behind, None
        sound = _sound(file, behind, bounds)
        if sound is not None:
            return behind, sound
    for candidate in _candidates(file, position + 1):
        sound = _sound(file, candidate, bounds)
        if sound is not None:
            return candidate, sound
    return file.size, None


def _candidates(file: LogFile, position: int) -> Iterator[int]:
    while position < file.size:
        window = bytes(file.read(position, _WINDOW_BYTES + HEADER_BYTES))
        for match in _BATCH.finditer(window):
            if match.start() < _WINDOW_BYTES:
                yield position + match.start()
        position += _WINDOW_BYTES
