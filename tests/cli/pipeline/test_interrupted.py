"""Ctrl-C in the middle of a micro-batch (spec 6.3): one line, and the next run continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kohort import Producer
from kohort.cli.common.root import EXIT_INTERRUPTED
from kohort.testing import Cluster
from tests.patience import until

FILE = """
import os
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType
from kohort.spark import Pipeline

pipeline = Pipeline("interrupted", store="sqlite:///{0}/out.db", checkpoint="{0}/checkpoint")
pipeline.source("orders", schema="item INT")


@pipeline.setup
def tables(store):
    store.run("CREATE TABLE IF NOT EXISTS items (item INTEGER PRIMARY KEY)")


@F.udf(IntegerType())
def held(item):
    if os.path.exists("{0}/hold"):
        open("{0}/reached", "w").close()
        os.read(os.open("{0}/hold", os.O_RDONLY), 1)  # nobody writes
    return item


@pipeline.table("items", key="item")
def items(orders: DataFrame) -> DataFrame:
    return orders.select(held("item").alias("item"))
"""
PATIENCE_S = 240.0


@pytest.mark.spark
@pytest.mark.extended
def test_a_batch_is_cut_off_without_a_traceback(tmp_path: Path) -> None:
    file, hold, reached = tmp_path / "p.py", tmp_path / "hold", tmp_path / "reached"
    file.write_text(FILE.format(tmp_path))
    os.mkfifo(hold)
    command = [sys.executable, "-m", "kohort", "pipeline", "run", str(file)]
    with Cluster() as cluster:
        cluster.create_topic("orders", partitions=2)
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for number in range(100):
                producer.send("orders", b'{"item": %d}' % number)
        environment = {**os.environ, "KOHORT_BOOTSTRAP_SERVERS": cluster.bootstrap}
        run = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        until(lambda: reached.exists() or run.poll() is not None, "a batch", PATIENCE_S)
        assert run.poll() is None, run.communicate()[1]
        run.send_signal(signal.SIGINT)
        _, printed = run.communicate(timeout=PATIENCE_S)
        assert run.returncode == EXIT_INTERRUPTED
        assert "stopped: pipeline interrupted continues where it stopped" in printed
        assert "Traceback" not in printed, printed
        assert "StackOverflowError" not in printed, printed
        hold.unlink()
        ended = subprocess.run(
            [*command, "--mode", "until_idle"], env=environment, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr
        assert "100 of 100" in ended.stdout + ended.stderr
