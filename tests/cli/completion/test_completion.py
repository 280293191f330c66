"""`kohort completion`, and the habits of other tools (spec 8.2)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.conftest import Run
from tests.patience import PATIENCE_S


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_script_for_each_shell(bare: Run, shell: str) -> None:
    told = bare("completion", shell)
    assert told.code == 0
    assert "_KOHORT_COMPLETE" in told.out


def test_what_a_shell_gets_to_choose_from() -> None:
    words = {"COMP_WORDS": "kohort group la", "COMP_CWORD": "2", "_KOHORT_COMPLETE": "zsh_complete"}
    run = "from kohort.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", run], env={**os.environ, **words}, capture_output=True, text=True,
        timeout=PATIENCE_S,
    )  # fmt: skip
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
    told = bare(*words)
    assert told.code == 2
    assert hint in told.err


def test_help_and_version_as_words(bare: Run) -> None:
    assert "Commands:" in bare("help").out
    assert bare("version").out == bare("--version").out == bare("-V").out
