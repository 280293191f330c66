"""Every requirement, invariant and replayed bug keeps a proof in `make test` (CONTRIBUTING.md).

A test proves a number of `docs/spec.md` or a code of `docs/invariants.md` when it names it: in the
docstring of its module, its class or itself, in its comments and strings, or in its name
(`test_b14_...`). So does a test that kills a mutant of that code, and a scenario of the simulator.

Only tests count that `make test` runs on every machine: neither extended nor nightly ones, nor
those that wait for jars, a browser or PostgreSQL.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from kohort.simulator.invariants import PROMISES
from kohort.simulator.scenario import examples
from tests.pages import ROOT
from tests.simulator.test_corpus import NONE, ROWS
from tests.simulator.test_mutants import MUTANTS
from tests.test_promises_pages import LETTERS, SPEC_PAGE

ELSEWHERE = {"extended", "nightly", "java", "browser", "postgres"}
"""Marks of tests that `make test` leaves out, or skips where their program is missing."""
NUMBERS = re.compile(r"\b[Ss]pec ((?:\d+(?:\.\d+)?)(?:(?:, | to | and |-)\d+(?:\.\d+)?)*)")
CODES = re.compile(rf"(?<![\w./#'-])({LETTERS})(\d{{1,2}})(?:-\1(\d{{1,2}}))?(?![\w'])")
IN_NAME = re.compile(rf"(?<=_)({LETTERS.lower()})(\d{{1,2}})(?=_)")
WORDS = {"CRASH", "STORY"}
SCENARIOS = "tests/simulator/test_worlds.py::test_scenarios_hold"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def cited(text: str) -> set[str]:
    """The numbers and codes that a text names; `G1-G4` names four."""
    text = " ".join(text.split())
    names = WORDS.intersection(re.findall(r"\w+", text))
    for match in NUMBERS.finditer(text):
        names.update(re.findall(r"\d+(?:\.\d+)?", match[1]))
    for letters, first, last in CODES.findall(text):
        names.update(f"{letters}{n}" for n in range(int(first), int(last or first) + 1))
    return names


def marks(nodes: list[ast.expr]) -> set[str]:
    """The names of `pytest.mark`s; those of single rows are not looked for."""
    texts = [ast.unparse(n) for n in nodes]
    return {match[1] for text in texts if (match := re.match(r"pytest\.mark\.(\w+)", text))}


def marked_tests(tree: ast.Module) -> Iterator[tuple[Function, list[str], set[str]]]:
    """Each test of a module, with the docstrings and the marks of what it is in."""
    docs = [ast.get_docstring(tree) or ""]
    outer: list[ast.expr] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            value = node.value
            outer += value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            doc, around = [*docs, ast.get_docstring(node) or ""], [*outer, *node.decorator_list]
            inner = [each for each in node.body if isinstance(each, Function)]
        else:
            doc, around, inner = docs, outer, [node] if isinstance(node, Function) else []
        for test in inner:
            if test.name.startswith("test"):
                yield test, doc, marks([*around, *test.decorator_list])


def proofs_in(name: str, text: str) -> Iterator[tuple[str, set[str]]]:
    """The tests of a module that `make test` runs, with what each of them names."""
    lines = text.splitlines()
    for test, docs, marked in marked_tests(ast.parse(text)):
        if marked.isdisjoint(ELSEWHERE):
            begin = min([test.lineno, *(each.lineno for each in test.decorator_list)])
            body = "\n".join(lines[begin - 1 : test.end_lineno])
            in_name = {f"{a.upper()}{n}" for a, n in IN_NAME.findall(test.name)}
            yield f"{name}::{test.name}", cited(" ".join(docs)) | cited(body) | in_name


def proofs() -> dict[str, set[str]]:
    """The tests of `make test` by what they prove."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    run: set[str] = set()
    for file in sorted({*(ROOT / "tests").rglob("test_*.py")} - {Path(__file__)}):
        for test, names in proofs_in(file.relative_to(ROOT).as_posix(), file.read_text()):
            run.add(test)
            for name in names:
                found[name].add(test)
    for mutant in MUTANTS:
        kind, *killers = mutant.kills.split()
        if kind == "test":
            found[mutant.bug].update(run.intersection(each.split("[")[0] for each in killers))
    if SCENARIOS in run:
        for scenario in examples():
            for name in (scenario.bug, *scenario.plan.proves):
                found[name].add(f"{SCENARIOS}[{scenario.name}]")
    return found


def test_every_requirement_and_invariant_is_proved_by_make_test() -> None:
    page = SPEC_PAGE.read_text()
    promises = {*re.findall(r"^\*\*(\d+\.\d+)\*\* ", page, re.M), *PROMISES}
    by_design = {row.bug for row in ROWS if row.proofs[0].startswith(NONE)}
    proved = {name for name, tests in proofs().items() if tests}
    assert len(promises) > 200, "the promises are not found any more"
    assert sorted(promises - by_design - proved) == []


def test_what_runs_elsewhere_proves_nothing_here() -> None:
    text = '''
"""Of spec 9.3."""
import pytest
pytestmark = [{mark}]
def test_b14_something():
    """G1-G3 and spec 1.4, 1.5."""
@pytest.mark.extended
def test_more():
    "G9"
class TestThese:
    """O6."""
    @pytest.mark.rows(4)
    def test_some(self):
        assert True  # X2
'''
    got = dict(proofs_in("test_a.py", text.format(mark="pytest.mark.spark")))
    assert got == {
        "test_a.py::test_b14_something": {"9.3", "1.4", "1.5", "B14", "G1", "G2", "G3"},
        "test_a.py::test_some": {"9.3", "O6", "X2"},
    }
    assert dict(proofs_in("test_a.py", text.format(mark="pytest.mark.nightly"))) == {}
