"""What a ConsumerGroupHeartbeat is checked for, in order (KIP-848, KIP-1082), and member epochs."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.errors import ErrorCode
from tests.group.consumer_harness import ConsumerBench, assignment_of, code
from tests.known import known

C = ErrorCode
FULL: dict[str, Any] = {"topics": ["t"], "owned": {}, "rebalance_ms": 1_000}
ALL = {"t": [0, 1, 2, 3, 4, 5]}


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"member_id": " ", **FULL}, "MemberId"),
        ({"member_id": "", "epoch": 1, "version": 0}, "MemberId"),
        ({"member_id": "", "epoch": -1, "version": 0}, "MemberId"),
        ({"member_id": "", "group": "", **FULL}, "MemberId"),
        ({"member_id": "m", "group": " ", "instance": "", **FULL}, "GroupId"),
        ({"member_id": "m", "instance": " ", "rack": "", **FULL}, "InstanceId"),
        ({"member_id": "m", "rack": "", **FULL, "rebalance_ms": -1}, "RackId"),
        ({"member_id": "m", **FULL, "rebalance_ms": -1, "owned": None}, "RebalanceTimeoutMs"),
        ({"member_id": "m", **FULL, "owned": None}, "TopicPartitions"),
        ({"member_id": "m", **FULL, "owned": ALL, "topics": None}, "TopicPartitions"),
        ({"member_id": "m", **FULL, "topics": None}, "SubscribedTopic"),
        ({"member_id": "m", "epoch": -2}, "InstanceId"),
        ({"member_id": "m", "epoch": -3}, "MemberEpoch"),
        ({"member_id": "m" * 9_000, **FULL}, "too long"),
    ],
)
def test_bad_requests_in_order(request_: dict[str, Any], text: str) -> None:
    """Each request is wrong in what is named, and in something that is looked at later."""
    answer = ConsumerBench().beat(**{"epoch": 0, **request_})
    assert code(answer) is C.INVALID_REQUEST
    assert text in known(answer.error_message)
    assert (answer.member_id, answer.assignment) == (None, None)


def test_an_unknown_assignor_is_named_with_those_that_are_known() -> None:
    answer = ConsumerBench().enter("m", assignor="sticky")
    assert code(answer) is C.UNSUPPORTED_ASSIGNOR
    assert "uniform, range" in known(answer.error_message)


def test_before_v1_the_coordinator_makes_the_id() -> None:
    bench = ConsumerBench()
    answer = bench.enter("", version=0)
    assert (code(answer), answer.member_id) == (C.NONE, "id1")
    assert code(bench.enter("mine", version=0)) is C.NONE


def test_what_a_member_says_of_itself_is_bounded() -> None:
    bench = ConsumerBench(group_record_max_bytes=100)
    assert "group_record_max_bytes" in (bench.enter("m1", ["t" * 101]).error_message or "")
    assert code(bench.enter("m1")) is C.NONE
    large = bench.join("c1", protocols=[("range", b"x" * 101)])
    assert bench.code(large) is C.GROUP_MAX_SIZE_REACHED


def test_only_a_join_makes_a_group_or_a_member() -> None:
    bench = ConsumerBench()
    for epoch in (1, -1):
        assert code(bench.beat("m", epoch)) is C.GROUP_ID_NOT_FOUND
    assert code(bench.beat("m", -2, instance="i")) is C.GROUP_ID_NOT_FOUND
    bench.enter("m1")
    for epoch in (1, -1):
        assert code(bench.beat("m", epoch)) is C.UNKNOWN_MEMBER_ID
    assert code(bench.beat("m", -2, instance="i")) is C.UNKNOWN_MEMBER_ID
    bench.beat("m1", -1)
    assert code(bench.beat("m1", 1)) is C.UNKNOWN_MEMBER_ID  # the group is there, and Empty


def test_a_shard_holds_so_many_groups() -> None:
    bench = ConsumerBench(shard_max_groups=1)
    bench.enter("m1")
    assert code(bench.enter("m1", group="other")) is C.POLICY_VIOLATION


def test_consumer_group_member_epoch_validation() -> None:
    """ConsumerGroupMemberEpochValidation: G6."""
    bench = ConsumerBench()
    bench.enter("m1")
    bench.enter("m2")
    bench.settle_all()
    bench.beat("m2", -1)
    bench.follow("m1")
    current = bench.current("m1")
    assert (current.epoch, current.previous_epoch) == (3, 2)
    assert code(bench.beat("m1", 4)) is C.FENCED_MEMBER_EPOCH
    assert code(bench.beat("m1", 1, owned=ALL)) is C.FENCED_MEMBER_EPOCH
    # The answer that moved it on may have been lost: it owns no more than it was given before.
    assert code(bench.beat("m1", 2)) is C.FENCED_MEMBER_EPOCH  # it does not say what it owns
    assert code(bench.beat("m1", 2, owned={"u": [0]})) is C.FENCED_MEMBER_EPOCH
    lost = bench.beat("m1", 2, owned={"t": [0]})
    assert (code(lost), lost.member_epoch, assignment_of(lost)) == (C.NONE, 3, ALL)
    assert code(bench.beat("m1", 3)) is C.NONE
    again = bench.enter("m1")  # joining again is always taken (B6)
    assert (code(again), again.member_epoch, assignment_of(again)) == (C.NONE, 3, ALL)


# Regular expressions


def test_a_regular_expression_is_resolved_and_stored() -> None:
    bench = ConsumerBench(topics={"orders-eu": 1, "orders-us": 2, "other": 1})
    bench.make("__consumer_offsets", 1)
    answer = bench.enter("m1", None, regex="orders-.*|__.*")
    # internal topics too, as Apache Kafka has it (found by franz-go's tests)
    assert assignment_of(answer) == {"orders-eu": [0], "orders-us": [0, 1], "consumer_offsets": [0]}
    assert bench.wrote()[:3] == [
        (5, "m1", bench.meta(topics=(), regex="orders-.*|__.*")),
        (16, "orders-.*|__.*", ["__consumer_offsets", "orders-eu", "orders-us"]),
        (3, "", 1),
    ]
    bench.enter("m2", ["other"], regex="orders-.*|__.*")
    assert not any(kind == 16 for kind, _, _ in bench.wrote())
    shown = bench.describe().members[1]
    assert (shown.subscribed_topic_names, shown.subscribed_topic_regex) == (
        ["other"],
        "orders-.*|__.*",
    )


def test_a_regular_expression_follows_the_topics() -> None:
    bench = ConsumerBench(topics={"a1": 1})
    bench.enter("m1", None, regex="a.")
    bench.make("b1", 1)
    bench.keep("m1")
    assert bench.wrote() == []
    bench.make("a2", 1)
    assert assignment_of(bench.follow("m1")) == {"a1": [0], "a2": [0]}
    assert bench.wrote()[:2] == [(16, "a.", ["a1", "a2"]), (3, "", 2)]
    bench.drop("a1")
    bench.keep("m1")
    assert bench.wrote()[0] == (16, "a.", ["a2"])
    bench.failover()
    bench.follow("m1")
    assert bench.consumers.regexes["a."].topics == ("a2",)


def test_a_regular_expression_goes_with_its_last_member() -> None:
    bench = ConsumerBench()
    bench.enter("m1", None, regex="t")
    bench.enter("m2", None, regex="t")
    bench.settle_all()
    bench.follow("m1", regex="u")
    assert [r[:2] for r in bench.wrote()[:3]] == [(5, "m1"), (16, "u"), (3, "")]
    bench.follow("m2", regex="u")
    assert bench.wrote()[1] == (16, "t", None)
    assert (3, "", 4) in bench.wrote()
    bench.beat("m1", -1)
    assert (16, "u", None) not in bench.wrote()
    bench.beat("m2", -1)
    assert (16, "u", None) in bench.wrote()
    bench.enter("m3", ["t"], regex="u")
    bench.keep("m3", regex="")
    assert (16, "u", None) in bench.wrote()
    assert bench.target("m3") == ALL


def test_a_bad_regular_expression_is_refused() -> None:
    bench = ConsumerBench()
    for pattern in ("(", "(?=a)", "(a)\\1", "a{1001}"):
        answer = bench.enter("m1", None, regex=pattern)
        assert code(answer) is C.INVALID_REGULAR_EXPRESSION
        assert bench.shard.consumer_groups == {}
    assert code(bench.enter("m1", None, regex="(a+)+$")) is C.NONE  # slow elsewhere, not here
    assert code(bench.keep("m1", regex="*")) is C.INVALID_REGULAR_EXPRESSION


# Static members


def test_static_member_gets_back_its_assignment_upon_rejoin() -> None:
    """NoGroupEpochBumpWhenStaticMemberTemporarilyLeaves, and its assignment when it is back."""
    bench = ConsumerBench()
    bench.enter("m1", instance="one")
    bench.enter("m2")
    bench.settle_all()
    mine = bench.assigned("m1")
    bench.beat("m1", -2, instance="one")
    held = {"t": dict.fromkeys(mine["t"], 1)}
    assert bench.wrote() == [(8, "m1", (-2, 2, "STABLE", held, {}))]
    assert bench.consumers.epoch == 2
    bench.keep("m2")
    assert bench.wrote() == []
    assert code(bench.beat("m1", 2, instance="one")) is C.FENCED_MEMBER_EPOCH
    back = bench.enter("m3", instance="one")
    assert bench.wrote() == [
        (8, "m1", None),
        (7, "m1", None),
        (5, "m1", None),
        (5, "m3", bench.meta(instance_id="one")),
        (7, "m3", mine),
        (8, "m3", (0, 0, "STABLE", held, {})),
        (8, "m3", (2, 0, "STABLE", held, {})),
    ]
    assert (back.member_epoch, assignment_of(back)) == (2, mine)


def test_a_static_member_that_stays_away_is_fenced() -> None:
    """Its session goes on running while it is away."""
    bench = ConsumerBench()
    bench.enter("m1", instance="one")
    bench.advance(40_000)
    bench.beat("m1", -2, instance="one")
    bench.advance(5_000)
    assert bench.consumers.members == {}


def test_an_instance_id_has_one_member() -> None:
    """UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID: G8."""
    bench = ConsumerBench()
    bench.enter("m1", instance="one")
    assert code(bench.enter("m2", instance="one")) is C.UNRELEASED_INSTANCE_ID
    assert bench.wrote() == []
    bench.beat("m1", -2, instance="one")
    assert code(bench.enter("m2", instance="one")) is C.NONE
    assert code(bench.beat("m1", 1, instance="one")) is C.FENCED_INSTANCE_ID
    assert code(bench.beat("m1", -1, instance="one")) is C.FENCED_INSTANCE_ID
    assert code(bench.beat("m1", -2, instance="one")) is C.FENCED_INSTANCE_ID
    assert code(bench.beat("m1", 1, instance="two")) is C.UNKNOWN_MEMBER_ID
    bench.failover()  # and a new coordinator knows
    assert code(bench.beat("m1", 1, instance="one")) is C.FENCED_INSTANCE_ID
    assert code(bench.enter("m2", instance="one")) is C.NONE  # joining again under its own id
    bench.beat("m2", -1, instance="one")
    assert code(bench.enter("m3", instance="one")) is C.NONE


def test_a_static_member_away_gives_up_what_it_was_told_to() -> None:
    bench = ConsumerBench()
    bench.enter("m1", instance="one")
    bench.enter("m2")
    bench.keep("m1")
    assert bench.pending("m1")
    bench.beat("m1", -2, instance="one")
    assert bench.pending("m1") == {}
    assert assignment_of(bench.keep("m2")) == bench.target("m2")
    bench.advance(44_999)  # no rebalance timer is left of it
    bench.keep("m2")
    back = bench.enter("m3", instance="one")
    assert assignment_of(back) == bench.target("m3")
