"""`kohort pipeline`: run a pipeline that is written in a Python file, and balance its books.

Rules:
- Progress goes to standard error: one line when something has changed, at most one a second. How
  it ended goes to standard output.
- SIGINT and SIGTERM stop the queries and close the store; the next run continues where it stopped.

Shell: signals, clock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.connect import Client, client_options, key_values, open_admin
from kohort.cli.common.output import as_table, output_option, printable, show
from kohort.cli.common.positions import parse_time
from kohort.cli.common.root import EXIT_CHECK_FAILED, EXIT_INTERRUPTED, CommandGroup
from kohort.cli.common.user_files import interruptible, load_file
from kohort.config import format_duration, parse_duration_ms
from kohort.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.spark.pipeline import Pipeline
    from kohort.spark.progress import Progress

PROGRESS_S = 1.0
STATUS_COLUMNS = (
    "topic",
    "inputs",
    "handled",
    "loaded",
    "filtered",
    "failed",
    "retrying",
    "loaded_after_retry",
    "duplicates",
    "both",
    "missing",
    "strangers",
    "failed_copies",
    "failed_by_reason",
)
RUN_EXAMPLES = """\b
Examples:
  kohort pipeline run examples/flights_pipeline.py
  kohort pipeline run loader.py --master spark://host:7077 --mode until_idle
  kohort pipeline run loader.py --master spark://host:7077 --ship
  kohort pipeline run league.py --master spark://host:7077 --conf spark.sql.shuffle.partitions=8
  kohort pipeline run loader.py -b broker:9092 -X fetch.max.bytes=16MiB
"""
CHECK_EXAMPLES = """\b
Examples:
  kohort pipeline check loader.py --master spark://host:7077
  kohort pipeline check loader.py --master spark://host:7077 --ship -o json
"""
ARCHIVE_EXAMPLES = """\b
Examples:
  kohort pipeline archive-classes
"""
STATUS_EXAMPLES = """\b
Examples:
  kohort pipeline status examples/flights_pipeline.py
  kohort pipeline status loader.py -o json --check
"""
VACUUM_EXAMPLES = """\b
Examples:
  kohort pipeline vacuum loader.py
  kohort pipeline vacuum loader.py --older-than 30d --execute
"""
CHECK_COLUMNS = (
    "host",
    "python",
    "kohort",
    "pyspark",
    "pyarrow",
    "pandas",
    "unreachable",
    "clock_offset_ms",
    "clock_within_ms",
    "free_gib",
    "directory",
)
MASTER = click.option(
    "--master", help="Spark's master: local[*], spark://host:7077, …  [default: Spark's]"
)
SHIP = click.option(
    "--ship",
    is_flag=True,
    help="Send kohort and its packages to executors that have only Python and Spark.",
)
CONF = click.option(
    "--conf",
    metavar="KEY=VALUE",
    multiple=True,
    help="A setting of the new Spark session; repeatable.",
)
DIFF_EXAMPLES = """\b
Examples:
  kohort pipeline diff loader.py
  kohort pipeline diff loader.py --check -o json
"""
REPLAY_EXAMPLES = """\b
Examples:
  kohort pipeline replay league2.py --replaces league --into standings=standings_next
  kohort pipeline replay league2.py --replaces league --into standings=standings_next --no-swap
  kohort pipeline replay loader2.py --replaces loader --into sales=sales_next --from 2026-11-01
"""
DIFF_COLUMNS = ("topic", "what", "effect", "refused")
FILE = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.group(cls=CommandGroup)
def pipeline() -> None:
    """Run a pipeline written in a Python file."""


@pipeline.command(epilog=RUN_EXAMPLES)
@FILE
@MASTER
@CONF
@SHIP
@click.option(
    "--mode",
    type=click.Choice(["continuous", "until_idle", "available_now"]),
    default="continuous",
    show_default=True,
    help="When the run ends by itself.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress lines.")
@client_options
def run(
    file: Path,
    master: str | None,
    conf: tuple[str, ...],
    ship: bool,
    mode: str,
    quiet: bool,
    client: Client,
) -> int:
    """Run the pipeline in FILE, on this machine or on a Spark cluster.

    `until_idle` ends when every available record is loaded or failed; `available_now` when the
    ones that are due have been handled. After a stop or a kill, the same command continues.
    """
    loaded = load(file, client)
    reach(loaded)
    show_progress = None if quiet else Lines(lambda text: click.echo(text, err=True)).show
    with interruptible():
        try:
            spark = _session(loaded, master, conf, ship) if ship or conf else None
            last = loaded.run(mode, spark=spark, master=master, on_progress=show_progress)
        except KeyboardInterrupt:
            click.echo(
                f"stopped: pipeline {loaded.name} continues where it stopped with the same command",
                err=True,
            )
            return EXIT_INTERRUPTED
    click.echo(line_of(last))
    return 0


@pipeline.command(epilog=REPLAY_EXAMPLES)
@FILE
@click.option(
    "--replaces", metavar="PIPELINE", required=True, help="The pipeline whose tables are rebuilt."
)
@click.option(
    "--into",
    metavar="TABLE=SHADOW",
    multiple=True,
    required=True,
    help="The shadow table of a table until the swap; repeat for each table of FILE.",
)
@click.option(
    "--from",
    "since",
    metavar="TIME",
    default="beginning",
    show_default=True,
    help="Read records from this time on: 2026-11-01T08:00Z, -7d for seven days ago.",
)
@click.option("--swap/--no-swap", default=True, help="Swap when it has caught up.")
@MASTER
@CONF
@click.option("-q", "--quiet", is_flag=True, help="No progress lines.")
@client_options
def replay(
    file: Path,
    replaces: str,
    into: tuple[str, ...],
    since: str,
    swap: bool,
    master: str | None,
    conf: tuple[str, ...],
    quiet: bool,
    client: Client,
) -> int:
    """Rebuild the tables of a pipeline with the one in FILE, and swap them in.

    FILE has the new logic, under a new pipeline name. It reads its topics from the beginning into
    shadow tables, while the other pipeline continues. When it has caught up, one transaction puts
    the shadow tables in the place of the tables, and ends the other pipeline. The old tables are
    kept. After a stop or a kill, the same command continues.
    """
    from kohort.spark.rebuilding import replay as rebuild

    loaded = load(file, client)
    reach(loaded)
    show_progress = None if quiet else Lines(lambda text: click.echo(text, err=True)).show
    since_ms = None if since == "beginning" else parse_time(since, time.time_ns() // 1_000_000)
    with interruptible():
        try:
            ended = rebuild(
                loaded,
                replaces=replaces,
                into=_pairs(into),
                since_ms=since_ms,
                swap=swap,
                spark=_session(loaded, master, conf) if conf else None,
                master=master,
                on_progress=show_progress,
            )
        except KeyboardInterrupt:
            click.echo("stopped: nothing was swapped; the same command continues", err=True)
            return EXIT_INTERRUPTED
    click.echo(line_of(ended.progress))
    for table, kept in ended.tables.items():
        click.echo(f"swapped {table}: the old one is {kept}")
    if not ended.tables:
        click.echo("nothing was swapped; the same command without --no-swap does it", err=True)
    return 0


@pipeline.command(epilog=CHECK_EXAMPLES)
@FILE
@MASTER
@CONF
@SHIP
@output_option
@client_options
def check(
    file: Path, master: str | None, conf: tuple[str, ...], ship: bool, output: str, client: Client
) -> int:
    """Ask every executor whether it can run the pipeline in FILE; nothing is read or written.

    Python, package versions, reach of brokers and store, clock, free disk. Exit code 3 when
    something is in the way.
    """
    from kohort.spark.checking import check_executors, driver_report, problems
    from kohort.spark.sessions import check_classic

    loaded = load(file, client)
    reach(loaded)
    check_classic(f"pipeline check of {loaded.name}", master=master)
    spark = _session(loaded, master, conf, ship)
    try:
        reports = check_executors(loaded, spark)
        local = str(spark.sparkContext.master).startswith("local")
    finally:
        spark.stop()
    amiss = problems(reports, driver_report(), loaded.skew_ms, local=local, store=loaded.store)
    rows = [report.as_row() for report in reports]
    if output == "json":
        click.echo(json.dumps({"schema": 1, "problems": amiss, "rows": rows}, indent=2))
    else:
        show(rows, CHECK_COLUMNS, output)
        for line in amiss:
            click.echo(line, err=True)
        if not amiss:
            click.echo(f"{len(rows)} executor{'s' * (len(rows) != 1)} can run it", err=True)
    return EXIT_CHECK_FAILED if amiss else 0


@pipeline.command("archive-classes", epilog=ARCHIVE_EXAMPLES)
def archive_classes() -> int:
    """Let local Spark sessions start in half the time.

    Runs a small pipeline, whose JVM writes the classes that it has loaded into a file (150 MB, in
    ~/.cache/kohort). JVMs of this Java and this Spark map it from then on. Run the command again
    after an upgrade of either. KOHORT_CLASS_ARCHIVE=off does without.
    """
    from kohort.cli.pipeline.class_archive import make_archive

    archive = make_archive()
    click.echo(f"{archive} ({archive.stat().st_size >> 20} MB)")
    return 0


@pipeline.command(epilog=STATUS_EXAMPLES)
@FILE
@click.option("--check", is_flag=True, help="Exit code 3 unless every input has ended, once.")
@output_option
@client_options
def status(file: Path, check: bool, output: str, client: Client) -> int:
    """What became of every input, by the store, its ledger and the topics.

    Inputs are loaded, FILTERED (the handler returned nothing), failed or in a retry topic; MISSING
    are none of these, BOTH are loaded and failed, STRANGERS are rows without an input.
    """
    from kohort.spark.progress import reconcile

    loaded = load(file, client)
    reach(loaded)
    balance = reconcile(loaded)
    rows: list[dict[str, Any]] = [
        {
            **{name: getattr(part, name) for name in STATUS_COLUMNS[:-1]},
            "failed": sum(part.failed.values()),
            "failed_by_reason": dict(part.failed),
        }
        for part in balance.topics.values()
    ]
    if output == "table":
        click.echo(as_table(rows, STATUS_COLUMNS[:-1]))
        for row in rows:
            for reason, count in row["failed_by_reason"].items():
                click.echo(f"{row['topic']}: {count:,} failed: {printable(reason)}")
        for step, count in balance.late.items():
            click.echo(f"{step}: {count:,} rows dropped: behind the watermark")
        for step in balance.owing:
            click.echo(f"{step}: the Kafka transaction of its last batch has not ended; run it")
        for step, count in balance.behind.items():
            click.echo(f"{step}: steps that keep state have about {count:,} of its rows to read")
        click.echo("every input has ended, once" if balance.exact else "not everything has ended")
    elif output == "json":
        notes = {
            "exact": balance.exact,
            "late": balance.late,
            "owing": balance.owing,
            "behind": balance.behind,
        }
        whole = {"schema": 1, **notes, "rows": rows}
        click.echo(json.dumps(whole, indent=2))
    else:
        show(rows, STATUS_COLUMNS, output)
    return EXIT_CHECK_FAILED if check and not balance.exact else 0


@pipeline.command(epilog=VACUUM_EXAMPLES)
@FILE
@click.option(
    "--older-than",
    metavar="TIME",
    help="The minimum age; default: the pipeline's ledger_retention.",
)
@click.option("--execute", is_flag=True, help="Delete the entries; default: a dry run.")
@client_options
def vacuum(file: Path, older_than: str | None, execute: bool, client: Client) -> None:
    """Delete old ledger entries of records that were loaded after a retry.

    A running pipeline does this every hour. Waiting and failed records keep their entries.
    """
    from kohort.retry.ledger_view import ended_count

    loaded = load(file, client)
    age_ms = loaded.ledger_retention_ms if older_than is None else parse_duration_ms(older_than)
    before_ms = time.time_ns() // 1_000_000 - age_ms
    store = loaded.open_store()
    try:
        count = ended_count(store, loaded.name, before_ms)
        if execute:
            store.vacuum(loaded.name, before_ms)
    finally:
        store.close()
    records = f"{count:,} record{'s' * (count != 1)} loaded over {format_duration(age_ms)} ago"
    click.echo(f"{'forgot' if execute else 'would forget'} {records}")
    if not execute:
        click.echo("nothing was changed; add --execute to do it", err=True)


@pipeline.command(epilog=DIFF_EXAMPLES)
@FILE
@click.option("--check", is_flag=True, help="Exit code 3 when the next run would be refused.")
@output_option
@client_options
def diff(file: Path, check: bool, output: str, client: Client) -> int:
    """Show what the next run of FILE would do differently. Changes nothing.

    Compares the file with the store's fences and ledger, the topics and the checkpoint: added and
    removed handlers and retries, and topics that were recreated, grew or lost records.
    """
    from kohort.retry.cluster_port import ClusterPort
    from kohort.spark.evolution import changes
    from kohort.spark.supervise import stored_state

    loaded = load(file, client)
    reach(loaded)
    store, port = loaded.open_store(), ClusterPort(loaded.client_config)
    try:
        rows = [
            asdict(c)
            for c in changes(
                loaded.topics, stored_state(loaded, store, port), loaded.handler_topics
            )
        ]
    finally:
        port.close()
        store.close()
    if output == "table":
        for row in rows:
            mark = "refused: " if row["refused"] else ""
            click.echo(f"{mark}{row['topic']}: {row['what']}; {row['effect']}")
        if not rows:
            click.echo("nothing has changed: the next run continues where the last one ended")
    else:
        show(rows, DIFF_COLUMNS, output)
    return EXIT_CHECK_FAILED if check and any(row["refused"] for row in rows) else 0


def load(file: Path, client: Client) -> Pipeline:
    """The pipeline of a file, with the command's brokers and settings before its own."""
    from kohort.client.common.config import ConsumerConfig

    client.for_role(ConsumerConfig)
    loaded = load_file(file)
    settings = client.given()
    servers = settings.pop("bootstrap_servers", None)
    if servers:
        loaded.bootstrap_servers = str(servers)
    loaded.client.update({key.replace("_", "."): str(value) for key, value in settings.items()})
    return loaded


def _pairs(into: tuple[str, ...]) -> dict[str, str]:
    """The shadow of each table. Raises ConfigError for what is not TABLE=SHADOW."""
    pairs = [text.partition("=") for text in into]
    if wrong := [t + e + s for t, e, s in pairs if not t or not s]:
        raise ConfigError(f"--into {wrong[0]}: write TABLE=SHADOW")
    return {table: shadow for table, _, shadow in pairs}


def _session(
    loaded: Pipeline, master: str | None, conf: tuple[str, ...], ship: bool = False
) -> SparkSession:
    """A session for the pipeline; with `ship`, its executors use the driver's packages."""
    from kohort.spark.sessions import session
    from kohort.spark.shipping import pack, settings_of

    config: dict[str, str] = {}
    requested = key_values(conf, "--conf")
    if ship:
        if master is None or master.startswith("local"):
            raise ConfigError(
                "--ship is for clusters: with a local master executors have the driver's packages. "
                "Give --master spark://HOST:PORT, yarn or k8s://..., or leave --ship out"
            )
        config = settings_of(pack())
    return session(f"kohort {loaded.name}", master=master, config={**config, **requested})


def reach(loaded: Pipeline) -> None:
    """Raise ConnectionFailedError when the pipeline's cluster does not answer: nothing is begun."""
    with open_admin(Client().with_flags(**loaded.client_config).common()):
        return


def line_of(progress: Progress) -> str:
    """One line for people."""
    return (
        f"handled {progress.done:,} of {progress.inputs:,}   retrying {progress.retrying:,}   "
        f"failed {progress.failed:,}   retries {progress.retries:,}"
    )


class Lines:
    """Says how far a pipeline is, when it has changed, at most once a second."""

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say = say
        self._clock = clock
        self._last = ""
        self._next = 0.0

    def show(self, progress: Progress) -> None:
        """Called with each measurement."""
        text, now = line_of(progress), self._clock()
        if text != self._last and now >= self._next:
            self._last, self._next = text, now + PROGRESS_S
            self._say(text)
