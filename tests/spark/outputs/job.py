"""A driver for the kill table: streaming queries over a topic into tables, topics and both.

    python -m tests.spark.outputs.job SETTINGS.json

The queries run side by side. When the settings name a step, each of them waits there in one of its
batches until all have come; then the driver ends by SIGKILL, its JVM first. With `worker` an
executor of that worker is killed instead, and the queries go on. With `steps` the driver ends so
many steps of all queries after its start, and `delay_s` later, wherever they are then.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kohort.spark import session, to_outputs, to_table, to_topic
from kohort.spark.outputs.protocol import Step
from tests.spark.standalone import kill_executor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BATCH_ROWS = 40
STARTS = 5
STRIKES_IN = 1
"""The batch of a driver in which it is killed; in the one before it replays what was left."""


def main(path: str) -> int:
    """Run the queries over everything that is there; how many of them failed."""
    settings: dict[str, Any] = json.loads(Path(path).read_text())
    spark = session("kill table", master=settings["master"], profile="test")
    strike = strike_of(settings, spark)
    meeting = threading.Barrier(len(settings["queries"]), strike)
    passed = itertools.count(1)

    def count(_: Step) -> None:
        if next(passed) == settings["steps"]:
            timer = threading.Timer(settings["delay_s"], strike)
            timer.daemon = True
            timer.start()

    started: list[StreamingQuery] = []
    for query in settings["queries"]:
        reached = count if settings["steps"] else meeting_at(settings, meeting)
        started.append(start(spark, settings, query, reached))
    await_all(started, meeting)
    failed = [error for query in started if (error := query.exception())]
    for error in failed:
        print(error, file=sys.stderr, flush=True)
    spark.stop()
    return len(failed)


def await_all(queries: list[StreamingQuery], meeting: threading.Barrier) -> None:
    """Wait for all queries. When one fails, nobody waits for it at a step."""
    tick = threading.Event()
    while any(query.isActive for query in queries):
        if any(query.exception() for query in queries):
            meeting.abort()
        tick.wait(0.5)


def strike_of(settings: dict[str, Any], spark: SparkSession) -> Callable[[], None]:
    """What happens when all queries have reached the step."""

    def strike() -> None:
        if settings["worker"]:
            kill_executor(settings["worker"])
            return
        gateway: Any = spark.sparkContext._gateway
        os.kill(gateway.proc.pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    return strike


def meeting_at(settings: dict[str, Any], meeting: threading.Barrier) -> Callable[[Step], None]:
    """Wait for the other queries at the step of the settings, once."""
    begun = -1

    def reached(step: Step) -> None:
        nonlocal begun
        if step is Step.BEGUN:
            begun += 1
        if step.name == settings["step"] and begun == STRIKES_IN:
            begun += 1  # once, also when an attempt at the batch is repeated
            meeting.wait()

    return reached


def start(
    spark: SparkSession,
    settings: dict[str, Any],
    query: dict[str, Any],
    reached: Callable[[Step], None],
) -> StreamingQuery:
    """Start one query, and wait for its first batch.

    Spark gives each of its Python processes ten seconds to start, which are too few when those of
    ten queries start at once, or the machine is busy: then the query is started again.
    """
    begun = threading.Event()

    def seen(step: Step) -> None:
        begun.set()
        reached(step)

    for left in reversed(range(STARTS)):
        started = started_once(spark, settings, query, seen)
        while started.isActive and not begun.wait(0.1):
            pass
        if not left or begun.is_set() or started.exception() is None:
            return started
    raise AssertionError


def started_once(
    spark: SparkSession,
    settings: dict[str, Any],
    query: dict[str, Any],
    reached: Callable[[Step], None],
) -> StreamingQuery:
    """A query over the input, into the outputs that its settings ask for."""
    rows = (
        spark.readStream.format("kohort")
        .option("kafka.bootstrap.servers", settings["servers"])
        .options(subscribe=settings["input"], startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", str(BATCH_ROWS))
        .load()
        .selectExpr("CAST(CAST(value AS STRING) AS LONG) AS n")
    )
    if query["stateful"]:
        rows = rows.groupBy((rows["n"] % 7).alias("k")).agg({"n": "sum"}).toDF("k", "total")
    function = function_of(settings, query)
    function.reached = reached
    return (
        rows.writeStream.foreachBatch(function)
        .outputMode("update" if query["stateful"] else "append")
        .queryName(query["name"])
        .option("checkpointLocation", query["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )


def function_of(settings: dict[str, Any], query: dict[str, Any]) -> Any:
    """The outputs of a query."""
    outputs = []
    if query["store"]:
        outputs.append(to_table(query["store"], "t", key=["k"] if query["stateful"] else []))
    if query["output"]:
        outputs.append(
            to_topic(
                query["output"],
                bootstrap_servers=settings["servers"],
                select=totals if query["stateful"] else numbers,
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
    sys.exit(min(main(sys.argv[1]), 1))
