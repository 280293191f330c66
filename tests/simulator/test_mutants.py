"""Planted bugs: every patch applies, and (nightly) the simulator finds each of them."""

from __future__ import annotations

import pytest

from tests.pages import ROOT, tool

run_mutants = tool("run_mutants")
MUTANTS = run_mutants.mutants([])


def test_every_patch_still_applies() -> None:
    """A mutant that does not apply proves nothing; take its change over by hand."""
    wrong = {m.name: run_mutants.apply(m, ROOT, "--check") for m in MUTANTS}
    assert not {name: error for name, error in wrong.items() if error is not None}


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_simulator_kills(mutant) -> None:
    """Reliability 8, the mutation bar: with the bug planted, its scenario fails as it should."""
    assert run_mutants.kill(mutant) is None
