"""The report of what tests cost (CONTRIBUTING.md, "What runs when")."""

from __future__ import annotations

from tests.budget import SECONDS, SPARK_SECONDS, over_budget


def test_what_is_over_budget_is_named_dearest_first() -> None:
    durations = {
        "tests/a/test_a.py::test_cheap": SECONDS,
        "tests/a/test_a.py::test_dear": SECONDS + 1,
        "tests/spark/test_s.py::test_usual": SPARK_SECONDS,
        "tests/spark/test_s.py::test_dear": SPARK_SECONDS + 1,
    }
    assert over_budget(durations) == [
        ("tests/spark/test_s.py::test_dear", SPARK_SECONDS + 1),
        ("tests/a/test_a.py::test_dear", SECONDS + 1),
    ]
