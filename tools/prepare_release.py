"""Prepare a release: `make release VERSION=0.1.0` sets its version and dates its changes.

The version goes into `src/kohort/__init__.py`, its only place; the first section of CHANGELOG.md,
`## 0.1.0 (unreleased)`, gets the day's date. What is left to do, commit and tag, is printed.

The workflow `release` calls it, too: `--check v0.1.0` fails unless a tag is the version of the
source, its changes are dated and `tests/upgrade/releases` has what it writes, recorded after that;
`--notes v0.1.0` prints its changes. Standard library only.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
ASSIGNED = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)
HEADING = re.compile(r"^## (\S+) \((.*)\)$", re.MULTILINE)
OPEN = "unreleased"
NEXT = """==> {version} is dated. Now:
.venv/bin/python tools/record_release.py
git add -A && git commit -m "release: {version}"
git tag -a v{version} -m "Kohort {version}"
git push origin main v{version}"""


class Refused(Exception):
    """The release is not ready; the message says why."""


class Release:
    """A version, as two files of a tree name it."""

    def __init__(self, version: str, root: Path = ROOT) -> None:
        if not VERSION.fullmatch(version):
            raise Refused(f"{version!r} is no version like 0.1.0")
        self.version = version
        self._source = root / "src" / "kohort" / "__init__.py"
        self._changes = root / "CHANGELOG.md"
        self._archive = root / "tests" / "upgrade" / "releases" / f"{version}.tar.gz"

    def prepare(self, day: datetime.date) -> None:
        """Write version and date. Raises Refused before anything is written."""
        changes = self._changes.read_text()
        heading = self._first_heading(changes)
        if heading[2] != OPEN:
            raise Refused(f"the first section of CHANGELOG.md is of {heading[2]}, not {OPEN}")
        self.notes()
        dated = f"## {self.version} ({day.isoformat()})"
        self._changes.write_text(changes.replace(heading[0], dated, 1))
        source = self._source.read_text()
        self._source.write_text(ASSIGNED.sub(f'__version__ = "{self.version}"', source))

    def check(self) -> None:
        """Raises Refused unless everything names this version as released."""
        found = ASSIGNED.search(self._source.read_text())
        if found is None or found[1] != self.version:
            raise Refused(f"{self._source.name} has another version than {self.version}")
        day = self.day()
        recorded = self._recorded()
        if recorded != day:
            raise Refused(
                f"{self._archive.name} was recorded for a release of {recorded}, not of {day}: "
                "tools/record_release.py"
            )

    def day(self) -> str:
        """The date of its changes. Raises Refused unless there is one."""
        day = self._first_heading(self._changes.read_text())[2]
        if day == OPEN:
            raise Refused(f"the changes of {self.version} are not dated: `make release`")
        try:
            datetime.date.fromisoformat(day)
        except ValueError:
            raise Refused(f"CHANGELOG.md dates {self.version} {day!r}; write YYYY-MM-DD") from None
        return day

    def _recorded(self) -> str | None:
        """The date in CHANGELOG.md when the archive was recorded; None if there was none."""
        if not self._archive.exists():
            raise Refused(f"{self._archive.name} is not recorded: tools/record_release.py")
        with tarfile.open(self._archive) as archive:
            expected = archive.extractfile("expected.json")
            return json.load(expected).get("released") if expected else None

    def notes(self) -> str:
        """What its section of the changelog says. Raises Refused when that is nothing."""
        changes = self._changes.read_text()
        rest = changes[self._first_heading(changes).end() :]
        following = HEADING.search(rest)
        text = rest[: following.start() if following else None].strip()
        if not text:
            raise Refused(f"CHANGELOG.md says nothing of {self.version}")
        return text

    def _first_heading(self, changes: str) -> re.Match[str]:
        heading = HEADING.search(changes)
        if heading is None or heading[1] != self.version:
            raise Refused(f"the first section of CHANGELOG.md is not that of {self.version}")
        return heading


def main() -> int:
    """Prepare, check or print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("version", help="0.1.0, or the tag v0.1.0")
    parser.add_argument("--check", action="store_true", help="is it ready to be tagged?")
    parser.add_argument("--notes", action="store_true", help="print its changes")
    options = parser.parse_args()
    try:
        release = Release(options.version.removeprefix("v"))
        if options.notes:
            print(release.notes())
        elif options.check:
            release.check()
        else:
            release.prepare(datetime.datetime.now(datetime.UTC).date())
            print(NEXT.format(version=release.version))
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
