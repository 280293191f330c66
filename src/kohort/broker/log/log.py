"""One partition's log: segments in a row, appended at the end, deleted at the start.

Rules:
- `append` gives offsets, stamps and writes; only after the write has succeeded does anything else
  change (KAFKA-6683, KAFKA-7866). A failed write is cut off again; if even that fails, or a flush
  fails, the partition is offline until the broker is restarted.
- Readers see records below the high watermark: durable at the broker's level (spec L3).
- A read is within one segment and returns stored bytes; records are never taken apart.
- The last stable offset (KIP-98) is at most the high watermark and the first batch of any
  transaction that is open, or whose marker is not below the high watermark yet.

The caller provides the clock: `now_ms` is wall time, as in records.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kohort.broker.log.checkpoints import LeaderEpochs
from kohort.broker.log.files import DISK_FULL, Buffer, Files, replace_file
from kohort.broker.log.producers import Completed, Producers
from kohort.broker.log.segment import SNAPSHOT_SUFFIX, IndexMemory, Segment, began_ms
from kohort.broker.log.stored_index import file_name
from kohort.broker.log.times import first_at_time, times_of
from kohort.broker.log.topic_config import TopicConfig
from kohort.broker.log.txn_index import AbortedTransaction, Marker, marker_of
from kohort.errors import BrokerError, ErrorCode, StorageError
from kohort.lean import quick
from kohort.records import BatchHeader, stamp

if TYPE_CHECKING:

    class BatchRun(BatchHeader):
        """Several checked batches of one turn, written together; the fast path makes them."""

        @property
        def entries(self) -> Sequence[BatchHeader]: ...

        marks: list[tuple[int, int, int, int]]

        def stamped(self, offset: int, position: int, leader_epoch: int) -> list[memoryview]: ...


log = logging.getLogger("kohort.broker")

EPOCHS_FILE = "leader-epoch-checkpoint"
_SNAPSHOTS_KEPT = 2
_MAX_DELTA = 0x7FFFFFFF
"""Of an offset from its segment's first: those in index files are of four bytes."""


class Mark(NamedTuple):
    """A place in the log: everything before it is meant."""

    offset: int
    segment: Segment
    position: int


class Span(NamedTuple):
    """Stored bytes of whole batches."""

    segment: Segment
    start: int
    end: int

    def views(self) -> list[Buffer]:
        """The bytes, for sending."""
        return self.segment.file.views(self.start, self.end - self.start)


class Appended(NamedTuple):
    """What an append came to. `mark` is the end of the log right after it."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    mark: Mark
    duplicate: bool


class TimedOffset(NamedTuple):
    """An offset found by time."""

    offset: int
    timestamp: int
    leader_epoch: int


class PartitionLog:
    """A log. Made by `kohort.broker.log.loading`."""

    def __init__(
        self,
        files: Files,
        directory: str,
        config: TopicConfig,
        *,
        durable: bool,
        segments: list[Segment],
        log_start_offset: int,
        producers: Producers,
        epochs: LeaderEpochs,
        leader_epoch: int,
    ) -> None:
        self._files = files
        self.directory = directory
        self.config = config
        self._durable = durable
        self.segments = segments
        self._bases = [s.base_offset for s in segments]
        self.log_start_offset = log_start_offset
        self.producers = producers
        self.epochs = epochs
        self.leader_epoch = leader_epoch
        self.offline: str | None = None
        """Why nothing can be appended or read any more, or None."""
        self._refusing = False
        """The last write failed, which has been logged."""
        self._rolling = False
        """The file of a new segment may exist: the old one must not grow any more."""
        self._epochs_unwritten = False
        """The file of leader epochs lacks the last one; it is written before the next append."""
        self.high = self.end
        self._ending: deque[Completed] = deque()
        self._stable = self.high
        self.closed = False
        self.flushed_offset = self.log_start_offset
        """Sealed segments below it are on the disk; see `sealed`."""
        self.sealed: Callable[[Segment], None] | None = None
        """Called with each segment that is sealed, so that it is flushed soon."""
        self.index_memory: IndexMemory | None = None
        """Bounds the indexes of sealed segments; None: they all stay in memory."""
        self.pins = 0
        """How many read it in pieces just now; its sealed segments must stay."""
        self.drops = 0
        """How many segments were deleted at its start."""
        self.unindexed: list[Segment] = []
        """Sealed segments whose index found no room on the disk when the log was opened."""
        self.snapshot_at = -1
        """The end of the log of the last snapshot of its producers; -1: none is known."""

    # -- where things are

    @property
    def recovery_point(self) -> int:
        """A start after a crash reads the log from here on."""
        flushed = self.high.offset if self._durable else self.flushed_offset
        return min([flushed, *(segment.base_offset for segment in self.unindexed)])

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def end(self) -> Mark:
        """The end of the log: the next offset, and the position of its batch."""
        active = self.active
        return Mark(active.next_offset, active, active.size)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(s.size for s in self.segments)

    def advance(self, mark: Mark) -> bool:
        """Everything before `mark` is durable; True when that moved the high watermark."""
        if mark.offset <= self.high.offset or self.offline:
            return False
        self.high = mark
        while self._ending and self._ending[0].last_offset < mark.offset:
            self._ending.popleft()
        return True

    @property
    def stable(self) -> Mark:
        """Everything before it is decided: what READ_COMMITTED sees. Raises OSError."""
        first = self.producers.first_open
        for ended in self._ending:
            first = ended.first_offset if first is None else min(first, ended.first_offset)
        if first is None or first >= self.high.offset:
            return self.high
        offset = max(first, self.log_start_offset)
        if self._stable.offset != offset:
            self._stable = self._mark_of(offset)
        return self._stable

    def _mark_of(self, offset: int) -> Mark:
        for segment in self.segments_from(offset):
            header = segment.batch_at(offset)
            self._index_used(segment)
            if header is not None:
                return Mark(offset, segment, header.position)
        return self.high

    def fail(self, why: str) -> None:
        """Take the partition offline: nothing is acknowledged from it any more (spec L9)."""
        if self.offline is None:
            self.offline = why

    def _require_online(self) -> None:
        if self.offline or self.closed:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline or "the log is closed")

    # -- appending

    def append(
        self, batch: memoryview, header: BatchHeader, now_ms: int, marker: Marker | None = None
    ) -> Appended:
        """Append one checked batch. Raises BrokerError; then nothing has changed.

        `header` is the batch's own, at position 0 of `batch`; it becomes that of the stored one.
        `marker` is the content of a control batch.
        """
        if self.offline or self.closed:
            self._require_online()
        if header.producer_id >= 0:
            if marker is None:
                verdict = self.producers.check(header)
            else:
                verdict = self.producers.check_marker(header, marker)
            if isinstance(verdict, ErrorCode):
                raise BrokerError(
                    verdict,
                    f"producer {header.producer_id} epoch {header.producer_epoch} sequence "
                    f"{header.base_sequence} in {self.directory}",
                )
            if verdict is not None:
                last = verdict.base_offset + header.last_offset_delta
                return Appended(verdict.base_offset, last, verdict.timestamp, self.end, True)
        config, append_time = self.config, None
        if config.log_append_time:
            append_time = now_ms
        if self._must_roll(header, now_ms):
            self._guarded(self.roll)
        segment = self.segments[-1]
        if self._epochs_unwritten or self.epochs.latest < self.leader_epoch:
            self._begin_epoch()
        base_offset, position = segment.next_offset, segment.file.size
        if batch.readonly:
            batch = memoryview(bytearray(batch))
        stamp(batch, 0, base_offset, self.leader_epoch, append_time)
        self._guarded(segment.file.append, (batch,), cut=position)
        header.base_offset, header.position = base_offset, position
        if append_time is not None:
            header.max_timestamp = append_time
        segment.note(header)
        if segment.first_append_ms is None:
            segment.first_append_ms = now_ms
        if header.producer_id >= 0:
            ended = self.producers.note(header, base_offset, now_ms, marker)
            if ended is not None:
                self._ending.append(ended)
                note_ended(segment, self.producers, ended)
        end = segment.next_offset
        reported = -1 if append_time is None else append_time
        mark = Mark(end, segment, position + header.size)
        return Appended(base_offset, end - 1, reported, mark, False)

    def append_run(self, run: BatchRun, now_ms: int) -> Appended | None:
        """Append several checked batches in one write; None, and nothing done, where they must go
        one by one. Raises BrokerError; then nothing has changed.

        They are of no transaction, and `producers` would take each of them.
        """
        config, segment = self.config, self.segments[-1]
        if (
            self.offline
            or self.closed
            or config.log_append_time
            or run.size > config.segment_bytes
            or run.last_offset_delta > _MAX_DELTA  # in an empty segment, too
            or self._must_roll(run, now_ms)
        ):
            return None
        if self._epochs_unwritten or self.epochs.latest < self.leader_epoch:
            self._begin_epoch()
        base_offset, position = segment.next_offset, segment.file.size
        written = run.stamped(base_offset, position, self.leader_epoch)
        self._guarded(segment.file.append, written, cut=position)
        segment.note_all(run.marks)
        if segment.first_append_ms is None:
            segment.first_append_ms = now_ms
        for entry in run.entries:
            if entry.producer_id >= 0:
                self.producers.note(entry, entry.base_offset, now_ms)
        end = segment.next_offset
        mark: Mark = quick(Mark, (end, segment, position + run.size))
        appended: Appended = quick(Appended, (base_offset, end - 1, -1, mark, False))
        return appended

    def _must_roll(self, header: BatchHeader, now_ms: int) -> bool:
        active = self.segments[-1]
        size = active.file.size
        if size == 0:
            return False
        began = active.first_append_ms
        return (
            self._rolling
            or size + header.size > self.config.segment_bytes
            or active.next_offset + header.last_offset_delta - active.base_offset > _MAX_DELTA
            or now_ms - (began_ms(active, now_ms) if began is None else began)
            >= self.config.segment_ms
        )

    def _guarded(self, act: object, *args: object, cut: int | None = None) -> None:
        """Write; on failure cut off what was written, or take the partition offline."""
        try:
            act(*args)  # type: ignore[operator]
        except OSError as error:
            what = f"{self.active.file.path}: {error.strerror or error}"
            try:
                if cut is not None:
                    self.active.file.truncate(cut)
            except OSError as second:
                self.fail(f"{what}; and what was half written could not be cut off: {second}")
            if not self._refusing:
                self._refusing = True
                log.error(
                    "cannot write %s; clients get KAFKA_STORAGE_ERROR and retry%s",
                    what,
                    ": free some space to continue" if error.errno in DISK_FULL else "",
                )
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, what) from error
        if self._refusing:
            self._refusing = False
            log.warning("%s can be written again", self.active.file.path)

    def _begin_epoch(self) -> None:
        # Batches carry epochs, too, so they need not be durable; the first, not even written.
        if self.epochs.begin(self.leader_epoch, self.active.next_offset):
            is_first = len(self.epochs.entries) == 1
            self._epochs_unwritten = not is_first or len(self.segments) > 1 or self.active.size > 0
        if self._epochs_unwritten:
            path, data = f"{self.directory}/{EPOCHS_FILE}", self.epochs.encode()
            self._guarded(lambda: replace_file(self._files, path, data, durable=False))
            self._epochs_unwritten = False

    def begin_leader_epoch(self, epoch: int) -> None:
        """What is appended from now on belongs to this epoch.

        Appends are refused as long as the disk does not take the epoch's beginning.
        """
        if epoch > self.leader_epoch and not self.closed:
            self.leader_epoch = epoch
            with suppress(BrokerError):  # `_guarded` has logged it
                self._begin_epoch()

    def roll(self) -> None:
        """Seal the active segment and begin a new one at the end of the log."""
        old = self.active
        old.index.write()
        self._write_snapshot()
        self._rolling = True
        segment = Segment.create(
            self._files, self.directory, old.next_offset, self.config.index_interval_bytes
        )
        if self._durable:
            self._files.sync_dir(self.directory)
        self._rolling = False
        self.segments.append(segment)
        self._bases.append(segment.base_offset)
        self._index_used(old)
        if self.sealed is not None:
            self.sealed(old)

    def _write_snapshot(self) -> None:
        """Write what is known of producers, for the end of the log; a torn one is not believed."""
        end = self.active.next_offset
        path = f"{self.directory}/{file_name(end, SNAPSHOT_SUFFIX)}"
        replace_file(self._files, path, self.producers.encode(), durable=False)
        names = [n for n in self._files.list(self.directory) if n.endswith(SNAPSHOT_SUFFIX)]
        for name in names[:-_SNAPSHOTS_KEPT]:
            self._files.remove(f"{self.directory}/{name}")
        self.snapshot_at = end

    # -- reading

    def locate(self, offset: int, max_bytes: int, upto: Mark) -> Span | None:
        """The location of the batches from `offset` on, at most `max_bytes` unless one is larger.

        None when nothing is there yet. Raises BrokerError: OFFSET_OUT_OF_RANGE, storage errors.
        """
        self._require_online()
        if offset < self.log_start_offset or offset > self.active.next_offset:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {self.log_start_offset}..{self.high.offset}",
            )
        if offset >= upto.offset:
            return None
        for segment in self.segments_from(offset):
            header = segment.batch_at(offset)
            self._index_used(segment)
            if header is None:  # compaction took the rest of this segment
                continue
            limit = upto.position if segment is upto.segment else segment.size
            if header.position >= limit:
                return None
            end = segment.end_for(header.position, max_bytes, limit)
            return Span(segment, header.position, end)
        return None

    def aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions that have records within a range, by their first offset.

        Raises OSError, CorruptRecordError.
        """
        transactions: list[AbortedTransaction] = []
        for segment in self.segments_from(start):
            if not segment.index.has_aborted:
                continue
            entries = segment.index.aborted
            if entries is None:
                self._find_aborted()
                entries = segment.index.aborted or []
            self._index_used(segment)
            for entry in entries:
                if entry.last_offset >= start and entry.first_offset < end:
                    transactions.append(entry)
            if entries and entries[-1].stable_offset >= end:
                break
        return sorted(transactions, key=lambda entry: entry.first_offset)

    def _find_aborted(self) -> None:
        """Build the index of aborted transactions again, from every batch that is there."""
        producers = Producers()
        for segment in self.segments:
            segment.index.set_aborted([])
            for header, batch in segment.batches():
                marker = marker_of(batch) if header.is_control else None
                ended = producers.note(header, header.base_offset, 0, marker)
                if ended is not None:
                    note_ended(segment, producers, ended)
            if segment is not self.active:
                with suppress(OSError):  # a read needs no room on the disk
                    segment.index.write()  # else the next one builds it again

    def write_missing_indexes(self) -> None:
        """Write the indexes that found no room when the log was opened. Raises OSError."""
        while self.unindexed:
            segment = self.unindexed[0]
            if segment in self.segments:
                if segment.index.aborted is None:
                    self._find_aborted()
                segment.index.write()
            del self.unindexed[0]

    def _index_used(self, segment: Segment) -> None:
        if self.index_memory is not None and segment is not self.segments[-1]:
            self.index_memory.used(segment)

    def share_index_memory(self, memory: IndexMemory) -> None:
        """Let a node bound what the indexes of all its logs take."""
        self.index_memory = memory
        for segment in self.segments:
            self._index_used(segment)

    def segments_from(self, offset: int) -> list[Segment]:
        """The segments that can hold `offset` or a later one."""
        return self.segments[max(0, bisect_right(self._bases, offset) - 1) :]

    def batches(self, start: int = 0) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every stored batch from the segment on that holds `start`."""
        for segment in self.segments_from(start):
            yield from segment.batches()

    def offset_for_time(self, timestamp: int, upto: Mark) -> TimedOffset | None:
        """The first record, by offset, whose timestamp is not below the given one.

        Segments whose matching records are all deleted do not end the search (Apache Kafka's does).
        """
        self._require_online()
        start = self.log_start_offset
        for segment in self.segments_from(start):
            if segment.base_offset >= upto.offset:
                break
            largest = segment.max_timestamp
            self._index_used(segment)
            if largest < timestamp:
                continue
            limit = upto.position if segment is upto.segment else segment.size
            for header, batch in segment.batches_from_time(timestamp, start, limit):
                stamped = first_at_time(header, batch, timestamp, start)
                if stamped is not None:
                    return TimedOffset(stamped[0], stamped[1], self.epochs.at(stamped[0]))
        return None

    def max_timestamp(self, upto: Mark) -> TimedOffset | None:
        """The first record that has the largest timestamp of the log (KIP-734)."""
        largest = -1
        for segment in self.segments:
            if segment.next_offset > self.log_start_offset:
                largest = max(largest, segment.max_timestamp)
                self._index_used(segment)
        stamped = self.offset_for_time(largest, upto) if largest >= 0 else None
        if stamped is not None or largest < 0:
            return stamped
        # The largest lies below the log's start, or beyond what may be shown: look at the rest.
        for span in self._visible_batches(upto):
            if stamped is None or span.timestamp > stamped.timestamp:
                stamped = span
        return stamped

    def _visible_batches(self, upto: Mark) -> Iterator[TimedOffset]:
        start = self.log_start_offset
        for header, batch in self.batches(start):
            if header.base_offset >= upto.offset:
                return
            if header.last_offset < start:
                continue
            largest = header.max_timestamp
            if header.base_offset < start:  # its largest may be among the deleted ones
                largest = max((t for o, t in times_of(batch, start) if o >= start), default=-1)
            first = first_at_time(header, batch, largest, start)
            if first is not None:
                yield TimedOffset(first[0], first[1], self.epochs.at(first[0]))

    # -- the other end

    def delete_before(self, offset: int) -> None:
        """Nothing below `offset` is served any more; segments that lie wholly below it go."""
        self.log_start_offset = max(self.log_start_offset, offset)
        while len(self.segments) > 1 and self._bases[1] <= self.log_start_offset:
            self._drop_first()

    def _drop_first(self) -> None:
        segment = self.segments[0]
        self._guarded(segment.remove)  # else it stays, to go first the next time: no gap is left
        del self.segments[0], self._bases[0]
        self.drops += 1
        self._guarded(segment.index.remove)

    def apply_retention(self, now_ms: int) -> int:
        """Delete what is too old or too much, by the topic's configuration; returns segments."""
        if not self.config.delete or self.offline or self.pins:
            return 0
        count = self._drop_expired(now_ms)  # first, because a roll needs room on the disk
        retention_ms = self.config.retention_ms
        if retention_ms >= 0 and self.active.size > 0:
            newest = self.active.max_timestamp
            if newest >= 0 and now_ms - newest > retention_ms and self.stable == self.end:
                self._guarded(self.roll)
                count += self._drop_expired(now_ms)
        return count

    def _drop_expired(self, now_ms: int) -> int:
        config, count = self.config, 0
        excess = self.size - config.retention_bytes if config.retention_bytes >= 0 else 0
        stable = self.stable.offset
        while len(self.segments) > 1 and self._bases[1] <= stable:
            first = self.segments[0]
            old = 0 <= self._newest_of_first() < now_ms - config.retention_ms
            if not (config.retention_ms >= 0 and old) and excess < max(first.size, 1):
                break
            excess -= first.size
            self.log_start_offset = max(self.log_start_offset, self._bases[1])
            self._drop_first()
            count += 1
        return count

    def _newest_of_first(self) -> int:
        """The time of the first segment's newest batch. One without any is as old as the next:
        compaction may have emptied it, and those behind it must not stay because of that.
        """
        newest = -1
        for segment in self.segments:
            newest = segment.max_timestamp
            self._index_used(segment)
            if newest >= 0:
                break
        return newest

    def replace_segments(self, old: list[Segment], new: Segment) -> None:
        """Compaction has rewritten some sealed segments as one."""
        at = self.segments.index(old[0])
        self.segments[at : at + len(old)] = [new]
        self._bases = [s.base_offset for s in self.segments]

    def close(self, *, clean: bool) -> None:
        """Close the files; a clean close leaves an index and a snapshot for a fast start."""
        if self.closed:
            return
        self.closed = True
        if clean and not self.offline:
            try:
                self._leave_notes()
            except OSError as error:
                raise StorageError(f"{self.directory} could not be closed: {error}") from error
        for segment in self.segments:
            segment.file.close()

    def _leave_notes(self) -> None:
        """What saves the next start from reading the log; a short one is read as fast."""
        active = self.active
        whole = len(self.segments) == 1 and active.base_offset == 0
        if self._epochs_unwritten:
            path = f"{self.directory}/{EPOCHS_FILE}"
            replace_file(self._files, path, self.epochs.encode(), durable=self._durable)
        self.write_missing_indexes()
        if not active.index.on_disk and not active.index.is_short:
            active.index.write()
        if self.snapshot_at != active.next_offset and not (whole and active.index.is_short):
            self._write_snapshot()


def note_ended(segment: Segment, producers: Producers, ended: Completed) -> None:
    """The marker of a transaction is in `segment`; index it if it was aborted."""
    if ended.committed:
        return
    first_open = producers.first_open
    stable = ended.last_offset + 1 if first_open is None else first_open
    segment.index.add_aborted(
        AbortedTransaction(ended.producer_id, ended.first_offset, ended.last_offset, stable)
    )
