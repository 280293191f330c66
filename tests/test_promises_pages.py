"""docs/spec.md and docs/invariants.md: every number and every code that is cited stands there.

Citations are looked for in comments, docstrings, documentation, scenarios and mutants. The pages of
decision records are as they were when they were decided and are held to the same.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from types import ModuleType

import pytest

from kohort.simulator.invariants import BUGS, PROMISES, SECTIONS
from kohort.simulator.runs.report import story_of
from kohort.simulator.runs.simulation import Outcome
from kohort.simulator.scenario import examples
from tests.pages import ROOT, tool
from tests.syntax import statements

SPEC_PAGE = ROOT / "docs" / "spec.md"
TEXTS = {".md", ".toml", ".patch", ".pyx", ".pxi", ".h", ".c"}
LETTERS = "|".join(sorted({code.rstrip("0123456789") for code in PROMISES}, key=len, reverse=True))
CODE = re.compile(rf"(?<![\w./#'-])({LETTERS})\d{{1,2}}(?![\w'])")
SPEC = re.compile(r"\b[Ss]pec ((?:\d+(?:\.\d+)?)(?:(?:, | to | and |-)\d+(?:\.\d+)?)*)")
GONE = re.compile(
    r"\b(?:[Rr]etry|[Rr]eliability|[Cc]oordinator|[Cc]lient|[Ss]park) reference\b"
    r"|(?<![\w/])(?:retry|reliability|performance|client)\.md\b"
)
NO_CITATIONS = {
    "C0": "a member in the test vectors of spec 3.3",
    "F32": "a type of the Avro decoder",
    "F64": "a type of the Avro decoder",
}
GENERATED = ("wire/messages", "wire/schema")


@cache
def prose() -> tuple[tuple[str, str], ...]:
    """All that is written for people and cites what may be wrong, with the file it is in."""
    return tuple(_prose())


def _prose() -> Iterator[tuple[str, str]]:
    roots = ("src", "tests", "docs", "tools", "benchmarks", "examples")
    files = [f for root in roots for f in (ROOT / root).rglob("*") if f.is_file()]
    for file in sorted([*files, ROOT / "README.md", ROOT / "DESIGN.md", ROOT / "CHANGELOG.md"]):
        name = file.relative_to(ROOT).as_posix()
        if any(part in name for part in GENERATED) or "node_modules" in name:
            continue
        if file.suffix == ".py":
            # to tokenize all of them takes 10 s of processor time
            text = file.read_text()
            if SPEC.search(text) or GONE.search(text) or any(unexplained(text)):
                yield name, "\n".join(commented(text))
        elif file.suffix in TEXTS:
            yield name, file.read_text(errors="replace")


def unexplained(text: str) -> Iterator[str]:
    """The codes in a text that no page explains."""
    for match in CODE.finditer(text):
        if match[0] not in PROMISES and match[0] not in NO_CITATIONS:
            yield match[0]


def commented(text: str) -> Iterator[str]:
    """The comments and docstrings of a module."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    tree = ast.parse(text)
    for node in (tree, *statements(tree)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


@pytest.fixture(scope="module", name="page_tool")
def writer() -> ModuleType:
    return tool("write_invariants")


def test_the_page_is_up_to_date(page_tool: ModuleType) -> None:
    assert not page_tool.stale(), "run `make invariants`"


def test_every_code_has_one_sentence() -> None:
    """And stands in one section."""
    codes = [code for section in SECTIONS for code in section.codes]
    assert len(codes) == len(set(codes))
    assert [
        c for c, sentence in PROMISES.items() if len(sentence) < 20 or sentence[-1] == "."
    ] == []
    assert list(BUGS.codes) == [f"B{n}" for n in range(1, 65)]


def test_every_code_that_is_cited_is_explained() -> None:
    unknown = {f"{name}: {code}" for name, text in prose() for code in unexplained(text)}
    assert sorted(unknown) == []


CHECKED = r"[A-Z]{1,2}\d{1,2}|STORY|CRASH"


@cache
def codes_in_checks() -> frozenset[str]:
    """What the simulator can say was broken: the codes that its modules name."""
    modules = (ROOT / "src/kohort/simulator").rglob("*.py")
    return frozenset(
        node.value
        for module in modules
        if module.name != "invariants.py"
        if re.search(f"[\"']({CHECKED})[\"']", text := module.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(CHECKED, node.value)
    )


def test_every_check_names_a_promise() -> None:
    """Eight codes had none: C10, C11, C12, CL2, GL3, O1, O6, F1."""
    codes = codes_in_checks()
    assert {"C10", "C11", "C12", "CL2", "GL3", "O1", "O6", "F1", "STORY", "CRASH"} <= codes
    assert codes <= PROMISES.keys()


@pytest.mark.parametrize("code", sorted(codes_in_checks()))
def test_the_simulator_explains_what_was_broken(code: str) -> None:
    """`kohort simulate` prints the promise behind the code."""
    broken = Outcome(examples()[0].plan, code, "seen", "", 1, 1, [], 0, 0)
    assert f"BROKEN {code} ({PROMISES[code]}): seen" in list(story_of(broken))[-1]


def test_every_number_of_the_spec_that_is_cited_is_there() -> None:
    page = SPEC_PAGE.read_text()
    numbers = set(re.findall(r"^\*\*(\d+\.\d+)\*\* ", page, re.M))
    numbers |= set(re.findall(r"^## (\d+)\. ", page, re.M))
    cited = [
        (name, number)
        for name, text in prose()
        for match in SPEC.finditer(" ".join(text.split()))
        for number in re.findall(r"\d+(?:\.\d+)?", match[1])
    ]
    assert len(cited) > 400, "the citations are not found any more"
    assert sorted({f"{name}: {number}" for name, number in cited if number not in numbers}) == []


def test_no_citation_leaves_the_repository() -> None:
    """References that only the authors had cannot be followed."""
    assert [(n, m[0]) for n, text in prose() for m in GONE.finditer(text)] == []
