"""Test the lowest version of each package that `pyproject.toml` allows: `make lowest`.

uv resolves `lowest-direct` into a new environment in `build/lowest`, Kohort is built there, and the
smoke test and the tests of what touches these packages run. Spark is left out: `make spark-oldest`
tries that.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "build" / "lowest"
EXTRAS = "arrow,registry,oauth,sql,prometheus,opentelemetry,testing"
TOOLS = (
    "pytest",
    "pytest-timeout",
    "hypothesis",
    "opentelemetry-sdk",
    "aiokafka",
    "confluent-kafka",
    "kafka-python",
    "lz4",
)
TESTS = ("tests/serdes", "tests/metrics", "tests/records", "tests/cli/common")


def run(*words: str | Path) -> None:
    """Run a command in the repository. Raises CalledProcessError."""
    subprocess.run([*map(str, words)], check=True, cwd=ROOT, env={**os.environ, "VIRTUAL_ENV": ""})


def main() -> int:
    """Resolve, build, test."""
    python = HOME / "bin" / "python"
    venv.create(HOME, with_pip=True, clear=True)
    run(python, "-m", "pip", "install", "-q", "uv>=0.5")
    install = [HOME / "bin" / "uv", "pip", "install", "--python", python, "-q"]
    run(*install, "--resolution", "lowest-direct", f".[{EXTRAS}]")
    kernel = "python" if os.environ.get("KOHORT_BUILD_PURE") == "1" else "cython"
    run(python, "-I", "tools/smoke.py", "--kernel", kernel)
    pip = [str(python), "-m", "pip", "freeze", "--exclude", "kohort"]
    lowest = subprocess.run(pip, check=True, capture_output=True, text=True).stdout
    (HOME / "lowest.txt").write_text(lowest)
    run(*install, "--constraint", HOME / "lowest.txt", *TOOLS)  # they must not raise a version
    print(lowest, flush=True)
    not_these = "not spark and not nightly and not extended"
    run(python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", not_these, *TESTS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
