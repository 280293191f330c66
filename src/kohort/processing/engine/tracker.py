"""Which records of one partition are done, out of order, and what may be committed for it.

Rules (W1; each is a test):
- The committed offset is the lowest that is not done; the snapshot beside it has the offsets done
  beyond. Both come from one call, at one instant (never one without the other).
- A tracker lives for one assignment of its partition. A completion names the assignment it belongs
  to and is dropped when that has passed, so the same offset read again is not confused with it.
- What the snapshot of a former owner calls done is not handed out again. A first record below the
  committed offset means that the group was rewound: then everything is done again.
- Offsets that no record has (compaction, transaction markers) are passed over.
- Nothing is begun that the snapshot might not be able to tell (the never-drop window).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from kohort.processing.engine.items_choice import take_done
from kohort.processing.engine.snapshot import (
    MAX_CHARS,
    NO_SUSPECT,
    WIDE_SPAN,
    Range,
    Snapshot,
    SnapshotError,
    capacity,
    decode,
    encode,
)


class Commit(NamedTuple):
    """What to commit for a partition, and the version to report with `committed`."""

    offset: int
    metadata: str
    version: int
    epoch: int


class PartitionTracker:
    """Completion of one partition during one assignment (`epoch`).

    `committed` and `metadata` are the group's commit that the assignment starts from; `committed`
    is None when there is none, and then the first record read is where it starts. `unreadable`
    tells why the metadata was not believed, if it was not.
    """

    __slots__ = (
        "_early",
        "_first",
        "_incomplete",
        "_known",
        "_limit_chars",
        "_queue",
        "_restored",
        "_starts",
        "_window",
        "base",
        "committed_version",
        "crashes",
        "duplicates",
        "epoch",
        "highest_done",
        "next_fetch",
        "suspect",
        "unreadable",
        "version",
    )

    def __init__(self, epoch: int, committed: int | None, metadata: str = "") -> None:
        self.epoch = epoch
        self.base = self.next_fetch = committed or 0
        self.highest_done = -1
        self.duplicates = 0
        self.version = 0
        self.unreadable = ""
        self.committed_version = 0
        """What was true at this version, and at earlier ones, has been committed."""
        self._first = True
        self._known = committed is not None
        self._queue: deque[int] = deque()
        self._incomplete: set[int] = set()
        self._early: set[int] = set()
        """Handed out before they were read in turn (`begin_early`), and not done."""
        self._limit_chars = MAX_CHARS
        self._window = capacity()
        restored = Snapshot()
        if committed is not None:
            try:
                restored = decode(committed, metadata)
            except SnapshotError as error:
                self.unreadable = str(error)
        self.crashes, self.suspect = restored.crashes, restored.suspect
        self._restore(restored.done)

    # -- what it shows -------------------------------------------------------------------------

    @property
    def unfinished(self) -> int:
        """How many records were handed out and are not done."""
        return len(self._incomplete)

    @property
    def head(self) -> int | None:
        """The lowest offset that is not done among those handed out; None when all are."""
        return self._queue[0] if self._queue else None

    @property
    def dirty(self) -> bool:
        """True when there is more to commit than has been committed."""
        return self.version != self.committed_version

    @property
    def known(self) -> bool:
        """Whether there is an offset to commit: not before a first read without any commit."""
        return self._known or not self._first

    def is_unfinished(self, offset: int) -> bool:
        """Whether this offset was handed out and is not done."""
        return offset in self._incomplete or offset in self._early

    def was_done(self, offset: int) -> bool:
        """Whether this was done before it was read in turn: by a former owner, or early."""
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._restored[at][1]

    def is_set_back(self, offset: int) -> bool:
        """Whether a read that starts at `offset` goes back behind what was read before."""
        return not self._first and offset < self.next_fetch

    def may_begin(self, offset: int) -> bool:
        """Whether the snapshot can include `offset` as done, regardless of the records below it."""
        ahead = offset - self.base
        if ahead < self._window.offsets:
            return True
        few = len(self._incomplete) + len(self._restored) <= self._window.runs
        return few and ahead < WIDE_SPAN

    # -- what happens --------------------------------------------------------------------------

    def polled(self, offsets: Sequence[int], next_fetch: int) -> list[int]:
        """Records have been read, in log order; those that are still to be done.

        `next_fetch` is where the next read starts: past markers and compacted offsets.
        """
        if self._first and (offsets or next_fetch != self.base):
            self._begin_at(offsets[0] if offsets else next_fetch)
        if self._restored or (offsets and offsets[0] < self.base):
            to_do = self._not_restored(offsets)
        else:
            to_do = list(offsets)
        self._queue.extend(to_do)
        self._incomplete.update(to_do)
        self.next_fetch = max(next_fetch, self.next_fetch)
        self._retire()
        if self._early:  # they are under way, and hold up the commit from now on
            to_do = [offset for offset in to_do if offset not in self._early]
            self._early = {offset for offset in self._early if offset >= next_fetch}
        return to_do

    def begin_early(self, offset: int) -> bool:
        """A record is handed out before the records below it are read.

        When it is done, the snapshot says so, and it is not handed out again. False: it was handed
        out before, it is done, or the snapshot could not say so.
        """
        passed = offset < self.next_fetch and not self._first
        if passed or offset < self.base or self.was_done(offset) or self.is_unfinished(offset):
            return False
        if not self.may_begin(offset):
            return False
        self._known = True  # or what is done early could not be committed before the first read
        self._early.add(offset)
        return True

    def complete(self, epoch: int, offset: int) -> bool:
        """One record is done (handled, or its copy is safe). False: stale, or known already."""
        if epoch == self.epoch and offset in self._early:
            self._complete_early({offset})
            return True
        if epoch != self.epoch or offset not in self._incomplete:
            return False
        self._incomplete.discard(offset)
        if offset > self.highest_done:
            self.highest_done = offset
        self.version += 1
        if self._queue[0] == offset or self._queue[0] not in self._incomplete:
            self._retire()
        return True

    def complete_all(self, epoch: int, offsets: Collection[int]) -> int:
        """Several records are done; how many that was news of."""
        if epoch != self.epoch:
            return 0
        if self._early and (early := self._early.intersection(offsets)):
            self._complete_early(early)
            return len(early) + self.complete_all(epoch, offsets)
        newly_done, highest = take_done(self._incomplete, offsets)
        if newly_done:
            self.highest_done = max(self.highest_done, highest)
            self.version += newly_done
            self._retire()
        return newly_done

    def seek(self, epoch: int, offset: int) -> None:
        """The reader was moved: forget everything, a new epoch begins at `offset`."""
        self.epoch = epoch
        self._queue.clear()
        self._incomplete.clear()
        self._early.clear()
        self._restore(())
        self.base = self.next_fetch = offset
        self.highest_done = -1
        self._first = True
        self.version += 1

    def guard(self, crashes: int, suspect: int = NO_SUSPECT) -> None:
        """Set what the crash-loop guard wants remembered beside the next commit."""
        if (crashes, suspect) != (self.crashes, self.suspect):
            self.crashes, self.suspect = crashes, suspect
            self.version += 1

    # -- committing ----------------------------------------------------------------------------

    def snapshot(self) -> Commit:
        """What to commit now: offset and metadata of one instant."""
        snapshot = self._snapshot()
        try:
            text = encode(self.base, snapshot, self._limit_chars)
        except SnapshotError:
            # Only after the limit was learnt to be smaller than what had been begun under the old
            # one: a crash now repeats what is done beyond the offset, and loses nothing.
            text = encode(self.base, Snapshot((), snapshot.crashes, snapshot.suspect))
        return Commit(self.base, text, self.version, self.epoch)

    def _snapshot(self) -> Snapshot:
        """The snapshot to be committed beside the offset."""
        suspect = self.suspect if self.suspect >= self.base else NO_SUSPECT
        return Snapshot(tuple(self._done_ranges()), self.crashes, suspect)

    def commit_after(self, done: Collection[int]) -> Commit | None:
        """The snapshot as it will be when these are done too; nothing is done by it.

        None when it would be too long (see `metadata_too_large`): then these have to wait for what
        is before them.

        For a transaction with what they have caused: `complete_all` them when it is through.
        """
        twin = PartitionTracker(self.epoch, None)
        twin.base, twin.next_fetch, twin.highest_done = (
            self.base,
            self.next_fetch,
            self.highest_done,
        )
        twin.version, twin.crashes, twin.suspect = self.version, self.crashes, self.suspect
        twin._queue, twin._incomplete = self._queue.copy(), self._incomplete.copy()
        twin._early = self._early.copy()
        twin._restore(self._restored)
        twin.complete_all(self.epoch, done)
        try:
            encode(twin.base, twin._snapshot(), self._limit_chars)
        except SnapshotError:
            return None
        return twin.snapshot()

    def committed(self, version: int) -> None:
        """The snapshot of `version` is committed."""
        self.committed_version = max(self.committed_version, version)

    def metadata_too_large(self, chars: int) -> None:
        """The broker refused metadata of `chars` characters: stay below half of that from now."""
        self._limit_chars = max(64, min(self._limit_chars, chars) // 2)
        self._window = capacity(self._limit_chars)
        self.version += 1

    # -- inside --------------------------------------------------------------------------------

    def _complete_early(self, early: set[int]) -> None:
        self._early -= early
        self._restore(_union(self._restored, [(offset, offset + 1) for offset in early]))
        self.version += len(early)

    def _restore(self, done: Sequence[Range]) -> None:
        self._restored = list(done)
        self._starts = [start for start, _ in done]

    def _begin_at(self, first: int) -> None:
        """The first read decides: below the committed offset the group was rewound, and all is done
        again; above it there was nothing (left) to be read.
        """
        self._first = False
        if first < self.base:
            self._restore(())
            self.next_fetch = first  # or all up to the old one would count as read
        if first != self.base:
            self.base = first
            self.version += 1
            self._restore([(max(s, first), e) for s, e in self._restored if e > first])

    def _not_restored(self, offsets: Sequence[int]) -> list[int]:
        to_do: list[int] = []
        for offset in offsets:
            # The base may have passed a restored range before that range was read.
            if offset < self.base or self.was_done(offset):
                self.duplicates += 1
            else:
                to_do.append(offset)
        return to_do

    def _retire(self) -> None:
        queue, incomplete = self._queue, self._incomplete
        while queue and queue[0] not in incomplete:
            queue.popleft()
        base = queue[0] if queue else self._past_restored(self.next_fetch)
        if base > self.base:
            self.base = base
            self.version += 1
            self._forget_restored(base)

    def _past_restored(self, offset: int) -> int:
        for start, end in self._restored:
            if start <= offset < end:
                offset = end
        return offset

    def _forget_restored(self, base: int) -> None:
        if self._restored and self._restored[0][1] <= base:
            self._restore([(s, e) for s, e in self._restored if e > base])

    def _done_ranges(self) -> list[Range]:
        """Done offsets from the base on: those read and not unfinished, and the restored ones."""
        ranges: list[Range] = []
        end_read = min(self.next_fetch, self.highest_done + 1)
        at, incomplete = self.base, self._incomplete
        for offset in self._queue:
            if offset >= end_read:
                break
            if offset in incomplete:
                if offset > at:
                    ranges.append((at, offset))
                at = offset + 1
        if at < end_read:
            ranges.append((at, end_read))
        return _union(ranges, self._restored) if self._restored else ranges


def _union(some: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """Both lists of ranges as one, ascending and apart."""
    ranges: list[Range] = []
    for start, end in sorted([*some, *others]):
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
        else:
            ranges.append((start, end))
    return ranges
