"""`kohort simulate compare`: the table in every form, and the files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kohort.cli.common.root import invoke
from kohort.cli.simulate.commands import simulate
from kohort.cli.simulate.compare import compare

TINY = ["--size", "2x4"]


def run(*args: str) -> str:
    result = CliRunner().invoke(compare, args, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_table_and_files(tmp_path: Path) -> None:
    table = run(*TINY, "--no-plots", "--out", str(tmp_path))
    lines = table.splitlines()
    assert lines[0].split()[:4] == ["DESIGN", "MEMBERS", "PARTITIONS", "MESSAGES"]
    designs = ["zookeeper", "server", "classic", "cooperative", "kip848"]
    assert [line.split()[0] for line in lines[1:]] == designs
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compare.csv", "compare.json"]
    written = json.loads((tmp_path / "compare.json").read_text())
    assert (written["schema"], written["seed"]) == (1, 1)
    assert len(written["rows"]) == 5 * 13
    rows = list(csv.DictReader((tmp_path / "compare.csv").read_text().splitlines()))
    assert [row["design"] for row in rows] == [row["design"] for row in written["rows"]]


def test_events_for_programs(tmp_path: Path) -> None:
    """A row for each event, as CSV and as JSON, with the same figures."""
    args = [*TINY, "--design", "classic", "--events", "--no-plots", "--out", str(tmp_path)]
    as_csv = list(csv.DictReader(io.StringIO(run(*args, "-o", "csv"))))
    as_json = json.loads(run(*args, "-o", "json"))["rows"]
    assert [row["event"] for row in as_csv] == [row["event"] for row in as_json]
    assert [row["event"] for row in as_csv][:3] == ["start", "join", "leave"]
    assert [int(row["messages"]) for row in as_csv] == [row["messages"] for row in as_json]


@pytest.mark.extended
def test_page_with_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    run(*TINY, "--size", "4x8", "--out", str(tmp_path))
    page = (tmp_path / "compare.html").read_text()
    assert page.count("<svg") == 6
    assert "every consumer watches ZooKeeper" in page
    assert "<script" not in page
    for name in ("timeline", "messages", "stable", "unread", "herd", "owners"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("wrong", [("--seeds", "0"), ("--minutes", "-1")])
def test_a_run_of_nothing_is_no_run_that_held(
    wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(simulate, ["run", *wrong]) == 2
    assert wrong[0] in capsys.readouterr().err


def test_wrong_usage_is_told_before_anything_runs(tmp_path: Path) -> None:
    for wrong in (["--size", "ten"], ["--design", "zoo"], ["--size", "20000x20000"]):
        assert invoke(compare, [*wrong, "--out", str(tmp_path)]) == 2
    assert not list(tmp_path.iterdir())
