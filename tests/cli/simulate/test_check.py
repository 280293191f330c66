"""`kohort simulate check`: a history that `simulate system` has written, checked without a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from kohort.cli.common.root import invoke
from kohort.cli.simulate.commands import simulate
from kohort.simulator.files import SimFile

SMALL = [
    *("--programs", "load:1,read:1", "--faults", "power_cut", "--fault-count", "2"),
    *("--work-ms", "2000", "--nodes", "1", "--partitions", "1"),
    *("--protocol", "classic", "--durability", "fsync"),
]


def broken(text: str) -> list[str]:
    """The command that runs it again, and what was broken."""
    return [line for line in text.splitlines() if line.startswith(("failed;", "BROKEN"))]


def test_a_history_that_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.jsonl"
    assert invoke(simulate, ["system", "--seed", "1", *SMALL, "--history", str(file)]) == 0
    capsys.readouterr()
    assert invoke(simulate, ["check", str(file)]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.endswith("requests about offsets: held\n")


def test_of_many_seeds_those_that_fail_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same exit code and the same lines as those of the run itself."""

    def lie(self: SimFile, size: int) -> None:
        self.unsynced = self.size > size

    monkeypatch.setattr(SimFile, "sync_to", lie)
    several = ["system", "--first", "1", "--seeds", "3", *SMALL, "--no-shrink"]
    assert invoke(simulate, [*several, "--history", str(tmp_path / "run.jsonl")]) == 3
    live = broken(capsys.readouterr().out)
    monkeypatch.undo()
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("run-")
    assert file.suffix == ".jsonl"
    assert invoke(simulate, ["check", str(file)]) == 3
    assert broken(capsys.readouterr().out) == live


def test_what_is_no_history_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text("{}\n")
    assert invoke(simulate, ["check", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"error: {file}, line 1: this is no history of a simulated system\n"
    )
