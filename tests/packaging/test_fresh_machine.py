"""A machine with nothing but Python, make and git: two commands set up everything (issue F.24).

It clones the last commit, so it needs a commit, PyPI, half a gigabyte and some minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT

PROGRAMS = (
    "awk basename bash cat chmod cp cut date dirname env expand expr find git grep head"
    " hostname id kill ln ls make mkdir mktemp mv nice nproc ps readlink rm rmdir sed sh sleep"
    " sort stat tail tar tee test touch tr true uname wc which xargs"
)
"""Git, make and what every Unix has."""
FORBIDDEN = ("java", "javac", "cc", "gcc", "clang", "c99", "tcc")
KEPT = ("LANG", "PIP_CERT", "PIP_FIND_LINKS", "PIP_INDEX_URL", "SSL_CERT_FILE", "https_proxy")
FIRST_TESTS = (
    "tests/records/test_round_trip.py",
    "tests/broker/apis/test_produced_records.py",
    "tests/client/consumer/test_consumer_e2e.py",
    "tests/spark/test_sink.py",
    "tests/unit/test_set_up.py",
)
SETUP_S, DEMO_S, TESTS_S = 1_800, 900, 1_800

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(SETUP_S + DEMO_S + TESTS_S),
    pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed"),
]


class Machine:
    """A PATH, a home and a clone of their own."""

    def __init__(self, home: Path) -> None:
        self.clone, self._bin = home / "kohort", home / "bin"
        self._bin.mkdir()
        for name in PROGRAMS.split():
            if found := shutil.which(name):
                (self._bin / name).symlink_to(os.path.realpath(found))
        python = os.path.realpath(sys.executable)
        for name in ("python3", f"python3.{sys.version_info.minor}"):
            (self._bin / name).symlink_to(python)
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        self._env = {"HOME": str(home), "PATH": str(self._bin), "LANG": "C.UTF-8", **kept}

    def has(self, program: str) -> bool:
        return shutil.which(program, path=str(self._bin)) is not None

    def run(self, *words: str, timeout_s: float, where: Path | None = None) -> str:
        """What it prints; fails with it when it fails."""
        done = subprocess.run(
            words,
            executable=shutil.which(words[0], path=str(self._bin)),
            cwd=where or self.clone,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )
        assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout[-6_000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    home = tmp_path_factory.mktemp("fresh")
    machine = Machine(home)
    assert not [name for name in FORBIDDEN if machine.has(name)]
    machine.run("git", "clone", "-q", str(ROOT), "kohort", timeout_s=100, where=home)
    return machine


def test_make_demo_and_tests_need_neither_java_nor_a_compiler(machine: Machine) -> None:
    demo = machine.run("make", "demo", "FLIGHTS=5000", timeout_s=SETUP_S + DEMO_S)
    assert "no Java here: taking Java from PyPI" in demo
    assert "no C compiler here: taking one from PyPI (ziglang)" in demo
    assert "==> ready; kernel: cython" in demo
    assert "each input once and only once" in demo, demo[-3_000:]
    machine.run("make", "lint", timeout_s=TESTS_S)
    tests = machine.run(
        "sh", "-c", f".venv/bin/pytest -q {' '.join(FIRST_TESTS)}", timeout_s=TESTS_S
    )
    assert "skipped" not in tests.splitlines()[-1], tests[-3_000:]
