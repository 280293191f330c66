"""Completion tracking: every defect that others had, and the property over all interleavings."""

from __future__ import annotations

import random

import pytest

from kohort.processing.engine.snapshot import Snapshot, capacity, decode, encode
from kohort.processing.engine.tracker import PartitionTracker


def tracker(committed: int | None = 0, metadata: str = "", epoch: int = 1) -> PartitionTracker:
    return PartitionTracker(epoch, committed, metadata)


def test_committed_is_the_lowest_unfinished() -> None:
    """PC#62: not the highest done, and not one further."""
    t = tracker()
    assert t.polled([0, 1, 2, 3], 4) == [0, 1, 2, 3]
    t.complete(1, 2)
    assert t.snapshot().offset == 0
    t.complete(1, 0)
    assert t.snapshot().offset == 1
    t.complete(1, 1)
    assert t.snapshot().offset == 3
    t.complete(1, 3)
    assert t.snapshot()[:2] == (4, "")


def test_what_is_not_done_is_never_committed() -> None:
    """PC#826: offsets were committed because they had been seen."""
    t = tracker()
    t.polled(list(range(10)), 10)
    for offset in range(1, 10):
        t.complete(1, offset)
    offset, metadata, *_ = t.snapshot()
    assert offset == 0
    assert decode(0, metadata).done == ((1, 10),)


def test_done_beyond_the_commit_is_not_done_again() -> None:
    first = tracker()
    first.polled(list(range(6)), 6)
    first.complete_all(1, [1, 2, 4])
    offset, metadata, *_ = first.snapshot()
    second = tracker(offset, metadata)
    assert second.polled(list(range(6)), 6) == [0, 3, 5]
    assert second.duplicates == 3
    second.complete_all(1, [0, 3, 5])
    assert second.snapshot()[:2] == (6, "")


def test_restored_beyond_what_is_read_stays_told() -> None:
    """A second crash before the restored range was read again must not forget it."""
    t = tracker(0, encode(0, Snapshot(((5, 9),))))
    t.polled([0, 1], 2)
    t.complete(1, 1)
    offset, metadata, *_ = t.snapshot()
    assert (offset, decode(0, metadata).done) == (0, ((1, 2), (5, 9)))


def test_a_stale_completion_at_a_reused_offset_is_dropped() -> None:
    """PC#875: revoked and assigned again while a worker still held the old record."""
    t = tracker(epoch=2)
    t.polled([0, 1], 2)
    assert not t.complete(1, 0)
    assert t.complete_all(1, [0, 1]) == 0
    assert t.snapshot().offset == 0


def test_undecodable_metadata_means_nothing_is_done() -> None:
    """PC#909."""
    t = tracker(3, "\x01\x02")
    assert "not ours" in t.unreadable
    assert t.polled([3, 4], 5) == [3, 4]


def test_rewound_below_the_commit_everything_is_done_again() -> None:
    t = tracker(10, encode(10, Snapshot(((12, 20),))))
    assert t.polled(list(range(5, 15)), 15) == list(range(5, 15))
    assert t.snapshot().offset == 5


def test_compacted_away_below_and_between() -> None:
    """PC#409: tracked offsets that no record has any more must not hold the commit."""
    t = tracker(10, encode(10, Snapshot(((12, 14),))))
    assert t.polled([13, 15, 19], 25) == [15, 19]
    t.complete_all(1, [15, 19])
    assert t.snapshot()[:2] == (25, "")


def test_markers_at_the_end_are_passed() -> None:
    """PC#329: a partition that ends with a transaction marker reaches no lag."""
    t = tracker()
    t.polled([0, 1], 3)
    t.complete_all(1, [0, 1])
    assert t.snapshot().offset == 3
    t.polled([], 7)
    assert t.snapshot().offset == 7
    assert t.dirty


def test_only_markers_first() -> None:
    t = tracker(5)
    t.polled([], 9)
    assert t.snapshot().offset == 9
    assert t.polled([9], 10) == [9]


def test_dirty_until_exactly_this_version_is_committed() -> None:
    """PC#664: a completion between snapshot and acknowledgement must stay dirty."""
    t = tracker()
    t.polled([0, 1], 2)
    t.complete(1, 0)
    snapshot = t.snapshot()
    t.complete(1, 1)
    t.committed(snapshot.version)
    assert t.dirty
    t.committed(t.snapshot().version)
    assert not t.dirty


def test_no_commit_at_all_begins_where_the_first_record_is() -> None:
    t = tracker(None)
    t.polled([40, 41], 42)
    assert t.snapshot().offset == 40


def test_seek_forgets() -> None:
    t = tracker(0, encode(0, Snapshot(((5, 9),))))
    t.polled([0, 1], 2)
    t.seek(2, 6)
    assert not t.complete(1, 0)
    assert t.polled([6, 7], 8) == [6, 7]
    assert t.snapshot().offset == 6


def test_the_window_is_never_left() -> None:
    """W1, the never-drop bound: the payload of what may begin always fits."""
    t = tracker()
    window = capacity().offsets
    offsets = list(range(window * 2))
    t.polled(offsets, len(offsets))
    assert t.may_begin(window - 1)
    assert not t.may_begin(window)
    t.complete_all(1, [o for o in offsets[1:window] if o % 2])
    assert t.snapshot().metadata
    t.complete(1, 0)
    assert t.base == 2
    assert t.may_begin(window + 1)
    assert not t.may_begin(window + 2)


def test_few_unfinished_may_go_far_ahead() -> None:
    t = tracker()
    t.polled([0], 1)
    t.polled(list(range(1, 100_000, 1_000)), 100_000)
    assert t.may_begin(99_001)


def test_metadata_too_large_is_learnt() -> None:
    """OFFSET_METADATA_TOO_LARGE: a smaller window from then on, and nothing lost meanwhile."""
    t = tracker()
    t.polled(list(range(20_000)), 20_000)
    chance = random.Random(5)
    t.complete_all(1, [o for o in range(1, 20_000) if chance.random() < 0.5])
    long = t.snapshot().metadata
    t.metadata_too_large(len(long))
    assert len(t.snapshot().metadata) <= len(long) // 2
    assert t.snapshot().offset == 0
    assert not t.may_begin(19_999)
    t.guard(1, suspect=7)
    decoded = decode(0, t.snapshot().metadata)
    assert (decoded.crashes, decoded.suspect) == (1, 7), "the crash-loop guard's word always fits"


def test_the_answer_to_an_older_commit_takes_nothing_back() -> None:
    """PC#664: a commit before a rebalance passes the one that is still on its way."""
    t = tracker()
    t.complete_all(1, t.polled([0, 1, 2], 3)[:1])
    older = t.snapshot()
    t.complete(1, 1)
    newer = t.snapshot()
    t.committed(newer.version)
    t.committed(older.version)
    assert not t.dirty
    assert t.committed_version == newer.version


def test_the_guard_is_remembered_and_ends_with_its_record() -> None:
    t = tracker()
    t.polled([0, 1, 2], 3)
    t.guard(2, suspect=1)
    again = tracker(0, t.snapshot().metadata)
    assert (again.crashes, again.suspect) == (2, 1)
    t.complete_all(1, [0, 1])
    assert decode(2, t.snapshot().metadata).suspect == -1


class _Log:
    """A partition with holes, for the property below."""

    def __init__(self, chance: random.Random) -> None:
        self.size = chance.randint(1, 60)
        self.offsets = [o for o in range(self.size) if chance.random() < 0.8]

    def read(self, position: int, most: int) -> tuple[list[int], int]:
        found = [o for o in self.offsets if o >= position][:most]
        if len(found) < most:
            return found, self.size
        return found, found[-1] + 1


@pytest.mark.rows(60)
@pytest.mark.parametrize("seed", range(300))
def test_nothing_skipped_and_nothing_committed_is_repeated(seed: int) -> None:
    """Any interleaving of poll, complete, commit, crash and restore (W1, R1).

    No offset is skipped; none that was done before a successful snapshot is done again.
    """
    chance = random.Random(seed)
    log = _Log(chance)
    committed: tuple[int | None, str] = (0, "")
    protected: set[int] = set()
    done: set[int] = set()
    epoch = 0
    while committed[0] != log.size:
        epoch += 1
        t = PartitionTracker(epoch, *committed)
        position, open_now, in_this_life = t.base, list[int](), set[int]()
        last_life = epoch > 12
        for _ in range(10_000 if last_life else chance.randint(0, 60)):
            act = chance.random()
            if act < 0.3 and position < log.size:
                found, position = log.read(position, chance.randint(1, 9))
                wanted = t.polled(found, position)
                assert not protected.intersection(wanted), "done before a snapshot, and run again"
                open_now += wanted
            elif act < 0.7 and open_now:
                offset = open_now.pop(chance.randrange(len(open_now)))
                assert t.complete(epoch, offset)
                assert not t.complete(epoch, offset)
                done.add(offset)
                in_this_life.add(offset)
            elif act < 0.9:
                snapshot = t.snapshot()
                assert all(o in done for o in log.offsets if o < snapshot.offset), "skipped"
                done_ranges = decode(snapshot.offset, snapshot.metadata).done
                assert all(o in done for o in log.offsets for s, e in done_ranges if s <= o < e)
                if chance.random() < 0.7:
                    committed, protected = snapshot[:2], protected | in_this_life
                    t.committed(snapshot.version)
            if last_life and not open_now and position == log.size:
                committed = t.snapshot()[:2]
                break
    assert set(log.offsets) <= done
