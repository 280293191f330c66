"""Explain a rebalance: each is recorded with its causes as it happens (spec 2.10, 3.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from kohort.errors import DecodeError
from kohort.group.assignors.protocol import encode_assignment, encode_subscription
from kohort.group.coordinator.state import rebalance_history as history
from kohort.group.explain import timeline
from kohort.group.explain.timeline import Rebalance
from kohort.wire.messages.describe_groups_request import DescribeGroupsRequest
from kohort.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from kohort.wire.messages.leave_group_request import LeaveGroupRequest, MemberIdentity
from tests.group.consumer_harness import ConsumerBench
from tests.group.harness import DELAY_MS, GROUP, REBALANCE_MS, SESSION_MS, WALL_MS, Bench

Held = Mapping[str, Mapping[str, Iterable[int]]]


def memory_of(bench: Bench, last: int = 20) -> list[Rebalance]:
    """What the coordinator tells over the wire, the oldest first."""
    request = DescribeGroupsRequest(groups=[GROUP], unknown_tags=timeline.ask(last))
    answer: Any = bench.ask(request, 6)
    found = timeline.from_tags(answer.groups[0].unknown_tags)
    assert found is not None
    return found


def test_the_log_is_read_where_the_coordinator_remembers_too_little() -> None:
    whole = Rebalance("g", "classic", 1, "settled", 1, 3, 5, moved=0)
    assert timeline.needs_log(None, 1)
    assert timeline.needs_log([], 1)
    assert timeline.needs_log([whole], 2)
    assert not timeline.needs_log([whole], 1)
    assert timeline.needs_log([replace(whole, moved=None)], 1)
    assert not timeline.needs_log([replace(whole, moved=None, settled_ms=None)], 1)


def reads(*topics: str) -> tuple[tuple[str, bytes], ...]:
    return (("range", encode_subscription(topics, None, {}, -1, None)),)


def assign(bench: Bench, plan: Held) -> None:
    """The leader's plan, and everybody's sync."""
    parts = {m: {t: tuple(n) for t, n in p.items()} for m, p in plan.items()}
    leader = bench.group.leader or ""
    for member_id in plan:
        if member_id != leader:
            bench.sync(member_id)
    bench.sync(leader, plan={m: encode_assignment(p) for m, p in parts.items()})


def causes(rebalance: Rebalance) -> list[tuple[str, str]]:
    return [(cause.trigger, cause.member_id) for cause in rebalance.causes]


def moved(rebalance: Rebalance) -> list[tuple[int, str | None, str | None, str | None]]:
    return [(m.partition, m.source, m.target, m.needed) for m in rebalance.moves]


@pytest.fixture
def pair() -> tuple[Bench, str, str]:
    """Two members, partitions 0 to 3 of `t` dealt out evenly."""
    bench = Bench()
    a, b = bench.form(2, protocols=reads("t"))
    bench.advance(40)
    assign(bench, {a: {"t": (0, 1)}, b: {"t": (2, 3)}})
    return bench, a, b


def test_the_first_rebalance_of_a_classic_group(pair: tuple[Bench, str, str]) -> None:
    bench, a, b = pair
    (first,) = memory_of(bench)
    assert causes(first) == [("joined", a), ("joined", b)]
    assert (first.generation, first.outcome, first.members) == (1, timeline.STABLE, 2)
    assert first.began_ms == WALL_MS
    assert (first.joining_ms, first.settling_ms) == (2 * DELAY_MS, 40)
    assert (first.partitions, first.moved, first.needed, first.not_needed) == (4, 4, 4, 0)
    assert {m.needed for m in first.moves} == {"new"}
    assert (first.came, first.went, first.inferred) == ((a, b), (), ())
    assert first.names[a] == "c"


def test_who_left_and_why(pair: tuple[Bench, str, str]) -> None:
    """KIP-800: the reason that a member gives goes with it. One move had to be, one had not."""
    bench, a, b = pair
    leaving = [MemberIdentity(member_id=b, group_instance_id=None, reason="closed")]
    bench.ask(LeaveGroupRequest(group_id=GROUP, members=leaving), 5)
    bench.advance(70)
    assert memory_of(bench)[-1].outcome == timeline.GOING_ON
    assert memory_of(bench)[-1].generation is None
    bench.join(a, protocols=reads("t"))
    assign(bench, {a: {"t": (0, 1, 2, 3)}})
    last = memory_of(bench)[-1]
    assert causes(last) == [("left", b)]
    assert last.causes[0].reason == "closed"
    assert (last.joining_ms, last.generation, last.waited_for) == (70, 2, a)
    assert moved(last) == [(2, b, a, "owner gone"), (3, b, a, "owner gone")]
    assert last.went == (b,)


def test_moves_that_balance_did_not_need(pair: tuple[Bench, str, str]) -> None:
    """Spec 3.4: six moves, of which one is what a third member needs; nobody needed the others."""
    bench, a, b = pair
    new = bench.new_member_id(protocols=reads("t"))
    bench.join(new, protocols=reads("t"))
    for member_id in (a, b):
        bench.join(member_id, protocols=reads("t"))
    assign(bench, {a: {"t": (3,)}, b: {"t": (0, 1)}, new: {"t": (2,)}})
    last = memory_of(bench)[-1]
    assert causes(last) == [("joined", new)]
    assert (last.moved, last.needed, last.not_needed) == (4, 1, 3)
    assert last.waited_for == b


def test_sessions_and_join_phases_that_end(pair: tuple[Bench, str, str]) -> None:
    """Spec 2.9: one stalls after its join, one before; each is named with what it missed."""
    bench, a, b = pair
    bench.advance(SESSION_MS - 1)
    bench.heartbeat(a)
    bench.advance(1)
    c = bench.new_member_id(protocols=reads("t"))
    bench.join(c, protocols=reads("t"))
    for _ in range(REBALANCE_MS // 5_000):
        bench.advance(5_000)
        bench.heartbeat(a)
    assign(bench, {c: {"t": (0, 1, 2, 3)}})
    last = memory_of(bench)[-1]
    assert causes(last) == [("session_over", b), ("joined", c), ("join_over", a)]
    assert last.joining_ms == REBALANCE_MS
    bench.join(c, protocols=reads("t"))
    bench.advance(REBALANCE_MS)
    bench.advance(SESSION_MS)
    assert causes(memory_of(bench)[-2]) == [("leader", c)]
    assert memory_of(bench)[-2].outcome == timeline.SUPERSEDED
    assert causes(memory_of(bench)[-1]) == [("session_over", c)]
    assert memory_of(bench)[-1].outcome == timeline.EMPTY


def test_a_changed_subscription_is_told_from_other_changes(pair: tuple[Bench, str, str]) -> None:
    bench, a, b = pair
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        member_id=b,
        protocol_type="consumer",
        reason="topics changed",
        protocols=[JoinGroupRequestProtocol(name=n, metadata=m) for n, m in reads("t", "u")],
    )
    bench.send(request, 9)
    bench.join(a, protocols=reads("t"))
    assign(bench, {a: {"t": (0, 1)}, b: {"t": (2, 3), "u": (0,)}})
    last = memory_of(bench)[-1]
    assert causes(last) == [("subscription", b)]
    assert last.causes[0].reason == "topics changed"
    assert moved(last) == [(0, None, b, "new")]
    other = (("range", encode_subscription(["t"], b"x", {}, -1, None)),)
    bench.join(a, protocols=other)
    bench.join(b, protocols=reads("t", "u"))
    assign(bench, {a: {"t": (0, 1)}, b: {"t": (2, 3), "u": (0,)}})
    assert causes(memory_of(bench)[-1]) == [("changed", a)]
    assert memory_of(bench)[-1].moved == 0


def test_a_generation_that_was_never_assigned(pair: tuple[Bench, str, str]) -> None:
    """What comes before its assignment supersedes it; what moved is told against what held last."""
    bench, a, b = pair
    bench.join(a, protocols=reads("t"))
    bench.join(b, protocols=reads("t"))
    bench.leave(b)
    bench.join(a, protocols=reads("t"))
    assign(bench, {a: {"t": (0, 1, 2, 3)}})
    lost, last = memory_of(bench)[-2:]
    assert (lost.generation, lost.outcome, causes(lost)) == (2, "superseded", [("leader", a)])
    assert moved(last) == [(2, b, a, "owner gone"), (3, b, a, "owner gone")]


def test_a_static_member_that_comes_back_is_who_it_was() -> None:
    bench = Bench()
    bench.join(instance="i", protocols=reads("t"))
    bench.advance(2 * DELAY_MS)
    old = bench.group.static_members["i"]
    bench.sync(old, instance="i", plan={old: encode_assignment({"t": (0, 1)})})
    bench.join(instance="i", protocols=reads("t", "u"))
    new = bench.group.static_members["i"]
    bench.sync(new, instance="i", plan={new: encode_assignment({"t": (0, 1), "u": (0,)})})
    last = memory_of(bench)[-1]
    assert causes(last) == [("static_back", new)]
    assert (last.came, last.went) == ((), ())
    assert moved(last) == [(0, None, new, "new")]


def test_the_coordinator_that_finds_a_generation_without_its_assignment() -> None:
    """Spec 2.12, crash point 4: told by the next coordinator, who knows no more than that."""
    bench = Bench()
    bench.form(2, protocols=reads("t"))
    bench.failover()
    (only,) = memory_of(bench)
    assert causes(only) == [("unfinished", "")]


def test_consumer_groups_with_their_phases() -> None:
    bench = ConsumerBench()
    bench.enter("a")
    bench.follow("a")
    bench.advance(1_000)
    bench.enter("b")
    bench.advance(500)
    bench.settle_all()
    first, second = memory_of(bench)
    assert (first.protocol, first.generation, causes(first)) == ("consumer", 1, [("joined", "a")])
    assert causes(second) == [("joined", "b")]
    assert [(m[1], m[2], m[3]) for m in moved(second)] == [("a", "b", "balance")] * 3
    assert (second.joining_ms, second.settling_ms) == (0, 500)
    assert (second.outcome, second.waited_for) == (timeline.STABLE, "b")


def test_causes_in_a_consumer_group() -> None:
    """Topics that grow, subscriptions that change, sessions and revocations that end, leaving."""
    bench = ConsumerBench()
    bench.enter("a")
    bench.follow("a")
    bench.make("t", 7)
    bench.follow("a")
    grown = memory_of(bench)[-1]
    assert causes(grown) == [("topics", "")]
    assert moved(grown) == [(6, None, "a", "new")]
    bench.keep("a", topics=["t", "u"])
    assert causes(memory_of(bench)[-1]) == [("subscription", "a")]
    bench.follow("a")
    bench.enter("b", topics=["t", "u"], rebalance_ms=20_000)
    bench.follow("a", rebalance_ms=20_000)
    assert memory_of(bench)[-1].outcome == timeline.GOING_ON
    bench.keep("a")
    bench.advance(20_000)
    assert causes(memory_of(bench)[-1]) == [("revoke_over", "a")]
    bench.settle_all()
    bench.advance(45_000)
    over = memory_of(bench)[-1]
    assert (causes(over), over.outcome) == ([("session_over", "b")], timeline.GOING_ON)
    bench.enter("c")
    bench.beat("c", -1)
    assert causes(memory_of(bench)[-1]) == [("left", "c")]


def test_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many rebalances a group, so many causes a rebalance, so many members over a shard."""
    bench = ConsumerBench()
    bench.check = False
    for n in range(history.REBALANCES_MAX + 6):
        bench.enter("a")
        bench.beat("a", -1)
        assert len(bench.shard._ws.history.of(GROUP)) <= history.REBALANCES_MAX, n
    assert len(memory_of(bench)) == 20
    assert len(memory_of(bench, 5)) == 5
    monkeypatch.setattr(history, "MEMBERS_MAX", 30)
    for n in range(20):
        bench.enter("a", group=f"g{n}")
    kept = bench.shard._ws.history
    assert sum(e.weight for e in kept._order if not e.dropped) == kept._weight <= 30
    assert kept.of("g0") == []
    assert len(kept.of("g19")) == 1
    monkeypatch.setattr(history, "CAUSES_MAX", 3)
    classic = Bench()
    classic.form(5, protocols=reads("t"))
    assert (len(memory_of(classic)[0].causes), memory_of(classic)[0].causes_more) == (3, 2)


def test_a_coordinator_leaves_large_plans_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells what moved for so many partitions, newest first; the log has the rest."""
    bench = ConsumerBench()
    for name in ("a", "b", "c"):
        bench.enter(name)
        bench.settle_all()
    whole = memory_of(bench)
    monkeypatch.setattr(timeline, "COORDINATOR_MAX", 20)
    cut = memory_of(bench)
    assert [one.moved is None for one in cut] == [True, True, False]
    for name in ("generation", "outcome", "members", "came", "went", "causes", "settled_ms"):
        assert [getattr(one, name) for one in cut] == [getattr(one, name) for one in whole]
    assert timeline.merged(cut, whole) == whole


def test_who_does_not_ask_is_not_told() -> None:
    bench = ConsumerBench()
    bench.enter("a")
    answer: Any = bench.ask(DescribeGroupsRequest(groups=[GROUP]), 6)
    assert not answer.groups[0].unknown_tags
    assert timeline.from_tags(None) is None
    with pytest.raises(DecodeError, match="timeline"):
        timeline.from_tags([(timeline.TAG, b'[{"x": 1}]')])
