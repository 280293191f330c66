"""Whether Spark can run here: tests that need it are skipped, visibly, where it cannot."""

from __future__ import annotations

import pytest

from kohort.errors import ConfigError


def lack() -> str | None:
    """Why Spark cannot run on this machine, in one line; None when it can."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "pyspark is not installed (pip install 'kohort[spark]')"
    from kohort.spark.sessions import ensure_java

    try:
        ensure_java()
    except ConfigError as error:
        return str(error).splitlines()[0]
    return None


def skip_without() -> None:
    """Skip the test that calls it, or that asks for the fixture which does."""
    if why := lack():
        pytest.skip(why)
