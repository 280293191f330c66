"""DESIGN.md names what exists: modules, classes, functions and files."""

from __future__ import annotations

import re
from functools import cache

from tests.pages import ROOT

PAGES = ("DESIGN.md", "CONTRIBUTING.md")
CODE = re.compile(r"`([^`\n]+)`|^ {4}(.+)$", re.MULTILINE)
"""What a page shows as code: between backticks, and indented."""
NAME = re.compile(r"\b(?=\w*_|[A-Za-z]*[a-z][A-Z])[A-Za-z_]\w+\b")
"""A name of a program and no English word: with an underscore, or in CamelCase."""
OF_OTHERS = {"skipAssignment", "snake_case"}
SOURCES = {".py", ".pyx", ".pyi", ".schema", ".toml", ".yml", ""}


@cache
def existing() -> frozenset[str]:
    """Every word of the sources, and the names of files and folders."""
    words: set[str] = set()
    files = [
        file
        for folder in ("src", "tests", "tools", "benchmarks", ".github")
        for file in (ROOT / folder).rglob("*")
    ]
    for file in [*files, ROOT / "Makefile", ROOT / "pyproject.toml"]:
        if file.name == "test_design_page.py":
            continue
        words.add(file.stem)
        if file.is_file() and file.suffix in SOURCES:
            words.update(re.findall(r"\w+", file.read_text(errors="replace")))
    return frozenset(words)


def test_every_name_on_the_page_exists() -> None:
    missing = {
        f"{page}: {name}"
        for page in PAGES
        for shown in CODE.findall((ROOT / page).read_text())
        for name in NAME.findall("".join(shown))
        if name not in existing() and name not in OF_OTHERS
    }
    assert sorted(missing) == []


def test_a_name_that_does_not_exist_is_found() -> None:
    """What a page shows as code is searched, in both of its forms; prose is not."""
    page = "Of no_name.\n\n    indented WrittenNowhereElse(x)\n\nand `written_nowhere_else`"
    names = [name for shown in CODE.findall(page) for name in NAME.findall("".join(shown))]
    assert names == ["WrittenNowhereElse", "written_nowhere_else"]
    assert not existing() & set(names)
