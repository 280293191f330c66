"""Spec 6.7: how much the next micro-batch takes, and from which topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import ConfigError
from kohort.spark.admission import (
    FIRST_RECORDS,
    Pace,
    aligned,
    limited,
    within_bytes,
)
from kohort.spark.options import parse_source
from kohort.spark.supervise import BATCH_RECORDS, BATCHES
from tests.spark.test_planner import T0, T1, Clock, FakePort, planner

partitions = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.integers(0, 4)), st.integers(0, 5_000), min_size=1
)


@given(partitions, st.integers(1, 10_000), st.none() | st.integers(0, 50))
def test_a_limit_starves_nobody_and_is_kept(
    sizes: dict[tuple[str, int], int], limit: int, floor: int | None
) -> None:
    """About the limit: each partition and each topic is rounded up, floors are always given."""
    end = limited(dict.fromkeys(sizes, 0), sizes, limit, floor=floor)
    total = sum(sizes.values())
    for at, size in sizes.items():
        assert 0 <= end[at] <= size
        if size and not floor:
            assert end[at] > 0
    if total > limit:
        topics = len({topic for topic, _ in sizes})
        assert sum(end.values()) <= limit + len(sizes) + topics + topics * (floor or 0)
        assert sum(end.values()) >= limit
    else:
        assert end == sizes


def test_one_topic_is_split_in_proportion_as_the_connector_does() -> None:
    sizes = {("t", 0): 100, ("t", 1): 300}
    assert limited(dict.fromkeys(sizes, 0), sizes, 40) == {("t", 0): 10, ("t", 1): 30}


def test_a_small_topic_is_not_dripped_out_beside_a_large_one() -> None:
    """41 rows of reference data beside 14,000 are there with the first batch."""
    sizes = {("teams", 0): 41, ("matches", 0): 7_000, ("matches", 1): 7_000}
    start = dict.fromkeys(sizes, 0)
    end = limited(start, sizes, 1_000)
    assert end["teams", 0] == 41
    assert 1_000 <= sum(end.values()) <= 1_003
    assert limited(start, sizes, 1_000, floor=10)["teams", 0] == 13, "its share, at least the floor"


def test_topics_of_a_higher_priority_go_first() -> None:
    sizes = {("low", 0): 500, ("high", 0): 500}
    start = dict.fromkeys(sizes, 0)
    end = limited(start, sizes, 400, floor=20, priorities={"high": 1})
    assert end == {("low", 0): 20, ("high", 0): 380}
    end = limited(start, sizes, 600, floor=20, priorities={"low": -1})
    assert end == {("low", 0): 100, ("high", 0): 500}, "what is left goes to the others"


def test_batches_become_as_long_as_wanted() -> None:
    """A source of 1,000 records a second, 5 s a batch: within a few batches 5,000."""
    pace, now = Pace(5_000), 0
    seen: list[int] = []
    for _ in range(8):
        pace.finished(now)
        seen.append(pace.limit)
        pace.planned(pace.limit, now)
        now += pace.limit
    assert seen[0] == FIRST_RECORDS
    assert seen[1:] == [5_000] * 7


def test_a_fast_query_grows_only_by_full_batches() -> None:
    pace = Pace(10_000)
    pace.planned(FIRST_RECORDS, 0)
    pace.finished(100)
    assert pace.limit == 2 * FIRST_RECORDS, "at most doubled"
    pace.planned(500, 200)
    pace.finished(300)
    assert pace.limit == 2 * FIRST_RECORDS, "a batch that was not full proves nothing"
    pace.planned(0, 300)
    pace.finished(60_000)
    assert pace.limit == 2 * FIRST_RECORDS, "nor does a trigger without records"


def test_the_planner_paces_its_batches() -> None:
    port, clock = FakePort({T0: [1] * 10**6, T1: []}), Clock()
    query = planner(port, clock, targetBatchDuration="1s")
    position = query.latest(query.initial())
    assert position.next[T0] == FIRST_RECORDS
    clock.now += 10_000
    assert query.latest(position).next[T0] == FIRST_RECORDS + FIRST_RECORDS // 10


def test_batches_of_a_pipeline_grow_and_a_slow_start_does_not_shrink_them() -> None:
    """The first batch starts Python processes, which says nothing about the next one."""
    port, clock = FakePort({T0: [1] * 10**6, T1: []}), Clock()
    query = planner(port, clock, **BATCHES)
    position = query.latest(query.initial())
    assert position.next[T0] == BATCH_RECORDS
    clock.now += 60_000
    position = query.latest(position)
    assert position.next[T0] == 2 * BATCH_RECORDS
    clock.now += 500
    position = query.latest(position)
    assert position.next[T0] == 4 * BATCH_RECORDS, "twice as many, as the batch took 500 ms"


def test_a_batch_has_about_so_many_bytes() -> None:
    """By the size of the records that are next, which is looked at once a minute."""
    port, clock = FakePort({T0: [1] * 900, T1: [1] * 100}, sizes={"t": 1_000}), Clock()
    query = planner(port, clock, maxBytesPerTrigger="100000")
    position = query.latest(query.initial())
    assert position.next == {T0: 90, T1: 10}
    query.latest(position)
    assert port.asked.count("bytes t") == 1
    clock.now += 60_000
    port.sizes["t"] = 10_000
    later = query.latest(position)
    assert sum(later.next.values()) - 100 == 10
    assert within_bytes({T0: 0}, {T0: 10}, {"t": 10.0}, 100) is None
    assert within_bytes({T0: 0}, {T0: 10}, {"t": 1e9}, 100) == 1, "a batch is never empty"


def test_a_batch_ends_at_one_point_in_time() -> None:
    """`alignWithin`: the slow partition's time bounds the others."""
    port = FakePort({T0: list(range(0, 100_000, 1_000)), T1: list(range(0, 100_000, 10_000))})
    query = planner(port, alignWithin="20s")
    first = query.latest(query.initial())
    assert first.next == {T0: 20, T1: 2}
    second = query.latest(first)
    assert second.next == {T0: 40, T1: 4}
    position = second
    for _ in range(3):
        position = query.latest(position)
    assert position.next == {T0: 100, T1: 10}
    assert query.latest(position) == position


def test_a_partition_that_is_read_up_holds_nobody_back() -> None:
    port = FakePort({T0: list(range(50)), T1: []})
    query = planner(port, alignWithin="1h")
    assert query.latest(query.initial()).next == {T0: 50, T1: 0}


def test_timestamps_out_of_order_never_stop_a_query() -> None:
    port = FakePort({T0: [90_000, 5, 5, 5, 5], T1: [7] * 3})
    query = planner(port, alignWithin="1s")
    position, seen = query.initial(), []
    for _ in range(6):
        position = query.latest(position)
        seen.append(sum(position.next.values()))
    assert seen[-1] == 8
    assert aligned({T0: 3}, {T0: 9}, {T0: 5}, {T0: 0}) == {T0: 9}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("topicPriorities", '{"t": "high"}', "topicPriorities"),
        ("topicFloor", "-1", "at least 0"),
        ("targetBatchDuration", "soon", "soon"),
    ],
)
def test_what_cannot_be_is_refused(option: str, value: str, message: str) -> None:
    options = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", option: value}
    with pytest.raises(ConfigError, match=message):
        parse_source(options, streaming=True)
