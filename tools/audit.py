"""Known vulnerabilities and licences of what `kohort[all]` installs: `make audit`.

The packages are those of a resolver run for the lowest supported Python, without installing them.
Licences are read off the installed distributions of this environment.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "build" / "audit"
ALLOWED = re.compile(
    r"apache|bsd|mit\b|psf|python software|mpl|mozilla|isc\b|lgpl|lesser general|hpnd|zlib"
    r"|unlicense|cc0|public domain|0bsd|expat|gpl-2.0 with classpath|classpath",
    re.IGNORECASE,
)


def licence(distribution: importlib.metadata.Distribution) -> str:
    """A distribution's licence, in its own words, cut to one line."""
    head = distribution.metadata
    classifiers = [
        c.rsplit(" :: ", 1)[-1] for c in head.get_all("Classifier") or [] if c.startswith("License")
    ]
    words = head.get("License-Expression") or ", ".join(classifiers) or head.get("License") or ""
    return words.strip().splitlines()[0][:60] if words.strip() else "unknown"


def needed(lines: str) -> list[str]:
    """The names in a resolver's output."""
    return re.findall(r"^([A-Za-z0-9._-]+)==", lines, re.MULTILINE)


def main() -> int:
    """Resolve, ask for vulnerabilities, list licences."""
    if not HOME.exists():
        venv.create(HOME, with_pip=True)
        pip = [HOME / "bin" / "python", "-m", "pip", "install", "-q", "uv>=0.5", "pip-audit>=2.9"]
        subprocess.run(pip, check=True)
    compiled = subprocess.run(
        [
            HOME / "bin" / "uv",
            "pip",
            "compile",
            "--quiet",
            "--all-extras",
            "--python-version",
            "3.11",
            "--generate-hashes",
            "pyproject.toml",
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    wrong = False
    for name in needed(compiled):
        try:
            words = licence(importlib.metadata.distribution(name))
        except importlib.metadata.PackageNotFoundError:
            words = "not installed here"
        allowed = bool(ALLOWED.search(words)) or words == "not installed here"
        wrong |= not allowed
        print(f"{name:28} {words}{'' if allowed else '   <- look at it'}")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(compiled)
        file.flush()
        audit = [HOME / "bin" / "pip-audit", "--disable-pip", "-r", file.name]
        wrong |= bool(subprocess.run(audit, check=False).returncode)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
