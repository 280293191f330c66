"""docs/spark-outputs.md names a test for each row of the kill table, and each is there (issue 16).

What is asked for is written down here, so that a row which is taken out of the page is missed.
"""

from __future__ import annotations

import ast
import re
from itertools import takewhile
from pathlib import Path

import pytest

from kohort.spark.outputs.protocol import Step
from tests.spark.outputs import test_kills

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[2] / "docs" / "spark-outputs.md"
BEGINS = "| what | when | where | test |"
ASKED_FOR = (
    r"driver, by SIGKILL.* before and after staging, after the merge, before and after the fence, "
    r"before and after EndTxn, before Spark's commit log.*local\[2\]",
    "driver, by SIGKILL.* standalone cluster, two workers",
    "driver, by SIGKILL.* 100 times at random moments",
    "a second driver",
    "an executor, by SIGKILL.* standalone cluster, two workers",
    "a Python worker",
    "the broker, by kill -9",
    "PostgreSQL, by an immediate stop",
    "the Kafka transaction.* timed out",
    "staged rows.* deleted",
)


def rows_of(page: str) -> list[list[str]]:
    """The cells of the table's rows; an empty first one is that of the row above."""
    lines = page[page.index(BEGINS) :].splitlines()[2:]
    rows: list[list[str]] = []
    for line in takewhile(lambda line: line.startswith("|"), lines):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows.append([cells[0] or rows[-1][0], *cells[1:]])
    return rows


ROWS = rows_of(PAGE.read_text())


def names_in(file: str) -> set[str]:
    module = ast.parse((HERE / file).read_text())
    return {f.name for f in module.body if isinstance(f, ast.FunctionDef) and f.name[:5] == "test_"}


def named(row: list[str]) -> tuple[str, str]:
    match = re.fullmatch(r"`(test_\w+\.py)::(test_\w+)`", row[-1])
    assert match is not None, f"{row} names no test"
    return match[1], match[2]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: named(row)[1])
def test_a_row_names_a_test_that_exists(row: list[str]) -> None:
    file, name = named(row)
    assert name in names_in(file)


@pytest.mark.parametrize("asked", ASKED_FOR)
def test_what_is_asked_for_has_a_row(asked: str) -> None:
    assert any(re.search(asked, " ".join(row)) for row in ROWS)


def test_each_test_of_kills_and_faults_has_a_row() -> None:
    files = ("test_kills.py", "test_faults.py")
    written = {(file, name) for file in files for name in names_in(file)}
    # one of `every_step`'s rows, for `make test`
    written.remove(("test_kills.py", "test_a_driver_is_killed_at_a_step"))
    assert {named(row) for row in ROWS if named(row)[0] in files} == written


def test_drivers_are_killed_at_every_step_there_is() -> None:
    """A step that nobody passes on to the outputs' tests would not be missed."""
    assert set(Step) == test_kills.DATABASE_STEPS | test_kills.KAFKA_STEPS
    assert f"each of the {len(Step)} steps" in " ".join(ROWS[0])
