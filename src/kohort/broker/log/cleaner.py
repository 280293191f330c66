"""Compaction: of the records with one key, the last one stays.

Rules:
- A pass learns the keys behind the end of the one before, as far as a bounded map reaches, and then
  rewrites from the log's start on up to there: only sealed segments below the last stable offset.
  Records keep their offsets, batches their base offset.
- The last batch of what is rewritten stays, if only as an empty header, so that a segment reaches
  up to the next one and recovery can tell a gap from a loss. So does the last batch of each
  producer that is still known: its sequence continues from there (as in Kafka).
- A tombstone stays for `delete.retention.ms` after the first pass that met it and took what was
  before it (KIP-534, `compacted_batch`).
- Nothing at or behind the first open transaction is looked at. Records of aborted transactions go,
  and never count as the last one of their key. A marker stays as long as any batch of its
  transaction does, and for `delete.retention.ms` after that: without it a scan would find the
  transaction open. So a rewritten segment needs no index of aborted transactions.
- The new file is complete and synced before it is renamed to `.swap`; that rename is the moment it
  counts, and from then on a crash finishes the swap (KAFKA-12520). With durability `os`, too: it
  takes the place of segments that are flushed, and the start believes sealed segments.
- A full disk, any other error or damage stops a pass before that rename, and nothing has changed.
- The work is done in steps, so that the node can serve between them. A pass ends where segments are
  deleted between two steps, and the next one begins again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from kohort.broker.log.compacted_batch import (
    Deletion,
    filtered,
    marker_with_horizon,
    records_of,
)
from kohort.broker.log.files import DISK_FULL, Buffer, Files, LogFile, replace_file
from kohort.broker.log.loading import CLEANED_SUFFIX, COMPACTED_MARKER, complete_swap, swap_name
from kohort.broker.log.log import PartitionLog
from kohort.broker.log.segment import Segment
from kohort.broker.log.txn_index import AbortedTransaction, marker_of
from kohort.errors import CorruptRecordError
from kohort.records import BatchHeader

KEY_BYTES_MAX = 64 << 20
"""Keys that are kept in memory for one pass; what is behind waits for the next one."""
DIRTY_RATIO = 0.5
"""As Kafka's min.cleanable.dirty.ratio: how much of it must be new before it is worth while."""
_STEP_BATCHES = 50
_KEY_OVERHEAD_BYTES = 120


class DiskFullError(Exception):
    """There is no room for the copy; the log is as it was."""


class SwapFailedError(Exception):
    """The copy counts, and could not take the place of its segments: the next start does that."""


class Kept(NamedTuple):
    """What a pass has found: the last offset of each key, and the segments that it has seen."""

    last_offsets: dict[bytes, int]
    segments: list[Segment]


def worth_cleaning(log: PartitionLog, cleaned_to: int) -> bool:
    """Whether enough has been sealed since the last pass, which ended at `cleaned_to`."""
    sealed = _sealed(log)
    total = sum(s.size for s in sealed)
    dirty = sum(s.size for s in _dirty(sealed, cleaned_to))
    return dirty > 0 and dirty >= total * DIRTY_RATIO


def clean(
    files: Files, log: PartitionLog, now_ms: int, *, durable: bool, cleaned_to: int = 0
) -> Generator[int, None, None]:
    """Compact a log, step by step. Each step yields the offset that is clean so far, at least.

    Below `cleaned_to`, where the last pass ended, no key is there twice.

    Ends early where segments are deleted meanwhile, or a reader needs them as they are. Raises
    SwapFailedError, and where the log is as it was: DiskFullError, OSError, CorruptRecordError.
    """
    drops = log.drops
    steps = _pass(files, log, now_ms, durable=durable, cleaned_to=cleaned_to)
    try:
        for done in steps:
            yield done
            if log.drops != drops or log.pins:
                steps.close()
                _remove_unfinished(files, log.directory)
                return
    except (OSError, CorruptRecordError):
        _remove_unfinished(files, log.directory)
        raise


def _remove_unfinished(files: Files, directory: str) -> None:
    with suppress(OSError):  # then it goes at the next start
        for name in files.list(directory):
            if name.endswith(CLEANED_SUFFIX):
                files.remove(f"{directory}/{name}")


def _pass(
    files: Files, log: PartitionLog, now_ms: int, *, durable: bool, cleaned_to: int
) -> Generator[int, None, None]:
    sealed = _sealed(log)
    deletion = Deletion(now_ms, log.config.delete_retention_ms)
    end = sealed[-1].next_offset if sealed else 0
    ended = _Ended(log, end, deletion)
    kept = Kept({}, [])
    dirty = _dirty(sealed, cleaned_to)
    for _ in _map_keys(dirty, kept, ended):
        yield 0
    if not kept.segments:
        return
    if COMPACTED_MARKER not in files.list(log.directory):
        marker = f"{log.directory}/{COMPACTED_MARKER}"
        with _needs_room(files, marker):
            replace_file(files, marker, b"", durable=durable)
    tidy = sealed[: len(sealed) - len(dirty)]
    for group in _groups(tidy + kept.segments, log.config.segment_bytes):
        path = f"{log.directory}/{group[0].base_offset:020d}.log{CLEANED_SUFFIX}"
        with _needs_room(files, path):
            rewriting = _Rewriting(files, log, group, path, kept.last_offsets, ended, deletion)
            try:
                for _ in rewriting.steps():
                    yield group[0].base_offset
                rewriting.finish(durable=durable)
            finally:
                rewriting.close()
        try:
            rewriting.swap(durable=durable)
        except (OSError, CorruptRecordError) as error:
            raise SwapFailedError(str(error)) from error
        yield group[-1].next_offset


@contextmanager
def _needs_room(files: Files, path: str) -> Generator[None]:
    """A file is made; on a full disk it is removed. Raises DiskFullError then."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        with suppress(OSError):
            files.remove(path)
        raise DiskFullError(error.strerror or str(error)) from error


def _sealed(log: PartitionLog) -> list[Segment]:
    """What may be rewritten."""
    stable = log.stable.offset
    return [s for s in log.segments[:-1] if s.next_offset <= stable]


def _dirty(sealed: list[Segment], cleaned_to: int) -> list[Segment]:
    """Those that no pass has seen, the last ones."""
    return [s for s in sealed if s.next_offset > cleaned_to]


class _Ended:
    """The transactions that a pass meets, all of which have ended, and who else writes."""

    def __init__(self, log: PartitionLog, end: int, deletion: Deletion) -> None:
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        for entry in log.aborted(log.segments[0].base_offset, end):
            self._aborted.setdefault(entry.producer_id, []).append(entry)
        self._last_batches = {
            (producer_id, producer.batches[-1].base_offset)
            for producer_id, producer in log.producers.items()
            if producer.batches
        }
        self._deletion = deletion
        self._has_batches: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch belongs to an aborted transaction."""
        if not header.is_transactional:
            return False
        return any(
            entry.first_offset <= header.base_offset <= entry.last_offset
            for entry in self._aborted.get(header.producer_id, ())
        )

    def is_last(self, header: BatchHeader) -> bool:
        """Whether a batch is the last one of its producer."""
        return (header.producer_id, header.base_offset) in self._last_batches

    def wrote(self, header: BatchHeader) -> None:
        """A batch, or what is left of it, stays."""
        if header.is_transactional:
            self._has_batches.add(header.producer_id)

    def kept(self, header: BatchHeader, batch: Buffer) -> Buffer | None:
        """What stays of a control batch; None: it goes."""
        if marker_of(batch) is None:
            return batch
        had_batches = header.producer_id in self._has_batches
        self._has_batches.discard(header.producer_id)
        if had_batches:
            return batch
        if header.delete_horizon_ms is None:
            return marker_with_horizon(header, batch, self._deletion.horizon_ms)
        return None if self._deletion.is_due(header) else batch


def _map_keys(dirty: list[Segment], kept: Kept, ended: _Ended) -> Iterator[None]:
    used = 0
    for segment in dirty:
        for count, (header, batch) in enumerate(segment.batches(), 1):
            if not header.is_control and not ended.is_aborted(header):
                for offset, key, _ in records_of(header, batch) or ():
                    if key is not None:
                        if key not in kept.last_offsets:
                            used += len(key) + _KEY_OVERHEAD_BYTES
                        kept.last_offsets[key] = offset
            # A segment that was only half seen is no harm: its keys are newer than those before it,
            # and it is not rewritten. One is seen whole, that there be progress.
            if used > KEY_BYTES_MAX and kept.segments:
                return
            if count % _STEP_BATCHES == 0:
                yield
        kept.segments.append(segment)


def _groups(segments: list[Segment], segment_bytes: int) -> list[list[Segment]]:
    """Neighbours that fit into one segment together."""
    groups: list[list[Segment]] = []
    size = 0
    for segment in segments:
        fits = groups and size + segment.size <= segment_bytes
        if fits and segment.next_offset - groups[-1][0].base_offset <= 0x7FFFFFFF:
            groups[-1].append(segment)
            size += segment.size
        else:
            groups.append([segment])
            size = segment.size
    return groups


class _Rewriting:
    """One group of segments on its way to be one segment."""

    def __init__(
        self,
        files: Files,
        log: PartitionLog,
        group: list[Segment],
        path: str,
        last_offsets: dict[bytes, int],
        ended: _Ended,
        deletion: Deletion,
    ) -> None:
        self._files = files
        self._log = log
        self._group = group
        self._last_offsets = last_offsets
        self._ended = ended
        self._deletion = deletion
        self._base, self._end = group[0].base_offset, group[-1].next_offset
        self._path = path
        self._file: LogFile = self._begin()

    def _begin(self) -> LogFile:
        if self._files.read_all(self._path) is not None:
            self._files.remove(self._path)
        return self._files.open(self._path, create=True)

    def steps(self) -> Iterator[None]:
        """Write the new file."""
        pending: tuple[BatchHeader, Buffer] | None = None
        count = 0
        for segment in self._group:
            for header, batch in segment.batches():
                if pending is not None:
                    self._write(*pending, last=False)
                pending = header, bytes(batch)
                count += 1
                if count % _STEP_BATCHES == 0:
                    yield
        if pending is not None:
            self._write(*pending, last=True)

    def _write(self, header: BatchHeader, batch: Buffer, *, last: bool) -> None:
        if header.is_control:
            marker = self._ended.kept(header, batch)
            if marker is not None or last:
                self._file.append([marker or batch])
            return
        stays = _none if self._ended.is_aborted(header) else self._stays
        keep_empty = last or self._ended.is_last(header)
        kept = filtered(header, batch, stays, self._deletion, keep_empty=keep_empty)
        if kept is not None:
            self._ended.wrote(header)
            self._file.append([kept])

    def _stays(self, offset: int, key: bytes | None) -> bool:
        return key is not None and self._last_offsets.get(key, offset) <= offset

    def close(self) -> None:
        """Close the file; a file that was not swapped in is removed at the next start."""
        self._file.close()

    def finish(self, *, durable: bool) -> None:
        """The new file is complete: from now on it counts."""
        if durable:
            self._file.sync()
        self._file.close()
        swap = f"{self._log.directory}/{swap_name(self._base, self._end)}"
        self._files.rename(self._path, swap)

    def swap(self, *, durable: bool) -> None:
        """Put the new file in the place of the old ones."""
        directory = self._log.directory
        if durable:
            self._files.sync_dir(directory)
        for segment in self._group:
            segment.file.close()
        complete_swap(self._files, directory, self._base, self._end)
        interval = self._log.config.index_interval_bytes
        path = f"{directory}/{self._base:020d}.log"
        new = Segment(self._files, directory, self._base, self._files.open(path), interval)
        new.next_offset = self._end
        try:
            new.index.write()
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            # it is built again from the segment
        self._log.replace_segments(self._group, new)


def _none(offset: int, key: bytes | None) -> bool:
    """Nothing of an aborted transaction stays."""
    return False
