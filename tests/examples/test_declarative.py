"""Issue 17: the example of Spark Declarative Pipelines runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kohort.testing import Cluster
from tests.java import skip_without
from tests.pages import ROOT
from tests.patience import PATIENCE_S

READ = """
import sys
from kohort.spark import session
spark = session(master="local[1]")
rows = spark.read.parquet(sys.argv[1]).collect()
print("SEEN", sorted((row.origin, row["count"]) for row in rows))
"""


@pytest.mark.spark
@pytest.mark.extended
@pytest.mark.timeout(600)
def test_declarative_pipeline(tmp_path: Path) -> None:
    pyspark: Any = pytest.importorskip("pyspark")
    pytest.importorskip("grpc")
    pytest.importorskip("yaml")
    skip_without()
    shutil.copytree(ROOT / "examples" / "declarative", tmp_path / "project")
    spec = tmp_path / "project" / "spark-pipeline.yml"
    text = spec.read_text()
    assert "file:///tmp/kohort-declarative" in text
    spec.write_text(text.replace("file:///tmp/kohort-declarative", (tmp_path / "state").as_uri()))
    with Cluster() as cluster:
        cluster.create_topic("flights")
        from kohort import Producer

        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for origin in (b"JFK", b"LGA", b"JFK"):
                producer.send("flights", origin)
        command = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
        run = subprocess.run(
            [command, "run", "--spec", spec],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE_S,
            env={
                **os.environ,
                "KOHORT_BOOTSTRAP_SERVERS": cluster.bootstrap,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_HOME": str(Path(pyspark.__file__).parent),
            },
        )
        assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    read = subprocess.run(
        [sys.executable, "-c", READ, next(tmp_path.rglob("departures_by_origin"))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
    )
    assert "SEEN [('JFK', 2), ('LGA', 1)]" in read.stdout, read.stderr[-3000:] + run.stdout[-2000:]
