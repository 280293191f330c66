"""`kohort demo flights`: the main job on a year of real flights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kohort.cli.common.root import EXIT_CHECK_FAILED, CommandGroup

if TYPE_CHECKING:
    from kohort.demo.flights_run import FlightsRun, RunSettings

EXAMPLES = """\b
Examples:
  kohort demo flights
  kohort demo flights --limit 20000 --dir /tmp/demo
  kohort demo flights --resume
"""


@click.group(cls=CommandGroup)
def demo() -> None:
    """Run the demo pipeline on a year of real flights."""


@demo.command(epilog=EXAMPLES)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/demo"),
    show_default=True,
    help="The directory of all files of the run.",
)
@click.option("--resume", is_flag=True, help="Continue the run in the directory.")
@click.option("--limit", type=int, help="Load only the first N flights.")
@click.option("--store", help="Database URL: sqlite:///FILE or postgresql://…  [default: SQLite]")
@click.option("--retries", default="1s 1s 3s 3s 3s 6s", show_default=True, help="The retry topics.")
@click.option("--master", default="local[2]", show_default=True, help="Spark master URL.")
@click.option("--handlers", is_flag=True, help="Row handlers instead of DataFrames.")
@click.option("--keep-broker", is_flag=True, help="Leave the broker running afterwards.")
def flights(
    directory: Path,
    resume: bool,
    limit: int | None,
    store: str | None,
    retries: str,
    master: str,
    handlers: bool,
    keep_broker: bool,
) -> int:
    """Load a year of flights with retries, and reconcile the counts.

    Exit code 3 when the counts do not agree. After a kill at any moment, continue with --resume.
    """
    from kohort.demo.flights_run import FlightsRun, RunSettings

    settings = RunSettings(
        store=store, retries=retries, limit=limit, master=master, handlers=handlers
    )
    run = FlightsRun(directory, lambda text: click.echo(f"==> {text}", err=True))
    return _run(run, settings, resume, keep_broker)


def _run(run: FlightsRun, settings: RunSettings, resume: bool, keep_broker: bool) -> int:
    from kohort.cli.common.user_files import interruptible
    from kohort.demo.flights_report import text_of, write_report
    from kohort.demo.progress import Bar

    with interruptible():  # SIGTERM, too, is to leave no broker behind
        try:
            run.prepare(settings, resume=resume)
            with Bar(sys.stderr) as bar:
                run.run(bar.show)
            facts = run.facts()
        except KeyboardInterrupt:
            again = f"kohort demo flights --resume --dir {run.directory}"
            click.echo(f"\nstopped; `{again}` continues", err=True)
            raise
        finally:
            if not keep_broker:
                run.close()
    commands = look_at(run, running=keep_broker)
    as_json, as_html = write_report(facts, run.directory, commands)
    click.echo(text_of(facts))
    click.echo(f"\n{as_json}\n{as_html}\n")
    click.echo("\n".join(["look at it in the console, at http://127.0.0.1:8088/:", *commands]))
    return EXIT_CHECK_FAILED if facts.problems else 0


def look_at(run: FlightsRun, *, running: bool) -> list[str]:
    """The commands that show a run in the console; `running`: its broker is there."""
    from shlex import join

    from kohort.demo.flights_run import console_command

    if running:
        return [console_command(run.bootstrap, run.store_url)]
    data = str(run.broker.data)
    return [
        join(["kohort", "broker", "run", "--data-dir", data, "--port", "9092"]) + " &",
        console_command("127.0.0.1:9092", run.store_url),
    ]
