"""docs/assignors.md is true: its code runs as it is shown, its command prints what stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from kohort.cli.common.root import app, invoke
from kohort.group.assignors import BUILT_IN, SERVER_SIDE
from tests.pages import blocks_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "assignors.md"
TEXT = PAGE.read_text()
MODULE = "my_assignors"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The worked example, where Python finds it."""
    [code] = re.findall(
        rf"^<!-- file: {MODULE}.py -->\n```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL
    )
    (tmp_path / f"{MODULE}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    return code


def test_the_code_runs_as_it_is_shown(example: str) -> None:
    """Choosing, the random assignor (spec 3.2), its test, and its use on both sides."""
    assert example in blocks_of(PAGE, "python")
    names: dict[str, Any] = {}
    for code in blocks_of(PAGE, "python"):
        exec(compile(code, str(PAGE), "exec"), names)


def test_the_command_prints_what_stands_there(
    example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`kohort group plan` with the worked example."""
    for block in blocks_of(PAGE, "console"):
        command, _, shown = block.partition("\n")
        assert invoke(app, command.removeprefix("$ kohort ").split()) == 0
        assert capsys.readouterr().out.strip() == shown.strip()


def test_every_assignor_is_listed() -> None:
    for name in [*BUILT_IN, *SERVER_SIDE]:
        assert f"| `{name}`" in TEXT, name


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#\w+)?\)", TEXT):
        assert (PAGE.parent / target).exists(), target
