"""The table of leaders, pure: who leads, in which epoch (spec L11, KIP-101)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.broker.state.leadership import NO_NODE, Change, Leadership
from kohort.errors import BrokerError, ErrorCode


def table(partitions: int = 6, nodes: tuple[int, ...] = (1, 2, 3)) -> Leadership:
    made = Leadership(nodes)
    made.add("t", partitions)
    return made


def leaders(made: Leadership) -> list[int]:
    return [led.leader for led in made.of("t")]


def test_leaders_spread_and_every_node_is_a_replica() -> None:
    made = table(9)
    assert Counter(leaders(made)) == {1: 3, 2: 3, 3: 3}
    assert all(sorted(led.replicas) == [1, 2, 3] for led in made.of("t"))
    assert all(led.replicas[0] == led.leader and led.epoch == 0 for led in made.of("t"))


def test_a_dead_nodes_partitions_spread_too() -> None:
    made = table(18)
    moved = made.failed(1)
    assert Counter(change.leader for change in moved) == {2: 3, 3: 3}


def test_topics_of_one_partition_begin_at_different_nodes() -> None:
    made = Leadership((1, 2, 3))
    for n in range(60):
        made.add(f"topic-{n}", 1)
    counts = Counter(made.at(f"topic-{n}", 0).leader for n in range(60))
    assert min(counts.values()) >= 10


def test_one_node_leads_everything_and_shares_one_entry() -> None:
    """What 10,000 partitions cost on one node is one entry."""
    made = table(10_000, (1,))
    assert len({id(led) for led in made.of("t")}) == 1
    assert made.at("t", 0) == (1, 0, (1,))


def test_a_failed_node_loses_what_it_led_and_each_change_is_an_epoch() -> None:
    made = table()
    mine = [p for p, leader in enumerate(leaders(made)) if leader == 2]
    changes = made.failed(2)
    assert [c.partition for c in changes] == mine
    assert all(c.before == 2 and c.leader in (1, 3) and c.epoch == 1 for c in changes)
    assert 2 not in leaders(made)


def test_nobody_leads_when_no_replica_lives_and_that_is_an_epoch_too() -> None:
    made = table(1)
    for node in made.at("t", 0).replicas:
        made.failed(node)
    assert made.at("t", 0)[:2] == (NO_NODE, 3)
    assert made.returned(2) == [Change("t", 0, 2, 4, NO_NODE)]


def test_a_node_that_returns_leads_again_only_when_asked() -> None:
    made = table()
    before = leaders(made)
    made.failed(1)
    after = leaders(made)
    assert made.returned(1) == []
    assert leaders(made) == after
    made.prefer()
    assert leaders(made) == before
    assert {led.epoch for led in made.of("t")} == {0, 2}
    assert made.prefer() == []


def test_preferred_leaders_of_some_partitions_alone() -> None:
    made = table()
    mine = [p for p, leader in enumerate(leaders(made)) if leader == 1]
    made.failed(1)
    made.returned(1)
    assert [change.partition for change in made.prefer([("t", mine[0])])] == mine[:1]


def test_a_move_goes_to_a_living_replica_or_nowhere() -> None:
    made = table(1)
    first, second, third = made.at("t", 0).replicas
    assert made.move("t", 0).leader == second
    assert made.move("t", 0, third) == Change("t", 0, third, 2, second)
    made.failed(first)
    with pytest.raises(BrokerError) as refused:
        made.move("t", 0, first)
    assert refused.value.code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert made.move("t", 0).leader == second
    with pytest.raises(BrokerError):
        made.move("t", 1)
    with pytest.raises(BrokerError):
        made.move("u", 0)


def test_fewer_replicas_than_nodes_are_all_that_may_lead() -> None:
    made = Leadership((1, 2, 3))
    made.add("t", 2, [[2], [3, 1]])
    assert leaders(made) == [2, 3]
    made.failed(3)
    made.failed(2)
    assert leaders(made) == [NO_NODE, 1]


def test_what_is_kept_comes_back_with_its_epoch() -> None:
    made = table()
    made.move("t", 0)
    made.move("t", 0)
    kept = made.unlike_new("t")
    again = Leadership((1, 2, 3))
    again.add("t", 6, kept=kept)
    assert list(again.of("t")) == list(made.of("t"))
    assert set(kept) == {0}


def test_a_kept_leader_that_is_no_more_gives_way_in_a_new_epoch() -> None:
    made = Leadership((1, 2))
    made.add("t", 1, kept={0: (3, 7)})
    assert made.at("t", 0).leader in (1, 2)
    assert made.at("t", 0).epoch == 8
    made.add("u", 1, kept={0: (NO_NODE, 4)})
    assert made.at("u", 0).epoch == 5


def test_growing_keeps_what_was_led() -> None:
    made = table(2)
    made.move("t", 0)
    before = list(made.of("t"))
    made.grow("t", 4)
    assert list(made.of("t"))[:2] == before
    assert len(made.of("t")) == 4
    made.shrink("t", 2)
    assert list(made.of("t")) == before


def test_a_recovered_log_may_have_gone_on_to_a_later_epoch() -> None:
    made = table(1)
    leader = made.at("t", 0).leader
    made.recovered("t", 0, 3)
    assert made.at("t", 0)[:2] == (leader, 3)
    made.recovered("t", 0, 1)
    assert made.at("t", 0).epoch == 3


EVENTS = st.lists(
    st.tuples(st.sampled_from(["fail", "return", "prefer", "move"]), st.integers(1, 3)),
    max_size=30,
)


@given(EVENTS)
def test_no_epoch_ever_has_two_leaders(events: list[tuple[str, int]]) -> None:
    """Spec L11, over any order of events; and the leader is always a living replica."""
    made = table(4)
    led_by = {(p, led.epoch): led.leader for p, led in enumerate(made.of("t"))}
    for what, node in events:
        before = list(made.of("t"))
        match what:
            case "fail":
                changes = made.failed(node)
            case "return":
                changes = made.returned(node)
            case "prefer":
                changes = made.prefer()
            case _:
                movable = made.alive & {1, 2, 3}
                changes = [made.move("t", node)] if movable else []
        for p, led in enumerate(made.of("t")):
            assert led_by.setdefault((p, led.epoch), led.leader) == led.leader
            assert led.epoch >= before[p].epoch
            assert led.leader in made.alive or (led.leader == NO_NODE and not made.alive)
        assert {c.partition for c in changes} == {
            p for p, led in enumerate(made.of("t")) if led != before[p]
        }
