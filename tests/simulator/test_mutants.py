"""Planted bugs: every patch applies, and (nightly) the simulator finds each of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
_spec = importlib.util.spec_from_file_location("run_mutants", ROOT / "tools" / "run_mutants.py")
assert _spec is not None
assert _spec.loader is not None
run_mutants = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = run_mutants
_spec.loader.exec_module(run_mutants)
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
