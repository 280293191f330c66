"""What tests cost, and which of them cost more than belongs into `make test` (CONTRIBUTING.md).

A report, never a failure: seconds depend on the machine and on what else runs on it. The last
measured ones are in pytest's cache, `.pytest_cache/v/kohort/durations`, by test function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import pytest

SECONDS, SPARK_SECONDS = 5.0, 15.0
"""Of a test function, all of its rows and its fixtures together."""
SHOWN = 15


def over_budget(durations: Mapping[str, float]) -> list[tuple[str, float]]:
    """The test functions that cost more than a test may, the dearest first.

    Args:
        durations: seconds by test function, as `tests/.../test_x.py::test_y`.
    """
    over = [
        (name, seconds)
        for name, seconds in durations.items()
        if seconds > (SPARK_SECONDS if name.startswith("tests/spark/") else SECONDS)
    ]
    return sorted(over, key=lambda one: -one[1])


class Budget:
    """A pytest plugin that sums durations of a run by test function."""

    def __init__(self, config: pytest.Config) -> None:
        self.durations: defaultdict[str, float] = defaultdict(float)
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.durations[report.nodeid.partition("[")[0]] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        cache = getattr(self._config, "cache", None)  # none with `-p no:cacheprovider`
        if cache is not None and self.durations:
            earlier = cache.get("kohort/durations", {})  # of tests that another run has measured
            latest = {name: round(seconds, 3) for name, seconds in self.durations.items()}
            cache.set("kohort/durations", earlier | latest)
        if "not extended" not in (self._config.getoption("markexpr") or ""):
            return
        over = over_budget(self.durations)
        if not over:
            return
        total = sum(self.durations.values())
        terminalreporter.section("over the budget of a test")
        for name, seconds in over[:SHOWN]:
            terminalreporter.write_line(f"{seconds:6.1f} s  {name}")
        terminalreporter.write_line(
            f"{len(over)} test functions; all tests together {total:.0f} s. Mark rows that repeat "
            'a promise with rows(n), or the test "extended" (CONTRIBUTING.md, "What runs when").'
        )
