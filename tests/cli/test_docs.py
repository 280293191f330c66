"""docs/cli.md is true: its commands are run in order and print what stands there.

With KOHORT_WRITE_DOCS set the page is written anew instead. Blocks marked `console spark` need a
Spark session and are run by a test of their own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kohort.testing import Cluster
from tests.java import skip_without
from tests.pages import ROOT, check, kinds_of_blocks

PAGE = ROOT / "docs" / "cli.md"

WEEK_MS = 604_800_000
"""A broker's retention, as the page prints it."""


def test_every_block_is_run_or_says_why_not() -> None:
    """A command that nobody runs is a command that may not work: `<!-- not run: REASON -->`."""
    assert kinds_of_blocks(PAGE) == {"console", "console spark"}


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_of_the_command_line_is_true(tmp_path: Path) -> None:
    with Cluster(log_retention_ms=WEEK_MS) as cluster:
        check(PAGE, tmp_path, cluster)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_page_of_the_pipeline_commands_is_true(tmp_path: Path) -> None:
    skip_without()
    with Cluster() as cluster:
        check(PAGE, tmp_path, cluster, "console spark")
