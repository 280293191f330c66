"""A user's own assignor in the member machine: what it gives is checked rule by rule (G2), and the
two phases of a cooperative rebalance are applied to it, whatever it gives (KIP-429).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kohort.group.assignors import Assignor, GroupView, Plan, TopicView
from kohort.group.assignors.base import MemberView, Partitions
from kohort.group.assignors.protocol import decode_assignment
from kohort.group.member.effects import Assign, Fatal, Revoke, Send
from kohort.wire.messages.join_group_request import JoinGroupRequest
from kohort.wire.messages.leave_group_request import LeaveGroupRequest
from kohort.wire.messages.sync_group_request import SyncGroupRequest
from tests.group.member_driver import Driver, metadata

TOPICS = {"t": TopicView(3), "u": TopicView(1)}
Assignments = Mapping[str, Mapping[str, Sequence[Any]]]


class Mine(Assignor):
    """Gives what it was last told to."""

    name = "mine"

    def __init__(self, assignments: Assignments, *, cooperative: bool = False) -> None:
        self.assignments = assignments
        self.cooperative = cooperative
        self.seen: list[GroupView] = []

    def assign(self, group: GroupView) -> Plan:
        self.seen.append(group)
        return Plan(self.assignments)


def lead(
    assignor: Mine, members: Mapping[str, bytes], *, has: Mapping[str, Any] | None = None
) -> Driver:
    """`me` is the leader of `members` and has been asked for a plan; `has` is what it owns."""
    d = Driver([assignor], topics="t u")
    d.call("topics_changed", TOPICS)
    if has is None:
        d.join()
    else:
        d.stable(has)
        d.later(3_000)
        d.beat(27)
        d.steps()
    d.joined(2, leader="me", protocol="mine", members=members)
    return d


def plan_of(d: Driver) -> dict[str, Partitions]:
    sync = d.request(SyncGroupRequest)
    return {each.member_id: decode_assignment(each.assignment)[0] for each in sync.assignments}


TWO = {"me": metadata("t u"), "you": metadata("t")}


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        # Complete.
        ({"me": {"t": [0, 1], "u": [0]}}, "nobody gets 't' partitions [2]"),
        ({}, "nobody gets 't' partitions [0, 1, 2]"),
        # No double owner.
        (
            {"me": {"t": [0, 1], "u": [0]}, "you": {"t": [1, 2]}},
            "'t' partition 1 is given twice, to me, you",
        ),
        ({"me": {"t": [0, 1, 2, 2], "u": [0]}}, "'t' partition 2 is given twice, to me"),
        # Only subscribed topics, only to members, only what exists.
        ({"me": {"t": [0, 1, 2]}, "you": {"u": [0]}}, "'you' gets 'u' and does not subscribe"),
        ({"me": {"t": [0, 1, 2], "u": [0]}, "she": {}}, "assigns to 'she', who is not a member"),
        ({"me": {"t": [0, 1, 2, 3], "u": [0]}}, "'me' gets 't' partition 3; it has partitions 0"),
        ({"me": {"t": ["0", "1", "2"], "u": [0]}}, "what 'me' gets is no partition"),
        ({"me": {"t": [0, 1, 2], "u": [0], "v": [0]}}, "'me' gets 'v' and does not subscribe"),
    ],
)
@pytest.mark.parametrize("cooperative", [False, True], ids=["eager", "cooperative"])
def test_what_breaks_the_contract_is_fatal_and_named(
    assignments: Assignments, message: str, *, cooperative: bool
) -> None:
    """The rule, the member and the partition are named; nothing is sent; the member leaves."""
    d = lead(Mine(assignments, cooperative=cooperative), TWO)
    text = str(d.only(Fatal).error)
    assert message in text
    assert "assignor 'mine'" in text
    d.sent_none(SyncGroupRequest)
    assert d.request(LeaveGroupRequest).members[0].member_id == "me"


def test_numbers_of_any_whole_kind_and_any_sequence() -> None:
    """Ranges, lists out of order, generators made lists: what is whole is taken."""
    assignor = Mine({"me": {"t": range(1, 3), "u": (0,)}, "you": {"t": [0]}})
    assert plan_of(lead(assignor, TWO)) == {"me": {"t": (1, 2), "u": (0,)}, "you": {"t": (0,)}}


def test_it_sees_who_owns_what() -> None:
    """Owned partitions, generations, racks and user data of everybody (spec 3.2)."""
    assignor = Mine({"me": {"t": [0, 1, 2], "u": [0]}}, cooperative=True)
    lead(assignor, {"me": metadata("t u", {"t": [1]}, 1), "you": metadata("t", {"t": [0]}, 1)})
    [group] = assignor.seen
    assert group.topics == TOPICS
    assert group.members["you"].owned == {"t": (0,)}
    assert (group.members["you"].generation, group.members["me"].topics) == (1, {"t", "u"})


def test_two_phases_are_applied_to_whatever_it_gives() -> None:
    """KIP-429: everything is swapped at once; nobody gets what another still owns."""
    assignor = Mine({"me": {"t": [2], "u": [0]}, "you": {"t": [0, 1]}}, cooperative=True)
    has = {"t": [0, 1]}
    members = {"me": metadata("t u", has, 1), "you": metadata("t", {"t": [2]}, 1)}
    d = lead(assignor, members, has=has)
    first = plan_of(d)
    assert first == {"me": {"u": (0,)}, "you": {}}
    # Phase one: what goes is given up, what was free is taken, and all come again.
    d.synced(first["me"])
    gone, taken = d.effects
    assert isinstance(gone, Revoke)
    assert isinstance(taken, Assign)
    assert (gone.partitions, taken.added) == ({"t": (0, 1)}, {"u": (0,)})
    d.steps()
    assert isinstance(d.sent[JoinGroupRequest], Send)
    # Phase two: nobody owns anything of it any more, so the same plan is carried out.
    members = {"me": metadata("t u", {"u": [0]}, 2), "you": metadata("t", {}, 2)}
    d.joined(3, leader="me", protocol="mine", members=members)
    assert plan_of(d) == {"me": {"t": (2,), "u": (0,)}, "you": {"t": (0, 1)}}


def test_a_plan_is_whole_before_the_first_phase_and_need_not_be_after() -> None:
    """What is held back is our doing, so that no rule is applied to it."""
    assignor = Mine({"me": {"u": [0]}, "you": {"t": [0, 1, 2]}}, cooperative=True)
    has = {"t": [0, 1, 2]}
    d = lead(assignor, {"me": metadata("t u", has, 1), "you": metadata("t", {}, 1)}, has=has)
    d.none(Fatal)
    assert plan_of(d) == {"me": {"u": (0,)}, "you": {}}


def test_an_eager_one_hands_over_at_once() -> None:
    """Its members gave everything up before they joined."""
    assignor = Mine({"me": {"u": [0]}, "you": {"t": [0, 1, 2]}})
    d = lead(assignor, TWO, has={"t": [0, 1]})
    assert plan_of(d) == {"me": {"u": (0,)}, "you": {"t": (0, 1, 2)}}


WHOLE = {"me": {"t": [0, 1, 2], "u": [0]}}
wrong: Any = Plan  # with types that a type checker refuses


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (None, "it is None; assign() returns Plan({MEMBER_ID: {TOPIC: [0, 1]}})"),
        (WHOLE, "it is a dict; assign() returns Plan("),
        (wrong([("me", {"t": [0, 1, 2]})]), "its assignments are a list, not a mapping of member"),
        (wrong({"me": [("t", 0)]}), "what 'me' gets is a list, not a mapping of topics"),
        (wrong({"me": None}), "what 'me' gets is None, not a mapping of topics"),
        (wrong({"me": {"t": 2, "u": [0]}}), "what 'me' gets of 't' is an int, not a list of"),
        (wrong({"me": {"t": iter([0, 1, 2]), "u": [0]}}), "of 't' is a list_iterator, not a list"),
        (wrong({"me": {"t": "012", "u": [0]}}), "what 'me' gets of 't' is a str, not a list of"),
        (wrong({7: {"t": [0]}}), "it assigns to 7, who is not a member"),
        (wrong(WHOLE, {"me": "text"}), "the user data of 'me' is a str, not bytes"),
        (wrong(WHOLE, None), "its user_data is None, not a mapping of member"),
    ],
)
@pytest.mark.parametrize("cooperative", [False, True], ids=["eager", "cooperative"])
def test_a_plan_of_a_wrong_type_is_fatal_and_named(
    plan: Any, message: str, *, cooperative: bool
) -> None:
    """It was an AttributeError in the log, again and again (issue 18)."""
    assignor = Mine({}, cooperative=cooperative)
    assignor.assign = lambda group: plan  # type: ignore[method-assign]
    text = str(lead(assignor, TWO).only(Fatal).error)
    assert message in text
    assert "assignor 'mine'" in text
    assert "mend the assignor's assign()" in text


@pytest.mark.parametrize(
    ("user_data", "message"),
    [
        ("text", "subscription() returned a str, not bytes or None"),
        (ValueError("no"), "failed in subscription() with ValueError: no"),
    ],
)
def test_user_data_of_a_wrong_type_is_fatal_and_named(user_data: Any, message: str) -> None:
    """What each member sends with its join; nothing is sent."""

    class Telling(Mine):
        def subscription(self, topics: frozenset[str]) -> bytes | None:
            if isinstance(user_data, Exception):
                raise user_data
            return user_data

    d = Driver([Telling(WHOLE)], topics="t u")
    d.call("topics_changed", TOPICS)
    d.join()
    (fatal,) = [effect for effect in d.log if isinstance(effect, Fatal)]
    assert message in str(fatal.error)
    assert "assignor 'mine'" in str(fatal.error)
    assert JoinGroupRequest not in d.sent
    assert d.later(60_000) == [], "once, not again and again"


@pytest.mark.parametrize("generation", ["3", None, KeyError("x")])
def test_a_generation_of_a_wrong_type_is_fatal_and_named(generation: Any) -> None:
    class Odd(Mine):
        def generation_of(self, member: MemberView) -> int:
            if isinstance(generation, Exception):
                raise generation
            return generation

    d = lead(Odd(WHOLE, cooperative=True), TWO)
    text = str(d.only(Fatal).error)
    assert "assignor 'mine'" in text
    assert "generation_of()" in text
