"""What Spark's Python processes import, and when (spec 6.1)."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.util import find_spec

import pytest

from kohort.spark.daemon import CLIENTS, SOURCE, TASKS, preloaded

FORKED = """
import importlib, sys
from kohort.spark.daemon import TASKS, preloaded
for name in preloaded(TASKS):
    importlib.import_module(name)
before = set(sys.modules)
"""
NEW = """
print(*sorted(m for m in set(sys.modules) - before if m.startswith(("kohort.client", "pandas"))))
"""


def imported(body: str) -> list[str]:
    """Modules of clients, and pandas, that a fork of the daemon of tasks imports."""
    program = FORKED + body + NEW
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


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
        "print(*(m for m in sys.modules if m.startswith(('kohort.client.consumer', "
        "'kohort.client.admin', 'kohort.client.producer'))))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_a_worker_imports_nothing_more_for_its_first_client() -> None:
    body = """
from kohort import Consumer, Producer
Consumer(bootstrap_servers="127.0.0.1:9").close()
Producer(bootstrap_servers="127.0.0.1:9").close()
"""
    assert imported(body) == []


@pytest.mark.skipif(find_spec("pandas") is None, reason="pandas is not installed")
def test_no_pandas_is_imported_to_describe_a_source_or_to_write() -> None:
    """pa.array() would import it: half a second of processor time in every process."""
    body = """
from kohort.spark.arrow import markers
import pyarrow as pa
import pyarrow.compute as pc
from kohort.spark.dataframes.columns import VERDICT
from kohort.spark.dataframes.failing import copies
from kohort.spark.dataframes.single_pass import _Seen
from kohort.spark.formats import Rows
from kohort.spark.formats.options import Format
from kohort.spark.formats.plain_arrays import plain_array
from kohort.spark.formats.record_columns import header_column
from kohort.spark.formats.rows import RowFormat, SourceRows
from kohort.spark.offsets import Range
from kohort.spark.outputs.reports import report_batch
from kohort.spark.outputs.topics import OutputRecord, encode_records
from kohort.spark.outputs.writing import _rows
from kohort.client.shared.transaction import EncodedBatch

markers([Range("t", 0, 0, 1)])
header_column([[("name", b"text"), ("none", None)], []])
Rows([SourceRows("t", ("t",), RowFormat(Format("value", "json", "a INT"), "a INT"))])
report_batch([{"attempt": 1, "topic": "t"}])
encode_records([OutputRecord("t", b"value", b"key")], {"t": 1}, 0)
_rows([EncodedBatch("t", 0, 1, b"bytes")], {"t": 0}, 1, None)
noted = pa.nulls(1, pa.struct([(VERDICT, pa.bool_())]))
kept = pc.is_null(noted)
zero = plain_array([0], pa.int64())
rows = pa.RecordBatch.from_arrays([zero, zero, zero, noted, kept, zero], [*"tponkv"])
seen = _Seen(("v",), 1)
list(seen.passing_rows([rows, rows.set_column(4, "k", pc.invert(kept)), rows.slice(1)]))
seen.noted_bytes()
"""
    assert imported(body) == []
