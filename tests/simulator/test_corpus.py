"""docs/simulator.md has every bug of the corpus: who replays it, and the mutant that proves it.

That the scenarios hold is tests/simulator/test_worlds.py, that the mutants die test_mutants.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from kohort.simulator.scenario import examples
from tests.simulator.test_mutants import MUTANTS

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "simulator.md"
BEGIN, END = "<!-- corpus: B1-B29 -->", "<!-- end of corpus -->"
ROW = re.compile(r"\| (B\d+) \| ")
COORDINATORS = [*range(1, 30)]
CLIENTS = [*range(30, 65)]
"""The numbers of the corpus that belong to groups, commits and positions."""
NONE = "none: "
"""Begins the reason, where ours cannot have the bug."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    bug: str
    what: str
    proofs: list[str]
    mutants: list[str]
    invariants: list[str]


def rows() -> list[Row]:
    page = PAGE.read_text()
    lines = page[page.index(BEGIN) : page.index(END)].splitlines()
    found: list[Row] = []
    for line in lines:
        if ROW.match(line):
            bug, what, proofs, mutants, codes = (cell.strip() for cell in line.split("|")[1:-1])
            split = [proofs] if proofs.startswith(NONE) else proofs.split()
            found.append(Row(bug, what, split, mutants.split(), codes.split()))
    return found


ROWS = rows()
SCENARIOS = {scenario.name: scenario for scenario in examples()}
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def test_every_bug_of_the_corpus_is_in_the_table() -> None:
    """Once, and in order."""
    assert [row.bug for row in ROWS] == [f"B{number}" for number in COORDINATORS + CLIENTS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.bug)
def test_a_bug_is_replayed_and_planted(row: Row) -> None:
    """Its scenarios and tests exist; each of its mutants is killed by one of them."""
    if row.proofs[0].startswith(NONE):
        assert len(row.proofs[0]) > len(NONE) + 20, "give the reason"
        assert row.mutants == ["-"]
        return
    assert row.proofs
    assert row.mutants
    for proof in row.proofs:
        if "::" in proof:
            path, name = proof.split("[")[0].split("::")
            assert f"def {name}(" in (ROOT / path).read_text(), proof
        else:
            assert SCENARIOS[proof].bug == row.bug
            assert set(SCENARIOS[proof].plan.proves) <= set(row.invariants)
    for name in row.mutants:
        assert BY_NAME[name].bug == row.bug
        assert set(BY_NAME[name].kills.split()[1:]) <= set(row.proofs), name


def test_no_scenario_of_a_bug_is_left_out() -> None:
    """A scenario that names a bug of the corpus stands in the table."""
    listed = {proof for row in ROWS for proof in row.proofs}
    named = {s.name for s in SCENARIOS.values() if re.fullmatch(r"B\d+", s.bug)}
    assert named <= listed
