"""The tools of a release name tests and files that there are."""

from __future__ import annotations

import re
import tomllib

from tests.pages import ROOT, tool


def test_make_lowest_runs_tests_that_there_are() -> None:
    paths = tool("try_lowest").TESTS
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_readmes_first_commands_are_those_that_are_pasted() -> None:
    """A broker behind, a producer, the program of the first block, a look at the group."""
    commands = [command for command, _ in tool("try_readme").steps()]
    assert [command.split()[:2] for command in commands] == [
        ["kohort", "broker"],
        ["printf", "'ada\\tbook\\nbob\\tpen\\n'"],
        ["python", "billing.py"],
        ["kohort", "group"],
    ]


def test_the_page_of_dependencies_has_the_licences() -> None:
    audit = tool("audit")
    listed = audit.LISTED.search(audit.PAGE.read_text())
    assert listed is not None
    assert "pyarrow" in listed[0]


def test_the_page_of_dependencies_has_every_range() -> None:
    """Name and range of each requirement of `pyproject.toml`; Spark's and the demo's excepted."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"]]
    for extra in ("arrow", "oauth", "registry", "sql", "spark-protobuf", "testing", "console"):
        wanted += extras[extra]
    page = (ROOT / "docs" / "dependencies.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    for requirement in wanted:
        found = re.match(r"([\w.-]+)(?:\[[\w,]+\])?([<>=].*)", requirement)
        assert found is not None
        name, bounds = found.groups()
        assert any(name in row and bounds in row for row in rows), requirement
