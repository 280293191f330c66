"""The player's view, without a browser (spec 8.2): lanes, owners and lines of a story."""

from __future__ import annotations

from kohort.console.views.stories import AROUND, StoryView, story_view
from kohort.simulator.event_log import Line
from kohort.simulator.plan import ConsumerPlan, Plan
from kohort.simulator.runs.replay import Moment, moments
from kohort.simulator.runs.simulation import Outcome

PLAN = Plan(
    seed=1,
    nodes=1,
    topics={"t": 2},
    consumers=(ConsumerPlan("a", ("t",)), ConsumerPlan("b", ("t",))),
    steps=("start a",),
    name="a story",
)
STORY = [
    Line(0, "*** start a"),
    Line(100, "a is assigned t-0, t-1"),
    Line(200, "a is handed t-0 0..4"),
    Line(210, "a is handed t-0 5..9"),
    Line(300, "a gives up t-1"),
    Line(400, "b is assigned t-1"),
    Line(500, "*** crash a"),
    Line(600, "b has lost t-1"),
]


def outcome(code: str | None = None, what: str = "") -> Outcome:
    return Outcome(PLAN, code, what, "digest", 9, 1_000, STORY, 10, 2)


def view(at: int, made: list[Moment] | None = None) -> StoryView:
    return story_view(PLAN, moments(outcome()) if made is None else made, at, (), 0)


def test_owners_after_each_line() -> None:
    made = moments(outcome())
    assert [(one.owned["a"], one.owned["b"]) for one in made] == [
        ((), ()),
        (("t-0", "t-1"), ()),
        (("t-0", "t-1"), ()),
        (("t-0",), ()),
        (("t-0",), ("t-1",)),
        ((), ("t-1",)),
        ((), ()),
        ((), ()),
    ]
    assert [one.kind for one in made].count("step") == 2
    assert made[2].text == "a is handed t-0 0..9"
    assert made[-1].text.startswith("all held")


def test_a_broken_promise_is_the_last_line() -> None:
    made = moments(outcome("GL1", "two rebalances"))
    assert made[-1].kind == "broken"
    assert made[-1].text.startswith("GL1 (")
    assert view(99, made).tone == "stuck"
    assert view(1, made).ending == "a promise is broken"


def test_lanes_are_the_times_of_ownership() -> None:
    lanes = {lane.name: lane.stays for lane in view(1).lanes}
    assert [stay.title for stay in lanes["a"]] == [
        "owns t-0, t-1 from 100 to 300 ms",
        "owns t-0 from 300 to 500 ms",
    ]
    assert [stay.title for stay in lanes["b"]] == ["owns t-1 from 400 to 600 ms"]


def test_a_line_names_what_it_changed_and_where_the_plan_goes_on() -> None:
    shown = view(4)
    assert shown.text == "a gives up t-1"
    assert [one.change for one in shown.owners] == ["−t-1", "–"]
    assert shown.next_step == 6
    assert view(6).next_step == 0
    assert view(0).number == 1
    assert view(1 << 60).number == shown.total == 8


def test_only_the_lines_around_are_shown() -> None:
    many = [Moment(n, f"line {n}", "event", {}) for n in range(20_000)]
    shown = story_view(PLAN, many, 10_000, (), 0)
    assert len(shown.lines) == 2 * AROUND + 1
    assert next(line.number for line in shown.lines if line.now) == 10_000
