"""Local files of a session without a process for each (issue 17: a small micro-batch)."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort.spark.local_files import CLASS, set_modes_by_calls

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o777, 0o1755])
def test_modes_are_set_by_calls_and_as_hadoop_sets_them(
    spark: SparkSession, tmp_path: Path, mode: int
) -> None:
    jvm: Any = spark.sparkContext._jvm
    context: Any = spark.sparkContext._jsc
    configuration = context.hadoopConfiguration()
    files = jvm.org.apache.hadoop.fs.FileSystem.getLocal(configuration)
    assert files.getRawFileSystem().getClass().getName() == CLASS
    path = tmp_path / "a file"
    there = jvm.org.apache.hadoop.fs.Path(str(path))
    files.create(there, True).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    files.setPermission(there, jvm.org.apache.hadoop.fs.permission.FsPermission(f"{mode:o}"))
    assert stat.S_IMODE(path.stat().st_mode) == mode
    crc = path.with_name(".a file.crc")
    assert stat.S_IMODE(crc.stat().st_mode) == mode, "its checksum, too"


def test_a_session_goes_on_where_the_jvm_lacks_what_it_takes() -> None:
    class Without:
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    assert not set_modes_by_calls(Without())
