"""docs/console.md is true: its commands are run and print what stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

from kohort.testing import Cluster
from tests.pages import ROOT, check


@pytest.mark.slow
def test_the_page_of_the_console_is_true(tmp_path: Path) -> None:
    with Cluster() as cluster:
        check(ROOT / "docs" / "console.md", tmp_path, cluster)
