"""`make sanitize`: every compiled module with AddressSanitizer and UndefinedBehaviorSanitizer.

Builds the modules in build/sanitize beside the usual ones, runs the record, wire, compression and
fast-path tests on them, then fuzzes each entry point that reads foreign bytes (`tools/fuzz.py`),
guided by coverage, from the corpus in tests/fuzz/corpus. Whatever a sanitizer finds ends the run.

    python tools/sanitize.py                 # build, tests, 20 s of fuzzing for each entry point
    python tools/sanitize.py --seconds 600   # longer
    python tools/sanitize.py --only wire     # one entry point, without the tests
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "sanitize"
BUILD_TOOLS = BUILD / "tools"
COVERAGE = BUILD / "libcoverage.so"
SANITIZERS = "-fsanitize=address,undefined"
USUAL_FLAGS = '["-O3", "-g0"]'
COMPILE = [
    "-O1",
    "-g1",
    "-fno-omit-frame-pointer",
    "-fsanitize-coverage=trace-pc",
    SANITIZERS,
    "-fno-sanitize-recover=undefined",
]
TESTS = (
    "tests/records",
    "tests/wire",
    "tests/broker/fast_path",
    "tests/broker/apis/test_hostile.py",
    "tests/broker/apis/test_produced_records.py",
    "tests/client/producer/plan/test_fast_send.py",
    "tests/client/consumer/test_fetch_reader.py",
    "tests/fuzz",
)
ASAN = "detect_leaks=0:allocator_may_return_null=1:abort_on_error=0:halt_on_error=1"
UBSAN = "print_stacktrace=1:halt_on_error=1"


def library(name: str) -> str:
    """The path of a sanitizer's library, by the compiler."""
    found = subprocess.run(
        ["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    if "/" not in found:
        sys.exit(f"make sanitize needs gcc's {name}; Debian: apt-get install gcc")
    return found


def build() -> None:
    """Compile what has changed since the last time."""
    source = BUILD / "src"
    for path in (ROOT / "src").rglob("*"):
        if not path.is_file() or path.suffix in (".so", ".pyc"):
            continue
        copy = source / path.relative_to(ROOT / "src")
        if not copy.exists() or copy.stat().st_mtime_ns != path.stat().st_mtime_ns:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, BUILD / name)
    usual = (ROOT / "setup.py").read_text()
    if usual.count(USUAL_FLAGS) != 1:
        sys.exit(f"tools/sanitize.py looks for {USUAL_FLAGS} in setup.py, once")
    (BUILD / "setup.py").write_text(usual.replace(USUAL_FLAGS, repr(COMPILE)))
    if not BUILD_TOOLS.exists():
        wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--target", BUILD_TOOLS, *wanted],
            check=True,
        )
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=BUILD,
        check=True,
        env={**os.environ, "LDFLAGS": SANITIZERS, "PYTHONPATH": str(BUILD_TOOLS)},
    )
    subprocess.run(
        ["gcc", "-O2", "-shared", "-fPIC", "-o", COVERAGE, ROOT / "tools" / "coverage_map.c"],
        check=True,
    )


def run(*command: str | Path, preload: bool = True) -> int:
    """Run Python on the sanitized modules; its exit code."""
    libraries = [library("libasan.so"), library("libubsan.so"), str(COVERAGE)]
    env = {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": ASAN,
        "UBSAN_OPTIONS": UBSAN,
        "PYTHONPATH": f"{BUILD / 'src'}:{ROOT}",
        "PYTHONMALLOC": "malloc",  # else Python's own allocator hides what runs over the end
        "KOHORT_SANITIZED": str(COVERAGE),
    }
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=env, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=int, default=20, help="of fuzzing, each entry point")
    parser.add_argument("--only", help="one entry point of tools/fuzz.py, without the tests")
    options = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    print("==> compiled modules with AddressSanitizer and UndefinedBehaviorSanitizer", flush=True)
    build()
    if options.only is None:
        print("==> their tests", flush=True)
        if run(
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "not slow and not extended and not nightly",
            "-k",
            "not memory",
            *TESTS,
        ):
            sys.exit("make sanitize: a test failed, or a sanitizer found something (above)")
    print("==> fuzzing", flush=True)
    chosen = [] if options.only is None else ["--only", options.only]
    if run(ROOT / "tools" / "fuzz.py", "--seconds", str(options.seconds), *chosen):
        sys.exit(
            "make sanitize: an entry point failed; the input is in build/sanitize/found, and "
            "`python tools/fuzz.py --replay FILE` repeats it. Make a test of it"
        )


if __name__ == "__main__":
    main()
