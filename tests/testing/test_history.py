"""The history checker: every kind of violation, planted, is found; what is allowed is not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from kohort.errors import KafkaTimeoutError
from kohort.testing import History
from kohort.testing.history_check import Kind
from kohort.testing.ranges import Ranges

T = ("orders", 0)


def sent(history: History, count: int, start: int = 0) -> None:
    for n in range(start, start + count):
        history.sent(*T, n, f"v{n}", time_ms=1)


def good(history: History) -> None:
    """`a` reads half and gives it up, `b` the rest; `a` read more than it committed."""
    sent(history, 10)
    history.assigned("a", [T], time_ms=10)
    history.read("a", *T, 0, 4, time_ms=11)
    history.committed("a", {T: 4}, time_ms=12)
    history.revoked("a", [T], time_ms=13)
    history.assigned("b", [T], time_ms=14)
    history.read("b", *T, 4, 9, time_ms=15)
    history.committed("b", {T: 10}, time_ms=16)


def test_a_good_history_has_nothing_wrong():
    """At least once: 4 was read twice, because nobody had committed it."""
    history = History()
    good(history)
    assert str(history.check(complete=True)) == "no violation in 17 acts"
    history.verify(complete=True)
    strict = History(exactly_once=True)
    good(strict)
    (only,) = strict.check().violations
    assert (only.kind, only.first, only.last, only.members) == (Kind.DUPLICATE, 4, 4, ("b",))


def lost_at_the_end(history: History) -> None:
    good(history)
    sent(history, 3, 10)


def lost_behind_a_commit(history: History) -> None:
    sent(history, 10)
    history.assigned("a", [T], time_ms=10)
    history.read("a", *T, 0, 3, time_ms=11)
    history.committed("b-without-assignment", {T: 8}, time_ms=12)


def lost_by_another_value(history: History) -> None:
    good(history)
    history.read("b", *T, 10, value="other", time_ms=17)
    history.sent(*T, 10, "v10", time_ms=2)


def duplicate_of_what_was_committed(history: History) -> None:
    good(history)
    history.revoked("b", [T], time_ms=20)
    history.assigned("a", [T], time_ms=21)
    history.read("a", *T, 8, 9, time_ms=22)


def duplicate_within_an_ownership(history: History) -> None:
    good(history)
    history.read("b", *T, 7, 8, time_ms=20)


def out_of_order(history: History) -> None:
    history.assigned("a", [T], time_ms=10)
    for offset in (0, 1, 3, 2):
        history.read("a", *T, offset, time_ms=11)


def skipped_within(history: History) -> None:
    sent(history, 10)
    history.assigned("a", [T], time_ms=10)
    history.read("a", *T, 0, 3, time_ms=11)
    history.read("a", *T, 6, 9, time_ms=12)


def skipped_by_the_next_owner(history: History) -> None:
    sent(history, 10)
    history.assigned("a", [T], time_ms=10)
    history.read("a", *T, 0, 3, time_ms=11)
    history.died("a", time_ms=12)
    history.assigned("b", [T], time_ms=13)
    history.read("b", *T, 6, 9, time_ms=14)


def commit_beyond(history: History) -> None:
    sent(history, 10)
    history.assigned("a", [T], time_ms=10)
    history.read("a", *T, 0, 3, time_ms=11)
    history.committed("a", {T: 6}, time_ms=12)


def commit_back(history: History) -> None:
    good(history)
    history.committed("b", {T: 7}, time_ms=20)


def two_owners(history: History) -> None:
    history.assigned("a", [T], time_ms=10)
    history.assigned("b", [T], time_ms=12)
    history.revoked("a", [T], time_ms=15)


def two_owners_for_ever(history: History) -> None:
    history.assigned("a", [T], time_ms=10)
    history.assigned("b", [T], time_ms=12)


def a_zombie_commits(history: History) -> None:
    history.assigned("a", [T], time_ms=10)
    history.read("a", *T, 0, 3, time_ms=11)
    history.assigned("b", [T], time_ms=12)
    history.committed("a", {T: 4}, time_ms=14)
    history.lost("a", [T], time_ms=15)


def read_after_it_was_revoked(history: History) -> None:
    good(history)
    history.read("a", *T, 5, time_ms=20)


PLANTED: dict[Callable[[History], None], tuple[Kind, int | None, int | None]] = {
    lost_at_the_end: (Kind.LOST, 10, 12),
    lost_behind_a_commit: (Kind.LOST, 4, 9),
    lost_by_another_value: (Kind.LOST, 10, 10),
    duplicate_of_what_was_committed: (Kind.DUPLICATE, 8, 9),
    duplicate_within_an_ownership: (Kind.DUPLICATE, 7, 8),
    out_of_order: (Kind.OUT_OF_ORDER, 2, 2),
    skipped_within: (Kind.SKIPPED, 4, 5),
    skipped_by_the_next_owner: (Kind.SKIPPED, 4, 5),
    commit_beyond: (Kind.COMMIT_BEYOND_POSITION, 4, 5),
    commit_back: (Kind.COMMIT_WENT_BACK, 7, 9),
    two_owners: (Kind.TWO_OWNERS, None, None),
    two_owners_for_ever: (Kind.TWO_OWNERS, None, None),
    a_zombie_commits: (Kind.TWO_OWNERS, 4, 4),
    read_after_it_was_revoked: (Kind.TWO_OWNERS, 5, 5),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_every_planted_defect_is_found(plant: Callable[[History], None]):
    history = History()
    plant(history)
    kind, first, last = PLANTED[plant]
    report = history.check(complete=True)
    found = [(v.kind, v.first, v.last) for v in report.of(kind)]
    assert (kind, first, last) in found, report
    with pytest.raises(AssertionError, match=f"{kind}: orders-0"):
        history.verify(complete=True)


def test_every_kind_has_a_plant():
    assert {kind for kind, _, _ in PLANTED.values()} == set(Kind)


def test_a_member_that_was_expelled_may_read_on_but_not_commit():
    for zombies, says in ((False, History.lost), (True, History.revoked)):
        history = History(zombies=zombies)
        history.assigned("a", [T], time_ms=10)
        history.read("a", *T, 0, 3, time_ms=11)
        history.assigned("b", [T], time_ms=12)
        history.read("b", *T, 0, 3, time_ms=13)
        history.read("a", *T, 4, 5, time_ms=14)
        says(history, "a", [T], time_ms=15)
        assert not history.check().violations


def test_a_killed_member_owns_nothing():
    """What it had not committed is read again; its last half line counts for nothing."""
    history = History()
    history.assigned("a", [T], time_ms=10)
    history.read("a", *T, 0, 3, time_ms=11)
    history.line("a", '{"timestamp":12,"name":"records_con')
    history.died("a", time_ms=13)
    history.assigned("b", [T], time_ms=14)
    history.read("b", *T, 0, 9, time_ms=15)
    assert not history.check().violations


def test_records_that_do_not_exist_are_not_missed():
    """Markers of transactions and compacted records leave gaps; a commit may go past them."""
    history = History()
    for offset in (0, 1, 5, 6):
        history.sent(*T, offset, time_ms=1)
    history.assigned("a", [T], time_ms=10)
    history.read("a", *T, 0, 1, time_ms=11)
    history.committed("a", {T: 5}, time_ms=12)
    history.read("a", *T, 5, 6, time_ms=13)
    history.verify(complete=True)


def test_an_operator_resets_the_group():
    history = History()
    good(history)
    history.revoked("b", [T], time_ms=20)
    history.moved("", *T, 2, time_ms=21)
    history.assigned("a", [T], time_ms=22)
    history.read("a", *T, 2, 9, time_ms=23)
    history.committed("a", {T: 10}, time_ms=24)
    history.verify(complete=True)


def test_the_events_of_kafkas_tools():
    """As Java's VerifiableProducer and VerifiableConsumer 4.3 print them, verbose."""
    part = {"topic": "orders", "partition": 0}
    lines = [
        ("p", {"name": "startup_complete"}),
        ("p", {"name": "producer_send_success", "key": None, "value": "0", "offset": 0, **part}),
        ("p", {"name": "producer_send_success", "key": None, "value": "1", "offset": 1, **part}),
        ("c", {"name": "partitions_assigned", "partitions": [part]}),
        ("c", {"name": "record_data", "key": None, "value": "0", "offset": 0, **part}),
        ("c", {"name": "record_data", "key": None, "value": "X", "offset": 1, **part}),
        (
            "c",
            {
                "name": "records_consumed",
                "count": 2,
                "partitions": [{**part, "count": 2, "minOffset": 0, "maxOffset": 1}],
            },
        ),
        ("c", {"name": "offsets_committed", "offsets": [{**part, "offset": 2}], "success": True}),
        (
            "c",
            {
                "name": "offsets_committed",
                "offsets": [{**part, "offset": 9}],
                "success": False,
                "error": "no",
            },
        ),
        ("c", {"name": "partitions_revoked", "partitions": [part]}),
        ("c", {"name": "shutdown_complete"}),
    ]
    history = History()
    for n, (member, event) in enumerate(lines):
        history.line(member, json.dumps({"timestamp": n, **event}))
    report = history.check(complete=True)
    assert [(v.kind, v.first) for v in report.violations] == [(Kind.LOST, 1)]
    assert "'1' was acknowledged, c read 'X'" in str(report)


def test_waiting_says_what_was_told():
    history = History()
    good(history)
    history.wait("committed", "a")
    history.wait_until_read(timeout_s=1)
    with pytest.raises(KafkaTimeoutError, match="committed a"):
        history.wait("committed", "a", count=2, timeout_s=0.01)


def test_ranges_are_sets():
    rng = random.Random(7)
    for _ in range(200):
        ranges, numbers = Ranges(), set[int]()
        for _ in range(rng.randrange(12)):
            start = rng.randrange(40)
            stop = start + rng.randrange(8)
            ranges.add(start, stop)
            numbers |= set(range(start, stop))
        assert {n for low, high in ranges for n in range(low, high)} == numbers
        low, high = sorted((rng.randrange(50), rng.randrange(50)))
        inside = {n for a, b in ranges.within(low, high) for n in range(a, b)}
        missing = {n for a, b in ranges.missing(low, high) for n in range(a, b)}
        assert (inside, missing) == (
            numbers & set(range(low, high)),
            set(range(low, high)) - numbers,
        )
        assert all((n in ranges) == (n in numbers) for n in range(50))


def test_from_the_first_read_on_unread_records_are_lost_everywhere() -> None:
    """With `from_start=False` nothing was ever called lost. What lies before is not judged."""
    history = History(from_start=False)
    sent(history, 10)
    history.assigned("a", [T], time_ms=10)
    history.read("a", *T, 3, 5, time_ms=11)
    history.committed("a", {T: 6}, time_ms=12)
    history.verify()
    (only,) = history.check(complete=True).violations
    assert (only.kind, only.first, only.last) == (Kind.LOST, 6, 9)
    history.read("a", *T, 6, 9, time_ms=13)
    history.verify(complete=True)
    sent(history, 5, 10)
    history.committed("z", {T: 12}, time_ms=14)
    assert [(v.first, v.last) for v in history.check().of(Kind.LOST)] == [(10, 11)]


def test_a_group_that_began_nowhere_lost_nothing() -> None:
    """With `from_start=False` nobody knows where it would have begun."""
    history = History(from_start=False)
    sent(history, 10)
    history.verify(complete=True)
