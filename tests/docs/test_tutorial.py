"""docs/tutorial.md is true: its files and commands run in order, and print what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from kohort.testing import Cluster
from tests.pages import ROOT, check, kinds_of_blocks

PAGE = ROOT / "docs" / "tutorial.md"


@pytest.mark.extended
@pytest.mark.slow
def test_the_tutorial_works(tmp_path: Path) -> None:
    assert kinds_of_blocks(PAGE) == {"sh", "console"}
    with Cluster() as cluster:
        check(PAGE, tmp_path, cluster)
