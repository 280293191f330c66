"""Run the core of tests/spark with the oldest pyspark that Kohort takes, in an environment of its
own, and the tests of Delta Lake and Iceberg, which have releases for that Spark.

4.2.0 is the first whose Python data sources have admission control (`latestOffset(start, limit)`,
`SupportsTriggerAvailableNow`); 4.0 and 4.1 cannot bound a micro-batch.
"""

from __future__ import annotations

import os
import subprocess
import sys

from java_tools import ROOT, lake
from set_up import Environment

OLDEST = "4.2.0"
HOME = ROOT / "build" / f"pyspark-{OLDEST}"
CORE = (
    "tests/spark/test_source.py",
    "tests/spark/test_sink.py",
    "tests/spark/test_sql_tables.py",
    "tests/spark/test_pipeline.py",
    "tests/spark/test_health.py",
    "tests/spark/outputs/test_outputs.py",
    "tests/spark/outputs/test_files.py",
)


def main() -> int:
    """Make the environment, unless it is there, and run the tests."""
    environment = Environment(HOME)
    environment.create()
    if subprocess.run([environment.python, "-c", "import kohort, pyspark"]).returncode:
        # In place, so that the compiled modules of the usual environment serve both.
        environment.pip(
            "--quiet", "--group", "dev", "-e", ".[all]", f"pyspark=={OLDEST}", KOHORT_BUILD_PURE="1"
        )
    if not pytest(environment, *CORE, "-m", "not extended and not nightly"):
        return 1
    print("==> Delta Lake and Iceberg", flush=True)
    lake()
    return 0 if pytest(environment, "-rs", "tests/interop/test_lakehouse.py") else 1


def pytest(environment: Environment, *words: str) -> bool:
    """Whether the tests pass."""
    command = [environment.python, "-m", "pytest", "-q", "--timeout", "900", *words]
    settings = {**os.environ, "PYSPARK_PYTHON": str(environment.python)}
    return subprocess.run(command, cwd=ROOT, env=settings).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
