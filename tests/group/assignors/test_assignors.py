"""`range`, `roundrobin`, names, the checks on a user's own assignor, edges of the protocol."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.errors import ConfigError, DecodeError
from kohort.group.assignors import (
    Assignor,
    AssignorError,
    GroupView,
    MemberView,
    Plan,
    TopicView,
    make_assignors,
)
from kohort.group.assignors.base import checked, freeze, subtract
from kohort.group.assignors.claims import Claim
from kohort.group.assignors.protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kohort.group.assignors.range import RangeAssignor
from kohort.group.assignors.roundrobin import RoundRobinAssignor
from kohort.group.assignors.user_data import decode_generation, decode_previous, encode_previous
from kohort.group.member.leader_plan import changed_topics, hold_back, make_plan, read_members
from kohort.wire.messages.join_group_response import JoinGroupResponseMember
from tests.effort import examples
from tests.group.assignor_tools import counts, group, owning, shown

RANGE, ROUNDROBIN = RangeAssignor(), RoundRobinAssignor()
BOTH = dict.fromkeys(["C0", "C1"], "t0 t1")


# -- spec 3.3 --------------------------------------------------------------------------------------


def test_range_of_four_and_of_three() -> None:
    """Spec 3.3."""
    assert shown(RANGE.assign(group(BOTH, {"t0": 4, "t1": 4}))) == {
        "C0": "t0p0 t0p1 t1p0 t1p1",
        "C1": "t0p2 t0p3 t1p2 t1p3",
    }
    assert shown(RANGE.assign(group(BOTH, {"t0": 3, "t1": 3}))) == {
        "C0": "t0p0 t0p1 t1p0 t1p1",
        "C1": "t0p2 t1p2",
    }


def test_range_with_more_members_than_partitions() -> None:
    """Spec 3.3: 7 partitions, 8 members: one gets none."""
    plan = RANGE.assign(group({f"C{k}": "t" for k in range(8)}, {"t": 7}))
    assert sorted(counts(plan).values()) == [0, 1, 1, 1, 1, 1, 1, 1]
    assert counts(plan)["C7"] == 0


def test_roundrobin_of_three() -> None:
    """Spec 3.3."""
    assert shown(ROUNDROBIN.assign(group(BOTH, {"t0": 3, "t1": 3}))) == {
        "C0": "t0p0 t0p2 t1p1",
        "C1": "t0p1 t1p0 t1p2",
    }


def test_roundrobin_where_subscriptions_differ() -> None:
    """Spec 3.3: unbalanced, and it moves what need not move; that is why there is `sticky`."""
    view = group({"C0": "t0", "C1": "t0 t1", "C2": "t0 t1 t2"}, {"t0": 1, "t1": 2, "t2": 3})
    first = ROUNDROBIN.assign(view)
    assert shown(first) == {"C0": "t0p0", "C1": "t1p0", "C2": "t1p1 t2p0 t2p1 t2p2"}
    assert shown(ROUNDROBIN.assign(owning(view, first, without=["C0"]))) == {
        "C1": "t0p0 t1p1",
        "C2": "t1p0 t2p0 t2p1 t2p2",
    }


def test_roundrobin_after_a_member_left() -> None:
    """Spec 3.3, the comparison to `sticky`."""
    topics = {"t0": 2, "t1": 2, "t2": 2, "t3": 2}
    view = group(dict.fromkeys(["C0", "C2"], "t0 t1 t2 t3"), topics)
    assert shown(ROUNDROBIN.assign(view)) == {
        "C0": "t0p0 t1p0 t2p0 t3p0",
        "C2": "t0p1 t1p1 t2p1 t3p1",
    }


def test_static_members_come_first_by_instance_id() -> None:
    """Kafka's order of members: what a static member gets survives its new member id."""
    members = {
        "z": MemberView("z", frozenset("t"), instance_id="a"),
        "a": MemberView("a", frozenset("t")),
        "b": MemberView("b", frozenset("t"), instance_id="b"),
    }
    plan = RANGE.assign(GroupView(members, {"t": TopicView(3)}))
    assert shown(plan) == {"z": "tp0", "b": "tp1", "a": "tp2"}


def test_range_puts_partitions_where_their_replicas_are() -> None:
    """KIP-881: the counts stay those of `range`, the racks match where they can."""
    racks = tuple(frozenset([rack]) for rack in ("b", "a", "b", "a"))
    members = {
        m: MemberView(m, frozenset("t"), rack=rack) for m, rack in (("m0", "a"), ("m1", "b"))
    }
    plan = RANGE.assign(GroupView(members, {"t": TopicView(4, racks)}))
    assert shown(plan) == {"m0": "tp1 tp3", "m1": "tp0 tp2"}


def test_a_member_that_says_an_empty_rack_says_none() -> None:
    """librdkafka writes `client.rack=""` by default; Java counts it as no rack."""
    racks = tuple(frozenset([rack]) for rack in ("b", "a", "b", "a"))
    members = {
        m: decode_subscription(m, encode_subscription(frozenset("t"), None, {}, -1, rack))
        for m, rack in (("m0", ""), ("m1", "a"))
    }
    assert [member.rack for member in members.values()] == [None, "a"]
    plan = RANGE.assign(GroupView(members, {"t": TopicView(4, racks)}))
    assert shown(plan) == {"m0": "tp0 tp1", "m1": "tp2 tp3"}


def test_topics_of_one_size_are_matched_together_where_another_topic_needs_racks() -> None:
    """As in Java, where one topic that needs racks has every pair of topics matched."""
    both, alone = frozenset("ab"), frozenset("a")
    members = {
        m: MemberView(m, frozenset("xyz"), rack=rack)
        for m, rack in (("c1", "a"), ("c2", "c"), ("c3", "b"))
    }
    topics = {
        "x": TopicView(6, (both,) * 6),
        "y": TopicView(6, (both,) * 6),
        "z": TopicView(3, (alone, both, both)),
    }
    plan = RANGE.assign(GroupView(members, topics)).assignments
    for topic in ("x", "y"):
        assert {m: list(plan[m][topic]) for m in members} == {
            "c1": [0, 1],
            "c2": [4, 5],
            "c3": [2, 3],
        }
    del topics["y"]  # one that is alone, and needs no racks, is divided as ever
    plan = RANGE.assign(GroupView(members, topics)).assignments
    assert {m: list(plan[m]["x"]) for m in members} == {"c1": [0, 1], "c2": [2, 3], "c3": [4, 5]}


# -- properties ------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    members=st.integers(1, 6),
    seed=st.integers(0, 999),
)
@settings(max_examples=examples(80), deadline=None)
@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_every_plan_is_whole_and_independent_of_order(
    name: str, sizes: list[int], members: int, seed: int
) -> None:
    """G2, G14: each partition once, to a subscriber; the same from any order of the input."""
    chance = random.Random(seed)
    topics = {f"t{k}": size for k, size in enumerate(sizes)}
    wishes = {f"m{k}": " ".join(t for t in topics if chance.random() < 0.7) for k in range(members)}
    view = group(wishes, topics)
    [assignor] = make_assignors(name)
    plan = checked(name, assignor.assign(view), view)
    ids = list(wishes)
    chance.shuffle(ids)
    again = group({m: wishes[m] for m in ids}, dict(reversed(topics.items())))
    assert shown(assignor.assign(again)) == shown(plan)


def test_roundrobin_deals_as_one_by_one() -> None:
    """The strides are the same deal as handing out partition after partition."""
    for seed in range(60):
        chance = random.Random(seed)
        topics = {f"t{k}": chance.randint(0, 5) for k in range(4)}
        wishes = {f"m{k}": " ".join(t for t in topics if chance.random() < 0.6) for k in range(5)}
        view = group(wishes, topics)
        order = [member.member_id for member in view.in_order()]
        expected: dict[str, list[str]] = {m: [] for m in order}
        turn = 0
        for topic, size in sorted(topics.items()):
            if not any(topic in wishes[m].split() for m in order):
                continue
            for number in range(size):
                while topic not in wishes[order[turn]].split():
                    turn = (turn + 1) % len(order)
                expected[order[turn]].append(f"{topic}p{number}")
                turn = (turn + 1) % len(order)
        assert shown(ROUNDROBIN.assign(view)) == {m: " ".join(p) for m, p in expected.items()}


# -- names -----------------------------------------------------------------------------------------


def test_names() -> None:
    """Spec 3.1: several, in order of preference; each consumer gets objects of its own."""
    first, second = make_assignors("range, cooperative-sticky")
    assert (first.name, second.name) == ("range", "cooperative-sticky")
    assert (first.cooperative, second.cooperative) == (False, True)
    assert make_assignors("sticky")[0] is not make_assignors("sticky")[0]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("rang", "did you mean 'range'"),
        ("zzz", "known: range, roundrobin, sticky, cooperative-sticky"),
        ("range,range", "named twice: range, range"),
        ([], "no assignor is named"),
        ([Assignor()], "has no name"),
    ],
)
def test_names_that_cannot_be_used(names: str | Sequence[str | Assignor], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_assignors(names)


# -- a user's own ----------------------------------------------------------------------------------


class Fixed(Assignor):
    """Gives whatever plan it was made with."""

    name = "fixed"

    def __init__(self, plan: Mapping[str, Mapping[str, Sequence[int]]]) -> None:
        self.plan = plan

    def assign(self, group: GroupView) -> Plan:
        return Plan(self.plan)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"a": {"t": [0, 1]}, "x": {}}, "assigns to 'x', who is not a member"),
        ({"a": {"t": [0, 1]}, "b": {"t": [1]}}, "'t' partition 1 is given twice, to a, b"),
        ({"a": {"t": [0, 1, 0]}}, "'t' partition 0 is given twice, to a"),
        ({"a": {"t": [0]}}, r"nobody gets 't' partitions \[1\]"),
        ({}, r"nobody gets 't' partitions \[0, 1\]"),
        ({"a": {"t": [0, 1, 2]}}, r"'a' gets 't' partition 2; it has partitions 0\.\.1"),
        ({"a": {"t": [0, 1, -1]}}, "'a' gets 't' partition -1"),
        ({"a": {"t": [0, 1]}, "c": {"t": []}, "b": {"u": [0]}}, "'b' gets 'u' and does not subs"),
        ({"a": {"t": [0, 1], "none": [0]}}, "'a' gets partitions of 'none': no such topic"),
    ],
)
def test_a_plan_that_breaks_the_contract(
    plan: Mapping[str, Mapping[str, Sequence[int]]], message: str
) -> None:
    """G2: complete, no double owner, only subscribed topics, only known partitions."""
    view = group({"a": "t none", "b": "t", "c": ""}, {"t": 2, "u": 1})
    with pytest.raises(AssignorError, match=message):
        make_plan(Fixed(plan), view)


def test_an_assignor_that_raises_is_named() -> None:
    class Broken(Assignor):
        name = "broken"

        def assign(self, group: GroupView) -> Plan:
            raise ZeroDivisionError("by nothing")

    with pytest.raises(AssignorError, match="'broken' failed with ZeroDivisionError: by nothing"):
        make_plan(Broken(), group({"a": "t"}, {"t": 1}))
    with pytest.raises(AssignorError, match="does not define assign"):
        make_plan(type("Empty", (Assignor,), {"name": "e"})(), group({"a": "t"}, {"t": 1}))


def test_topics_that_nobody_subscribes_to_need_no_owner() -> None:
    plan = Plan({"a": {"t": range(2)}})
    assert checked("x", plan, group({"a": "t"}, {"t": 2, "u": 3})) is plan


# -- cooperative phase one -------------------------------------------------------------------------


def held(plan: Mapping[str, Sequence[int]], *claims: Claim) -> dict[str, str]:
    target = Plan({m: {"t": numbers} for m, numbers in plan.items()})
    return shown(hold_back(target, claims, {"t": TopicView(4)}))


def test_what_another_owns_is_held_back() -> None:
    """KIP-429: B gets 1 only after A has given it up; what nobody owned goes out at once."""
    got = held({"A": [0], "B": [1, 2]}, Claim("A", {"t": (0, 1)}, 3), Claim("B", {}, -1))
    assert got == {"A": "tp0", "B": "tp2"}


def test_what_is_disputed_goes_to_its_last_owner_alone() -> None:
    """B32: B had P0 in generation 2, A in 1; only B may have it now, not A, not C."""
    claims = Claim("A", {"t": (0,)}, 1), Claim("B", {"t": (0,)}, 2), Claim("C", {}, 2)
    assert held({"A": [], "B": [0], "C": []}, *claims)["B"] == "tp0"
    assert held({"A": [0], "B": [], "C": []}, *claims)["A"] == ""
    assert held({"A": [], "B": [], "C": [0]}, *claims)["C"] == ""


def test_what_two_claim_in_one_generation_goes_to_nobody_yet() -> None:
    """B33: both must give it up before anybody may have it."""
    claims = Claim("A", {"t": (0,)}, 2), Claim("B", {"t": (0,)}, 2), Claim("C", {}, 2)
    for who in "ABC":
        assert held({m: [0] if m == who else [] for m in "ABC"}, *claims)[who] == ""


# -- bytes -----------------------------------------------------------------------------------------


def test_a_newer_version_is_read_as_the_newest_known() -> None:
    """Spec 3.1: fields of a version to come are ignored, as Java does."""
    data = encode_subscription(["t"], b"x", {"t": (1,)}, 4, "r")
    newer = (9).to_bytes(2, "big") + data[2:] + b"what is to come"
    assert decode_subscription("m", newer) == decode_subscription("m", data)
    data = encode_assignment({"t": [1]}, b"u")
    assert decode_assignment((9).to_bytes(2, "big") + data[2:] + b"?") == ({"t": (1,)}, b"u")


@pytest.mark.parametrize(
    "data", [b"\x00", b"\xff\xff\x00", b"\x00\x03\x7f\xff\xff\xff", b"\x00\x01\x00\x00\x00\x01\x00"]
)
def test_damaged_bytes_are_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_subscription("m", data)
    with pytest.raises(DecodeError):
        decode_assignment(data)


def test_a_member_that_cannot_be_read_does_not_fail_the_group() -> None:
    """One broken client must not bring down leader after leader."""
    good = encode_subscription(["t"], None, {}, -1, None)
    members = [
        JoinGroupResponseMember(member_id="good", metadata=good),
        JoinGroupResponseMember(member_id="bad", metadata=b"\x00\x03\x7f\xff"),
        JoinGroupResponseMember(member_id="empty", metadata=b""),
    ]
    reading = read_members(members)
    assert reading.topics == {"t"}
    assert [m.topics for m in reading.members.values()] == [{"t"}, frozenset(), frozenset()]
    assert ["'bad'" in text for text in reading.warnings] == [True]


@pytest.mark.parametrize(
    "data", [b"\x00\x00\x00\x01", b"\x00\x00\x00\x01\xff\xff", b"\x00" * 3, b"\x7f" * 20, b""]
)
def test_user_data_that_cannot_be_read_is_no_claim(data: bytes) -> None:
    assert decode_previous(data) == ({}, -1)


def test_old_sticky_user_data_has_no_generation() -> None:
    """v0, and subscriptions that carry their generation in user data."""
    assert decode_previous(encode_previous({"t": (2,)}, 5)[:-4]) == ({"t": (2,)}, -1)
    assert decode_generation(b"\x00\x00\x00\x07") == 7
    assert decode_generation(b"\x00") == decode_generation(None) == -1


def test_arithmetic_of_partitions() -> None:
    assert freeze({"b": [2, 1], "a": []}) == {"b": (1, 2)}
    assert subtract({"a": (1, 2), "b": (1,)}, {"a": (2,), "b": (1,)}) == {"a": (1,)}


def test_what_has_become_of_topics() -> None:
    """Spec 1.9: more partitions, created, deleted; racks that come and go are no reason."""
    before = {"a": TopicView(1), "b": None, "c": TopicView(2), "d": TopicView(1), "e": None}
    now = {"a": TopicView(3), "b": TopicView(1), "c": None, "d": TopicView(1, (frozenset("r"),))}
    assert changed_topics(before, now) == [
        "topic 'a' went from 1 to 3 partitions",
        "topic 'b' went from 0 to 1 partitions",
        "topic 'c' went from 2 to 0 partitions",
    ]


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_no_damage_in_one_members_bytes_fails_the_group(name: str) -> None:
    """Mutated metadata and user data: the plan is made, whole, whatever one member sends."""
    [assignor] = make_assignors(name)
    chance = random.Random(11)
    user_data = encode_previous({"t": (0, 1), "u": (2,)}, 5)
    clean = encode_subscription(["t", "u"], user_data, {"t": (0, 1), "u": (2,)}, 5, "r")
    topics = {"t": TopicView(3), "u": TopicView(4)}
    for _ in range(1_500):
        data = bytearray(clean)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.choice([0, 1, 2, 0x7F, 0xFF])
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        members = [
            JoinGroupResponseMember(member_id="m", metadata=bytes(data)),
            JoinGroupResponseMember(member_id="n", metadata=clean),
        ]
        make_plan(assignor, GroupView(read_members(members).members, topics))
