"""A release is prepared by one command, and refused where it is not ready (issue 20)."""

from __future__ import annotations

import datetime
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

import kohort
from tests.pages import ROOT, tool

DAY = datetime.date(2027, 1, 2)
CHANGES = """# Changelog

## 0.2.0 (unreleased)

### Added

- More.

## 0.1.0 (2026-11-27)

Old.
"""
TOOL = tool("prepare_release")


@pytest.fixture(name="tree")
def _tree(tmp_path: Path) -> Path:
    (tmp_path / "src" / "kohort").mkdir(parents=True)
    (tmp_path / "src" / "kohort" / "__init__.py").write_text('import x\n__version__ = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    (tmp_path / "tests" / "upgrade" / "releases").mkdir(parents=True)
    return tmp_path


def release(version: str, tree: Path) -> Any:
    return TOOL.Release(version, tree)


def refused(match: str) -> Any:
    return pytest.raises(TOOL.Refused, match=match)


def record(tree: Path, version: str, **expected: str) -> None:
    """An archive as `record_release.py` writes it."""
    path = tree / "tests" / "upgrade" / "releases" / f"{version}.tar.gz"
    content = json.dumps({"version": version, **expected}).encode()
    entry = tarfile.TarInfo("expected.json")
    entry.size = len(content)
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(entry, io.BytesIO(content))


def test_version_and_date_are_written(tree: Path) -> None:
    release("0.2.0", tree).prepare(DAY)
    record(tree, "0.2.0", released="2027-01-02")
    source = (tree / "src" / "kohort" / "__init__.py").read_text()
    assert source == 'import x\n__version__ = "0.2.0"\n'
    dated = CHANGES.replace("0.2.0 (unreleased)", "0.2.0 (2027-01-02)")
    assert (tree / "CHANGELOG.md").read_text() == dated
    release("0.2.0", tree).check()


def test_notes_are_the_changes_of_that_version_alone(tree: Path) -> None:
    assert release("0.2.0", tree).notes() == "### Added\n\n- More."


def test_a_section_of_another_version_is_not_dated(tree: Path) -> None:
    with refused(r"not that of 0\.3\.0"):
        release("0.3.0", tree).prepare(DAY)
    with refused("no version"):
        release("next", tree)
    assert (tree / "CHANGELOG.md").read_text() == CHANGES


def test_a_release_is_dated_once(tree: Path) -> None:
    release("0.2.0", tree).prepare(DAY)
    with refused("of 2027-01-02, not unreleased"):
        release("0.2.0", tree).prepare(datetime.date(2027, 1, 3))


def test_a_release_without_changes_is_refused(tree: Path) -> None:
    (tree / "CHANGELOG.md").write_text("# Changelog\n\n## 0.2.0 (unreleased)\n\n## 0.1.0 (x)\n")
    with refused("says nothing"):
        release("0.2.0", tree).prepare(DAY)


def test_what_is_not_ready_is_not_tagged(tree: Path) -> None:
    """Another version, changes without a date, no archive for upgrade tests or an older one."""
    with refused("another version than 0.2.0"):
        release("0.2.0", tree).check()
    release("0.2.0", tree).prepare(DAY)
    with refused("is not recorded"):
        release("0.2.0", tree).check()
    record(tree, "0.2.0")
    with refused("recorded for a release of None, not of 2027-01-02"):
        release("0.2.0", tree).check()
    record(tree, "0.2.0", released="2027-01-01")
    with refused("recorded for a release of 2027-01-01, not of 2027-01-02"):
        release("0.2.0", tree).check()
    (tree / "CHANGELOG.md").write_text(CHANGES)
    with refused("are not dated"):
        release("0.2.0", tree).check()
    (tree / "CHANGELOG.md").write_text(CHANGES.replace("unreleased", "soon"))
    with refused("'soon'; write YYYY-MM-DD"):
        release("0.2.0", tree).check()


def fits(changes: str, version: str) -> bool:
    """Is the first section of this version, or open and right above its dated one?"""
    sections = TOOL.HEADING.findall(changes)
    if sections[0][1] == TOOL.OPEN and sections[0][0] != version:
        return sections[1][0] == version and sections[1][1] != TOOL.OPEN
    return sections[0][0] == version


def test_this_source_can_be_released() -> None:
    """CHANGELOG.md is of the version in the source, before its release and after it."""
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert fits(changes, kohort.__version__)
    assert fits(CHANGES, "0.2.0")
    assert fits(CHANGES, "0.1.0")
    assert not fits(CHANGES, "0.3.0")
    assert not fits(CHANGES.replace("2026-11-27", "unreleased"), "0.1.0")


def test_the_workflow_checks_the_tag_before_it_builds() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    called = re.findall(r'prepare_release\.py (--\w+) "\$GITHUB_REF_NAME"', workflow)
    assert called == ["--check", "--notes"]
