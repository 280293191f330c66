"""`make quick`: lint, types and the tests of what changed since a branch.

A changed file of `src/kohort/a/b/` runs `tests/a/b/`, or the nearest folder above that has tests; a
changed test file runs itself. Tests that start processes, Spark or explore stay with `make test`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARKS = "not nightly and not extended and not slow and not spark and not postgres and not java"
BESIDE = ("--dist=loadfile", "--no-loadscope-reorder")
"""As `make test` shares the tests out."""
ALWAYS = ("tests/test_tidy.py", "tests/test_layers.py")


def git(*arguments: str) -> list[str]:
    """Lines of what git answers."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def changed_files(base: str) -> list[str]:
    """Python files that differ from where this branch left `base`, new ones included."""
    start = git("merge-base", base, "HEAD")[0]
    names = {*git("diff", "--name-only", start), *git("ls-files", "-o", "--exclude-standard")}
    return sorted(name for name in names if name.endswith(".py") and (ROOT / name).exists())


def covering_tests(name: str, root: Path = ROOT) -> str | None:
    """The test file or folder that shows a changed file; None where there is none."""
    path = Path(name)
    if path.parts[0] == "tests":
        return name if path.name.startswith("test_") else None
    if path.parts[:2] != ("src", "kohort"):
        return None
    folder = Path("tests", *path.parts[2:-1])
    while folder != Path("tests"):
        if any((root / folder).rglob("test_*.py")):
            return str(folder)
        folder = folder.parent
    return None


def selection(names: Iterable[str], root: Path = ROOT) -> list[str]:
    """What to run for changed files, each test once."""
    chosen = {test for name in names if (test := covering_tests(name, root))}
    inside = {test for test in chosen if any(str(p) in chosen for p in Path(test).parents)}
    return [*ALWAYS, *sorted(chosen - inside - set(ALWAYS))]


def main() -> int:
    """Run the three checks; the exit code of the first that fails."""
    parser = argparse.ArgumentParser(description="Lint, types and tests of what changed.")
    parser.add_argument("--base", default="main", help="branch to compare with")
    names = changed_files(parser.parse_args().base)
    typed = [name for name in names if name.startswith(("src/", "examples/", "tests/"))]
    python = [sys.executable, "-m"]
    steps = [
        [*python, "ruff", "check", "-q", "."],
        [*python, "ruff", "format", "-q", "--check", "."],
    ]
    if typed:
        steps.append([*python, "pyright", "--pythonpath", sys.executable, *typed])
    beside = ["-n", str(min(4, 1 + (os.cpu_count() or 1))), *BESIDE]
    steps.append([*python, "pytest", "-q", "-x", *beside, "-m", MARKS, *selection(names)])
    for step in steps:
        print("==>", *step[2:], flush=True)
        if code := subprocess.run(step, cwd=ROOT, check=False).returncode:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
