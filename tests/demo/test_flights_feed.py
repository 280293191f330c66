"""The feed: late means late on any machine, and a kill repeats or loses nothing."""

from __future__ import annotations

from kohort.demo.flights_data import Event, LateObservation, Year
from kohort.demo.flights_feed import MAX_LATENESS_MS, Feed, Produced


def event(partition: int, name: str) -> Event:
    return Event(partition, 0, name.encode(), name.encode())


FLIGHTS = [event(n % 2, f"f{n}") for n in range(6)]
WEATHER = [event(0, "w0"), event(0, "w1")]
LATE = [
    LateObservation(event(0, "late-a"), {0: 2, 1: 1}),
    LateObservation(event(0, "late-b"), {1: 3}),
    LateObservation(event(0, "wanted-by-nobody"), {}),
]
YEAR = Year(FLIGHTS, WEATHER, LATE)


def test_the_year_goes_out_in_months_each_with_its_weather() -> None:
    january, february = 0, 31 * 86_400_000
    year = Year(
        [Event(0, january, b"f0", b""), Event(0, february, b"f1", b"")],
        [Event(0, january, b"w0", b""), Event(0, february, b"w1", b"")],
        [],
    )
    feed = Feed(year, Produced())
    assert [([e.key for e in s.weather], [e.key for e in s.flights]) for s in feed.stages] == [
        ([b"w0"], [b"f0"]),
        ([b"w1"], [b"f1"]),
    ]
    assert feed.held == 0


def test_a_late_observation_waits_for_its_flights_and_then_for_its_own_delay() -> None:
    feed = Feed(YEAR, Produced())
    early = {e.key for e in feed.late({0: 2}, 0)}
    assert early <= {b"wanted-by-nobody"}
    feed.late({0: 2, 1: 1}, 1_000)
    came = {e.key for e in feed.late({0: 2, 1: 1}, 1_000 + MAX_LATENESS_MS)}
    assert b"late-a" in came
    assert b"late-b" not in came
    feed.late({0: 2, 1: 3}, 20_000)
    assert {e.key for e in feed.late({0: 2, 1: 3}, 20_000 + MAX_LATENESS_MS)} == {b"late-b"}
    assert feed.held == 0


def test_after_a_kill_it_goes_on_where_the_topics_end() -> None:
    feed = Feed(YEAR, Produced(flights={0: 2, 1: 3}, weather={b"w0", b"late-b"}))
    assert [stage.flights for stage in feed.stages] == [[FLIGHTS[4]]]
    assert [stage.weather for stage in feed.stages] == [[WEATHER[1]]]
    assert feed.held == 2
    everything = {0: 9, 1: 9}
    feed.late(everything, 0)
    came = {e.key for e in feed.late(everything, MAX_LATENESS_MS)}
    assert came <= {b"late-a", b"wanted-by-nobody"}
    assert feed.held == 0
