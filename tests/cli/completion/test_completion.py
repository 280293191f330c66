"""`kohort completion`, and the habits of other tools (spec 8.2)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete

from kohort import Admin
from kohort.cli.common.root import app
from tests.cli.conftest import Run
from tests.clusters import Cluster
from tests.patience import PATIENCE_S


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_script_for_each_shell(bare: Run, shell: str) -> None:
    ran = bare("completion", shell)
    assert ran.code == 0
    assert "_KOHORT_COMPLETE" in ran.out


def test_what_a_shell_gets_to_choose_from() -> None:
    words = {"COMP_WORDS": "kohort group la", "COMP_CWORD": "2", "_KOHORT_COMPLETE": "zsh_complete"}
    run = "from kohort.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", run],
        env={**os.environ, **words},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert "lag" in done.stdout.split()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("group", "reset", "g", "--to-earliest"), "--to earliest"),
        (("group", "reset", "g", "--shift-by", "-5"), "--to shift:-5"),
        (("consume", "--topic", "t"), "consume TOPIC"),
        (("topic", "list", "--bootstrap-server", "h:1"), "-b HOST:PORT"),
    ],
)
def test_an_option_of_another_tool_gets_a_hint(
    bare: Run, words: tuple[str, ...], hint: str
) -> None:
    ran = bare(*words)
    assert ran.code == 2
    assert hint in ran.err


def test_help_and_version_as_words(bare: Run) -> None:
    assert "Commands:" in bare("help").out
    assert bare("help", "group", "lag").out == bare("group", "lag", "--help").out
    assert bare("version").out == bare("--version").out == bare("-V").out


def completed(args: list[str], word: str) -> list[str]:
    found = ShellComplete(app, {}, "kohort", "_KOHORT_COMPLETE").get_completions(args, word)
    return [item.value for item in found]


def test_topics_and_groups_are_completed_from_the_cluster(kohort: Run, cluster: Cluster) -> None:
    """Also for the cluster that the line names; where none answers there is nothing, at once."""
    for name in ("orders", "order-lines", "bills"):
        kohort("topic", "create", name)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_group_offsets("billing", {("bills", 0): 0})
    assert completed(["consume"], "ord") == ["order-lines", "orders"]
    assert completed(["topic", "describe", "orders"], "b") == ["bills"]
    for command in ("lag", "why", "reset", "describe", "timeline"):
        assert completed(["group", command], "") == ["billing"]
    assert completed(["topic", "delete", "-b", "127.0.0.1:1"], "ord") == []
    assert completed(["topic", "delete", "-X", "nonsense=1"], "ord") == []
