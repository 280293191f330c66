"""The books: what a partition without an owner, a zombie and split brain are."""

from __future__ import annotations

from kohort.simulator.history.ledger import Ownership


def nobody_is_fenced(member: int) -> bool:
    del member
    return False


def test_time_without_an_owner_is_added_up_over_partitions() -> None:
    """Two partitions for 100 ms, one for 50 ms: 250 partition-milliseconds."""
    own = Ownership({"t": 2}, nobody_is_fenced)
    own.take(1, {"t": (0,)}, 100)
    own.take(2, {"t": (1,)}, 150)
    own.advance(1_000)
    assert own.unowned_ms == 250
    assert own.settled
    assert own.changed_ms == 150


def test_two_owners_that_both_may_commit_are_split_brain() -> None:
    own = Ownership({"t": 1}, nobody_is_fenced)
    own.take(1, {"t": (0,)}, 0)
    own.take(2, {"t": (0,)}, 100)
    assert not own.settled
    own.drop_all(1, 130)
    own.advance(500)
    assert (own.split_ms, own.splits, own.overlap_ms, own.moved) == (30, 1, 0, 1)
    assert own.settled


def test_a_second_owner_beside_a_fenced_one_is_a_zombies_overlap() -> None:
    own = Ownership({"t": 1}, lambda member: member == 1)
    own.take(1, {"t": (0,)}, 0)
    own.take(2, {"t": (0,)}, 100)
    own.drop(1, {"t": (0,)}, 130)
    assert (own.split_ms, own.splits, own.overlap_ms, own.overlaps) == (0, 0, 30, 1)


def test_what_comes_back_to_its_owner_has_not_moved() -> None:
    own = Ownership({"t": 2}, nobody_is_fenced)
    own.take(1, {"t": (0, 1)}, 0)
    own.drop_all(1, 10)
    own.take(1, {"t": (0,)}, 20)
    own.take(2, {"t": (1,)}, 20)
    assert own.moved == 1
    assert own.unowned_ms == 20


def test_new_partitions_have_no_owner() -> None:
    own = Ownership({"t": 1, "u": 1}, nobody_is_fenced)
    own.take(1, {"t": (0,), "u": (0,)}, 0)
    own.grow("u", 3, 100)
    own.advance(110)
    assert (own.unowned, own.unowned_ms, own.peak()) == (2, 20, 2)
