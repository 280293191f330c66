"""Which records make a batch fail (spec 6.5)."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from decimal import InvalidOperation
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.retry.classify import Permanent, RetryAfter, Temporary
from kohort.spark.dataframes.isolating import (
    WORKER_KILLED,
    RowFailure,
    Span,
    culprits,
    halves,
    refused_in_a_task,
    row_failure,
    temporary_failure,
)

UDF = """[UDF_USER_CODE.PYTHON] An exception was thrown from the Python worker.
Traceback (most recent call last):
  File "/jobs/league.py", line 7, in per_goal
    return 90 / goals
           ~~~^~~~~~
ZeroDivisionError: division by zero
 SQLSTATE: 39000
JVM stacktrace:
org.apache.spark.api.python.PythonException: [UDF_USER_CODE.PYTHON]
\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:581)
"""


def _raising(line: str) -> str:
    """Spark's text for a UDF whose traceback ends with this line."""
    return UDF.replace("ZeroDivisionError: division by zero", line)


CAST = (
    '[CAST_INVALID_INPUT] The value \'many\' of the type "STRING" cannot be cast to "INT" because '
    "it is malformed. SQLSTATE: 22018"
)


REFUSED = _raising(
    "ConnectionRefusedError: [Errno 111] Connection refused\n\n"
    "During handling of the above exception, another exception occurred:\n\n"
    "Traceback (most recent call last):\n"
    '  File "/jobs/league.py", line 9, in located\n'
    "requests.exceptions.ConnectionError: refused"
)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        (UDF, RowFailure(True, "ZeroDivisionError", "division by zero")),
        (
            UDF.replace("ZeroDivisionError: division by zero", "TimeoutError: 3 s"),
            RowFailure(False, "TimeoutError", "3 s"),
        ),
        (
            UDF.replace(
                "ZeroDivisionError: division by zero", "requests.exceptions.HTTPError: 503"
            ),
            RowFailure(False, "HTTPError", "503"),
        ),
        (_raising("TimeoutError"), RowFailure(False, "TimeoutError", "")),
        (_raising("AssertionError"), RowFailure(True, "AssertionError", "")),
        (_raising("league.GeocoderDown"), RowFailure(False, "GeocoderDown", "")),
        (_raising("_Down: at noon"), RowFailure(False, "_Down", "at noon")),
        (_raising("socket.timeout: 3 s"), RowFailure(False, "timeout", "3 s")),
        (
            _raising("__main__.step.<locals>.Down: at noon"),
            RowFailure(False, "Down", "at noon"),
        ),
        (
            _raising("ConnectionRefusedError: [Errno 111] Connection refused"),
            RowFailure(False, "ConnectionRefusedError", "[Errno 111] Connection refused"),
        ),
        (REFUSED, RowFailure(False, "ConnectionError", "refused")),
        (
            "SparkException: Python worker exited unexpectedly (crashed)",
            RowFailure(True, WORKER_KILLED, "the Python worker died, at every try"),
        ),
        (UDF.replace("ZeroDivisionError", "kohort.errors.ConnectionFailedError"), None),
        ("ExecutorLostFailure (executor 1 exited)", None),
        ("[X] of the JVM: Connection Refused", None),
        ("something else", None),
    ],
)
def test_a_records_failure_is_told_from_other_trouble(
    text: str, failure: RowFailure | None
) -> None:
    """Bugs and bad data are permanent, the network is temporary, the broker is no record's."""
    assert row_failure(text) == failure


class BadRow(ValueError):
    pass


class BadCity(Permanent):
    pass


class GatewayDown(ValueError, ConnectionError):
    """As `requests.exceptions` has them."""


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (BadRow("row 7"), RowFailure(True, "BadRow", "row 7")),
        (GatewayDown("502"), RowFailure(False, "GatewayDown", "502")),
        (json.JSONDecodeError("no", "x", 0), RowFailure(True, "JSONDecodeError", "no: line 1")),
        (InvalidOperation("x"), RowFailure(True, "InvalidOperation", "x")),
        (Temporary("geocoder_down"), RowFailure(False, "geocoder_down", "geocoder_down")),
        (
            Temporary("customer_unknown", "eve is not a customer"),
            RowFailure(False, "customer_unknown", "eve is not a customer"),
        ),
        (
            Permanent("bad_price", "of order 17\nis -3"),
            RowFailure(True, "bad_price", "of order 17"),
        ),
        (RetryAfter("45m", "closed", "until noon"), RowFailure(False, "closed", "until noon")),
        (BadCity("no_city"), RowFailure(True, "no_city", "no_city")),
    ],
)
def test_an_exception_is_judged_by_its_class_and_what_it_states(
    error: Exception, failure: RowFailure
) -> None:
    """Bad data went through every retry topic, and a reason was made of each message."""
    found = row_failure(_raising("".join(traceback.format_exception_only(error))))
    assert found is not None
    assert (found.permanent, found.reason) == (failure.permanent, failure.reason)
    assert found.message.startswith(failure.message)


def test_a_class_of_the_script_that_runs_has_no_module_in_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = type("BadScore", (ValueError,), {"__module__": "__main__"})
    script = SimpleNamespace(BadScore=bad, KeyError=ConnectionError)
    monkeypatch.setitem(sys.modules, "__main__", script)  # type: ignore[arg-type]
    assert row_failure(_raising("BadScore: -3")) == RowFailure(True, "BadScore", "-3")
    assert row_failure(_raising("KeyError: 'x'")) == RowFailure(True, "KeyError", "'x'")


GROUP = """[UDF_USER_CODE.PYTHON] An exception was thrown from the Python worker.
  + Exception Group Traceback (most recent call last):
  |   File "/jobs/league.py", line 7, in per_goal
  |     raise ExceptionGroup("both", [ValueError()])
  | ExceptionGroup: both (1 sub-exception)
  +-+---------------- 1 ----------------
    | ValueError
    +------------------------------------
 SQLSTATE: 39000
JVM stacktrace:
org.apache.spark.api.python.PythonException
"""


@pytest.mark.parametrize(
    "text",
    [_raising("During handling of the above exception, another exception occurred:"), GROUP],
)
def test_an_ordinary_line_of_a_traceback_is_no_exception(text: str) -> None:
    """Spark's own condition is the reason, as it is without a traceback."""
    found = row_failure(text)
    assert found is not None
    assert found.reason == "UDF_USER_CODE.PYTHON"


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        (_raising("TimeoutError"), True),
        (_raising("".join(traceback.format_exception_only(Temporary("geocoder_down")))), True),
        (_raising("".join(traceback.format_exception_only(Permanent("no")))), False),
        (_raising("kohort.retry.store.ConstraintError: value too long"), False),
        (UDF, False),
        ("something else", False),
    ],
)
def test_a_steps_temporary_failure_may_pass(text: str, passes: bool) -> None:
    """A constraint that stays broken would restart the query for nothing."""
    assert (temporary_failure(text) is not None) is passes


@pytest.mark.parametrize(
    ("raised", "refused"),
    [
        ("kohort.retry.store.ConstraintError: value too long", True),
        ("kohort.retry.store.StoreBusyError: ConstraintError: x", False),
        ("shop.ConstraintError: no stock", False),
    ],
)
def test_a_row_that_the_database_refuses_in_a_task_is_known_by_what_was_raised(
    raised: str, refused: bool
) -> None:
    text = UDF.replace("ZeroDivisionError: division by zero", raised)
    assert refused_in_a_task(text) is refused
    assert not refused_in_a_task(raised)


def test_a_cast_that_ansi_sql_refuses_is_permanent() -> None:
    found = row_failure(CAST)
    assert found is not None
    assert (found.permanent, found.reason) == (True, "CAST_INVALID_INPUT")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "[CANNOT_PARSE_TIMESTAMP] Text 'so\non' could not be parsed at index 0. Use `try_to_"
            "timestamp` to tolerate invalid input string and return NULL instead. SQLSTATE: 22007",
            "CANNOT_PARSE_TIMESTAMP",
        ),
        (
            "[CANNOT_DECODE_URL] The provided URL cannot be decoded: %. SQLSTATE: 22546",
            "CANNOT_DECODE_URL",
        ),
        ("[CANNOT_LOAD_FUNCTION_CLASS] Cannot load class f. SQLSTATE: 46103", None),
        ("[INTERNAL_ERROR] A bug. SQLSTATE: XX000\n[X] caused by SQLSTATE: 22018", None),
    ],
)
def test_a_value_that_a_function_cannot_read_is_a_records_failure(
    text: str, reason: str | None
) -> None:
    """`to_timestamp(text, format)` has a condition that begins as those of the plan do."""
    found = row_failure(text)
    assert (None if found is None else found.reason) == reason


@given(st.sets(st.integers(0, 99), max_size=8))
def test_exactly_the_failing_records_are_found(bad: set[int]) -> None:
    """Over two partitions; a record of a partition is (offset // 50, offset % 50)."""
    tried = 0

    def fails(spans: Sequence[Span]) -> str | None:
        nonlocal tried
        tried += 1
        hit = [o for s in spans for o in range(s.start, s.end) if s.partition * 50 + o in bad]
        return f"record {hit[0]}" if hit else None

    found = culprits([Span("t", 0, 0, 50), Span("t", 1, 0, 50)], fails)
    assert found is not None
    assert {s.partition * 50 + s.start for s in found} == bad
    assert all(s.size == 1 for s in found)
    assert tried <= 1 + 2 * 7 * len(bad)


def test_a_step_that_fails_for_all_records_is_not_isolated() -> None:
    calls = 0

    def fails(_spans: Sequence[Span]) -> str | None:
        nonlocal calls
        calls += 1
        return "always"

    assert culprits([Span("t", 0, 0, 10_000)], fails, most=5) is None
    assert calls < 40


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5))
def test_halves_are_the_whole(pairs: list[tuple[int, int]]) -> None:
    spans = [Span("t", p, low, low + size) for p, (low, size) in enumerate(pairs)]
    first, second = halves(spans)
    offsets = [(s.partition, o) for s in (*first, *second) for o in range(s.start, s.end)]
    assert sorted(offsets) == [(s.partition, o) for s in spans for o in range(s.start, s.end)]
    assert abs(sum(s.size for s in first) - sum(s.size for s in second)) <= 1
