"""The demonstration's data: what it counts to, and that it is the same at each call."""

from __future__ import annotations

import json
import zlib

import pytest

pytest.importorskip("pyarrow")

from kohort.demo import flights_data as data


def partition_of(key: bytes, partitions: int) -> int:
    return zlib.crc32(key) % partitions


@pytest.fixture(scope="module")
def year() -> data.Year:
    return data.load_year(partition_of)


@pytest.mark.extended
def test_the_year_holds_what_the_issue_counts(year: data.Year) -> None:
    assert len(year.flights) == 336_776
    assert len(year.weather) + len(year.late) == 26_115
    assert sum(event.key is None for event in year.flights) == 2_512


@pytest.mark.extended
def test_failures_to_come_are_the_expected_ones(year: data.Year) -> None:
    airports = set(data.read_table("airports")["faa"].to_pylist())
    hours = {e.key for e in year.weather} | {o.event.key for o in year.late}
    late_keys = {o.event.key for o in year.late}
    unknown = missing = late = 0
    for event in year.flights:
        flight = json.loads(event.value)
        hour = data.observation_key(flight["origin"], flight["time_hour"])
        if flight["dest"] not in airports:
            unknown += 1
        elif hour not in hours:
            missing += 1
        elif hour in late_keys:
            late += 1
    assert (unknown, missing) == (7_602, 1_500)
    assert 336_776 - unknown - missing == 327_674
    assert late > 0.05 * 327_674, "at least 5 % of the loaded flights must go through a retry"


@pytest.mark.extended
def test_flights_come_in_event_time(year: data.Year) -> None:
    times = [event.timestamp_ms for event in year.flights]
    assert times == sorted(times)


@pytest.mark.extended
def test_a_late_observation_waits_for_every_flight_that_wants_it(year: data.Year) -> None:
    last_offset: dict[bytes, dict[int, int]] = {}
    offsets = [0] * data.FLIGHT_PARTITIONS
    for event in year.flights:
        flight = json.loads(event.value)
        offsets[event.partition] += 1
        hour = data.observation_key(flight["origin"], flight["time_hour"])
        last_offset.setdefault(hour, {})[event.partition] = offsets[event.partition]
    for observation in year.late:
        assert observation.event.key is not None
        assert observation.wanted_by == last_offset.get(observation.event.key, {})


@pytest.mark.extended
def test_a_slice_is_the_beginning_of_the_year_and_the_same_each_time(year: data.Year) -> None:
    first, again = (data.load_year(partition_of, limit=2_000) for _ in range(2))
    assert first == again
    assert first.flights == year.flights[:2_000]
    assert first.weather == year.weather[: len(first.weather)]
    assert first.late


def test_rows_become_json_objects_with_every_value() -> None:
    rows = [
        {"name": 'say "hi"', "n": 1, "x": 0.1},
        {"name": "back\\slash", "n": None, "x": 26.06},
        {"name": None, "n": -7, "x": None},
        {"name": "Zürich", "n": 0, "x": 1e-7},
    ]
    table = data.pa.Table.from_pylist(rows)
    assert [json.loads(value) for value in data.json_values(table, ["name", "n", "x"])] == rows
    assert data.json_values(table, ["n"])[0] == b'{"n":1}'
