"""A micro-batch whose query was stopped: an error that Spark takes for the end and no failure.

Rules:
- Spark looks for an interrupted call of the JVM in the text of a function's error, by a regular
  expression that recurses for each character between the two halves of `_INTERRUPTED`. The texts of
  several cancelled calls overflow its stack. So the error is a new one with a short text.
- An error without that text would stay in the query's `exception()` after `stop()`.
"""

from __future__ import annotations

from typing import Final

from kohort.errors import KohortError

_INTERRUPTED: Final = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling a job: "
    "java.lang.InterruptedException"
)
_CANCELLED: Final = ("java.lang.InterruptedException", "SPARK_JOB_CANCELLED")


def is_cancelled(error: BaseException) -> bool:
    """Whether a call of the JVM failed because its query was stopped, or its job was cancelled."""
    text = str(error)
    return any(name in text for name in _CANCELLED)


def cut_off(batch: object) -> KohortError:
    """The error of a batch whose query was stopped, or whose job was cancelled."""
    return KohortError(
        f"{batch} was cut off: its query was stopped, or its job was cancelled. What it has not "
        f"committed is read again ({_INTERRUPTED})"
    )
