"""The pages about Spark are true: files and commands are run in order, and print what they show.

What needs a Spark session runs in this process, on the one that all tests here share.
"""

from __future__ import annotations

import contextlib
import io
import runpy
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kohort.cli.common.root import app, invoke
from tests.pages import ROOT, Shell, compare, kinds_of_blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PAGE = ROOT / "docs" / "pipelines.md"
OUTPUTS_PAGE = ROOT / "docs" / "spark-outputs.md"


class InSession(Shell):
    """Runs pipelines, and programs that ask for a session, in this process."""

    def run(self, command: str) -> str:
        words = shlex.split(command)
        if words[:3] in (["kohort", "pipeline", "run"], ["kohort", "pipeline", "replay"]):
            return self.printed_by(lambda: invoke(app, words[1:]))
        if words[0] == "python" and words[1].endswith(".py"):
            return self.printed_by(lambda: runpy.run_path(str(self.directory / words[1])))
        return super().run(command)

    def printed_by(self, call: Callable[[], object]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            call()
        return printed.getvalue()


def test_every_block_is_a_file_or_is_run() -> None:
    assert kinds_of_blocks(PAGE) == {"console spark", "mermaid"}
    assert kinds_of_blocks(OUTPUTS_PAGE) == {"console spark"}


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [PAGE, OUTPUTS_PAGE], ids=["pipelines", "outputs"])
def test_the_page_is_true(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: Path
) -> None:
    from kohort.testing import Cluster

    with Cluster() as cluster:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("KOHORT_BOOTSTRAP_SERVERS", cluster.bootstrap)
        compare(page, InSession(tmp_path, cluster), "console spark")
