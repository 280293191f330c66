"""Spec 6.5: the same pipeline on a cluster, by spark-submit and, as far as it goes, on Connect."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

from tests.java import skip_without
from tests.patience import PATIENCE_S
from tests.spark.test_pipeline import Job

if TYPE_CHECKING:
    from kohort.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.extended]
SRC = Path(__file__).resolve().parent.parent.parent / "src"
PROGRAM = """
import json, sys
from kohort.spark import load_pipeline, reconcile, session
pipeline = load_pipeline(sys.argv[1])
pipeline.run("until_idle", master=sys.argv[2] or None)
books = reconcile(pipeline)
spark = session()
seen = {
    "exact": books.exact, "loaded": sum(t.loaded or 0 for t in books.topics.values()),
    "master": spark.sparkContext.master, "app": spark.sparkContext.appName,
    "shuffle": spark.conf.get("spark.sql.shuffle.partitions"),
    "trigger": spark.conf.get("spark.sql.streaming.minBatchesToRetain"),
}
print("SEEN", json.dumps(seen))
"""
CONNECT = """
import json, sys
from kohort.errors import ConfigError
from kohort.spark import load_pipeline, session
spark = session()
servers, source, target, checkpoint = sys.argv[2:]
options = {"kafka.bootstrap.servers": servers, "subscribe": source}
batch = spark.read.format("kohort").options(**options).load()
stream = spark.readStream.format("kohort").options(**options, startingOffsets="earliest").load()
query = (stream.select("key", "value").writeStream.format("kohort")
    .option("kafka.bootstrap.servers", servers).option("topic", target)
    .option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
query.awaitTermination()
options["subscribe"] = target
copied = spark.read.format("kohort").options(**options).load()
pipeline = load_pipeline(sys.argv[1])
try:
    pipeline.run("until_idle")
    refusal = ""
except ConfigError as error:
    refusal = str(error)
seen = {"batch": batch.count(), "copied": copied.count(), "refusal": refusal}
print("SEEN", json.dumps(seen))
spark.stop()
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A standalone master with one worker of two cores, on loopback."""
    pyspark = pytest.importorskip("pyspark")
    skip_without()
    home = Path(pyspark.__file__).parent
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> IO[str]:
            process = subprocess.Popen(
                [home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments],
                env={
                    **os.environ,
                    "SPARK_HOME": str(home),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYTHONPATH": str(SRC),
                    "PYSPARK_PYTHON": sys.executable,
                },
                cwd=tmp_path,
                text=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            stack.callback(process.wait, PATIENCE_S)
            stack.callback(process.terminate)
            assert process.stderr is not None
            stack.callback(process.stderr.close)
            return process.stderr

        said = start("master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        url = _wait_for(said, r"Starting Spark master at (spark://\S+)")
        worker = start(
            "worker.Worker",
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
            "-c",
            "2",
            "-m",
            "2g",
            "-d",
            str(tmp_path / "work"),
            url,
        )
        _wait_for(worker, r"Successfully (registered) with master")
        yield url


def _wait_for(lines: IO[str], pattern: str) -> str:
    for line in lines:
        if match := re.search(pattern, line):
            return match[1]
    raise AssertionError(f"ended without saying {pattern}")


def run(command: list[str | Path], **environment: str) -> dict[str, Any]:
    """Run a program; what it has seen."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC), "SPARK_LOCAL_IP": "127.0.0.1", **environment},
    )
    try:
        printed, log = process.communicate(timeout=400)
    except subprocess.TimeoutExpired:
        process.terminate()
        printed, log = process.communicate()
    seen = re.search(r"^SEEN (.*)$", printed, re.MULTILINE)
    assert seen, printed[-2000:] + log[-6000:]
    return json.loads(seen[1])


@pytest.fixture
def job(
    cluster: Cluster, topic: Callable[..., str], produce: Callable[..., None], tmp_path: Path
) -> Job:
    made = Job(cluster, topic, produce, tmp_path)
    made.price("nut")
    made.order(*["nut"] * 50, "never")
    return made


@pytest.fixture
def program(tmp_path: Path) -> Path:
    written = tmp_path / "program.py"
    written.write_text(PROGRAM)
    return written


def submit(*words: str | Path) -> list[str | Path]:
    """The command line of the spark-submit of the installed pyspark."""
    pyspark = pytest.importorskip("pyspark")
    skip_without()
    return [Path(pyspark.__file__).parent / "bin" / "spark-submit", *words]


@pytest.mark.timeout(600)
def test_a_master_url_is_all_that_changes(master: str, job: Job, program: Path) -> None:
    """Issue 17: a standalone cluster, named by the program."""
    seen = run([sys.executable, program, file_of(job), master])
    assert (seen["exact"], seen["loaded"], seen["master"]) == (True, 51, master)
    assert seen["shuffle"] == "200", "a cluster's own setting stays"


@pytest.mark.timeout(600)
def test_spark_submit_decides(job: Job, program: Path) -> None:
    """Issue 17: `--master` and `--conf` of spark-submit win over the program and over profiles."""
    settings = ["--conf", "spark.sql.shuffle.partitions=3", "--name", "mine"]
    command = submit("--master", "local[3]", *settings, program, file_of(job), "local[1]")
    seen = run(command, PYSPARK_PYTHON=sys.executable)
    assert (seen["exact"], seen["loaded"]) == (True, 51)
    assert (seen["master"], seen["app"], seen["shuffle"]) == ("local[3]", "mine", "3")
    assert seen["trigger"] == "10", "what it leaves open is by the profile"


@pytest.mark.timeout(600)
def test_spark_submit_to_a_cluster(master: str, job: Job, program: Path) -> None:
    """Issue 17: the same file, submitted to a standalone cluster without a word in the program."""
    command = submit("--master", master, program, file_of(job), "")
    seen = run(command, PYSPARK_PYTHON=sys.executable)
    assert (seen["exact"], seen["loaded"], seen["master"]) == (True, 51, master)


@pytest.mark.timeout(600)
def test_spark_connect(
    cluster: Cluster, topic: Callable[..., str], job: Job, tmp_path: Path
) -> None:
    """Issue 17: the format reads and writes there; a pipeline is refused before it has begun."""
    pytest.importorskip("grpc")
    skip_without()
    program = tmp_path / "connect.py"
    program.write_text(CONNECT)
    target = topic()
    seen = run(
        [
            sys.executable,
            program,
            file_of(job),
            cluster.bootstrap,
            job.orders,
            target,
            tmp_path / "copy",
        ],
        SPARK_REMOTE="local[2]",
        PYSPARK_PYTHON=sys.executable,
    )
    assert (seen["batch"], seen["copied"]) == (51, 51)
    assert "Spark Connect runs the driver on the server. Nothing was started" in seen["refusal"]
    assert not (tmp_path / "db.sqlite").exists()


def file_of(job: Job) -> Path:
    """The user's file of a job."""
    return job.directory / f"{job.orders}_file.py"
