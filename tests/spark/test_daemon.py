"""What Spark's Python processes import before they work (spec 6.1)."""

from __future__ import annotations

import importlib
import subprocess
import sys

from kohort.spark.daemon import CLIENTS, SOURCE, TASKS, preloaded


def test_the_daemon_of_tasks_imports_clients_before_it_forks() -> None:
    names = preloaded(TASKS)
    assert {SOURCE, *CLIENTS} < set(names)
    for name in names:
        importlib.import_module(name)


def test_a_process_that_only_describes_the_source_imports_no_client() -> None:
    """Each of them would spend a quarter of a second of processor time on it."""
    assert preloaded("pyspark.sql.worker.create_data_source") == (SOURCE,)
    program = (
        f"import sys, {SOURCE}\n"
        "sys.exit([m for m in sys.modules if m.startswith(('kohort.client.consumer.c', "
        "'kohort.client.admin', 'kohort.client.producer'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.strip() in ("", "[]"), done.stderr
