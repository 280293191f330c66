"""The compiled loops of the assignors and their twin in Python do the same."""

from __future__ import annotations

import importlib
from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.errors import DecodeError
from kohort.group.assignors import loops as twin
from kohort.group.assignors.loops import DISPUTED, FREE, STRANGE, TWICE
from tests.effort import examples

try:
    compiled: Any = importlib.import_module("kohort.group.assignors._loops")
except ModuleNotFoundError:
    pytest.skip("nothing was compiled", allow_module_level=True)

SPANS = {"a": (0, 3), "b": (3, 3), "c": (3, 10)}
MEMBERS = 4
rows = st.lists(st.sampled_from([DISPUTED, FREE, *range(MEMBERS)]), min_size=10, max_size=10).map(
    lambda values: array("i", values)
)
numbers = st.lists(st.integers(-2, 9), max_size=5)
parts = st.dictionaries(st.sampled_from("abcd"), numbers.map(tuple) | numbers, max_size=4)
stretches = st.sampled_from([[(0, 10)], [(0, 3), (3, 10)], [(1, 2), (5, 9)], []])
rooms = st.lists(st.integers(0, 4), min_size=MEMBERS, max_size=MEMBERS)


@given(rows, parts, st.none() | st.frozensets(st.sampled_from("abcd")))
def test_note(
    row: array[int], claimed_parts: dict[str, Any], topics: frozenset[str] | None
) -> None:
    mine, theirs = row[:], row[:]
    found = compiled.note(mine, SPANS, 2, claimed_parts, topics)
    assert found == twin.note(theirs, SPANS, 2, claimed_parts, topics)
    assert mine == theirs


def test_note_says_what_it_found() -> None:
    for loops in (compiled, twin):
        row = array("i", [FREE] * 10)
        assert loops.note(row, SPANS, 1, {"a": (0, 2), "b": ()}) == 0
        assert loops.note(row, SPANS, 0, {"a": (1, 2)}) == TWICE
        assert loops.note(row, SPANS, 0, {"a": (3,), "x": ()}) == STRANGE
        assert loops.note(row, SPANS, 0, {"c": (0,)}, frozenset("a")) == STRANGE
        assert row.tolist()[:4] == [1, 0, 1, FREE]
        with pytest.raises(TypeError):
            loops.note(row, SPANS, 0, {"c": ("0",)})


@given(rows, stretches, rooms)
def test_tally_keep_and_deal(row: array[int], some: list[tuple[int, int]], room: list[int]) -> None:
    seen: list[Any] = []
    for loops in (compiled, twin):
        mine, left, counts = row[:], array("i", room), array("i", [0] * MEMBERS)
        loops.tally(mine, some, counts)
        free, released = loops.keep(mine, some, left)
        kept = mine[:]
        loops.deal(mine, free, left, range(MEMBERS))
        seen.append((counts, free, released, kept, mine, left))
    assert seen[0] == seen[1]


@given(rows)
def test_hand_out(row: array[int]) -> None:
    seen: list[list[dict[str, Any]]] = []
    for loops in (compiled, twin):
        shares: list[dict[str, Any]] = [{} for _ in range(MEMBERS)]
        loops.hand_out(row, SPANS, shares)
        seen.append(shares)
    assert seen[0] == seen[1]
    assert all(type(tuples) is tuple for share in seen[0] for tuples in share.values())


@given(rows, st.integers(0, MEMBERS - 1), st.sets(st.integers(0, 6)))
def test_held(row: array[int], who: int, some: set[int]) -> None:
    wanted = {"a": range(2), "c": sorted(some)}
    mine, theirs = (loops.held(row, SPANS, who, wanted) for loops in (compiled, twin))
    assert {t: list(n) for t, n in mine.items()} == {t: list(n) for t, n in theirs.items()}
    assert (mine is wanted) == (theirs is wanted)


@given(
    st.lists(
        st.dictionaries(st.text(max_size=3), st.lists(st.integers(-5, 1 << 20), max_size=4)),
        max_size=4,
    )
)
def test_written_and_read(several: list[dict[str, list[int]]]) -> None:
    """The same bytes, and read back the same, whatever was read before."""
    writers = compiled.PartitionWriter(), twin.PartitionWriter()
    readers = compiled.PartitionReader(), twin.PartitionReader()
    for some in several:
        mine, theirs = (writer.write(some) for writer in writers)
        assert mine == theirs
        wanted = {topic: tuple(sorted(some[topic])) for topic in sorted(some) if some[topic]}
        for reader in readers:
            found, end = reader.read(b"xx" + mine, 2)
            assert (found, end) == (wanted, len(mine) + 2)
            assert list(found) == list(wanted)


SAMPLE = twin.PartitionWriter().write({"aa": [1, 0], "b": [7], "cä": [1, 2, 3]})


@settings(max_examples=examples(300))
@given(st.integers(0, len(SAMPLE)), st.integers(0, len(SAMPLE) - 1), st.integers(0, 255))
def test_damaged(cut: int, at: int, value: int) -> None:
    """Cut short or changed anywhere: the same answer, or DecodeError from both."""
    for data in (SAMPLE[:cut], SAMPLE[:at] + bytes([value]) + SAMPLE[at + 1 :]):
        mine, theirs = read(compiled, data), read(twin, data)
        assert mine == theirs


def read(loops: ModuleType | Any, data: bytes) -> Any:
    try:
        return loops.PartitionReader().read(data, 0)
    except DecodeError:
        return "damaged"
