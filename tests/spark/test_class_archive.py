"""Archives of Spark's classes: which JVM uses which, and that one starts with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kohort.spark.class_archive import USE, WRITE, java_options, path

SESSION = """
from pathlib import Path
from kohort.spark import session
spark = session("archived", master="local[1]")
pid = spark._jvm.java.lang.ProcessHandle.current().pid()
print("maps:", ".jsa" in Path(f"/proc/{pid}/maps").read_text().replace("classes.jsa", ""))
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(USE, raising=False)
    monkeypatch.delenv(WRITE, raising=False)
    java = tmp_path / "java"
    java.touch()
    return str(java)


def test_a_jvm_maps_the_archive_of_its_java(java: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None where there is none, for another Java, or where it is switched off."""
    assert java_options(java) == ""
    archive = path(java)
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert f'"-XX:SharedArchiveFile={archive}" ' in java_options(java)
    other = Path(java).with_name("other")
    other.touch()
    assert java_options(str(other)) == ""
    os.utime(java, ns=(1, 1))  # the same path after an upgrade
    assert java_options(java) == ""
    monkeypatch.setenv(USE, "off")
    assert java_options(java) == ""


def test_a_jvm_writes_an_archive_where_it_is_asked_to(
    java: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WRITE, "/somewhere/new.jsa")
    assert '"-XX:ArchiveClassesAtExit=/somewhere/new.jsa" ' in java_options(java)


@pytest.mark.parametrize("java", [None, "/nowhere/java"])
def test_without_java_there_are_no_options(java: str | None) -> None:
    assert java_options(java) == ""


@pytest.mark.spark
@pytest.mark.extended
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_command_makes_an_archive_that_sessions_map(tmp_path: Path) -> None:
    """An archive that does not fit is no error either: the JVM does without."""
    home = tmp_path / "a home"  # options are split at spaces
    home.mkdir()
    environment = {**os.environ, "HOME": str(home), USE: "off"}

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    made = run("-m", "kohort", "pipeline", "archive-classes")
    assert ".jsa (" in made
    assert "maps: False" in run("-c", SESSION)
    del environment[USE]
    assert "maps: True" in run("-c", SESSION)
    (archive,) = (home / ".cache" / "kohort").glob("spark-*.jsa")
    archive.write_bytes(b"no archive")
    assert "maps: False" in run("-c", SESSION)
