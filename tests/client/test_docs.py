"""docs/clients.md is true: its programs and commands are run in order, and print what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from kohort.testing import Cluster
from tests.pages import ROOT, check, kinds_of_blocks

PAGE = ROOT / "docs" / "clients.md"


def test_every_block_is_a_file_or_is_run() -> None:
    assert kinds_of_blocks(PAGE) == {"console"}


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_page_of_clients_is_true(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="a program of the page reads columns")
    with Cluster() as cluster:
        check(PAGE, tmp_path, cluster)
