"""`rack-aware` and `weighted`, and what holds for every assignor there is (spec 3.2, 3.4, G14)."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.errors import ConfigError
from kohort.group.assignors import (
    BUILT_IN,
    SERVER_SIDE,
    Assignor,
    GroupView,
    MemberView,
    Plan,
    RackAwareAssignor,
    TopicView,
    WeightedAssignor,
    make_assignors,
    make_server_assignors,
)
from kohort.group.assignors.base import checked, freeze
from kohort.group.assignors.rack_aware import LeaderRacks
from kohort.group.assignors.user_data import encode_previous
from kohort.group.assignors.weighted import weight_of
from tests.effort import examples
from tests.group.assignor_tools import (
    best,
    counts,
    group,
    moves,
    owning,
    shown,
    squares,
    strangers,
    worth,
)
from tests.group.assignors.test_assignors_sticky import existing_claims, random_group

EVERY = {**{f"client {n}": c for n, c in BUILT_IN.items()}, **SERVER_SIDE}
LEVEL = ["client sticky", "client cooperative-sticky", "client rack-aware", "client weighted"]
KEEPING = [*LEVEL, "uniform"]


# -- weighted --------------------------------------------------------------------------------------


def weighted(view: GroupView, weights: dict[str, int]) -> GroupView:
    """The group, each member saying its weight."""
    members = {
        m: replace(
            member,
            rack=None,
            user_data=WeightedAssignor(weights[m]).subscription(member.topics)
            if m in weights
            else None,
        )
        for m, member in view.members.items()
    }
    return GroupView(members, view.topics)


@pytest.mark.parametrize("seed", range(30))
def test_weighted_is_as_good_as_trying_everything(seed: int) -> None:
    """Nothing is better balanced by weight, and nothing as balanced moves less."""
    chance = random.Random(seed)
    for _ in range(10):
        view = random_group(chance, 7)
        weights = {m: chance.randint(1, 5) for m in view.members if chance.random() < 0.9}
        view = existing_claims(weighted(view, weights))
        plan = checked("weighted", WeightedAssignor().assign(view), view)
        assert worth(view, plan, weights) == best(view, weights), (view, weights)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.integers(0, 500))
@settings(max_examples=examples(60), deadline=None)
def test_weighted_loads_are_in_proportion(weights: list[int], partitions: int) -> None:
    """No member could have one more and be better off than the member that gave it."""
    names = {f"m{k:02}": weight for k, weight in enumerate(weights)}
    view = weighted(group(dict.fromkeys(names, "t"), {"t": partitions}), names)
    loads = counts(checked("weighted", WeightedAssignor().assign(view), view))
    worst = max((2 * load - 1) / names[m] for m, load in loads.items())
    assert worst <= min((2 * load + 1) / names[m] for m, load in loads.items())


def test_a_weight_of_four_gets_four_times_as_much() -> None:
    view = weighted(group(dict.fromkeys("abc", "t"), {"t": 12}), {"a": 4, "b": 1})
    plan = WeightedAssignor().assign(view)
    assert counts(plan) == {"a": 8, "b": 2, "c": 2}
    rest = owning(view, plan, without="c")
    again = WeightedAssignor().assign(weighted(rest, {"a": 4, "b": 1}))
    assert counts(again) == {"a": 10, "b": 2}
    assert moves(rest, again) == 0


def test_a_weight_that_cannot_be_read_is_one() -> None:
    encoded = WeightedAssignor(7).subscription(frozenset())
    assert encoded is not None
    for data, weight in [
        (encoded, 7),
        (None, 1),
        (b"", 1),
        (encoded[:-1], 1),
        (b"\1" + encoded[1:], 1),
    ]:
        assert weight_of(MemberView("m", frozenset(), user_data=data)) == weight
    assert weight_of(MemberView("m", frozenset(), user_data=b"\0\0\0\0\0")) == 1


def test_weights_by_name() -> None:
    [made] = make_assignors("weighted:4")
    assert isinstance(made, WeightedAssignor)
    assert made.weight == 4
    for text, complaint in [
        ("weighted:0", "from 1 to 1,000, not 0"),
        ("weighted:1001", "not 1001"),
        ("weighted:much", "'weighted:4', not 'much'"),
        ("range:4", "takes nothing behind a colon"),
    ]:
        with pytest.raises(ConfigError, match=complaint):
            make_assignors(text)


# -- rack-aware ------------------------------------------------------------------------------------


def unled(view: GroupView, plan: Plan) -> int:
    """Partitions whose member says a rack that their leader is not in."""
    return sum(
        rack is not None and view.topics[t].leader_racks[n] != rack
        for m, parts in plan.assignments.items()
        for rack in [view.members[m].rack]
        for t in parts
        for n in parts[t]
    )


@pytest.mark.parametrize("seed", range(20))
def test_rack_aware_is_as_good_as_trying_everything(seed: int) -> None:
    """Balance, then replicas in the rack, then leaders in the rack, then moves."""
    chance = random.Random(seed)
    for _ in range(8):
        view = random_group(chance, 6, racks=True)
        topics = {
            t: replace(v, leader_racks=tuple(chance.choice(sorted(racks)) for racks in v.racks))
            for t, v in view.topics.items()
        }
        view = existing_claims(GroupView(view.members, topics))
        if not LeaderRacks(view).matter:
            continue  # nobody is where anything is
        plan = checked("rack-aware", RackAwareAssignor().assign(view), view)
        everything = [rack_worth(view, each) for each in every_plan(view)]
        assert rack_worth(view, plan) == min(everything), view


def rack_worth(view: GroupView, plan: Plan) -> tuple[int, int, int, int]:
    return squares(counts(plan)), strangers(view, plan), unled(view, plan), moves(view, plan)


def every_plan(view: GroupView) -> list[Plan]:
    slots = [(t, n) for t, v in sorted(view.topics.items()) for n in range(v.partitions)]
    able = [[m for m, member in view.members.items() if t in member.topics] for t, _ in slots]
    kept = [(slot, who) for slot, who in zip(slots, able, strict=True) if who]
    plans: list[Plan] = []
    for choice in itertools.product(*(who for _, who in kept)):
        parts: dict[str, dict[str, list[int]]] = {m: {} for m in view.members}
        for ((topic, number), _), member_id in zip(kept, choice, strict=True):
            parts[member_id].setdefault(topic, []).append(number)
        plans.append(Plan(parts))
    return plans


def test_rack_aware_reads_from_leaders_next_door() -> None:
    """Every replica is everywhere, so that only leaders tell partitions apart."""
    racks = frozenset(["east", "west"])
    view = GroupView(
        {
            "a": MemberView("a", frozenset("t"), rack="west"),
            "b": MemberView("b", frozenset("t"), rack="east"),
        },
        {"t": TopicView(4, (racks,) * 4, leader_racks=("east", "east", "west", "west"))},
    )
    assert shown(RackAwareAssignor().assign(view)) == {"a": "tp2 tp3", "b": "tp0 tp1"}


# -- all of them -----------------------------------------------------------------------------------


def made(name: str) -> Assignor:
    return EVERY[name]()


def telling(name: str, view: GroupView) -> GroupView:
    """The group as an eager `sticky` is told of it: what members had is in their user data."""
    if name != "client sticky":
        return view
    members = {
        m: replace(each, owned={}, user_data=encode_previous(each.owned, each.generation))
        for m, each in view.members.items()
    }
    return GroupView(members, view.topics)


@pytest.mark.parametrize("name", EVERY)
@given(st.integers(0, 1 << 16))
@settings(max_examples=examples(30), deadline=None)
def test_a_plan_is_whole_and_depends_on_nothing_else(name: str, seed: int) -> None:
    """G2, G14: complete, nobody's twice, only subscribers; no order matters, nothing is kept."""
    chance = random.Random(seed)
    view = telling(name, random_group(chance, 30, racks=True))
    assignor = made(name)
    expected = shown(checked(name, assignor.assign(view), view))
    for _ in range(2):
        members, topics = list(view.members.items()), list(view.topics.items())
        chance.shuffle(members)
        chance.shuffle(topics)
        shuffled = GroupView(dict(members), dict(topics))
        assert shown(assignor.assign(shuffled)) == expected
        assert shown(made(name).assign(shuffled)) == expected


@pytest.mark.parametrize("name", [*KEEPING, "client roundrobin"])
@given(st.integers(1, 20), st.lists(st.integers(1, 20), min_size=1, max_size=5))
@settings(max_examples=examples(30), deadline=None)
def test_equal_subscriptions_differ_by_one_at_most(
    name: str, members: int, sizes: list[int]
) -> None:
    """G14."""
    topics = {f"t{k}": size for k, size in enumerate(sizes)}
    view = group({f"m{k:02}": " ".join(topics) for k in range(members)}, topics)
    loads = counts(made(name).assign(view)).values()
    assert max(loads) - min(loads) <= 1


@pytest.mark.parametrize("name", KEEPING)
@given(
    st.integers(2, 12),
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(0, 1 << 16),
)
@settings(max_examples=examples(30), deadline=None)
def test_only_what_must_move_moves(
    name: str, members: int, sizes: list[int], joins: int, seed: int
) -> None:
    """G14: with equal subscriptions a plan moves what is above the quotas and no more."""
    chance = random.Random(seed)
    topics = {f"t{k}": size for k, size in enumerate(sizes)}
    names = " ".join(topics)
    view = group({f"m{k:02}": names for k in range(members)}, topics)
    plan = made(name).assign(view)
    gone = chance.sample(sorted(view.members), chance.randint(0, members - 1))
    rest = owning(view, plan, without=gone)
    new = {f"n{k}": MemberView(f"n{k}", frozenset(topics)) for k in range(joins)}
    rest = GroupView({**rest.members, **new}, rest.topics)
    after = made(name).assign(telling(name, rest))
    floor, extra = divmod(sum(sizes), len(rest.members))
    had = [sum(map(len, m.owned.values())) for m in rest.members.values()]
    needed = sum(max(0, h - floor) for h in had) - min(extra, sum(h > floor for h in had))
    assert moves(rest, after) == needed


@pytest.mark.parametrize("name", KEEPING)
@given(st.integers(0, 1 << 16))
@settings(max_examples=examples(30), deadline=None)
def test_a_plan_that_was_carried_out_stays(name: str, seed: int) -> None:
    """G14: a rebalance for nothing moves nothing, whatever the subscriptions, racks and weights."""
    chance = random.Random(seed)
    view = random_group(chance, 40, racks=True)
    members = {
        m: replace(each, user_data=WeightedAssignor(chance.randint(1, 9)).subscription(each.topics))
        for m, each in view.members.items()
    }
    view = GroupView(members, view.topics)
    plan = made(name).assign(view if name != "client sticky" else telling(name, view))
    members = {
        m: replace(each, owned=freeze(plan.assignments.get(m, {})), generation=4)
        for m, each in members.items()
    }
    after = GroupView(members, view.topics)
    assert moves(after, made(name).assign(telling(name, after))) == 0


@pytest.mark.parametrize("name", KEEPING)
def test_a_tie_drops_both_claims(name: str) -> None:
    """B33, G14: what two claim in one generation is dealt as if nobody had it."""
    owned = {"t": (0, 1)}
    view = GroupView(
        {m: MemberView(m, frozenset("t"), owned=owned, generation=3) for m in "ab"},
        {"t": TopicView(4)},
    )
    nobody = GroupView({m: MemberView(m, frozenset("t")) for m in "ab"}, view.topics)
    assigned = made(name).assign(telling(name, view))
    assert shown(assigned) == shown(made(name).assign(telling(name, nobody)))


def test_names_on_either_side() -> None:
    assert [each.name for each in make_assignors(BUILT_IN)] == list(BUILT_IN)
    assert [each.name for each in make_server_assignors(SERVER_SIDE)] == list(SERVER_SIDE)


def test_one_of_ones_own_by_where_it_is() -> None:
    """`module:Class`, and what can be wrong with it."""
    [mine] = make_assignors("kohort.group.assignors.weighted:WeightedAssignor")
    assert isinstance(mine, WeightedAssignor)
    for text, complaint in [
        ("kohort.nowhere:Mine", "ModuleNotFoundError"),
        ("kohort.errors:Mine", "AttributeError"),
        ("kohort.errors:ConfigError", "is no Assignor but ConfigError"),
    ]:
        with pytest.raises(ConfigError, match=complaint):
            make_assignors(text)
