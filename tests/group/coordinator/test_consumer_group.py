"""Consumer groups (KIP-848) by exact records: the behaviours of Kafka's own scenario names."""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.group.assignors.base import Assignor, GroupView, Plan
from kohort.group.coordinator.state.config import GroupTimeouts
from kohort.group.coordinator.state.consumer_table import ConsumerState, MemberState
from tests.group.consumer_harness import (
    INTERVAL_MS,
    REBALANCE_MS,
    SESSION_MS,
    ConsumerBench,
    assignment_of,
    code,
)
from tests.known import known

C, S = ErrorCode, ConsumerState
ALL = {"t": [0, 1, 2, 3, 4, 5]}


def epochs(epoch: int, *numbers: int) -> dict[str, dict[int, int]]:
    """Partitions of `t`, all assigned in one epoch."""
    return {"t": dict.fromkeys(numbers, epoch)}


def test_a_new_group_is_one_batch_of_records() -> None:
    """5, 3, 7, 6, 8: the member, the epoch, the target, its epoch, what the member has."""
    bench = ConsumerBench()
    answer = bench.enter("m1")
    assert bench.wrote() == [
        (5, "m1", bench.meta()),
        (3, "", 1),
        (7, "m1", ALL),
        (6, "", 1),
        (8, "m1", (1, 0, "STABLE", epochs(1, *range(6)), {})),
    ]
    assert (answer.member_id, answer.member_epoch) == ("m1", 1)
    assert answer.heartbeat_interval_ms == INTERVAL_MS
    assert assignment_of(answer) == ALL
    assert bench.consumers.state() is S.STABLE


def test_a_heartbeat_that_changes_nothing_writes_nothing() -> None:
    bench = ConsumerBench()
    bench.enter("m1")
    answer = bench.keep("m1")
    assert bench.wrote() == []
    assert (code(answer), answer.member_epoch, answer.assignment) == (C.NONE, 1, None)


def test_reconciliation_process() -> None:
    """ReconciliationProcess: revoke, acknowledge, assign; every record of the way (G1)."""
    bench = ConsumerBench()
    bench.enter("m1")
    second = bench.enter("m2")
    assert bench.wrote() == [
        (5, "m2", bench.meta()),
        (3, "", 2),
        (7, "m1", {"t": [0, 1, 2]}),
        (7, "m2", {"t": [3, 4, 5]}),
        (6, "", 2),
        (8, "m2", (2, 0, "UNRELEASED", {}, {})),
    ]
    assert (second.member_epoch, assignment_of(second)) == (2, {})
    assert bench.consumers.state() is S.RECONCILING
    answer = bench.keep("m1")
    assert bench.wrote() == [(8, "m1", (1, 1, "UNREVOKED", epochs(1, 0, 1, 2), epochs(1, 3, 4, 5)))]
    assert (answer.member_epoch, assignment_of(answer)) == (1, {"t": [0, 1, 2]})
    assert assignment_of(bench.keep("m2")) is None
    assert bench.wrote() == []
    again = bench.keep("m1", owned=ALL)  # it has not given up yet
    assert (again.member_epoch, assignment_of(again)) == (1, None)
    acked = bench.follow("m1")
    assert bench.wrote() == [(8, "m1", (2, 1, "STABLE", epochs(1, 0, 1, 2), {}))]
    assert (acked.member_epoch, assignment_of(acked)) == (2, None)
    got = bench.keep("m2")
    assert bench.wrote() == [(8, "m2", (2, 2, "STABLE", epochs(2, 3, 4, 5), {}))]
    assert assignment_of(got) == {"t": [3, 4, 5]}
    assert bench.consumers.state() is S.STABLE


def test_a_full_request_gets_a_full_answer() -> None:
    """ConsumerGroupHeartbeatFullResponse; KAFKA-16367 (B5)."""
    bench = ConsumerBench()
    bench.enter("m1")
    full = bench.keep("m1", topics=["t"], owned=ALL, rebalance_ms=REBALANCE_MS)
    assert assignment_of(full) == ALL
    for partial in (
        {"topics": ["t"], "owned": ALL},
        {"topics": ["t"], "rebalance_ms": REBALANCE_MS},
        {"owned": ALL, "rebalance_ms": REBALANCE_MS},
    ):
        assert bench.keep("m1", **partial).assignment is None


def test_a_changed_subscription_raises_the_epoch() -> None:
    bench = ConsumerBench()
    bench.enter("m1")
    answer = bench.follow("m1", topics=["u", "t", "t"])
    assert bench.wrote() == [
        (5, "m1", bench.meta("t", "u")),
        (3, "", 2),
        (7, "m1", {"t": [0, 1, 2, 3, 4, 5], "u": [0, 1, 2]}),
        (6, "", 2),
        (8, "m1", (2, 1, "STABLE", {**epochs(1, *range(6)), "u": {0: 2, 1: 2, 2: 2}}, {})),
    ]
    assert assignment_of(answer) == {"t": [0, 1, 2, 3, 4, 5], "u": [0, 1, 2]}
    bench.keep("m1", rack="r1", client="other")  # what no assignor sees raises nothing
    changed = bench.meta("t", "u", rack_id="r1", client_id="other")
    assert bench.wrote() == [(5, "m1", changed)]


def test_a_topic_that_is_no_longer_read_is_given_up_first() -> None:
    """Topics that a member no longer subscribes to count as no part of its target."""
    bench = ConsumerBench()
    bench.enter("m1", ["t", "u"])
    answer = bench.keep("m1", topics=["u"])
    assert (answer.member_epoch, assignment_of(answer)) == (1, {"u": [0, 1, 2]})
    more = bench.keep("m1", topics=[])
    assert bench.pending("m1") == {"t": [0, 1, 2, 3, 4, 5], "u": [0, 1, 2]}
    assert assignment_of(more) == {}
    assert bench.follow("m1").member_epoch == 3
    assert bench.consumers.state() is S.STABLE


def test_topics_are_looked_at_with_the_next_heartbeat() -> None:
    """SubscriptionMetadataRefreshedAfterGroupIsLoaded; made, grown, deleted (B12)."""
    bench = ConsumerBench()
    bench.enter("m1", ["t", "new"])
    bench.make("new", 2)
    assert bench.last.records == []
    assert assignment_of(bench.follow("m1")) == {**ALL, "new": [0, 1]}
    assert (3, "", 2) in bench.wrote()
    bench.make("new", 3)
    assert assignment_of(bench.follow("m1")) == {**ALL, "new": [0, 1, 2]}
    bench.make("unread", 1)
    bench.keep("m1")
    assert bench.wrote() == []
    bench.drop("new")
    bench.load()  # a new coordinator looks at them for itself
    answer = bench.keep("m1")
    assert (answer.member_epoch, assignment_of(answer)) == (3, ALL)
    assert bench.follow("m1").member_epoch == 4


def test_a_leave_raises_the_epoch_and_frees_the_partitions() -> None:
    bench = ConsumerBench()
    bench.enter("m1")
    bench.enter("m2")
    bench.settle_all()
    answer = bench.beat("m2", -1)
    assert bench.wrote() == [(8, "m2", None), (7, "m2", None), (5, "m2", None), (3, "", 3)]
    assert (answer.member_id, answer.member_epoch, answer.assignment) == ("m2", -1, None)
    assert bench.consumers.state() is S.ASSIGNING
    assert assignment_of(bench.keep("m1")) == ALL
    bench.beat("m1", -1)
    assert bench.consumers.state() is S.EMPTY
    assert bench.consumers.epoch == 4
    assert bench.enter("m3").member_epoch == 5  # G3: it goes on rising


def test_session_timeout_lifecycle_and_expiration() -> None:
    """SessionTimeoutLifecycle, SessionTimeoutExpiration: GL3, G13."""
    bench = ConsumerBench()
    bench.enter("m1")
    bench.advance(SESSION_MS - 1)
    bench.keep("m1")
    assert bench.advance(SESSION_MS - 1) == []
    bench.advance(1)
    assert bench.wrote() == [(8, "m1", None), (7, "m1", None), (5, "m1", None), (3, "", 2)]
    assert code(bench.beat("m1", 1)) is C.UNKNOWN_MEMBER_ID
    bench.enter("m2")
    bench.beat("m2", -1)
    assert known(bench.shard.next_deadline()) > bench.now_ms + SESSION_MS  # the sweep's alone


def test_a_group_may_have_timeouts_of_its_own() -> None:
    bench = ConsumerBench()
    bench.shard.groups_configured({"g": GroupTimeouts(10_000, 700)})
    assert bench.enter("m1").heartbeat_interval_ms == 700
    assert bench.enter("m1", group="other").heartbeat_interval_ms == INTERVAL_MS
    bench.advance(10_000)
    assert bench.consumers.members == {}
    assert set(bench.shard.consumer_groups["other"].members) == {"m1"}


def test_rebalance_timeout_lifecycle_and_expiration() -> None:
    """RebalanceTimeoutLifecycle, RebalanceTimeoutExpiration."""
    bench = ConsumerBench()
    bench.enter("m1", rebalance_ms=20_000)
    bench.enter("m2")
    bench.keep("m1")
    bench.advance(10_000)
    bench.keep("m1", owned=ALL)  # it goes on heartbeating, and does not give up
    bench.keep("m2")
    bench.advance(9_999)
    assert set(bench.consumers.members) == {"m1", "m2"}
    bench.advance(1)
    assert bench.wrote() == [(8, "m1", None), (7, "m1", None), (5, "m1", None), (3, "", 3)]
    assert assignment_of(bench.keep("m2")) == ALL
    bench.enter("m3", rebalance_ms=20_000)
    bench.keep("m2")
    bench.follow("m2")  # in time: its timer is gone
    for _ in range(4):
        bench.advance(20_000)
        bench.keep("m2")
        bench.keep("m3")
    assert set(bench.consumers.members) == {"m2", "m3"}


def test_timers_begin_anew_with_a_new_coordinator() -> None:
    """Load revives sessions, and the rebalance timers of who is giving up."""
    bench = ConsumerBench()
    bench.enter("m1", rebalance_ms=20_000)
    bench.enter("m2", rebalance_ms=20_000)
    bench.keep("m1")
    bench.advance(15_000)
    bench.failover()
    bench.advance(19_999)
    assert set(bench.consumers.members) == {"m1", "m2"}
    bench.advance(1)
    assert set(bench.consumers.members) == {"m2"}
    bench.advance(SESSION_MS)
    assert bench.consumers.members == {}


def test_majority_of_members_chooses_the_assignor() -> None:
    bench = ConsumerBench(topics={"t": 3, "u": 3})
    bench.enter("m1", ["t", "u"], assignor="range")
    assert bench.describe().assignor_name == "range"
    bench.enter("m2", ["t", "u"])
    assert bench.describe().assignor_name == "range"  # who names none does not vote
    bench.settle_all()
    assert bench.assigned("m1") == {"t": [0, 1], "u": [0, 1]}
    bench.enter("m3", ["t", "u"], assignor="uniform")
    assert bench.describe().assignor_name == "uniform"  # a tie: the configuration's first


class Mine(Assignor):
    """A user's own: everything to the last member; or whatever a test makes of it."""

    name = "mine"

    def __init__(self) -> None:
        self.fault = ""

    def assign(self, group: GroupView) -> Plan:
        if self.fault == "raise":
            raise ZeroDivisionError("by me")
        last = max(group.members)
        share = {t: range(view.partitions) for t, view in group.topics.items()}
        if self.fault == "twice":
            return Plan(dict.fromkeys(group.members, share))
        return Plan({last: {} if self.fault == "nobody" else share})


def test_a_users_own_assignor_in_the_broker() -> None:
    bench = ConsumerBench(consumer_assignors=(Mine(),))
    bench.enter("m1")
    bench.enter("m2")
    bench.settle_all()
    assert bench.assigned("m1") == {}
    assert bench.assigned("m2") == ALL


def test_a_bad_plan_fails_the_heartbeat_and_leaves_the_old_target() -> None:
    """G2: validated; nothing of the heartbeat happens, and it works again once it is mended."""
    mine = Mine()
    bench = ConsumerBench(consumer_assignors=(mine,))
    bench.enter("m1")
    before = bench.target("m1")
    bench.make("t", 8)
    for fault, text in (("raise", "ZeroDivisionError"), ("nobody", "nobody gets"), ("twice", "")):
        mine.fault = fault
        if fault == "twice":
            answer = bench.enter("m2")
            assert "twice" in known(answer.error_message)
        else:
            answer = bench.keep("m1")
            assert text in known(answer.error_message)
        assert code(answer) is C.UNKNOWN_SERVER_ERROR
        assert "keeps its old assignment" in known(answer.error_message)  # no member leaves for it
        assert "leaves the group" not in known(answer.error_message)
        assert bench.wrote() == []
        assert bench.target("m1") == before
    assert set(bench.consumers.members) == {"m1"}
    mine.fault = ""
    assert assignment_of(bench.keep("m1")) == {"t": list(range(8))}


def test_racks_reach_the_assignor() -> None:
    seen: list[GroupView] = []

    class Watches(Mine):
        def assign(self, group: GroupView) -> Plan:
            seen.append(group)
            return super().assign(group)

    bench = ConsumerBench(consumer_assignors=(Watches(),))
    bench.make("r", 1, [frozenset({"east"})])
    bench.enter("m1", ["r"], rack="west")
    assert seen[-1].members["m1"].rack == "west"
    assert seen[-1].topics["r"].racks == (frozenset({"east"}),)
    bench.make("r", 1, [frozenset({"west"})])
    bench.keep("m1")  # a replica moved: assigned anew
    assert seen[-1].topics["r"].racks == (frozenset({"west"}),)
    assert seen[-1].members["m1"].owned == {"r": (0,)}


def test_group_max_size() -> None:
    """G12. A member, and a static one that comes back, has its place."""
    bench = ConsumerBench(group_consumer_max_size=2)
    bench.enter("m1", instance="one")
    bench.enter("m2")
    full = bench.enter("m3")
    assert code(full) is C.GROUP_MAX_SIZE_REACHED
    assert bench.wrote() == []
    assert code(bench.enter("m2")) is C.NONE
    bench.beat("m1", -2, instance="one")
    assert code(bench.enter("m4", instance="one")) is C.NONE


def test_member_states_of_a_newer_broker_are_fenced() -> None:
    bench = ConsumerBench()
    bench.enter("m1")
    strange = bench.current("m1")._replace(state=MemberState.UNKNOWN)
    bench.consumers.currents["m1"] = strange
    bench.check = False
    assert code(bench.keep("m1")) is C.FENCED_MEMBER_EPOCH
    assert code(bench.keep("m1", owned=ALL)) is C.FENCED_MEMBER_EPOCH
    assert code(bench.enter("m1")) is C.NONE
    assert bench.current("m1").state is MemberState.STABLE
