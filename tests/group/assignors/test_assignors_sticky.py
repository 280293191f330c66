"""The sticky assignors: spec 3.3 and 3.4, G14, B32, B33, B35, B36, against an exact solver."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.group.assignors import GroupView, MemberView, TopicView
from kohort.group.assignors.base import Assignor, checked
from kohort.group.assignors.racks import ReplicaRacks
from kohort.group.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from kohort.group.assignors.user_data import decode_previous, encode_previous
from tests.effort import examples
from tests.group.assignor_tools import best, counts, group, moves, owning, shown, worth

STICKY = CooperativeStickyAssignor()


def test_members_of_different_topics_as_the_spec_has_it() -> None:
    """Spec 3.3: five of six partitions stay where they are when C0 leaves."""
    view = group({"C0": "t0", "C1": "t0 t1", "C2": "t0 t1 t2"}, {"t0": 1, "t1": 2, "t2": 3})
    first = STICKY.assign(view)
    assert shown(first) == {"C0": "t0p0", "C1": "t1p0 t1p1", "C2": "t2p0 t2p1 t2p2"}
    rest = owning(view, first, without=["C0"])
    second = STICKY.assign(rest)
    assert shown(second) == {"C1": "t0p0 t1p0 t1p1", "C2": "t2p0 t2p1 t2p2"}
    assert moves(rest, second) == 0


def test_three_equal_members_as_the_spec_has_it() -> None:
    """Spec 3.3: C0 keeps three and gets one, C2 keeps two and gets two."""
    topics = {"t0": 2, "t1": 2, "t2": 2, "t3": 2}
    view = group(dict.fromkeys(["C0", "C1", "C2"], "t0 t1 t2 t3"), topics)
    first = STICKY.assign(view)
    assert shown(first) == {
        "C0": "t0p0 t1p1 t3p0",
        "C1": "t0p1 t2p0 t3p1",
        "C2": "t1p0 t2p1",
    }
    rest = owning(view, first, without=["C1"])
    second = STICKY.assign(rest)
    assert moves(rest, second) == 0
    assert counts(second) == {"C0": 4, "C2": 4}


def random_group(chance: random.Random, most: int, *, racks: bool = False) -> GroupView:
    """A small group with claims, some of them on topics that are gone or not subscribed."""
    everywhere = ["r0", "r1", "r2"] if racks else []
    topics = {f"t{k}": chance.randint(0, 3) for k in range(chance.randint(1, 3))}
    while sum(topics.values()) > most:
        topics.popitem()
    names = [*topics, "gone"]
    free = [(t, n) for t, size in topics.items() for n in range(size + 1)] + [("gone", 0)]
    chance.shuffle(free)
    members: dict[str, MemberView] = {}
    for k in range(chance.randint(1, 4)):
        subscribed = frozenset(name for name in names if chance.random() < 0.7)
        owned: dict[str, list[int]] = {}
        for _ in range(chance.choice([0, 0, 1, 2, 4, 6])):
            if free:
                topic, number = free.pop()
                owned.setdefault(topic, []).append(number)
        frozen = {t: tuple(sorted(numbers)) for t, numbers in owned.items()}
        rack = chance.choice([*everywhere, None])
        members[f"m{k}"] = MemberView(f"m{k}", subscribed, owned=frozen, generation=3, rack=rack)
    views: dict[str, TopicView] = {}
    for topic, size in topics.items():
        of_topic = [
            frozenset(chance.sample(everywhere, chance.choice([1, 1, 2]))) if racks else frozenset()
            for _ in range(size)
        ]
        if size:
            views[topic] = TopicView(size, tuple(of_topic))
    return GroupView(members, views)


@pytest.mark.rows(20)
@pytest.mark.parametrize("racks", [False, True], ids=["plain", "racks"])
@pytest.mark.parametrize("seed", range(40))
def test_is_as_good_as_trying_everything(seed: int, *, racks: bool) -> None:
    """Spec 3.4: nothing is better balanced, nothing as balanced is nearer (KIP-881), and nothing as
    near moves less (G14).
    """
    chance = random.Random(seed)
    for _ in range(12):
        view = random_group(chance, 7, racks=racks)
        plan = checked("sticky", STICKY.assign(view), view)
        claims = existing_claims(view)
        mine, possible = worth(claims, plan), best(claims)
        if not ReplicaRacks(view).matter:
            mine, possible = (mine[0], mine[2]), (best(without_racks(claims))[0::2])
        assert mine == possible, view


def without_racks(view: GroupView) -> GroupView:
    members = {m: replace(member, rack=None) for m, member in view.members.items()}
    return GroupView(members, view.topics)


def existing_claims(view: GroupView) -> GroupView:
    """The group with only those claims that are on existing partitions."""
    members = {
        m.member_id: replace(
            m,
            owned={
                t: tuple(n for n in numbers if n < view.topics[t].partitions)
                for t, numbers in m.owned.items()
                if t in view.topics
            },
        )
        for m in view.members.values()
    }
    return GroupView(members, view.topics)


@given(
    members=st.integers(1, 40),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    joins=st.integers(0, 10),
    seed=st.integers(0, 1 << 16),
)
@settings(max_examples=examples(60), deadline=None)
def test_equal_subscriptions(members: int, sizes: list[int], joins: int, seed: int) -> None:
    """G14: counts differ by at most one, only what must move does, whatever comes and goes."""
    chance = random.Random(seed)
    names = " ".join(f"t{k}" for k in range(len(sizes)))
    topics = {f"t{k}": size for k, size in enumerate(sizes)}
    view = group({f"m{k:02}": names for k in range(members)}, topics)
    plan = checked("sticky", STICKY.assign(view), view)
    gone = [m for m in view.members if chance.random() < 0.3][: members - 1]
    rest = owning(view, plan, without=gone)
    new = {f"n{k}": MemberView(f"n{k}", frozenset(names.split())) for k in range(joins)}
    view = GroupView({**rest.members, **new}, rest.topics)
    plan = checked("sticky", STICKY.assign(view), view)
    loads = counts(plan)
    assert max(loads.values()) - min(loads.values()) <= 1
    total, many = sum(sizes), len(view.members)
    had = [sum(map(len, m.owned.values())) for m in view.members.values()]
    floor, extra = divmod(total, many)
    needed = sum(max(0, h - floor) for h in had) - min(extra, sum(h > floor for h in had))
    assert moves(view, plan) == needed


@pytest.mark.parametrize("assignor", [StickyAssignor(), STICKY], ids=lambda a: a.name)
def test_the_order_of_members_and_topics_does_not_matter(assignor: Assignor) -> None:
    """G14: a plan depends on who is there, not on the order in which they are named."""
    view = random_group(random.Random(7), 9)
    expected = shown(assignor.assign(view))
    for seed in range(20):
        chance = random.Random(seed)
        members, topics = list(view.members.items()), list(view.topics.items())
        chance.shuffle(members)
        chance.shuffle(topics)
        assert shown(assignor.assign(GroupView(dict(members), dict(topics)))) == expected


def two(a: int, b: int, c: int | None = None) -> GroupView:
    """A and B both claim t0; A has room for nothing else. Generations a, b."""
    members = {
        "A": MemberView("A", frozenset("t"), owned={"t": (0, 1)}, generation=a),
        "B": MemberView("B", frozenset("t"), owned={"t": (0, 2)}, generation=b),
    }
    if c is not None:
        members["C"] = MemberView("C", frozenset("t"), owned={"t": (3,)}, generation=c)
    return GroupView(members, {"t": TopicView(4)})


def test_the_highest_generation_owned_it_last() -> None:
    """B32: P0 is claimed by A in generation 1 and by B in 2: B has it and keeps it."""
    plan = STICKY.assign(two(1, 2))
    assert 0 in plan.assignments["B"]["t"]
    assert plan.assignments["A"]["t"] == (1, 3)
    plan = STICKY.assign(two(5, 2))
    assert 0 in plan.assignments["A"]["t"]


def test_a_tie_drops_both_claims() -> None:
    """B33: one partition claimed twice in one generation is nobody's; the plan stays balanced."""
    plan = checked("sticky", STICKY.assign(two(2, 2)), two(2, 2))
    assert counts(plan) == {"A": 2, "B": 2}
    assert 1 in plan.assignments["A"]["t"]
    assert 2 in plan.assignments["B"]["t"]


def test_a_claim_of_an_older_generation_counts_where_nobody_else_claims() -> None:
    """A member that was away a generation keeps what was not given to others (KAFKA-14639)."""
    plan = STICKY.assign(two(1, 3, c=3))
    assert plan.assignments["A"]["t"] == (1,)
    assert plan.assignments["C"]["t"] == (3,)


def test_disjoint_groups_joining_one_by_one_come_to_an_end() -> None:
    """B35: 10 and 15 members on two disjoint topics, one after another; both balanced, at rest."""
    topics = {"a": TopicView(40), "b": TopicView(45)}
    members: dict[str, MemberView] = {}
    shares: list[int] = []
    for k in range(25):
        name = f"m{k:02}"
        members[name] = MemberView(name, frozenset("a" if k % 5 < 2 else "b"))
        view = GroupView(members, {t: v for t, v in topics.items() if t == "a" or k >= 2})
        plan = checked("sticky", STICKY.assign(view), view)
        settled = owning(view, plan, generation=k)
        assert STICKY.assign(settled).assignments == plan.assignments, "nothing moves any more"
        members = dict(settled.members)
        shares = sorted(counts(plan).values())
    assert shares == [3] * 15 + [4] * 10


def test_sticky_carries_its_past_in_user_data() -> None:
    """B36: `sticky` owns nothing when it joins; its user data says what it had, and when."""
    assignor = StickyAssignor()
    assert assignor.subscription(frozenset("t")) is None
    assignor.on_assignment({"t": (1, 3)}, None, 5)
    data = assignor.subscription(frozenset("t"))
    assert decode_previous(data) == ({"t": (1, 3)}, 5)
    members = {
        "A": MemberView("A", frozenset("t"), user_data=data),
        "B": MemberView("B", frozenset("t"), user_data=encode_previous({"t": (1, 2)}, 4)),
    }
    plan = StickyAssignor().assign(GroupView(members, {"t": TopicView(4)}))
    assert plan.assignments["A"]["t"] == (1, 3)


def test_many_members_with_different_subscriptions_end_in_time() -> None:
    """G14, no quadratic time: 200 members, 60 topics, each with a random half."""
    chance = random.Random(1)
    topics = {f"t{k}": TopicView(chance.randint(1, 60)) for k in range(60)}
    members = {
        f"m{k:03}": MemberView(f"m{k:03}", frozenset(t for t in topics if chance.random() < 0.5))
        for k in range(200)
    }
    view = GroupView(members, topics)
    plan = checked("sticky", STICKY.assign(view), view)
    loads = counts(plan)
    assert max(loads.values()) - min(loads.values()) <= 1
    rest = owning(view, plan, without=["m000", "m100"])
    again = checked("sticky", STICKY.assign(rest), rest)
    assert moves(rest, again) == 0
