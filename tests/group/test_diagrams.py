"""The diagrams in the documentation are what the tables say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "draw_diagrams.py"


def test_diagrams_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("draw_diagrams", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.stale() == [], "run `make diagrams`"
