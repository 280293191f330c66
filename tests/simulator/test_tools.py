"""What surrounds the worlds: scenario files, shrinking, stories, the command's exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kohort.cli.common.root import app, invoke
from kohort.errors import ConfigError
from kohort.simulator.plan import ConsumerPlan, Plan
from kohort.simulator.runs.report import as_scenario, story_of
from kohort.simulator.runs.running import Options, run, shortest
from kohort.simulator.scenario import load, parse
from kohort.simulator.script import parse_step

FAILS = Plan(
    seed=3,
    nodes=2,
    topics={"orders": 2},
    consumers=(ConsumerPlan("a", ("orders",)), ConsumerPlan("b", ("orders",))),
    steps=(
        "at 0: start a",
        "at 200: start b",
        "at 900: cut a",
        "at 2000: write 3 records to orders-0",
        "at 3000: slow b for 2000 ms",
    ),
    expect=("a owns 2 partitions",),
)


def test_a_failing_plan_shrinks_to_what_matters() -> None:
    """What has nothing to do with the failure goes, and what is left fails in the same way."""
    whole = run(FAILS)
    assert whole.code == "STORY"
    small = shortest(whole)
    assert small.code == "STORY"
    assert len(small.plan.steps) < len(FAILS.steps)
    assert "cut a" not in " ".join(small.plan.steps)
    assert any("BROKEN STORY" in line for line in story_of(small))


def test_a_plan_written_as_a_scenario_is_the_same_run() -> None:
    """`--save` loses nothing: the file gives the same trace under the same seed."""
    plan = Options().plan(11)
    outcome = run(plan)
    [again] = parse(as_scenario(outcome), "saved").plans(first_seed=11)
    assert again.settings == plan.settings
    assert run(again).digest == outcome.digest


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('steps = ["begin a"]', "no action"),
        ('steps = ["when a is happy and well: start a"]', "no condition"),
        ('steps = ["soon: start a"]', "begins with"),
        ('expect = ["all is well"]', "no expectation"),
        ("stepps = []", "did you mean 'steps'"),
        ("[world]\nnods = 2", "did you mean 'nodes'"),
        ("steps = [", "own: "),
    ],
)
def test_what_a_scenario_may_not_say(text: str, match: str) -> None:
    """A slip of the pen is refused with the nearest word, and never left out."""
    with pytest.raises(ConfigError, match=match):
        parse(text, "own")


def test_wrong_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="no fault 'cuts'"):
        Options(faults=("cuts",)).plan(1)
    with pytest.raises(ConfigError, match="b14-join-without-sync"):
        load("b14-join-without-synk")
    assert parse_step("after 5: kill node 2").after_ms == 5


def test_the_command_says_what_broke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3 with the story when a promise is broken, 0 when all held."""
    file = tmp_path / "own.toml"
    file.write_text(as_scenario(run(FAILS)))
    assert invoke(app, ["simulate", "scenario", str(file), "--first", "3"]) == 3
    assert "BROKEN STORY" in capsys.readouterr().out
    assert invoke(app, ["simulate", "run", "--seeds", "2", "--faults", "none"]) == 0
    assert "2 seeds, 0 failed" in capsys.readouterr().err
