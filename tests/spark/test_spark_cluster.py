"""Spec 6.5: the same pipeline on a cluster, by spark-submit and, as far as it goes, on Connect."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.java import skip_without
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
from kohort.spark import Pipeline, load_pipeline, reconcile, session
from kohort.spark.checkpoint import begin_anew_for_other_topics
from kohort.spark.checkpoint_files import checkpoint_files
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
pipeline.run("until_idle")
books = reconcile(pipeline)
files = checkpoint_files(pipeline.checkpoint, spark)
read = list(pipeline.handler_topics)
anew = [begin_anew_for_other_topics(files, "source", t) for t in (read, ["u"], ["u"])]
anew.append(files.exists("source"))
frames = Pipeline("frames", store="sqlite:///none.sqlite", bootstrap_servers=servers)
frames.source(source, schema="item STRING", name="rows")
@frames.table("items")
def items(rows):
    return rows
try:
    frames.run("until_idle")
    refusal = ""
except ConfigError as error:
    refusal = str(error)
seen = {
    "batch": batch.count(), "copied": copied.count(), "refusal": refusal,
    "exact": books.exact, "loaded": sum(t.loaded or 0 for t in books.topics.values()),
    "anew": anew,
}
print("SEEN", json.dumps(seen))
spark.stop()
"""

FOREVER = """
import sys
from kohort.spark import load_pipeline
load_pipeline(sys.argv[1]).run(on_progress=lambda progress: print(progress.done, flush=True))
"""
TO_THE_END = """
import json, sys
from kohort.spark import load_pipeline, reconcile
pipeline = load_pipeline(sys.argv[1])
pipeline.run("until_idle")
books = reconcile(pipeline)
loaded = sum(t.loaded or 0 for t in books.topics.values())
print("SEEN", json.dumps({"exact": books.exact, "loaded": loaded}))
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A standalone master with one worker of two cores, on loopback."""
    pytest.importorskip("pyspark")
    skip_without()
    from tests.spark.standalone import standalone

    with standalone(tmp_path) as running:
        yield running.url


@pytest.fixture
def connect_server(tmp_path: Path) -> Iterator[str]:
    """A Spark Connect server of two cores, on loopback; its address."""
    pytest.importorskip("grpc")
    skip_without()
    from tests.spark.standalone import started, wait_for

    with ExitStack() as stack:
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        conf = ["--conf", "spark.connect.grpc.binding.port=0", "--conf", "spark.ui.enabled=false"]
        command = submit("--master", "local[2]", *conf, "--class", server, "spark-internal")
        _, lines = started(stack, command, tmp_path)
        port = wait_for(lines, r"Spark Connect server started at: \S*:(\d+)")
        threading.Thread(target=lambda: list(lines), daemon=True).start()  # else the pipe fills
        yield f"sc://127.0.0.1:{port}"


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
    """Issue 17: the format and row handlers run there; steps of DataFrames are refused in words."""
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
    assert (seen["exact"], seen["loaded"]) == (True, 51)
    assert "Spark Connect runs the driver on the server. Nothing was started" in seen["refusal"]
    assert seen["anew"] == [False, True, False, False], "a checkpoint of other topics is emptied"
    assert "pipeline frames, which has steps of DataFrames, needs a driver" in seen["refusal"]
    assert not (tmp_path / "none.sqlite").exists()


@pytest.mark.timeout(600)
def test_a_client_of_spark_connect_is_killed(connect_server: str, job: Job, tmp_path: Path) -> None:
    """Its queries continue on the server; the next client takes them over, and nothing is twice."""
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text(FOREVER)
    second.write_text(TO_THE_END)
    environment = {**os.environ, "PYTHONPATH": str(SRC), "SPARK_REMOTE": connect_server}
    with subprocess.Popen(
        [sys.executable, first, file_of(job)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as client:
        assert client.stdout is not None
        done = next((n for n in map(int, client.stdout) if n >= 50), None)
        client.kill()
    assert done, "the first client has handled nothing"
    job.order(*["nut"] * 50)
    seen = run([sys.executable, second, file_of(job)], SPARK_REMOTE=connect_server)
    assert (seen["exact"], seen["loaded"]) == (True, 101)


def file_of(job: Job) -> Path:
    """The user's file of a job."""
    return job.directory / f"{job.orders}_file.py"
