"""Processes that die between two statements of their store: nothing is lost or booked twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from kohort.retry.sqlite import SqliteStore
from kohort.retry.store import Cursor
from kohort.simulator.system.plan import STORE_CRASH, SystemPlan, plan_of
from kohort.simulator.system.store_crash import stepping
from kohort.simulator.system.world import run

INSERT = "INSERT INTO t VALUES (1)"


class Dead(BaseException):
    """The process has died."""


class Countdown:
    """Dies at the `left`-th step, and at all after it."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self) -> None:
        self.left -= 1
        if self.left <= 0:
            raise Dead


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store = SqliteStore(f"sqlite:///{tmp_path / 's.db'}")
    with store.transaction() as cursor:
        cursor.execute("CREATE TABLE t (n INTEGER)")
    store.close()
    return tmp_path / "s.db"


def rows(path: Path) -> int:
    store = SqliteStore(f"sqlite:///{path}")
    count = store.query("SELECT COUNT(*) FROM t")[0][0]
    store.close()
    return int(count)


def test_a_death_at_each_step_leaves_all_or_nothing(path: Path) -> None:
    """SY13: and the store is free for others at once, whatever still refers to the connection."""
    kept = list[object]()
    found: list[int] = []
    for step in range(1, 20):
        store = SqliteStore(f"sqlite:///{path}")
        kept.append(store)
        before = rows(path)
        try:
            with stepping(Countdown(step)), store.transaction() as cursor:
                kept.append(cursor)
                insert(cursor)
                insert(cursor)
        except Dead:
            found.append(rows(path) - before)
        else:
            store.close()
            break
    assert sorted(set(found)) == [0, 2]
    assert found == sorted(found), "only the step behind the commit leaves the rows"
    assert found.count(2) == 1


def insert(cursor: Cursor) -> None:
    cursor.execute(INSERT)


@pytest.mark.parametrize("seed", range(1, 5))
def test_nothing_is_lost_or_booked_twice(seed: int) -> None:
    """SY13, spec E2."""
    plan = SystemPlan(
        seed, (("load", 1), ("book", 2)), (STORE_CRASH,), 10, 8_000, 1, 2, "classic", "fsync"
    )
    outcome = run(plan)
    assert not outcome.failed, outcome.what
    again = run(plan)
    assert (again.events, again.story) == (outcome.events, outcome.story), "a seed decides it all"


def test_the_fault_is_drawn_where_a_store_is_written() -> None:
    drawn = [plan_of(seed) for seed in range(200)]
    with_store = [plan for plan in drawn if ("book" in dict(plan.programs))]
    assert any(STORE_CRASH in plan.faults for plan in with_store)
    assert not any(STORE_CRASH in plan.faults for plan in drawn if plan not in with_store)
