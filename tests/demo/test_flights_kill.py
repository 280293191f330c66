"""The main job on a slice of the year: as it is, and killed at random moments (spec 6.3)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed (pip install 'kohort[spark]')")

from tools.demo_kill import expected, run_with_kills

from tests.java import lack

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(lack() is not None, reason=str(lack())),
]
LIMIT = 4_000
RETRIES = "1s 1s 2s 2s 2s 4s"


# `make test` kills drivers in tests/spark/outputs/test_kills.py; here the whole demo is killed.
# Without kills nothing is shown that the last life of the other run does not show, too.
@pytest.mark.parametrize(
    ("kills", "handlers"),
    [
        pytest.param(0, False, marks=pytest.mark.nightly),
        pytest.param(1, False, marks=pytest.mark.extended),
        pytest.param(4, False, marks=pytest.mark.nightly),
        pytest.param(1, True, marks=pytest.mark.extended),
    ],
)
def test_the_books_balance(kills: int, handlers: bool, tmp_path: Path) -> None:
    """Each flight once in every output, none in a retry topic, whoever is killed whenever.

    With DataFrames and, the second example, with row handlers.
    """
    report = run_with_kills(
        tmp_path / "run",
        seed=20131,
        kills=kills,
        longest_s=25.0,
        limit=LIMIT,
        retries=RETRIES,
        handlers=handlers,
    )
    wanted = expected(LIMIT, handlers=handlers)
    assert {key: report[key] for key in wanted} == wanted
    assert report["reconciled"], report["problems"]
    assert report["loaded_after_retry"] > 0.05 * report["loaded"]
    assert (tmp_path / "run" / "report.html").read_text().count("<svg") == 5
