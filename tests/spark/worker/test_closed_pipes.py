"""A worker that Spark no longer wants ends without a traceback; any other error is printed."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="the extra kohort[spark] is not installed")

PROGRAM = """
import sys, types
main = sys.modules["__main__"]
main.__spec__ = types.SimpleNamespace(name={name!r})
import traceback
import kohort.spark.source
try:
    raise {error}("gone")
except OSError:
    traceback.print_exc()
"""


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    ("name", "error", "printed"),
    [
        ("pyspark.daemon", "BrokenPipeError", False),
        ("pyspark.daemon", "ConnectionResetError", True),
        ("a_users_program", "BrokenPipeError", True),
    ],
)
def test_only_closed_pipes_of_sparks_daemon_are_silent(
    name: str, error: str, printed: bool
) -> None:
    program = PROGRAM.format(name=name, error=error)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("Traceback" in done.stderr) is printed
