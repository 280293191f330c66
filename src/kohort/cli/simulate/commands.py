"""`kohort simulate`: groups, members and consumers under virtual time, with all that goes wrong.

Rules: the story of what failed goes to standard output, progress to standard error. Exit codes: 0
when every invariant held, 3 when one was broken, 130 when interrupted.

Shell: the clock (for seeds a second), processes (`--jobs`).
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kohort.cli.common.root import EXIT_CHECK_FAILED, CommandGroup
from kohort.cli.simulate.check import check
from kohort.cli.simulate.compare import compare
from kohort.cli.simulate.seeds import Tally, outcomes, refuse_ignored
from kohort.cli.simulate.system import system

if TYPE_CHECKING:
    from kohort.simulator.runs.running import Options
    from kohort.simulator.runs.simulation import Outcome

DEFAULT_SEEDS = 200

RUN = """\b
Examples:
  kohort simulate run --seeds 1000 --jobs 2
  kohort simulate run --seed 4711
  kohort simulate run --minutes 10 --members 2 --faults cut,kill,power
"""
SCENARIO = """\b
Examples:
  kohort simulate scenario b14-join-without-sync
  kohort simulate scenario my-story.toml --story
"""
SHIPPED = """\b
Example:
  kohort simulate examples
"""


@click.group(cls=CommandGroup)
def simulate() -> None:
    """Simulate groups and brokers under faults, and check all invariants."""
    # What simulated clients and brokers would write to a log is part of their stories.
    logging.getLogger("kohort").addHandler(logging.NullHandler())


simulate.add_command(compare)
simulate.add_command(system)
simulate.add_command(check)


@simulate.command(epilog=RUN)
@click.option("--seed", type=int, help="Run only this seed, and print its events.")
@click.option(
    "--seeds", type=click.IntRange(1), help=f"How many seeds.  [default: {DEFAULT_SEEDS}]"
)
@click.option("--first", type=int, default=1, show_default=True, help="The first seed.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="Run seeds for this long instead.",
)
@click.option(
    "--protocol",
    type=click.Choice(["classic", "consumer", "mixed"]),
    help="The group protocol of all members.",
)
@click.option("--members", type=click.IntRange(1, 10), help="How many consumers each world has.")
@click.option("--faults", help="Kinds of faults, separated by commas; `none` for none.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
@click.option("--shrink/--no-shrink", default=True, help="Search for the shortest run that fails.")
@click.option("--keep-going", is_flag=True, help="Continue after a failure and count them.")
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the failed run as a scenario file.",
)
@click.option("--story", is_flag=True, help="Print the events of successful runs, too.")
def run(
    seed: int | None,
    seeds: int | None,
    first: int,
    minutes: float | None,
    protocol: str | None,
    members: int | None,
    faults: str | None,
    jobs: int,
    shrink: bool,
    keep_going: bool,
    save: Path | None,
    story: bool,
) -> int:
    """Run random simulations, each determined by one integer, the seed.

    A failure is printed with the command that replays it, then reduced to a shorter run.
    """
    from kohort.simulator.runs.running import Options, run_seed

    refuse_ignored(seed, minutes)
    options = Options(protocol, members, None if faults is None else _names(faults))
    options.plan(first)  # wrong names are refused before anything runs
    if seed is not None:
        numbers: Iterable[int] = [seed]
    elif minutes is not None:
        numbers = itertools.count(first)
    else:
        numbers = range(first, first + (DEFAULT_SEEDS if seeds is None else seeds))
    until_s = None if minutes is None else time.monotonic() + 60 * minutes
    tally = Tally()
    for outcome in outcomes(numbers, partial(run_seed, options=options), jobs, until_s):
        tally.count(outcome)
        if outcome.failed:
            click.echo(f"failed; again with: {options.command(outcome.plan.seed)}")
            _report(outcome, shrink=shrink, save=save)
            if not keep_going:
                break
        elif story or seed is not None:
            _print_outcome(options, outcome)
    tally.close()
    return EXIT_CHECK_FAILED if tally.failed else 0


@simulate.command(epilog=SCENARIO)
@click.argument("name")
@click.option("--first", type=int, default=1, show_default=True, help="The first seed.")
@click.option("--story", is_flag=True, help="Print the events of successful runs, too.")
def scenario(name: str, first: int, story: bool) -> int:
    """Run a scenario: one of `kohort simulate examples`, or a .toml file."""
    from kohort.simulator.runs.running import run_scenario
    from kohort.simulator.scenario import load

    loaded = load(name)
    failed = 0
    for outcome in run_scenario(loaded, first):
        if outcome.failed or story:
            _report(outcome, shrink=False, save=None)
        failed += outcome.failed
        click.echo(f"{outcome.plan.name}: {outcome.code or 'held'}", err=True)
    return EXIT_CHECK_FAILED if failed else 0


@simulate.command(epilog=SHIPPED)
def examples() -> None:
    """List the scenarios that come with the package."""
    from kohort.simulator.scenario import examples as shipped

    for each in shipped():
        about = each.about.split(". ")[0].strip().replace("\n", " ")
        click.echo(f"{each.name:<36} {'/'.join(each.plan.proves):<12} {about}")


def _names(faults: str) -> tuple[str, ...]:
    return () if faults == "none" else tuple(name for name in faults.split(",") if name)


def _report(outcome: Outcome, *, shrink: bool, save: Path | None) -> None:
    from kohort.simulator.runs.report import as_scenario, story_of
    from kohort.simulator.runs.running import shortest

    if shrink and outcome.failed:
        outcome = shortest(outcome)
        click.echo(f"the shortest story found, {len(outcome.plan.steps)} steps:")
    for line in story_of(outcome):
        click.echo(line)
    if shrink:
        click.echo("as a scenario:\n")
        click.echo(as_scenario(outcome))
    if save is not None:
        save.write_text(as_scenario(outcome), encoding="utf-8")
        click.echo(f"written to {save}", err=True)


def _print_outcome(options: Options, outcome: Outcome) -> None:
    from kohort.simulator.runs.report import story_of
    from kohort.simulator.runs.running import run as run_plan

    for line in story_of(run_plan(options.plan(outcome.plan.seed))):
        click.echo(line)
