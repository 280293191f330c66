"""`make setup` on any machine: where Java and the C compiler come from, and what happens if not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.pages import tool

ROOT = Path(__file__).resolve().parents[2]
machine_check = tool("check_machine")
set_up = tool("set_up")
Machine, decide = machine_check.Machine, machine_check.decide
NOTHING = Machine()
"""A fresh machine: Python 3.11 with its headers, no Java, no C compiler."""
ALL = Machine(compiler="gcc", java=17)


@pytest.mark.parametrize(
    ("machine", "java", "compiler"),
    [
        (ALL, "system", "system"),
        (NOTHING, "pypi", "pypi"),
        (Machine(compiler="gcc"), "pypi", "system"),
        (Machine(java=21), "system", "pypi"),
        (Machine(compiler="gcc", java=11), "pypi", "system"),
        (Machine(compiler="gcc", java=8), "pypi", "system"),
        (Machine(compiler="gcc", java=0), "pypi", "system"),
        (Machine(java=17, has_headers=False), "system", "none"),
        (Machine(has_headers=False), "pypi", "none"),
    ],
)
def test_what_the_machine_lacks_comes_from_pypi(machine, java, compiler) -> None:
    """Nothing but Python has to be installed by hand, and each substitution prints a line."""
    plan = decide(machine)
    assert plan.missing == ()
    assert ("pypi" if plan.java_from_pypi else "system", plan.compiler) == (java, compiler)
    assert len(plan.notes) == (java == "pypi") + (compiler != "system")
    assert all("PyPI" in note or "pure-Python kernel" in note for note in plan.notes)


def test_what_is_asked_for_by_name_is_used_or_missing() -> None:
    assert decide(ALL, java="pypi").java_from_pypi
    assert decide(ALL, compiler="pypi").compiler == "pypi"
    assert decide(ALL, compiler="none").compiler == "none"
    assert decide(ALL, "system", "system").missing == ()
    java, compiler = decide(NOTHING, "system", "system").missing
    assert "Java 17 or later" in java
    assert "openjdk-17-jre-headless" in java
    assert "C compiler" in compiler
    assert "gcc" in compiler


@pytest.mark.parametrize(
    ("machine", "missing"),
    [
        (Machine(python=(3, 10, 12)), "Python 3.11 or later (this is 3.10.12)"),
        (Machine(has_venv=False), "python3-venv"),
        (Machine(java_home="/gone"), "JAVA_HOME=/gone has no bin/java"),
    ],
)
def test_what_nothing_can_replace_is_missing(machine, missing) -> None:
    (lack,) = decide(machine).missing
    assert missing in lack


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path, monkeypatch) -> Path:
    """A PATH with nothing on it but what a test puts there."""
    for name in ("JAVA_HOME", "CC"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    return path


def test_a_machine_with_neither_is_enough(bare: Path) -> None:
    """The program itself, as `make setup` starts it."""
    assert (machine_check.look().java, machine_check.look().compiler) == (None, None)
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "check_machine.py"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "no Java here: taking Java from PyPI" in done.stdout


def test_it_looks_at_the_java_that_spark_would_start(bare: Path, tmp_path, monkeypatch) -> None:
    script(bare / "java", "echo 'openjdk version \"11.0.2\"' >&2")
    assert machine_check.look().java == 11
    for version, major in (("1.8.0_402", 8), ("21", 21), ("17.0.9-ea", 17)):
        home = tmp_path / f"home-{major}"
        script(home / "bin" / "java", f"echo 'openjdk version \"{version}\"' >&2")
        monkeypatch.setenv("JAVA_HOME", str(home))
        assert machine_check.look().java == major
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert machine_check.look().java_home == str(tmp_path / "gone")
    monkeypatch.delenv("JAVA_HOME")
    script(bare / "java", "echo 'The operation could not be completed' >&2; exit 1")
    assert machine_check.look().java == 0


def test_a_compiler_counts_when_it_compiles(bare: Path) -> None:
    """A command named cc that fails, as on a Mac without its tools, is no compiler."""
    script(bare / "cc", "exit 1")
    assert machine_check.find_compiler() is None
    script(bare / "clang", "exit 0")
    assert machine_check.find_compiler() == "clang"


class Recorded:
    """The environment that `install` fills; `fails` says which builds do not succeed."""

    def __init__(self, zig: dict[str, str] | None = None, fails: bool = False) -> None:
        self._zig, self._fails = zig, fails
        self.installed: list[tuple[str, dict[str, str]]] = []

    def zig(self) -> dict[str, str] | None:
        return self._zig

    def install(self, extras: str, **environment: str) -> None:
        self.installed.append((extras, environment))
        if self._fails and "CC" in environment:
            raise subprocess.CalledProcessError(1, ["pip", "install"])


PURE = {"KOHORT_BUILD_PURE": "1"}
ZIG = {"CC": "zig-cc", "PATH": "/venv/bin"}


def plan(java: bool, compiler: str) -> SimpleNamespace:
    return SimpleNamespace(java_from_pypi=java, compiler=compiler)


def test_the_set_up_carries_out_its_plan(monkeypatch, capsys) -> None:
    """Last of all comes the pure-Python kernel, with a line that says so."""
    monkeypatch.setattr(set_up, "find_compiler", lambda: "clang")
    installed = Recorded()
    set_up.install(installed, plan(False, "system"))
    set_up.install(installed, plan(True, "none"))
    assert installed.installed == [("all", {"CC": "clang"}), ("all,spark-jre", PURE)]
    installed = Recorded(zig=ZIG)
    set_up.install(installed, plan(True, "pypi"))
    assert installed.installed == [("all,spark-jre", ZIG)]
    assert "pure-Python" not in capsys.readouterr().out
    for without in (Recorded(zig=None), Recorded(zig=ZIG, fails=True)):
        set_up.install(without, plan(False, "pypi"))
        assert without.installed[-1] == ("all", PURE)
        assert "pure-Python kernel: correct, but far slower" in capsys.readouterr().out
    with pytest.raises(subprocess.CalledProcessError):  # what is wrong with gcc is told
        set_up.install(Recorded(fails=True), plan(False, "system"))


def test_wheels_are_installed_without_their_sources(monkeypatch, tmp_path) -> None:
    """Issue 15: the tests pass on an installed wheel, which no index and no source replaces."""
    calls: list[tuple[str, ...]] = []
    environment = set_up.Environment(tmp_path)
    monkeypatch.setattr(environment, "pip", lambda *words: calls.append(words))
    environment.install_wheels("all", "dist")
    ours, rest = calls
    assert {"--no-index", "--no-deps", "kohort", "kohort-demo"} <= set(ours)
    assert ours[ours.index("--find-links") + 1] == "dist"
    assert rest[-1] == "kohort[all]"
    assert "-e" not in (*ours, *rest)


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@needs_make
def test_make_asks_for_nothing_by_default(tmp_path) -> None:
    """Java and compiler are `auto` unless the caller says otherwise."""
    venv = f"VENV={tmp_path / 'venv'}"

    def planned(*words: str) -> str:
        own = ("JAVA", "COMPILER", "WHEELS", "MAKEFLAGS")  # of a `make test` that runs this
        env = {k: v for k, v in os.environ.items() if k not in own}
        done = subprocess.run(
            ["make", "-n", "setup", venv, *words], capture_output=True, text=True, cwd=ROOT, env=env
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "--java auto --compiler auto" in planned()
    assert "--java pypi --compiler none" in planned("JAVA=pypi", "COMPILER=none")
    assert "--wheels" not in planned()
    assert f"{venv.removeprefix('VENV=')} --java auto" in planned("WHEELS=dist")
    assert "--compiler auto --wheels dist\n" in planned("WHEELS=dist")


@needs_make
def test_make_takes_the_first_python_that_is_young_enough(tmp_path) -> None:
    make, path = shutil.which("make"), tmp_path / "bin"
    script(path / "python3", "exit 1")
    script(path / "python3.12", "exit 0")
    (path / "sh").symlink_to("/bin/sh")
    env = {"PATH": str(path), "HOME": str(tmp_path)}
    words = ["make", "-n", "setup", f"VENV={tmp_path / 'venv'}"]

    def planned() -> str:
        done = subprocess.run(
            words, executable=make, capture_output=True, text=True, cwd=ROOT, env=env
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "python3.12 tools/set_up.py" in planned()
    script(path / "python3", "exit 0")
    assert "python3 tools/set_up.py" in planned()
