"""A batch that is cut off ends its query as `stop()` asks, without an error (spec 6.4)."""

from __future__ import annotations

import re
import traceback

import pytest

from kohort.errors import KohortError
from kohort.spark.outputs.cancelled import cut_off, is_cancelled

# As Spark 4 looks for an interruption in the text of a Python function's error (StreamExecution).
INTERRUPTION = re.compile(
    r"py4j.protocol.Py4JJavaError: An error occurred while calling"
    r"((.|\r\n|\r|\n)*)(java.lang.InterruptedException|java.io.InterruptedIOException)"
)


def test_spark_sees_an_interruption_in_the_text() -> None:
    cause = RuntimeError("o12.collect\n" + "\tat org.apache.spark.X.y(X.scala:1)\n" * 1_000)
    try:
        try:
            raise cause
        except RuntimeError:
            raise cut_off("batch 3 of query q") from None
    except KohortError as error:
        text = "".join(traceback.format_exception(error))
    found = INTERRUPTION.search(text)
    assert found is not None
    assert len(found[1]) < 100, "Spark's search recurses for each of these characters"
    assert "batch 3 of query q was cut off" in text
    assert "scala" not in text


@pytest.mark.parametrize(
    ("text", "cancelled"),
    [
        ("An error occurred: java.lang.InterruptedException", True),
        ("[SPARK_JOB_CANCELLED] Job 13 cancelled Query q was stopped", True),
        ("Python worker exited unexpectedly (crashed)", False),
    ],
)
def test_what_counts_as_cancelled(text: str, cancelled: bool) -> None:
    assert is_cancelled(RuntimeError(text)) is cancelled
