"""Spec 5.1: permanent or temporary, and why."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from kohort.errors import ClosedError, UsageError
from kohort.retry.classify import (
    Classifier,
    Disposition,
    Fatal,
    Permanent,
    RetryAfter,
    Temporary,
    clean_reason,
    fingerprint,
)


def raised(error: Exception, cause: BaseException | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:  # the test wants a traceback on whatever it was given
        return caught


def test_what_a_handler_says_wins() -> None:
    sort = Classifier(permanent=(Temporary,))
    failure = sort.classify(raised(Permanent("unknown_airport", "no BQN")))
    assert (failure.permanent, failure.reason) == (True, "unknown_airport")
    assert failure.disposition is Disposition.FATAL
    assert failure.message == "no BQN"
    later = sort.classify(raised(RetryAfter("10m", "rate limit")))
    assert (later.permanent, later.reason, later.min_delay_ms) == (False, "rate_limit", 600_000)
    assert Fatal is Permanent


def test_causes_are_searched() -> None:
    """A2: by class along `__cause__`; what is not listed is temporary."""
    sort = Classifier(permanent=(ValueError,), temporary=(UnicodeDecodeError,))
    assert sort.classify(raised(RuntimeError("x"), raised(ValueError("y")))).permanent
    assert not sort.classify(raised(RuntimeError("x"), raised(KeyError("y")))).permanent
    assert not sort.classify(raised(UnicodeDecodeError("utf-8", b"", 0, 1, "bad"))).permanent
    assert sort.classify(raised(RuntimeError("x"), raised(Permanent("told")))).reason == "told"


class NotFoundError(OSError, ValueError):
    """As some client libraries have it: the network's, and a ValueError."""


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (KeyError("amount"), True),
        (TypeError("None + 1"), True),
        (ValueError("abc"), True),
        (IndexError("3"), True),
        (AttributeError("x"), True),
        (NameError("x"), True),
        (ZeroDivisionError("x"), True),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "bad"), True),
        (AssertionError("x"), True),
        (UsageError("this app has no store"), True),
        (ClosedError("the producer is closed"), False),
        (TimeoutError("x"), False),
        (ConnectionError("x"), False),
        (RuntimeError("x"), False),
        (NotFoundError("x"), False),
        (Exception("x"), False),
    ],
)
def test_what_the_record_or_the_program_causes_is_permanent(
    error: Exception, permanent: bool
) -> None:
    """A missing field is no dependency that is down: it does not travel through every topic."""
    assert Classifier().classify(raised(error)).permanent is permanent
    assert not Classifier(temporary=(type(error),)).classify(raised(error)).permanent
    assert not Classifier().classify(raised(RuntimeError("down"), raised(error))).permanent


def test_a_listed_cause_is_nearer_than_the_default() -> None:
    sort = Classifier(temporary=(RuntimeError,))
    assert not sort.classify(raised(ValueError("x"), raised(RuntimeError("down")))).permanent


def test_a_cycle_of_causes_ends() -> None:
    one, two = RuntimeError("1"), RuntimeError("2")
    one.__cause__, two.__cause__ = two, one
    assert not Classifier().classify(one).permanent


def caller(module: str | None, name: str) -> Callable[[Callable[[], object]], object]:
    """A function that calls another, in a frame that says so much of its module."""
    spaces: dict[str, Any] = {} if module is None else {"__name__": module}
    code = (lambda function: function()).__code__
    return FunctionType(code.replace(co_name=name), spaces)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        pytest.param("kohort.engine", "run", id="python"),
        pytest.param("kohort.engine", "kohort.engine.run", id="compiled"),
        pytest.param(None, "kohort.engine.run", id="compiled-with-the-stable-abi"),
    ],
)
def test_a_stack_begins_in_the_handler(module: str | None, name: str) -> None:
    """Spec 5.7: whatever called it, compiled for 3.11, or once for all later versions."""

    def handle() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        caller(module, name)(lambda: caller("bills", "bill")(handle))
    assert caught.tb.tb_next is not None
    in_ours = caught.value.with_traceback(caught.tb.tb_next)
    stack = Classifier().classify(in_ours).stack
    assert "kohort" not in stack
    assert stack.count("  File ") == 3


def test_failures_of_one_kind_share_a_fingerprint() -> None:
    same = [fingerprint(raised(ValueError(f"row {i} of 'f{i}' at 0x{i}"))) for i in range(3)]
    assert len(set(same)) == 1
    assert fingerprint(raised(ValueError("else"))) != same[0]
    assert len(same[0]) == 16


def test_reasons_are_fit_to_be_counted_by() -> None:
    assert clean_reason("no such\nairport: BQN") == "no_such_airport:_BQN"
    assert clean_reason("") == "unknown"
    assert len(clean_reason("x" * 500)) == 100
