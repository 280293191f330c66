"""Run every benchmark, one after the other, each in a process of its own.

    python -m benchmarks                 all of them
    python -m benchmarks consume wire    some
    python -m benchmarks --list

What each prints is also kept in `build/benchmarks/NAME.txt`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
KEPT = HERE.parent / "build" / "benchmarks"


def names() -> list[str]:
    return sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def run(name: str) -> bool:
    """Run one benchmark, show and keep what it prints; False when it failed."""
    print(f"\n=== {name}", flush=True)
    started = time.monotonic()
    with (KEPT / f"{name}.txt").open("w") as kept:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", f"benchmarks.bench_{name}"],
            cwd=HERE.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            kept.write(line)
        failed = process.wait() != 0
    ended = "FAILED" if failed else "done"
    print(f"=== {name}: {ended} after {time.monotonic() - started:.0f} s", flush=True)
    return not failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="which ones (default: all)")
    parser.add_argument("--list", action="store_true", help="only name them")
    args = parser.parse_args()
    if args.list:
        print("\n".join(names()))
        return 0
    unknown = set(args.names) - set(names())
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(names())}")
    KEPT.mkdir(parents=True, exist_ok=True)
    results = [run(name) for name in args.names or names()]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
