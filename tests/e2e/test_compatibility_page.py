"""docs/compatibility.md is what the broker serves, and names the clients that were run."""

from __future__ import annotations

import re
from importlib.metadata import version
from types import ModuleType

import pytest

from tests.e2e.makes import PEERS
from tests.pages import ROOT, tool


@pytest.fixture(scope="module", name="tool")
def writer() -> ModuleType:
    return tool("write_compatibility")


def test_the_page_is_up_to_date(tool: ModuleType) -> None:
    """Versions, deviations, defaults: as the modules have them (they are checked on the way)."""
    assert not tool.stale(), "run `make compatibility`"


@pytest.mark.parametrize("peer", PEERS)
def test_the_page_names_no_newer_client_than_is_run(peer: str) -> None:
    named = re.search(
        rf"^\| {peer} \| ([0-9.]+)", (ROOT / "docs/compatibility.md").read_text(), re.M
    )
    assert named is not None
    page_version = tuple(map(int, named[1].split(".")))
    assert tuple(map(int, version(peer).split(".")[:3])) >= page_version
