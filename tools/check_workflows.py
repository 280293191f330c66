"""Check `.github/workflows` with actionlint, by Go's module proxy; says so where there is no Go."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"


def main() -> int:
    """Run it on every workflow."""
    if shutil.which("go") is None:
        print("skipped: actionlint is built with Go, which this machine does not have")
        return 0
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    return subprocess.run(["go", "run", ACTIONLINT, *files], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
