"""One line for each group: its health, since when, and which comes first (spec 8.1, 8.3)."""

from __future__ import annotations

from dataclasses import replace

from kohort import TopicPartition
from kohort.observe.overview import Evidence, Health, overview, refined
from kohort.observe.trend import Direction, Sample, Trend
from tests.observe.worlds import look, member, seen, snapshot

TILL = member("till", ("orders", 0))
AT = ("orders", 0)


def test_the_worst_group_comes_first() -> None:
    before = snapshot(
        0,
        look(0, "stuck", {AT: seen(5, 50)}, TILL),
        look(0, "fine", {AT: seen(50, 50)}, TILL),
        look(0, "moving", {AT: seen(5, 50)}, TILL),
    )
    now = snapshot(
        40,
        look(40, "stuck", {AT: seen(5, 60)}, TILL),
        look(40, "fine", {AT: seen(60, 60)}, TILL),
        look(40, "moving", {AT: seen(55, 60)}, TILL),
        not_described={"secret": "GROUP_AUTHORIZATION_FAILED"},
    )
    found = overview(now, before, Evidence())
    assert [line.group for line in found.lines] == ["stuck", "secret", "moving", "fine"]
    health = {line.group: line.health for line in found.lines}
    assert health == {
        "stuck": Health.STUCK,
        "secret": Health.NOT_SEEN,
        "moving": Health.MOVING,
        "fine": Health.READ,
    }
    assert "till" in found.lines[0].why
    assert found.lines[1].lag.value is None
    assert "GROUP_AUTHORIZATION_FAILED" in found.lines[1].why


def test_one_look_gives_no_verdict() -> None:
    found = overview(snapshot(0, look(0, "g", {AT: seen(5, 50)}, TILL)), None, Evidence())
    assert found.lines[0].health is Health.WATCHING
    assert found.lines[0].lag.value == 45


def test_since_when_and_when_members_changed() -> None:
    first = snapshot(0, look(0, "g", {AT: seen(5, 50)}, TILL))
    second = snapshot(40, look(40, "g", {AT: seen(5, 60)}, TILL))
    third = snapshot(80, look(80, "g", {AT: seen(5, 70)}, member("other", AT)))
    one = overview(first, None, Evidence())
    two = overview(second, first, Evidence(), one)
    three = overview(third, second, Evidence(), two)
    assert (one.lines[0].since_ms, two.lines[0].since_ms) == (0, 40_000)
    assert [o.lines[0].changed_ms for o in (one, two, three)] == [None, None, 80_000]
    assert three.groups["g"].line is three.lines[0] or three.groups["g"].line == three.lines[0]


def test_a_group_that_is_not_visible_for_a_while_goes_on_as_before() -> None:
    first = snapshot(0, look(0, "g", {AT: seen(5, 50)}, TILL))
    second = snapshot(40, look(40, "g", {AT: seen(5, 60)}, TILL))
    away = snapshot(80, not_described={"g": "broker 1 does not answer"}, unseen=second.groups)
    back = snapshot(120, look(120, "g", {AT: seen(5, 70)}, TILL))
    moved = snapshot(120, look(120, "g", {AT: seen(5, 70)}, member("other", AT)))
    found = overview(second, first, Evidence(), overview(first, None, Evidence()))
    assert found.lines[0].health is Health.STUCK
    for at_s in (80, 90):
        found = overview(replace(away, at_ms=at_s * 1_000), second, Evidence(), found)
        assert found.lines[0].health is Health.NOT_SEEN
        assert found.lines[0].since_ms == 80_000
    seen_again = overview(back, away, Evidence(), found).lines[0]
    assert (seen_again.health, seen_again.since_ms) == (Health.STUCK, 40_000)
    assert seen_again.changed_ms is None
    other = overview(moved, away, Evidence(), found).lines[0]
    assert (other.changed_ms, other.rebalances_ms) == (120_000, (120_000,))


def test_the_time_of_a_record_is_exact_and_more_evidence_changes_one_group_alone() -> None:
    tp = TopicPartition(*AT)
    before = snapshot(0, *(look(0, n, {AT: seen(5, 50)}, TILL) for n in ("a", "b")))
    now = snapshot(40, *(look(40, n, {AT: seen(5, 50)}, TILL) for n in ("a", "b")))
    found = overview(now, before, Evidence())
    assert found.groups["a"].lags[tp].time.value is None
    assert found.groups["a"].lags[tp].time.reason == "no history yet"
    more = refined(found, before, Evidence(written_ms={("a", tp): 10_000}))
    assert more.groups["a"].lags[tp].time.value == 30_000
    assert more.groups["b"] is found.groups["b"]
    nothing = refined(found, before, Evidence(nothing_to_read={"a": {tp}}))
    assert nothing.groups["a"].line.health is Health.READ
    assert nothing.groups["a"].lags[tp].time.value == 0


def test_a_group_that_rebalances_again_and_again_and_reads_nothing_is_named() -> None:
    """As `kohort group why` names it; each rebalance counts once, however long it lasts."""
    states = ["Stable", "PreparingRebalance", "CompletingRebalance"] * 7
    before, line = None, None
    for number, state in enumerate(states):
        at_s = number * 10
        one = look(at_s, "g", {AT: seen(5, 50 + number)}, TILL)
        now = snapshot(at_s, replace(one, group=replace(one.group, state=state)))
        line = overview(now, before, Evidence(), line)
        before = now
    assert line is not None
    assert len(line.lines[0].rebalances_ms) == 7
    verdict = line.groups["g"].verdict
    assert verdict is not None
    assert any("7 rebalances in the last minutes" in concern for concern in verdict.concerns)


def test_members_that_exchange_partitions_and_read_on_raise_no_concern() -> None:
    before, found = None, None
    for number in range(8):
        who = member(f"till-{number % 2}", AT)
        now = snapshot(number * 10, look(number * 10, "g", {AT: seen(5 + number, 50)}, who))
        found = overview(now, before, Evidence(), found)
        before = now
    assert found is not None
    assert len(found.lines[0].rebalances_ms) == 7
    verdict = found.groups["g"].verdict
    assert verdict is not None
    assert not any("rebalances" in concern for concern in verdict.concerns)


def test_old_rebalances_are_forgotten() -> None:
    first = snapshot(0, look(0, "g", {AT: seen(5, 50)}, TILL))
    second = snapshot(10, look(10, "g", {AT: seen(5, 50)}, member("other", AT)))
    third = snapshot(400, look(400, "g", {AT: seen(5, 50)}, member("other", AT)))
    one = overview(first, None, Evidence())
    two = overview(second, first, Evidence(), one)
    three = overview(third, second, Evidence(), two)
    assert [o.lines[0].rebalances_ms for o in (one, two, three)] == [(), (10_000,), ()]


def test_a_leader_that_does_not_answer_once_makes_no_trend() -> None:
    """Half of the ends is no sum: the lag would seem to fall, and records to be unwritten."""
    other = ("orders", 1)
    both = look(0, "g", {AT: seen(5, 50), other: seen(0, 1_000)})
    half = look(40, "g", {AT: seen(5, 50), other: seen(0, None)})
    whole = look(80, "g", {AT: seen(5, 50), other: seen(0, 1_000)})
    gone = look(120, "g", {AT: seen(5, 50), other: seen(0, None, exists=False)})
    samples: list[Sample] = []
    trends: list[Trend] = []
    for each in (both, half, whole):
        view = overview(snapshot(each.at_s, each), None, Evidence(samples={"g": samples})).groups
        samples.append(view["g"].sample)
        trends.append(view["g"].line.trend)
    assert [(s.lag, s.written) for s in samples] == [(1_045, 1_050), (None, None), (1_045, 1_050)]
    assert samples[1].done == 5
    assert trends[1].direction is Direction.UNKNOWN
    assert (trends[2].direction, trends[2].written_per_s) == (Direction.STEADY, 0)
    left = overview(snapshot(120, gone), None, Evidence()).groups["g"]
    assert (left.sample.lag, left.sample.written) == (45, 50), "a deleted topic holds nothing"
    shown = overview(snapshot(40, half), None, Evidence()).groups["g"].line.lag
    assert (shown.value, shown.at_least) == (45, True)
