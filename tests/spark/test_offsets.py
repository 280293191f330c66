"""Offsets survive JSON, and tasks are a function of (start, end) alone."""

from __future__ import annotations

import itertools
import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.errors import DataLossError, ProtocolError
from kohort.spark.offsets import Position, Range, pack, ranges

partitions = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5))
counts = st.dictionaries(partitions, st.integers(0, 100_000), max_size=12)


def test_json_is_the_connectors_and_one_reserved_key() -> None:
    position = Position({("t", 1): 5, ("t", 0): 3}, {("t", 0): 3}, {"t": "id"}, 4)
    text = json.dumps(position.to_json())
    assert json.loads(text)["t"] == {"0": 3, "1": 5}
    assert Position.from_json(json.loads(text)) == position
    for bad in ({"t": 5}, {"t": {"x": 1}}, {"t": {"0": None}}, {"@": 1}):
        with pytest.raises(ProtocolError):
            Position.from_json(bad)


@settings(deadline=None)
@given(counts, counts, st.integers(1, 8), st.booleans(), st.none() | st.integers(500, 50_000))
def test_packing_covers_each_record_once(
    start: dict[tuple[str, int], int],
    more: dict[tuple[str, int], int],
    tasks: int,
    split: bool,
    max_records: int | None,
) -> None:
    """Every offset is in exactly one task, and without splitting each partition is in one."""
    end = {at: start.get(at, 0) + n for at, n in more.items()}
    begun = {at: start.get(at, 0) for at in end}
    spans = ranges(Position(begun), Position(end))
    packed = pack(spans, tasks, max_records=max_records, split=split)
    assert packed == pack(list(spans), tasks, max_records=max_records, split=split)
    pieces = sorted(p for task in packed for p in task)
    assert sum(p.size for p in pieces) == sum(more.values())
    for span in spans:
        mine = [p for p in pieces if p[:2] == span[:2]]
        assert mine[0].start == span.start
        assert mine[-1].end == span.end
        assert all(a.end == b.start for a, b in itertools.pairwise(mine))
        if not split:
            assert len(mine) == 1
    if split and max_records:
        assert all(p.size <= max_records for p in pieces)
    if not (split and max_records):
        assert len(packed) <= tasks
    assert pickle.loads(pickle.dumps(packed)) == packed


def test_a_few_records_are_one_task() -> None:
    """A second Python worker costs more than reading them."""
    few = [Range("t", p, 0, 5) for p in range(8)]
    assert len(pack(few, 4, max_records=None, split=True, least=500)) == 1
    more = [Range("t", 0, 0, 1_500)]
    assert [r[0].size for r in pack(more, 4, max_records=None, split=True, least=500)] == [500] * 3
    assert len(pack(few, 4, max_records=None, split=True)) == 4


def test_loads_are_even() -> None:
    spans = [Range("t", p, 0, 100) for p in range(6)]
    assert [len(task) for task in pack(spans, 2, max_records=None, split=False)] == [3, 3]
    big = [Range("t", 0, 0, 1000, "id", True)]
    cut = pack(big, 4, max_records=None, split=True)
    assert [[p.size for p in task] for task in cut] == [[250]] * 4
    assert [p.first for task in cut for p in task].count(True) == 1


def test_what_cannot_be_planned() -> None:
    with pytest.raises(DataLossError, match="created again"):
        ranges(Position({}, ids={"t": "1"}), Position({}, ids={"t": "2"}))
    with pytest.raises(DataLossError, match="go back"):
        ranges(Position({("t", 0): 5}), Position({("t", 0): 4}))


def test_a_new_partition_is_read_from_where_it_began() -> None:
    end = Position({("t", 0): 9, ("t", 1): 7}, began={("t", 0): 0, ("t", 1): 2})
    found = ranges(Position({("t", 0): 9}), end)
    assert found == [Range("t", 1, 2, 7, "", True)]


def test_no_task_has_more_records_than_asked_for() -> None:
    """Two pieces that fit each were one task."""
    spans = [Range("t", partition, 0, 60) for partition in range(3)]
    tasks = pack(spans, 1, max_records=100, split=True)
    assert [sum(span.size for span in task) for task in tasks] == [60, 60, 60]
