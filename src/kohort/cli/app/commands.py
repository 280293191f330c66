"""`kohort app`: run the handlers of an `App`, and look at its retry topics.

Rules:
- MODULE:NAME is imported as Python does it, with the present directory first; FILE.py:NAME too.
- SIGTERM and Ctrl-C let records in progress end, for at most `--drain`; the outcome is printed.
- SIGUSR1 prints the state of every partition on standard error, and changes nothing.
- Exit codes: 4 when records were given up at the end, 3 when `check` found something to mend.

Shell: a signal, and a thread that answers it.
"""

from __future__ import annotations

import importlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kohort.cli.app.remote import (
    dead_letter_record,
    drain,
    pause,
    resume,
    retry_now,
    retry_record,
    status,
)
from kohort.cli.common.connect import Client, client_options, open_admin
from kohort.cli.common.output import output_option, printable, printable_lines, remark, show
from kohort.cli.common.root import EXIT_CHECK_FAILED, EXIT_PARTIAL, OPTIONAL, CommandGroup
from kohort.errors import ConfigError, KohortError
from kohort.setting_keys import nearest

if TYPE_CHECKING:
    from kohort.processing.app import App
    from kohort.processing.engine.failures import FailedAttempt

SHOWN_PER_SECOND = 20
MOST_KINDS = 1_000
COLUMNS = ("topic", "state", "partitions", "problem", "command")
EXAMPLES = """\b
Examples:
  kohort app run billing:app
  kohort app run services/billing.py:app --workers 32 --drain 30s
  kohort app run billing:app -b broker:9092 --config production.toml
"""
CHECK_EXAMPLES = """\b
Examples:
  kohort app check billing:app
  kohort app check billing:app -o json
"""


@click.group("app", cls=CommandGroup)
def app_group() -> None:
    """Run the handlers of an App; monitor and control Apps on other machines."""


for remote_command in (
    status,
    pause,
    resume,
    drain,
    retry_now,
    retry_record,
    dead_letter_record,
):
    app_group.add_command(remote_command)


@app_group.command(epilog=EXAMPLES)
@click.argument("app", metavar="MODULE:NAME")
@click.option(
    "--workers",
    type=click.IntRange(1, 10_000),
    help="Workers of each kind; default: the App's settings.",
)
@click.option(
    "--drain", metavar="TIME", help="How long a stop waits for records in progress, such as 30s."
)
@click.option(
    "-q",
    "--quiet",
    is_flag=True,
    help="Do not print temporary problems, nor attempts that will be retried.",
)
@client_options
def run(app: str, workers: int | None, drain: str | None, quiet: bool, client: Client) -> int:
    """Handle records until SIGTERM or Ctrl-C, then stop cleanly and print the outcome.

    Failed attempts are shown on standard error: topic, partition, offset, attempt, next try; at
    most 20 a second.

    `kill -USR1 PID` prints the state of every partition, and why one is stopped.
    """
    program = _found(app, client)
    program.configure(workers=workers, drain=drain)
    _reach(program)
    _report_on_request(program)
    program.on_failure(ShownFailures(quiet=quiet))
    # A failure that is printed must not appear twice, as a log entry, too.
    logging.getLogger("kohort.processing").addFilter(lambda entry: not hasattr(entry, "failed"))
    servers = program.client_settings.servers
    topics = ", ".join(program.sources)
    click.echo(f"app {program.group} reads {topics} on {servers}", err=True)
    ended = program.run(on_trouble=None if quiet else _print_trouble)
    click.echo(str(ended))
    if ended.clean:
        return 0
    if ended.given_up:
        click.echo(
            f"{ended.given_up:,} records were still in progress when --drain was over; the next "
            "owner of their partitions handles them again",
            err=True,
        )
    if ended.uncommitted:
        click.echo(
            f"the last commit of {ended.uncommitted:,} partitions failed; their next owner handles "
            "the records since the commit before again",
            err=True,
        )
    return EXIT_PARTIAL


@app_group.command(epilog=CHECK_EXAMPLES)
@click.argument("app", metavar="MODULE:NAME")
@output_option
@client_options
def check(app: str, output: str, client: Client) -> int:
    """Check every retry topic; print the commands that create or repair them. Changes nothing.

    `run` creates missing topics itself. Use this command if the app may not create topics.
    """
    program = _found(app, client)
    _reach(program)
    states = program.check()
    wrong = [state for state in states if state.wrong]
    if output != "table":
        rows = [
            {
                "topic": state.spec.name,
                "state": "unfit"
                if state.exists and state.wrong
                else "fit"
                if state.exists
                else "missing",
                "partitions": state.spec.partitions,
                "problem": state.wrong or None,
                "command": state.command or None,
            }
            for state in states
        ]
        show(rows, COLUMNS, output)
        return EXIT_CHECK_FAILED if wrong else 0
    for state in wrong:
        click.echo(f"{state.spec.name}: {state.wrong}", err=True)
    for state in wrong:
        if state.command:  # nothing but a program empties a retry topic
            click.echo(state.command)
    if not wrong:
        click.echo(f"all {len(states)} retry topics of app {program.group} are fit")
    return EXIT_CHECK_FAILED if wrong else 0


class ShownFailures:
    """Failed attempts on standard error, as many in a second as a person can read."""

    def __init__(self, *, quiet: bool = False, now_s: Callable[[], float] = time.monotonic) -> None:
        self._quiet = quiet
        self._now_s = now_s
        self._second_s = 0.0
        self._shown = self._left_out = 0
        self._kinds = set[str]()

    def __call__(self, failed: FailedAttempt) -> None:
        """Show it, unless too much was shown in this second; then it is counted."""
        if self._quiet and not failed.dead:
            return
        if (now_s := self._now_s()) - self._second_s >= 1:
            if self._left_out:
                click.echo(f"{self._left_out:,} more attempts failed, not shown", err=True)
            self._second_s, self._shown, self._left_out = now_s, 0, 0
        if self._shown < SHOWN_PER_SECOND:
            self._shown += 1
            self._show(failed)
        else:
            self._left_out += 1

    def _show(self, failed: FailedAttempt) -> None:
        """One line; with the traceback for the first of a kind that was not raised on purpose."""
        click.echo(printable(str(failed)), err=True)
        known = failed.fingerprint in self._kinds or len(self._kinds) >= MOST_KINDS
        if failed.stack and not failed.on_purpose and not known:
            self._kinds.add(failed.fingerprint)
            click.echo("\n".join(printable_lines(failed.stack.rstrip())), err=True)


def _print_trouble(trouble: str) -> None:
    remark(f"trouble: {trouble}" if trouble else "the trouble is over")


def _report_on_request(app: App) -> None:
    def print_status() -> None:
        click.echo(str(app.health()), err=True)

    def signalled(number: int, frame: object) -> None:
        del number, frame  # not here: the thread that the signal interrupts may hold a lock
        threading.Thread(target=print_status, name="kohort-health", daemon=True).start()

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, signalled)


def _reach(app: App) -> None:
    """Raise ConnectionFailedError when the app's cluster does not answer: nothing is begun."""
    with open_admin(app.client_settings.shared):
        return


def _found(name: str, client: Client) -> App:
    """The app, with the options of the command line. Raises ConfigError when it has no handler."""
    from kohort.processing.app import NO_HANDLER

    app = load_app(name)
    if not app.sources:
        raise ConfigError(f"{name}: {NO_HANDLER}")
    settings = client.given()
    servers = settings.pop("bootstrap_servers", None)
    app.configure(bootstrap_servers=servers, client=settings)
    return app


def load_app(name: str) -> App:
    """The `App` of MODULE:NAME or FILE.py:NAME; NAME may be left out when it is `app`.

    Raises ConfigError when there is none.
    """
    from kohort.processing.app import App
    from kohort.processing.app_parts import loading

    where, _, attribute = name.partition(":")
    attribute = attribute or "app"
    with loading(where):
        module = _module(where)
    value = getattr(module, attribute, None)
    if isinstance(value, App):
        return value
    apps = [key for key, each in vars(module).items() if isinstance(each, App)]
    near = nearest(attribute, apps) or next(iter(apps), None)
    hint = f" Did you mean {where}:{near}?" if near else " It has no App at all."
    raise ConfigError(f"{name}: {where} has no App called {attribute!r}.{hint}")


def _module(where: str) -> object:
    path = Path(where)
    directory = path.resolve().parent if path.suffix == ".py" else Path.cwd()
    if path.suffix == ".py" and not path.is_file():
        raise ConfigError(f"there is no file {where}")
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    module = path.stem if path.suffix == ".py" else where
    try:
        return importlib.import_module(module)
    except KohortError:
        raise
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in OPTIONAL:
            raise  # an extra of ours is missing, which `app` explains
        raise ConfigError(
            f"{where}: {error}; is it spelt right, and run from its directory?"
        ) from error
    except Exception as error:  # the module is its author's: anything may come out of it
        raise ConfigError(
            f"{where} could not be imported: {type(error).__name__}: {error}"
        ) from error
