"""What a session of ours does otherwise than PySpark's own."""

from __future__ import annotations

import socketserver
from types import SimpleNamespace

import pytest

from kohort.spark.sessions import end_quietly


@pytest.mark.parametrize(("error", "told"), [(EOFError(), ""), (ValueError("bad"), "bad")])
def test_the_end_of_the_jvm_is_no_error(
    capfd: pytest.CaptureFixture[str], error: Exception, told: str
) -> None:
    """A run that ended well left a traceback of PySpark's accumulator server, now and then."""
    server = object.__new__(socketserver.BaseServer)
    end_quietly(SimpleNamespace(_accumulatorServer=server))
    try:
        raise error
    except Exception:
        server.handle_error(None, ("127.0.0.1", 1))
    said = capfd.readouterr().err
    assert told in said
    assert bool(said) is bool(told)


def test_a_context_without_such_a_server() -> None:
    end_quietly(SimpleNamespace())
