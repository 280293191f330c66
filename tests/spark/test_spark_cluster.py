"""Spec 6.5: the same pipeline on a Spark cluster, by its master's URL and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from tests.java import skip_without
from tests.patience import PATIENCE_S
from tests.spark.test_pipeline import Job

if TYPE_CHECKING:
    from kohort.testing import Cluster

SRC = Path(__file__).resolve().parent.parent.parent / "src"
DRIVER = """
import sys
from kohort.spark import load_pipeline, reconcile
pipeline = load_pipeline(sys.argv[1])
pipeline.run("until_idle", master=sys.argv[2])
books = reconcile(pipeline)
print("exact", books.exact, sum(t.loaded or 0 for t in books.topics.values()))
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
                    **os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYTHONPATH": str(SRC), "PYSPARK_PYTHON": sys.executable,
                },
                cwd=tmp_path, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            stack.callback(process.wait, PATIENCE_S)
            stack.callback(process.terminate)
            assert process.stderr is not None
            stack.callback(process.stderr.close)
            return process.stderr

        said = start("master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        url = _wait_for(said, r"Starting Spark master at (spark://\S+)")
        worker = start(
            "worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "-c", "2", "-m", "2g",
            "-d", str(tmp_path / "work"), url,
        )  # fmt: skip
        _wait_for(worker, r"Successfully (registered) with master")
        yield url


def _wait_for(lines: IO[str], pattern: str) -> str:
    for line in lines:
        if match := re.search(pattern, line):
            return match[1]
    raise AssertionError(f"ended without saying {pattern}")


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_master_url_is_all_that_changes(
    master: str, cluster: Cluster, topic: Callable[..., str], produce: Callable[..., None],
    tmp_path: Path,
) -> None:  # fmt: skip
    job = Job(cluster, topic, produce, tmp_path)
    job.price("nut")
    job.order(*["nut"] * 50, "never")
    file = tmp_path / f"{job.orders}_file.py"
    run = subprocess.run(
        [sys.executable, "-c", DRIVER, file, master],
        env={**os.environ, "PYTHONPATH": str(SRC), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "exact True 51" in run.stdout, run.stderr
