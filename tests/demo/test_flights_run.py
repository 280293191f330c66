"""What a run refuses, before it touches anything."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (pip install 'kohort[spark]')")

from kohort.demo import flights_run
from kohort.demo.flights_run import FlightsRun, RunSettings
from kohort.errors import ConfigError


def refused(directory: Path, settings: RunSettings | None = None, *, resume: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        FlightsRun(directory, print).prepare(settings or RunSettings(), resume=resume)
    return str(caught.value)


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights_run, "ensure_java", lambda: "java")


@pytest.mark.usefixtures("java")
def test_a_directory_that_is_not_a_runs_is_not_cleared(tmp_path: Path) -> None:
    """`--dir` names what is deleted: files that no run made stay."""
    letter = tmp_path / "letter.txt"
    letter.write_text("dear")
    assert "name an empty directory" in refused(tmp_path)
    assert letter.read_text() == "dear"


@pytest.mark.usefixtures("java")
def test_without_a_run_there_is_nothing_to_resume(tmp_path: Path) -> None:
    assert "no run to resume" in refused(tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("java")
def test_retry_topics_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "new", RunSettings(retries="2s soon"))
    assert not (tmp_path / "new").exists()


def test_without_java_an_earlier_run_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java missing: a clear error, and nothing is changed."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    assert "Spark needs Java 17 or later" in refused(run)
    assert (run / "run.json").read_text() == "{}"
