"""Plants the bugs of tests/mutants one by one, and demands that the simulator or a test finds each.

    python tools/run_mutants.py                 # all
    python tools/run_mutants.py 'b14*' b30-late-heartbeat
    python tools/run_mutants.py --check         # only whether every patch still applies

A patch is a diff against `src` with a head of `# key: value` lines (docs/simulator.md, "Mutants"):
`bug`, `broken` (the codes of which one must come; `TEST` for a test), `what`, and `kills`, one of
`scenario NAME …`, `seeds FIRST-LAST [options of kohort simulate run]`,
`system FIRST-LAST [options of kohort simulate system]`, `test PYTEST-NODE-ID …`.
Each patch is applied to a copy of `src` and `tests`; the tree that is worked in is never touched.
One of compiled code is compiled there (half a minute).
Exit code: 0 when all are killed and nothing fails without them.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUTANTS = ROOT / "tests" / "mutants"
HEAD = re.compile(r"# (bug|kills|broken|what): (.*)")
BROKEN = re.compile(r"BROKEN (\w+)")
COMPILED = re.compile(r"^\+\+\+ .*\.(pyx|pxi|h)$", re.MULTILINE)
BUILT = ("build/cython", "build/lib.*", "build/temp.*")
CHECK_FAILED, TIMEOUT_S = 3, 600
TEST_FAILED, TEST = 1, "TEST"


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    path: Path
    bug: str
    kills: str
    broken: frozenset[str]
    what: str

    @property
    def name(self) -> str:
        """The file's name without its suffix."""
        return self.path.stem

    def commands(self) -> Iterator[list[str]]:
        """What has to fail with the bug and to hold without it."""
        kind, *rest = self.kills.split()
        if kind == "scenario":
            yield from (["kohort", "simulate", "scenario", name] for name in rest)
        elif kind in {"seeds", "system"}:
            first, last = map(int, rest[0].split("-"))
            command = "run" if kind == "seeds" else "system"
            yield [
                "kohort",
                "simulate",
                command,
                "--first",
                str(first),
                "--seeds",
                str(last - first + 1),
                "--no-shrink",
                *rest[1:],
            ]
        elif kind == "test":
            yield ["pytest", "-x", "-q", "-p", "no:cacheprovider", *rest]
        else:
            known = "scenario, seeds, system or test"
            raise SystemExit(f"{self.path}: `kills` begins with {known}: {kind!r}")


def read(path: Path) -> Mutant:
    """A mutant out of its patch. SystemExit when its head is not whole."""
    head: dict[str, str] = {}
    for line in path.read_text().splitlines():
        if match := HEAD.fullmatch(line.rstrip()):
            head[match[1]] = match[2].strip()
        elif line.startswith("diff "):
            break
    missing = {"bug", "kills", "broken", "what"} - set(head)
    if missing:
        raise SystemExit(f"{path}: its head lacks {', '.join(sorted(missing))}")
    broken = frozenset(head["broken"].replace(",", " ").split())
    return Mutant(path, head["bug"], head["kills"], broken, head["what"])


def mutants(patterns: list[str]) -> list[Mutant]:
    """The mutants whose names fit one of the patterns; all without any."""
    found = [read(path) for path in sorted(MUTANTS.glob("*.patch"))]
    return [m for m in found if not patterns or any(fnmatch.fnmatch(m.name, p) for p in patterns)]


def copy_of_src(into: Path) -> Path:
    """A copy of `src`, and of the tests, to plant bugs in."""
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for part in ("src", "tests"):
        shutil.copytree(ROOT / part, into / part, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", into)
    return into


def apply(mutant: Mutant, where: Path, *options: str) -> str | None:
    """Apply a patch, with one line around each change as it was; what went wrong, or None."""
    ran = subprocess.run(
        ["git", "apply", "-C1", *options, str(mutant.path)],
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
    )
    return None if ran.returncode == 0 else ran.stderr.strip()


def compiled(mutant: Mutant, where: Path) -> str | None:
    """Compile again what a patch of compiled code has changed; what went wrong, or None."""
    if not COMPILED.search(mutant.path.read_text()):
        return None
    shutil.copy(ROOT / "setup.py", where)
    for part in BUILT:  # so that only what has changed is compiled
        for built in ROOT.glob(part):
            shutil.copytree(built, where / built.relative_to(ROOT))
    ran = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
    )
    return None if ran.returncode == 0 else f"it cannot be compiled:\n{ran.stderr[-2_000:]}"


def run(command: list[str], where: Path) -> tuple[int, set[str], str]:
    """Exit code (0, or CHECK_FAILED), broken invariants and output of a run over a copy of src."""
    ran = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        env={**os.environ, "PYTHONPATH": str(where / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    output = ran.stdout + ran.stderr
    if command[0] == "pytest" and ran.returncode == TEST_FAILED:
        return CHECK_FAILED, {TEST}, output
    return ran.returncode, set(BROKEN.findall(ran.stdout)), output


def kill(mutant: Mutant) -> str | None:
    """Plant one bug and look whether it is found; what is wrong, or None."""
    with tempfile.TemporaryDirectory() as directory:
        where = copy_of_src(Path(directory))
        if (error := apply(mutant, where)) is not None:
            return f"its patch does not apply any more: {error}"
        if (error := compiled(mutant, where)) is not None:
            return error
        found: set[str] = set()
        for command in mutant.commands():
            code, broken, output = run(command, where)
            if code not in (0, CHECK_FAILED):
                return f"`{' '.join(command)}` ended with {code}:\n{output[-2_000:]}"
            found |= broken
        if not found:
            return "SURVIVED: nothing failed"
        if not found & mutant.broken:
            return f"something else broke: {sorted(found)}, not {sorted(mutant.broken)}"
    return None


def holds(command: list[str]) -> str | None:
    """Whether a run holds in the tree as it is; what is wrong, or None."""
    code, broken, output = run(command, ROOT)
    if code:
        return (
            f"`{' '.join(command)}` fails without any mutant: {sorted(broken)}\n{output[-2_000:]}"
        )
    return None


def main() -> int:
    """Run what was asked for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="which, with * and ?; all without any")
    parser.add_argument("--check", action="store_true", help="only whether the patches apply")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    chosen = mutants(given.names)
    if given.check:
        wrong = {m.name: apply(m, ROOT, "--check") for m in chosen}
    else:
        unmutated = {tuple(command) for m in chosen for command in m.commands()}
        with ThreadPoolExecutor(given.jobs) as pool:
            without = pool.map(lambda command: holds(list(command)), sorted(unmutated))
            wrong: dict[str, str | None] = {}
            for command, error in zip(sorted(unmutated), without, strict=True):
                wrong[" ".join(command)] = error
            for mutant, error in zip(chosen, pool.map(kill, chosen), strict=True):
                print(f"{mutant.name:<40} {mutant.bug:<6} {error or 'killed'}", flush=True)
                wrong[mutant.name] = error
    failed = {name: error for name, error in wrong.items() if error is not None}
    for name, error in failed.items():
        print(f"{name}: {error}", file=sys.stderr)
    print(f"{len(chosen)} mutants, {len(failed)} failures", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
