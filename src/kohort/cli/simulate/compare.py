"""`kohort simulate compare`: four designs of rebalancing on one workload and one fault plan.

Shell: clock (how often a line of progress is shown).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.output import output_option, show

if TYPE_CHECKING:
    from kohort.simulator.history.compare import Progress, Run
    from kohort.simulator.history.plan import Size

EXAMPLES = """\b
Examples:
  kohort simulate compare
  kohort simulate compare --seed 7 --size 50x500 --design zookeeper --design classic
  kohort simulate compare --full --out build/simulate
  kohort simulate compare --events -o csv > compare.csv
"""
LINE_EVERY_S = 5.0
SUMMARY = (
    "design",
    "members",
    "partitions",
    "messages",
    "keep_alives",
    "notifications",
    "start_s",
    "stable_s",
    "unowned_partition_s",
    "split_brain_partition_s",
    "zombie_partition_s",
    "failed_claims",
    "moved",
)


@click.command(epilog=EXAMPLES)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="The seed of the plan and the network."
)
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="MEMBERSxPARTITIONS",
    help="A size; may be given again.  [default: 10x100, 100x1000, 1000x10000]",
)
@click.option("--full", is_flag=True, help="Also 10,000 members and 100,000 partitions.")
@click.option(
    "--design",
    "designs",
    multiple=True,
    help="zookeeper, server, classic, cooperative or kip848; may be given again.  [default: all]",
)
@click.option("--events", is_flag=True, help="Print a row for each event, not only the totals.")
@click.option(
    "--out",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/simulate"),
    show_default=True,
    help="The directory for tables, plots and the page.",
)
@click.option("--no-plots", is_flag=True, help="Write the tables only.")
@output_option
def compare(
    seed: int,
    sizes: tuple[str, ...],
    full: bool,
    designs: tuple[str, ...],
    events: bool,
    directory: Path,
    no_plots: bool,
    output: str,
) -> None:
    """Run four designs of rebalancing side by side, and show what each costs.

    Every design has the same consumers, partitions, faults and network. STABLE-S is the longest
    time to stable after an event; a dash means that it was not reached before the next one (of
    START-S also: the group was in the log already, as a large one of kip848 is).
    """
    from kohort.simulator.history.compare import FULL_SIZE, SIZES, designs_of
    from kohort.simulator.history.compare import compare as run_all
    from kohort.simulator.history.plan import Size
    from kohort.simulator.history.report import need_plots, write_page, write_tables

    chosen = [Size.parse(size) for size in sizes] or [*SIZES]
    if full and FULL_SIZE not in chosen:
        chosen.append(FULL_SIZE)
    named = designs_of(designs)
    if not no_plots:
        need_plots()
    with _shown() as progress:
        runs = run_all(seed, chosen, named, progress=progress)
    written = write_tables(runs, directory)
    if not no_plots:
        written += write_page(runs, directory)
    _show(runs, events, output)
    page = next((path for path in written if path.suffix == ".html"), written[0])
    click.echo(f"{page} and {len(written) - 1} more files in {directory}", err=True)


def _show(runs: list[Run], events: bool, output: str) -> None:
    from kohort.simulator.history.compare import COLUMNS

    if events:
        show([row for run in runs for row in run.rows()], COLUMNS, output)
        return
    rows = [{**run.row(run.total), "start_s": run.start_s} for run in runs]
    if output == "table" and sys.stdout.isatty() and _rich_table(rows):
        return
    show(rows, SUMMARY, output)


def _rich_table(rows: list[dict[str, Any]]) -> bool:
    """A table with colours, where rich is installed."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        return False
    table = Table(title="all events after the start", title_justify="left", pad_edge=False)
    for column in SUMMARY:
        left = column == "design"
        table.add_column(column.replace("_", " "), justify="left" if left else "right")
    for place, row in enumerate(rows):
        last = place + 1 == len(rows) or rows[place + 1]["members"] != row["members"]
        table.add_row(*(_cell(column, row[column]) for column in SUMMARY), end_section=last)
    Console().print(table)
    return True


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "[bold red]never[/]"
    text = f"{value:,}" if isinstance(value, int | float) else str(value)
    bad = value and column in {"split_brain_partition_s", "failed_claims"}
    return f"[red]{text}[/]" if bad else text


@contextmanager
def _shown() -> Generator[Progress]:
    """Progress on stderr: a bar on a terminal with rich, a line now and then elsewhere."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:
        yield _lines()
        return
    if not sys.stderr.isatty():
        yield _lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1)

        def on_progress(design: str, size: Size, now_ms: int, end_ms: int) -> None:
            bar.update(task, description=f"{design} {size}", completed=now_ms, total=end_ms)

        yield on_progress


def _lines() -> Progress:
    printed_at = time.monotonic()

    def on_progress(design: str, size: Size, now_ms: int, end_ms: int) -> None:
        nonlocal printed_at
        now = time.monotonic()
        if now >= printed_at + LINE_EVERY_S:
            printed_at = now
            click.echo(f"==> {design} {size}: {100 * now_ms // end_ms} %", err=True)

    return on_progress
