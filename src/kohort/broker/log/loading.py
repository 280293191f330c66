"""Opening a partition's log: which files are trusted, which are scanned, where it ends.

Rules:
- After a clean shutdown nothing is scanned but the last few kilobytes. After a crash every segment
  that reaches beyond the recovery point is read and its CRCs checked.
- The first bad byte ends the log: the file is cut there, later segments are deleted, and one
  warning names file, offset and bytes. Doing it twice comes to the same (spec L7).
- What a crash left half done is finished or undone: `.tmp`, `.cleaned` and `.deleted` files are
  removed, a `.swap` file takes the place of the segments that its name covers (KAFKA-12520).
- What recovery kept is made durable before anybody is shown it: by the caller, who syncs the files
  of many logs at once. So is the name of a log that begins, before anything in it is acknowledged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from kohort.broker.log.checkpoints import LeaderEpochs
from kohort.broker.log.files import DISK_FULL, Files, LogFile
from kohort.broker.log.log import EPOCHS_FILE, PartitionLog, note_ended
from kohort.broker.log.producers import Producers
from kohort.broker.log.recovery import headers, scan
from kohort.broker.log.segment import SNAPSHOT_SUFFIX, Segment
from kohort.broker.log.stored_index import file_name
from kohort.broker.log.topic_config import TopicConfig
from kohort.broker.log.txn_index import TXN_INDEX_SUFFIX, marker_of
from kohort.errors import CorruptRecordError
from kohort.lean import dataclass
from kohort.records import BatchHeader
from kohort.records.layout import HEADER_BYTES

log = logging.getLogger("kohort.broker")

_SEGMENT = re.compile(r"(\d{20})\.log")
_SWAP = re.compile(r"(\d{20})\.log\.(\d{20})\.swap")
_SNAPSHOT = re.compile(r"(\d{20})" + re.escape(SNAPSHOT_SUFFIX))
COMPACTED_MARKER = "compacted"
"""A file in the directory of every partition that was ever compacted: its offsets may have gaps."""
CLEANED_SUFFIX = ".cleaned"
"""Of the file that compaction writes until it is complete."""
_LEFTOVERS = (".tmp", CLEANED_SUFFIX, ".deleted")


def segment_bases(names: Iterable[str]) -> list[int]:
    """The base offsets of the segments among the names in a partition's directory."""
    return [int(match[1]) for match in map(_SEGMENT.fullmatch, names) if match]


def swap_name(base_offset: int, next_offset: int) -> str:
    """The name of a rewritten segment that is about to replace those of an offset range."""
    return f"{base_offset:020d}.log.{next_offset:020d}.swap"


@dataclass(frozen=True, slots=True)
class Opening:
    """The knowledge about a partition before its files are read."""

    directory: str
    config: TopicConfig
    durable: bool
    clean: bool
    recovery_point: int = 0
    log_start_offset: int = 0
    now_ms: int = 0
    leader_epoch: int = 0
    """Known from the registry of topics; the log may know a later one."""
    fresh: bool = False
    """Its directory was made just now, and is empty."""


def finish_swaps(files: Files, directory: str) -> list[str]:
    """Undo or finish what a crash interrupted; returns the names that are there after that."""
    names = files.list(directory)
    left_over = [name for name in names if name.endswith(_LEFTOVERS)]
    for name in left_over:
        files.remove(f"{directory}/{name}")
    swaps = [match for match in map(_SWAP.fullmatch, names) if match]
    for match in swaps:
        complete_swap(files, directory, int(match[1]), int(match[2]))
    return files.list(directory) if left_over or swaps else names


def complete_swap(files: Files, directory: str, base_offset: int, next_offset: int) -> None:
    """The segments of the range go, then the `.swap` file takes its name. May be done again."""
    for name in files.list(directory):
        stem, _, suffix = name.partition(".")
        inside = stem.isdigit() and base_offset <= int(stem) < next_offset
        if inside and suffix in ("log", "index", "timeindex", "indexcrc", "txnindex"):
            files.remove(f"{directory}/{name}")
    swap = f"{directory}/{swap_name(base_offset, next_offset)}"
    files.rename(swap, f"{directory}/{base_offset:020d}.log")
    files.sync_dir(directory)


def open_log(files: Files, opening: Opening) -> tuple[PartitionLog, list[LogFile]]:
    """Open a partition's log, recovering it after a crash. Raises OSError.

    Returns the files, too, that are to be synced before anybody is shown the log.
    """
    directory, config = opening.directory, opening.config
    names = [] if opening.fresh else finish_swaps(files, directory)
    bases = segment_bases(names)
    interval = config.index_interval_bytes
    if not bases:
        segments = [Segment.create(files, directory, opening.log_start_offset, interval)]
    else:
        segments = [
            Segment(files, directory, b, files.open(f"{directory}/{b:020d}.log"), interval)
            for b in bases
        ]
        for segment in segments:
            segment.index.has_aborted = file_name(segment.base_offset, TXN_INDEX_SUFFIX) in names
    epochs = LeaderEpochs()
    if EPOCHS_FILE in names:
        epochs.restore(files.read_all(f"{directory}/{EPOCHS_FILE}"))
    recovery = _Recovery(files, opening, segments, epochs, names)
    if bases:
        recovery.run()
        recovery.begin_at_log_start()
    segments = recovery.segments
    epochs.truncate_to(segments[-1].next_offset)
    latest = max(epochs.latest, opening.leader_epoch or -1)
    leader_epoch = latest + 1 if recovery.bump else max(latest, 0)
    opened = PartitionLog(
        files,
        directory,
        config,
        durable=opening.durable,
        segments=segments,
        log_start_offset=max(opening.log_start_offset, segments[0].base_offset),
        producers=recovery.producers,
        epochs=epochs,
        leader_epoch=leader_epoch,
    )
    opened.snapshot_at = recovery.snapshot_at
    opened.unindexed = [segment for segment in recovery.unindexed if segment in segments]
    opened.flushed_offset = max(
        opened.log_start_offset, min(opening.recovery_point, opened.end.offset)
    )
    return opened, recovery.unsynced


class _Recovery:
    """One pass over the segments of a partition."""

    def __init__(
        self,
        files: Files,
        opening: Opening,
        segments: list[Segment],
        epochs: LeaderEpochs,
        names: list[str],
    ) -> None:
        self._files = files
        self._opening = opening
        self.segments = segments
        self._epochs = epochs
        self.producers = Producers()
        self._names = names
        self._contiguous = COMPACTED_MARKER not in names
        self.unsynced: list[LogFile] = []
        self.unindexed: list[Segment] = []
        self.snapshot_at = -1
        self.bump = not opening.clean and any(s.size for s in segments)
        """A new leader epoch begins after a crash: readers check what they have (KIP-320)."""

    def run(self) -> None:
        suspects = self._trust()
        if not self._epochs.entries and self.segments[0] not in suspects:
            self._find_first_epoch()
        start = suspects[0].base_offset if suspects else self.segments[-1].next_offset
        self._restore_producers(start)
        for segment in suspects:
            if not self._scan(segment):
                break

    def begin_at_log_start(self) -> None:
        """Replace a log that ends before its start with an empty one at its start.

        With `os` a power cut takes records, and not the note that they were deleted; what was
        appended below the start would not be seen.
        """
        opening, segments = self._opening, self.segments
        if segments[-1].next_offset >= opening.log_start_offset:
            return
        interval = opening.config.index_interval_bytes
        self._drop(segments)
        first = Segment.create(self._files, opening.directory, opening.log_start_offset, interval)
        self.segments, self.unsynced = [first], [first.file] if opening.durable else []

    def _trust(self) -> list[Segment]:
        """Take the sealed, flushed segments as they are; returns those that must be scanned."""
        opening, last = self._opening, self.segments[-1]
        suspects: list[Segment] = []
        for segment, following in zip(self.segments, self.segments[1:], strict=False):
            segment.next_offset = following.base_offset
            if not opening.clean and following.base_offset > opening.recovery_point:
                suspects.append(segment)
        if last.size == 0:
            last.index.start()
        if suspects or not opening.clean or not last.load_tail(self._names):
            suspects.append(last)
        return suspects

    def _find_first_epoch(self) -> None:
        """A log of one epoch has no file of epochs (`PartitionLog`): its first batch says which."""
        first = self.segments[0]
        try:
            header = next(headers(first.file.read, 0, first.size, HEADER_BYTES), None)
        except CorruptRecordError:
            return  # its readers get the error
        if header is not None:
            self._epochs.begin(header.partition_leader_epoch, first.base_offset)

    def _restore_producers(self, upto: int) -> None:
        directory = self._opening.directory
        matches = [_SNAPSHOT.fullmatch(n) for n in self._names]
        offsets = sorted((int(m[1]) for m in matches if m), reverse=True)
        at = self.segments[0].base_offset
        for offset in offsets:
            path = f"{directory}/{offset:020d}{SNAPSHOT_SUFFIX}"
            if offset > upto:  # of a log that was longer: it speaks of batches that are gone
                self._files.remove(path)
            elif self.producers.restore(self._files.read_all(path) or b""):
                at = self.snapshot_at = offset
                break
        if at < upto:
            self._read_producers(at, upto)

    def _read_producers(self, start: int, upto: int) -> None:
        for segment in self.segments:
            if segment.next_offset <= start or segment.base_offset >= upto:
                continue
            try:
                for header in headers(segment.file.read, 0, segment.size):
                    if start <= header.base_offset < upto:
                        self._note_producer(segment, header)
            except CorruptRecordError as error:
                # Its readers get the error; a start must not discard flushed records.
                log.warning("%s: damaged, though flushed before: %s", segment.file.path, error)

    def _note_producer(self, segment: Segment, header: BatchHeader) -> None:
        marker = None
        if header.is_control:
            marker = marker_of(segment.file.read(header.position, header.size))
        self.producers.note(header, header.base_offset, self._opening.now_ms, marker)

    def _note(self, segment: Segment, header: BatchHeader, batch: memoryview) -> None:
        segment.note(header)
        marker = marker_of(batch) if header.is_control else None
        ended = self.producers.note(header, header.base_offset, self._opening.now_ms, marker)
        if ended is not None:
            note_ended(segment, self.producers, ended)
        self._epochs.begin(header.partition_leader_epoch, header.base_offset)

    def _scan(self, segment: Segment) -> bool:
        """Read a segment whole; False when the log ends with it."""
        segment.index.remove()
        segment.index.start()
        end = scan(
            segment.file,
            segment.base_offset,
            lambda header, batch: self._note(segment, header, batch),
            contiguous=self._contiguous,
        )
        segment.next_offset = end.next_offset
        at = self.segments.index(segment)
        later = self.segments[at + 1 :]
        # A sealed segment always reaches up to the next one, also after compaction.
        whole = end.reason is None and (not later or later[0].base_offset == end.next_offset)
        if not whole:
            self.bump = True
            self._drop(later)
            self.segments = self.segments[: at + 1]
        if end.reason is not None:
            log.warning(
                "%s: cut at byte %d, after offset %d: %s; %d bytes dropped",
                segment.file.path,
                end.position,
                end.next_offset - 1,
                end.reason,
                segment.size - end.position,
            )
            segment.file.truncate(end.position)
        if self._opening.durable:
            self.unsynced.append(segment.file)
        if whole and later:
            self._store_index(segment)
        return whole

    def _store_index(self, segment: Segment) -> None:
        """On a full disk the broker must start, so that space can be freed: write it later."""
        try:
            segment.index.write()
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            self.unindexed.append(segment)

    def _drop(self, later: list[Segment]) -> None:
        """Delete segments, the last one first, before the cut: done half, it is done again."""
        for segment in reversed(later):
            log.warning(
                "%s: deleted with its %d bytes, because the log ends before it",
                segment.file.path,
                segment.size,
            )
            segment.remove()
            segment.index.remove()
            if self._opening.durable:
                self._files.sync_dir(self._opening.directory)
