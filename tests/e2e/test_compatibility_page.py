"""docs/compatibility.md is what the broker serves, and names the clients that were run."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

from .makes import PEERS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "write_compatibility", ROOT / "tools" / "write_compatibility.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(tool: ModuleType) -> None:
    """Versions, deviations, defaults: as the modules have them (they are checked on the way)."""
    assert not tool.stale(), "run `make compatibility`"


@pytest.mark.parametrize("peer", PEERS)
def test_the_page_names_no_newer_client_than_is_run(peer: str) -> None:
    named = re.search(
        rf"^\| {peer} \| ([0-9.]+)", (ROOT / "docs/compatibility.md").read_text(), re.M
    )
    assert named is not None
    said = tuple(map(int, named[1].split(".")))
    assert tuple(map(int, version(peer).split(".")[:3])) >= said
