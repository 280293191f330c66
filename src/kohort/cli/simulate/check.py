"""`kohort simulate check`: the checks of a simulated system over a history that was written."""

from __future__ import annotations

from pathlib import Path

import click

from kohort.cli.common.root import EXIT_CHECK_FAILED
from kohort.cli.simulate.seeds import quiet_logging

EXAMPLES = """\b
Examples:
  kohort simulate system --seed 4711 --history run.jsonl
  kohort simulate check run.jsonl
"""


@click.command(epilog=EXAMPLES)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@quiet_logging()
def check(file: Path) -> int:
    """Check a history that `kohort simulate system --history` has written.

    Nothing is run: the file has all that the checks need. Exit code 3 when a promise was broken.
    """
    from kohort.simulator.checks.violation import Violation
    from kohort.simulator.system.history_file import judge, read_history

    recorded = read_history(file)
    history = recorded.history
    size = f"{len(history.sent)} records sent, {len(history.operations)} requests about offsets"
    try:
        judge(recorded)
    except Violation as violation:
        click.echo(f"failed; again with: {recorded.plan.command()}")
        click.echo(f"BROKEN {violation.code} {violation}")
        click.echo(f"{file}: {size}: {violation.code}", err=True)
        return EXIT_CHECK_FAILED
    click.echo(f"{file}: {size}: held", err=True)
    return 0
