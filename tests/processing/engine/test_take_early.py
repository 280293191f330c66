"""One record of a retry topic before its turn: a tracker that hands it out once (R2, issue 18)."""

from __future__ import annotations

import random

from kohort.processing.engine.snapshot import decode
from kohort.processing.engine.tracker import PartitionTracker
from kohort.retry.classify import Temporary, stated
from tests.processing.world import World, route


def test_what_is_done_early_is_noted_and_not_handed_out_again() -> None:
    """Beside the commit, though nothing below it was read."""
    tracker = PartitionTracker(1, 0)
    assert tracker.begin_early(3)
    assert not tracker.begin_early(3), "once"
    assert tracker.is_unfinished(3)
    assert tracker.complete_all(1, [3]) == 1
    assert not tracker.begin_early(3), "it is done"
    commit = tracker.snapshot()
    assert (commit.offset, decode(0, commit.metadata).done) == (0, ((3, 4),))
    assert tracker.polled(range(5), 5) == [0, 1, 2, 4]
    tracker.complete_all(1, [0, 1, 2, 4])
    assert tracker.snapshot().offset == 5
    heir = PartitionTracker(2, 0, commit.metadata)
    assert not heir.begin_early(3)
    assert heir.polled(range(5), 5) == [0, 1, 2, 4]


def test_what_is_under_way_when_its_turn_comes_holds_up_the_commit() -> None:
    tracker = PartitionTracker(1, 0)
    assert tracker.begin_early(1)
    assert tracker.polled(range(3), 3) == [0, 2]
    tracker.complete_all(1, [0, 2])
    assert tracker.snapshot().offset == 1
    assert tracker.commit_after([1]) is not None
    assert tracker.complete(1, 1)
    assert tracker.snapshot().offset == 3


def test_before_the_first_read_it_can_be_committed() -> None:
    """A retry topic is not read before something in it is due."""
    tracker = PartitionTracker(1, None)
    assert not tracker.known
    assert tracker.begin_early(2)
    tracker.complete_all(1, [2])
    assert tracker.known
    assert tracker.dirty


def test_records_are_taken_early_through_crashes_and_none_is_lost_or_done_twice() -> None:
    """Whatever is retried or dead-lettered by hand, every record ends once."""
    for seed in range(10):
        chance = random.Random(seed)

        def handler(record, attempt: int, chance: random.Random = chance) -> None:
            if attempt == 0 or chance.random() < 0.2:
                raise Temporary("down")

        world = World([route(retries="1h 1h")], handler, seed=seed, crash_guard=False)
        for n in range(40):
            world.produce("orders", n % 3, b"k%d" % (n % 5), b"%d" % n)
        world.settle()
        for _ in range(30):
            take_one(world, chance)
            world.live(chance, 3) if chance.random() < 0.3 else world.settle()
        world.run_out()
        failed = {r.value for r in world.failed()}
        ended = {r.origin for r in world.runs if r.ok}
        assert len(ended) + len(failed) >= 40, "at least once"
        assert {r.origin for r in world.runs} == {
            ("orders", n, o) for n in range(3) for o in range(14)
        } - {("orders", n, 13) for n in (1, 2)}


def take_one(world: World, chance: random.Random) -> None:
    """Some record of the retry topic, by hand."""
    names = [key for key in world.logs if ".retry.1h" in key[0] and world.logs[key]]
    if not names:
        return
    record = chance.choice(world.logs[chance.choice(names)])
    failure = stated("by_hand", permanent=True) if chance.random() < 0.3 else None
    world.engine.take_early(record, world.now_ms, failure)
