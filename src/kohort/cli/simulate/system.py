"""`kohort simulate system`: the whole broker and its clients under virtual time and faults.

Shell: the clock (for `--minutes`), processes (`--jobs`).
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kohort.cli.common.root import EXIT_CHECK_FAILED
from kohort.cli.simulate.seeds import Tally, outcomes, quiet_logging, refuse_ignored

if TYPE_CHECKING:
    from kohort.simulator.system.plan import SystemPlan
    from kohort.simulator.system.running import Overrides
    from kohort.simulator.system.world import Outcome

DEFAULT_SEEDS = 100
_STORY_LINES = 60
EXAMPLES = """\b
Examples:
  kohort simulate system --seeds 1000 --jobs 2
  kohort simulate system --seed 4711 --story
  kohort simulate system --seed 4711 --history run.jsonl
  kohort simulate system --minutes 10 --faults power_cut,node_kill --programs transact:3
"""


@click.command(epilog=EXAMPLES)
@click.option("--seed", type=int, help="Run only this seed.")
@click.option(
    "--seeds", type=click.IntRange(1), help=f"How many seeds.  [default: {DEFAULT_SEEDS}]"
)
@click.option("--first", type=int, default=1, show_default=True, help="The first seed.")
@click.option(
    "--minutes", type=click.FloatRange(min=0, min_open=True), help="Run seeds for this long."
)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
@click.option("--programs", help="Programs and how many of each: load:2,transact:1.")
@click.option("--faults", help="Kinds of faults, separated by commas; `none` for none.")
@click.option("--fault-count", type=click.IntRange(0), help="How many faults happen.")
@click.option(
    "--work-ms", type=click.IntRange(1), help="The virtual time with faults, in milliseconds."
)
@click.option("--nodes", type=click.IntRange(1, 5), help="Nodes of the broker.")
@click.option("--partitions", type=click.IntRange(1, 16), help="Partitions of each topic.")
@click.option(
    "--protocol",
    type=click.Choice(["classic", "consumer", "mixed"]),
    help="The group protocol of the consumers.",
)
@click.option(
    "--durability", type=click.Choice(["fsync", "os"]), help="The durability of the broker's log."
)
@click.option("--shrink/--no-shrink", default=True, help="Look for the smallest plan that fails.")
@click.option("--keep-going", is_flag=True, help="Continue after a failure and count them.")
@click.option("--story", is_flag=True, help="Print the events of successful runs, too.")
@click.option(
    "--history",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the history of --seed here; of many seeds, FILE-SEED for each that fails.",
)
@click.option("--coverage", is_flag=True, help="Print which faults and states were reached.")
@quiet_logging()
def system(
    seed: int | None,
    seeds: int | None,
    first: int,
    minutes: float | None,
    jobs: int,
    programs: str | None,
    faults: str | None,
    fault_count: int | None,
    work_ms: int | None,
    nodes: int | None,
    partitions: int | None,
    protocol: str | None,
    durability: str | None,
    shrink: bool,
    keep_going: bool,
    story: bool,
    history: Path | None,
    coverage: bool,
) -> int:
    """Run whole systems: broker, logs, disks, transactions and clients, each from one integer.

    Each seed draws a random subset of programs and faults. A run that fails prints the command
    that replays it and, unless --no-shrink, the smallest plan found that fails in the same way.
    """
    from kohort.simulator.system.running import Coverage, Overrides, run_seed

    refuse_ignored(seed, minutes)
    overrides = Overrides(
        programs=None if programs is None else _programs(programs),
        faults=None if faults is None else _faults(faults),
        fault_count=fault_count,
        work_ms=work_ms,
        nodes=nodes,
        partitions=partitions,
        protocol=protocol,
        durability=durability,
    )
    run_one = partial(run_seed, overrides=overrides)
    if seed is not None:
        results: Iterable[Outcome] = (_run(one, overrides, history) for one in (seed,))
    else:
        count = DEFAULT_SEEDS if seeds is None else seeds
        numbers = range(first, first + count) if minutes is None else itertools.count(first)
        until_s = None if minutes is None else time.monotonic() + 60 * minutes
        quiet = partial(logging.disable, logging.CRITICAL)
        results = outcomes(numbers, run_one, jobs, until_s, quiet)
    tally, reached = Tally(), Counter[str]()
    for outcome in results:
        tally.count(outcome)
        reached.update(outcome.reached)
        if outcome.failed:
            if history is not None and seed is None:
                _write(outcome.plan, history)
            _report(outcome, shrink=shrink)
            if not keep_going:
                break
        elif story:
            _print_plan(overrides.plan(outcome.plan.seed))
    tally.close()
    if coverage:
        for line in Coverage(reached).lines():
            click.echo(line)
    return EXIT_CHECK_FAILED if tally.failed else 0


def _run(seed: int, overrides: Overrides, history: Path | None) -> Outcome:
    from kohort.simulator.system.history_file import record
    from kohort.simulator.system.running import run_seed

    return run_seed(seed, overrides) if history is None else record(overrides.plan(seed), history)


def _write(plan: SystemPlan, history: Path) -> None:
    """Run a plan that has failed again, and write its history: the seed decides everything."""
    from kohort.simulator.system.history_file import record

    path = history.with_stem(f"{history.stem}-{plan.seed}")
    record(plan, path)
    click.echo(f"its history is in {path}", err=True)


def _programs(text: str) -> tuple[tuple[str, int], ...]:
    from kohort.simulator.system.plan import PROGRAMS

    chosen: list[tuple[str, int]] = []
    for word in text.split(","):
        name, _, count = word.partition(":")
        if name not in PROGRAMS or not (count or "1").isdigit():
            raise click.BadParameter(f"{word!r}: NAME:COUNT with one of {', '.join(PROGRAMS)}")
        chosen.append((name, int(count or "1")))
    return tuple(chosen)


def _faults(text: str) -> tuple[str, ...]:
    from kohort.simulator.system.plan import FAULTS

    if text == "none":
        return ()
    chosen = tuple(text.split(","))
    unknown = [fault for fault in chosen if fault not in FAULTS]
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)}: none of {', '.join(FAULTS)}")
    return chosen


def _report(outcome: Outcome, *, shrink: bool) -> None:
    from kohort.simulator.system.running import smallest

    click.echo(f"failed; again with: {outcome.plan.command()}")
    if shrink:
        outcome = smallest(outcome)
        click.echo(f"the smallest plan that fails alike: {outcome.plan.command()}")
    for line in outcome.story[-_STORY_LINES:]:
        click.echo(line)
    click.echo(f"BROKEN {outcome.code} {outcome.what}")


def _print_plan(plan: object) -> None:
    from kohort.simulator.system.plan import SystemPlan
    from kohort.simulator.system.world import run

    assert isinstance(plan, SystemPlan), "plans come from overrides"
    for line in run(plan).story:
        click.echo(line)
