"""A driver for the kill table: a streaming query over a topic into a table, a topic or both.

    python -m tests.spark.outputs.job SETTINGS.json

When it reaches the step of a batch that the settings name, it ends by SIGKILL, of its JVM and of
itself; with `worker` it kills an executor of that worker instead.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kohort.spark import session, to_outputs, to_table, to_topic
from kohort.spark.outputs.protocol import Step
from tests.known import known
from tests.spark.standalone import kill_executor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH_ROWS = 40


def main(path: str) -> None:
    """Run the query over everything that is there."""
    settings: dict[str, Any] = json.loads(Path(path).read_text())
    spark = session("kill table", master=settings.get("master", "local[2]"), profile="test")
    rows = (
        spark.readStream.format("kohort")
        .option("kafka.bootstrap.servers", settings["servers"])
        .options(subscribe=settings["input"], startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", str(BATCH_ROWS))
        .load()
        .selectExpr("CAST(CAST(value AS STRING) AS LONG) AS n")
    )
    stateful = settings["stateful"]
    if stateful:
        rows = rows.groupBy((rows["n"] % 7).alias("k")).agg({"n": "sum"}).toDF("k", "total")
    function = function_of(settings, stateful)
    batches = 0

    def reached(step: Step) -> None:
        nonlocal batches
        if step is Step.BEGUN:
            batches += 1
        if step.name != settings.get("step") or batches != settings["batch"] + 1:
            return
        if "worker" in settings:
            if settings["worker"]:
                kill_executor(settings["worker"])
            settings["worker"] = 0  # once
        else:
            proc = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
            os.kill(known(proc).pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    function.reached = reached
    query = (
        rows.writeStream.foreachBatch(function)
        .outputMode("update" if stateful else "append")
        .queryName("q")
        .option("checkpointLocation", settings["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def function_of(settings: dict[str, Any], stateful: bool) -> Any:
    """The outputs that the settings ask for."""
    outputs = []
    if settings["store"]:
        key = ["k"] if stateful else []
        outputs.append(to_table(settings["store"], "t", key=key))
    if settings["output"]:
        outputs.append(
            to_topic(
                settings["output"],
                bootstrap_servers=settings["servers"],
                select=totals if stateful else numbers,
            )
        )
    return to_outputs(*outputs)


def totals(frame: DataFrame) -> DataFrame:
    """Rows as records."""
    return frame.selectExpr("CAST(k AS STRING) AS key", "CAST(total AS STRING) AS value")


def numbers(frame: DataFrame) -> DataFrame:
    """Rows as records."""
    return frame.selectExpr("CAST(n AS STRING) AS key", "CAST(n AS STRING) AS value")


if __name__ == "__main__":
    main(sys.argv[1])
