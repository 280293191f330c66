"""Brokers that restart, topics that go and come back, workers and executors that die, under a
running stream (issue 17; spec 6.7)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort import Producer
from kohort.testing import Cluster
from tests.java import skip_without
from tests.patience import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
DRIVER_TIMEOUT_S = 250.0
"""How long a driver on a cluster of its own may take to start, and then to end."""
PROGRAM = """
import json, signal, sys
from pathlib import Path
from kohort.spark import session
master, servers, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])

def blocked(batches):  # the first task of all waits to be killed
    try:
        (directory / "blocked").touch(exist_ok=False)
    except FileExistsError:
        yield from batches
    else:
        signal.pause()

def keep(frame, batch):
    values = [bytes(row.value).decode() for row in frame.collect()]
    (directory / f"{batch}.batch").write_text(json.dumps(values))

query = (session(master=master).readStream.format("kohort")
    .option("kafka.bootstrap.servers", servers)
    .options(subscribe="t", startingOffsets="earliest")
    .options(maxOffsetsPerTrigger="40", minPartitions="2")
    .load().select("value").mapInArrow(blocked, "value binary")
    .writeStream.foreachBatch(keep).option("checkpointLocation", str(directory / "checkpoint"))
    .trigger(availableNow=True).start())
query.awaitTermination()
"""


@pytest.fixture
def broker() -> Iterator[Cluster]:
    """One of this test's own: it is killed."""
    with Cluster() as running:
        yield running


class Stream:
    """A running query, and the values that its batches have had."""

    def __init__(self, query: Any, batches: dict[int, list[str]]) -> None:
        self.query, self.batches = query, batches

    @property
    def values(self) -> list[str]:
        return sorted(value for batch in self.batches.values() for value in batch)

    def reads(self, *values: str) -> None:
        """Wait until it has read exactly these, in whatever batches."""
        wanted = sorted(values)
        until(lambda: self.values == wanted or not self.query.isActive, f"{wanted} read")
        assert self.query.exception() is None
        assert self.values == wanted

    def fails(self, words: str) -> None:
        """Wait until it has failed, in these words."""
        until(lambda: not self.query.isActive, "the query fails")
        assert words in str(self.query.exception())


@contextmanager
def running(
    spark: SparkSession, broker: Cluster, directory: Path, topics: str, **options: str
) -> Iterator[Stream]:
    batches: dict[int, list[str]] = {}

    def keep(frame: Any, batch: int) -> None:
        batches[batch] = [bytes(row.value).decode() for row in frame.collect()]

    query = (
        spark.readStream.format("kohort")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .options(subscribe=topics, startingOffsets="earliest", **options)
        .load()
        .select("value")
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        yield Stream(query, batches)
    finally:
        query.stop()


def send(broker: Cluster, topic: str, *values: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for value in values:
            producer.send(topic, value.encode())


@pytest.mark.extended
def test_the_broker_restarts_and_topics_come_and_go(
    spark: SparkSession, broker: Cluster, tmp_path: Path
) -> None:
    """failOnDataLoss=false: killed and started, a topic deleted and made again; one query."""
    broker.create_topic("stays")
    broker.create_topic("goes")
    with running(spark, broker, tmp_path, "stays,goes", failOnDataLoss="false") as stream:
        send(broker, "stays", "a")
        send(broker, "goes", "b", "c", "d")
        stream.reads("a", "b", "c", "d")
        broker.kill()
        broker.start()
        send(broker, "stays", "e")
        stream.reads("a", "b", "c", "d", "e")
        broker.delete_topic("goes")
        send(broker, "stays", "f")
        stream.reads("a", "b", "c", "d", "e", "f")
        broker.create_topic("goes")
        send(broker, "goes", "g")
        send(broker, "stays", "h")
        stream.reads("a", "b", "c", "d", "e", "f", "g", "h")


@pytest.mark.extended
@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_topic_is_an_error(
    spark: SparkSession, broker: Cluster, tmp_path: Path, *, again: bool
) -> None:
    """failOnDataLoss=true, which is the default: in words that name the topic and what to do."""
    broker.create_topic("stays")
    broker.create_topic("goes")
    with running(spark, broker, tmp_path, "stays,goes") as stream:
        send(broker, "goes", "a", "b")
        stream.reads("a", "b")
        broker.delete_topic("goes")
        if again:
            broker.create_topic("goes")
            send(broker, "goes", "c", "d", "e")
        stream.fails("topic goes was deleted and created again" if again else "goes")
        assert stream.values == ["a", "b"]


@pytest.mark.extended
def test_killed_again_and_again(spark: SparkSession, broker: Cluster, tmp_path: Path) -> None:
    """Every record once, through a broker that is killed while it is read and written."""
    broker.create_topic("t", partitions=3)
    wanted: list[str] = []
    with running(spark, broker, tmp_path, "t", maxOffsetsPerTrigger="50") as stream:
        for n in range(5):
            more = [f"{n}-{k}" for k in range(100)]
            send(broker, "t", *more)
            wanted += more
            until(lambda n=n: len(stream.values) > 100 * n, "it reads")
            broker.kill()
            broker.start()
        stream.reads(*wanted)


@pytest.mark.extended
def test_a_worker_that_is_killed(spark: SparkSession, broker: Cluster, tmp_path: Path) -> None:
    """Its task is tried again, and every record is there once."""
    broker.create_topic("t")
    killed = tmp_path / "killed"

    def doomed(batches: Any) -> Any:
        if not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from batches

    seen: dict[int, list[str]] = {}

    def keep(frame: Any, batch: int) -> None:
        seen[batch] = [bytes(row.value).decode() for row in frame.collect()]

    send(broker, "t", "a", "b")
    query = (
        spark.readStream.format("kohort")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .options(subscribe="t", startingOffsets="earliest")
        .load()
        .select("value")
        .mapInArrow(doomed, "value binary")
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert killed.exists()
    assert [value for batch in seen.values() for value in sorted(batch)] == ["a", "b"]


@pytest.mark.extended
def test_an_executor_that_is_killed(broker: Cluster, tmp_path: Path) -> None:
    """On a standalone cluster: another executor reads the ranges again, and each record is there
    once."""
    skip_without()
    from tests.spark.standalone import SRC, kill_executor, standalone

    broker.create_topic("t", partitions=2)
    values = [str(n) for n in range(100)]
    send(broker, "t", *values)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with standalone(tmp_path) as cluster:
        driver = subprocess.Popen(
            [sys.executable, program, cluster.url, broker.bootstrap, tmp_path],
            env={**os.environ, "PYTHONPATH": str(SRC), "SPARK_LOCAL_IP": "127.0.0.1"},
        )
        try:
            until(
                lambda: (tmp_path / "blocked").exists() or driver.poll() is not None,
                "a task runs",
                DRIVER_TIMEOUT_S,
            )
            kill_executor(cluster.workers[0])
            assert driver.wait(DRIVER_TIMEOUT_S) == 0
        finally:
            driver.kill()
            driver.wait()
    batches = [json.loads(path.read_text()) for path in tmp_path.glob("*.batch")]
    assert len(batches) == 3
    assert sorted(value for batch in batches for value in batch) == sorted(values)
