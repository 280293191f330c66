"""Help is quick, whole and honest: every command is listed, described and shown at work."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version

import click
import pytest

from kohort.cli.common.root import COMMANDS, app
from tests.cli.conftest import Run
from tests.patience import PATIENCE_S

CLICK = tuple(map(int, version("click").split(".")[:2]))


def leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(found, (*path, name))
    else:
        yield path


PATHS = list(leaves(app, ()))


def command_at(path: tuple[str, ...]) -> click.Command:
    command: click.Command = app
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_command_explains_itself(bare: Run, path: tuple[str, ...]) -> None:
    """A sentence, help for every option, and examples whose options exist."""
    ran = bare(*path, "--help")
    assert ran.code == 0
    command = command_at(path)
    assert command.help
    assert all(p.help for p in command.params if isinstance(p, click.Option))
    examples = [line.strip() for line in (command.epilog or "").splitlines() if "kohort " in line]
    assert examples
    for line in examples:
        assert line in ran.out, "an example was wrapped"
        known = {one for p in command.params for one in (*p.opts, *p.secondary_opts)}
        words = shlex.split(line.split("|")[-1] if f"| kohort {' '.join(path)}" in line else line)
        at = [i for i in range(len(words)) if tuple(words[i : i + len(path)]) == path]
        options = [w.split("=")[0] for w in words[at[0] :] if w.startswith("--")] if at else []
        assert set(options) <= known, line


def test_the_table_of_commands_says_what_the_commands_say() -> None:
    """`kohort --help` does not import the commands; what it says of them is theirs all the same."""
    for name, (_, _, summary) in COMMANDS.items():
        assert command_at((name,)).get_short_help_str(200).split(".")[0] == summary.split(".")[0]


def test_no_command_is_described_by_half_a_sentence(bare: Run) -> None:
    """click cuts at 45 characters; whoever looks for a command reads these lines."""
    groups = {path[:-1] for path in PATHS}
    assert {("group",), ("topic", "config")} <= groups
    for path in groups:
        assert "..." not in bare(*path, "--help").out.partition("Commands:")[2]


def test_help_imports_nothing_but_the_command_itself() -> None:
    """`kohort --help` stays under 0.15 s because nothing else is loaded."""
    code = (
        "import sys; from kohort.cli.common.root import app, invoke; invoke(app, ['--help']); "
        "print(sorted(m for m in sys.modules if m.startswith('kohort.')))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    loaded = ran.stdout.splitlines()[-1]
    packages = "'kohort.cli', 'kohort.cli.common', 'kohort.cli.common.root'"
    assert loaded == f"[{packages}, 'kohort.errors']"


HEAVY = (
    "asyncio",
    "csv",
    "ipaddress",
    "logging",
    "pathlib",
    "runpy",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "numpy",
    "psycopg",
    "pyarrow",
    "pyspark",
    "starlette",
    "kohort.client",
    "kohort.records",
    "kohort.retry",
    "kohort.wire",
)
"""What no help needs: a command imports it when it runs."""


@pytest.mark.parametrize("name", ["dlq", "retry", "topic", "group", "consume", "acl"])
def test_the_help_of_a_command_imports_nothing_heavy(name: str) -> None:
    """It stays below 0.15 s over the interpreter (issue 18): what it imports decides that."""
    code = (
        "import sys; before = set(sys.modules); from kohort.cli.common.root import app, invoke; "
        f"invoke(app, [{name!r}, '--help']); print(*(set(sys.modules) - before))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    loaded = ran.stdout.splitlines()[-1].split()
    assert "kohort.cli.common.root" in loaded
    heavy = [one for one in loaded if one in HEAVY or one.rpartition(".")[0] in HEAVY]
    assert heavy == []


def test_a_wrong_command_names_the_nearest(bare: Run) -> None:
    for args, near in ((("topci",), "topic"), (("group", "lst"), "list")):
        ran = bare(*args)
        assert (ran.code, ran.out) == (2, "")
        assert f"Did you mean {near!r}?" in ran.err or CLICK < (8, 4)  # it names none before
