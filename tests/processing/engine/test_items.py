"""Items and lanes, compiled and in Python: the same records in, the same order out (spec 4.12)."""

from __future__ import annotations

from collections import deque
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.processing.engine import items as pure
from kohort.processing.workers.handlers import Received
from kohort.records import Record
from kohort.retry.handling import RecordView
from tests.effort import examples

compiled = pytest.importorskip("kohort.processing.engine._items")
BOTH: tuple[ModuleType, ...] = (pure, compiled)


def made(kind: ModuleType, lanes: list[int | None]) -> list:
    place = SimpleNamespace(route="a")
    return [
        kind.Item(Record("t", 0, n, key=b"k", value=b"v"), place, lane)
        for n, lane in enumerate(lanes)
    ]


STEPS = st.lists(
    st.tuples(st.lists(st.sampled_from([None, 0, 1, 2]), max_size=8), st.integers(0, 6)), max_size=6
)


@given(STEPS, st.sets(st.integers(0, 2)))
@settings(max_examples=examples(150), deadline=None)
def test_lanes_go_on_in_the_same_order(steps, kept) -> None:
    """Records come in, some of the ready ones are worked on and leave; each step the same."""
    seen: list[list[object]] = []
    for kind in BOTH:
        lanes: dict = {}
        ready: deque = deque()
        results: list[object] = []
        held: set[int] = set()
        for added, number in steps:
            results.append(kind.enter_lanes(lanes, made(kind, added), ready))
            taken = [ready.popleft() for _ in range(min(number, len(ready)))]
            chained = [
                followers.popleft()
                for item in taken
                if item.lane is not None and (followers := lanes[item.lane])
            ]
            held |= kept & {item.lane for item in taken}
            results.append(kind.leave_lanes(lanes, [*taken, *chained], held, ready))
            results.append([item.offset for item in ready])
            results.append({lane: len(followers or ()) for lane, followers in lanes.items()})
        seen.append(results)
    assert seen[0] == seen[1]


@given(st.sets(st.integers(0, 2**40)), st.lists(st.integers(0, 2**40)))
@settings(max_examples=examples(100), deadline=None)
def test_what_is_done_is_taken_out_once(unfinished, offsets) -> None:
    """Also when it is said twice, or was never there (W1: a completion that is stale)."""
    offsets += list(unfinished)[:3]
    found = []
    for kind in BOTH:
        left = set(unfinished)
        found.append((kind.take_done(left, offsets), left))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", BOTH, ids=["pure", "compiled"])
def test_plain_calls_stop_where_something_is_to_be_said(kind) -> None:
    """At an error, at an output, at the first of another handler, and never pass a record."""
    items = made(kind, [None] * 6)
    items[5].partition = SimpleNamespace(route="b")
    shown: list[int] = []

    class View(kind.Shown, RecordView):
        __slots__ = ()

    def handle(record) -> None:
        assert (record.data, record.key, record.attempt, record.outputs) == (b"v", b"k", 0, None)
        assert record._lookups == "store"
        shown.append(record.offset)
        if record.offset == 1:
            raise ValueError("no")
        if record.offset == 3:
            record.outputs = ["sent"]

    at, view, error = kind.run_plain(items, 0, handle, View, "store")
    assert (at, view.offset, type(error)) == (1, 1, ValueError)
    at, view, error = kind.run_plain(items, 2, handle, View, "store")
    assert (at, view.offset, view.outputs, error) == (3, 3, ["sent"], None)
    assert kind.run_plain(items, 4, handle, View, "store") == (5, None, None)
    assert shown == [0, 1, 2, 3, 4]
    assert kind.run_plain(items, 5, lambda record: None, View, None) == (6, None, None)


@pytest.mark.parametrize("kind", BOTH, ids=["pure", "compiled"])
def test_what_ends_a_worker_is_not_taken_for_a_failure(kind) -> None:
    """SystemExit in a handler is the program's end, not the record's."""

    def leave(record) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        kind.run_plain(made(kind, [None]), 0, leave, Received, None)


@pytest.mark.parametrize("kind", BOTH, ids=["pure", "compiled"])
def test_partitions_of_a_list(kind) -> None:
    items = made(kind, [None, 1])
    assert kind.of_one_partition(items)
    items[1].partition = SimpleNamespace(route="a")
    assert not kind.of_one_partition(items)
