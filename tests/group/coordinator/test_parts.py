"""The coordinator's small parts: timers, configuration, routing."""

from __future__ import annotations

import random

import pytest

from kohort.errors import ConfigError
from kohort.group.coordinator.state.config import GroupConfig
from kohort.group.coordinator.state.routing import coordinator_partition
from kohort.group.coordinator.state.timers import TimerKey, Timers


def key(name: str) -> TimerKey:
    return ("session", "g", name)


def test_timers_fire_in_order_and_once() -> None:
    timers = Timers()
    for name, at_ms in (("b", 5), ("a", 5), ("c", 3)):
        timers.arm(key(name), at_ms)
    assert timers.next_deadline() == 3
    assert timers.pop_due(2) is None
    assert [timers.pop_due(5) for _ in range(4)] == [key("c"), key("a"), key("b"), None]
    assert (timers.next_deadline(), len(timers)) == (None, 0)


def test_arming_again_replaces_and_cancelling_forgets() -> None:
    timers = Timers()
    timers.arm(key("later"), 10)
    timers.arm(key("later"), 20)
    timers.arm(key("sooner"), 30)
    timers.arm(key("sooner"), 15)
    timers.arm(key("gone"), 1)
    timers.cancel(key("gone"))
    timers.cancel(key("never"))
    assert (timers.next_deadline(), timers.deadline(key("later"))) == (15, 20)
    assert [timers.pop_due(99) for _ in range(3)] == [key("sooner"), key("later"), None]


def test_heap_is_made_anew_before_it_grows() -> None:
    """Deadlines that move to an earlier time leave entries behind; not for ever."""
    timers = Timers()
    for at_ms in range(10_000, 0, -1):
        timers.arm(key("a"), at_ms)
        assert len(timers._heap) <= 2 + 64
    assert [timers.pop_due(10_000), timers.pop_due(10_000)] == [key("a"), None]


@pytest.mark.parametrize("seed", range(5))
def test_timers_behave_like_a_dictionary(seed: int) -> None:
    """Against the obvious implementation; and the heap stays small whatever is re-armed."""
    rng, timers, model = random.Random(seed), Timers(), dict[TimerKey, int]()
    for now_ms in range(3_000):
        name = key(str(rng.randrange(8)))
        if rng.random() < 0.7:
            model[name] = now_ms + rng.randrange(100)
            timers.arm(name, model[name])
        elif rng.random() < 0.5:
            model.pop(name, None)
            timers.cancel(name)
        else:
            due = min(((at, k) for k, at in model.items() if at <= now_ms), default=None)
            assert timers.pop_due(now_ms) == (due[1] if due else None)
            if due:
                del model[due[1]]
        earliest, least = timers.earliest(), min(model.values(), default=None)
        assert least is None or (earliest is not None and earliest <= least)
        assert timers.next_deadline() == least
        assert len(timers._heap) <= 2 * len(model) + 64


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"group.min.session.timeout.ms": 2_000_000}, "greater than group_max_session"),
        ({"group.max.size": 0}, "at least 1"),
        ({"offsets.retention.minutes": -1}, "negative"),
        ({"offset.metadata.max.bytes": 10_000}, "8191"),
        ({"offsets.retention.check.interval.ms": 0}, "at least 1"),
        ({"group.max.sise": 5}, "did you mean 'group.max.size'"),
    ],
)
def test_refused_configuration(values: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GroupConfig.from_mapping(values)


def test_defaults_are_kafkas() -> None:
    config = GroupConfig()
    assert config.group_initial_rebalance_delay_ms == 3_000
    assert config.group_max_size == 2**31 - 1
    assert config.offsets_retention_ms == 7 * 86_400_000
    assert GroupConfig.from_mapping({"group.max.size": "7"}).group_max_size == 7


@pytest.mark.parametrize(
    ("group_id", "code"),
    [
        ("", 0),
        ("a", 97),
        ("group", 98629247),
        ("my-group", -1906497762),
        ("polygenelubricants", -(2**31)),  # abs of the smallest int is 0 here
        ("\N{GRINNING FACE}", 1772899),  # a surrogate pair: two UTF-16 units
    ],
)
def test_partition_of_a_group(group_id: str, code: int) -> None:
    """Spec 2.1: Java's String.hashCode."""
    expected = 0 if code == -(2**31) else abs(code)
    assert coordinator_partition(group_id, 2**31) == expected
    assert coordinator_partition(group_id, 50) == expected % 50
