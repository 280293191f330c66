"""Exactly-once files: a directory a batch, decided by its manifest (issue 17, spec 6.3)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kohort.errors import ConfigError, StorageError
from kohort.spark import to_delta, to_files, to_iceberg, to_outputs, to_table
from kohort.spark.outputs import files
from tests.known import fake
from tests.spark.outputs.stream import Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def numbers_in(spark: SparkSession, path: Path) -> list[int]:
    """What any reader of the directory sees."""
    return sorted(row.n for row in spark.read.parquet(str(path)).collect())


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_each_batch_once(stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written, replayed, cut short before and after the manifest: whole batches, each once."""
    path = tmp_path / "files"
    spark = stream.spark
    stream.send(1, 2, 3)
    stream.run(stream.rows(), to_files(str(path)))
    assert numbers_in(spark, path) == [1, 2, 3]
    stream.forget_last_commit()
    stream.run(stream.rows(), to_files(str(path)))
    assert numbers_in(spark, path) == [1, 2, 3]

    stream.send(4)
    with monkeypatch.context() as cut:  # the driver dies before the manifest
        cut.setattr(files.Manifests, "commit", _dies)
        with pytest.raises(Exception, match="the driver has died"):
            stream.run(stream.rows(), to_files(str(path)))
    assert numbers_in(spark, path) == [1, 2, 3]
    assert list((path / "_kohort" / "attempts").iterdir()), "it was written"
    with monkeypatch.context() as cut:  # and after it
        cut.setattr(files.Manifests, "settle", _dies_when_there_is_something(path))
        with pytest.raises(Exception, match="the driver has died"):
            stream.run(stream.rows(), to_files(str(path)))
    assert numbers_in(spark, path) == [1, 2, 3]
    stream.run(stream.rows(), to_files(str(path)))
    assert numbers_in(spark, path) == [1, 2, 3, 4]
    assert not (path / "_kohort" / "attempts").exists(), "the dead left nothing"
    manifest = json.loads((path / "_kohort" / "manifests" / "1.json").read_text())
    (file,) = {f["name"] for f in manifest["files"] if f["bytes"]} & {
        p.name for p in (path / "kohort_batch=1").iterdir()
    }
    assert file.endswith(".parquet")

    stream.name, stream.checkpoint = "another", tmp_path / "another"
    with pytest.raises(Exception, match="belongs to query"):
        stream.run(stream.rows(), to_files(str(path)))


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_move_that_was_cut_off_is_continued(spark: SparkSession, tmp_path: Path) -> None:
    """Object stores move a directory file by file: what was moved stays, what was not follows."""
    attempt, place = tmp_path / "_kohort" / "attempts" / "a", tmp_path / "kohort_batch=0"
    for directory in (attempt / "k=0", attempt / "k=1", place / "k=1", place / "k=2"):
        directory.mkdir(parents=True)
    (attempt / "k=0" / "waits").write_text("whole")
    (attempt / "k=1" / "cut").write_text("whole")
    (place / "k=1" / "cut").write_text("wh")
    (place / "k=2" / "moved").write_text("whole")
    names = ("k=0/waits", "k=1/cut", "k=2/moved")
    manifest = {"batch": 0, "attempt": "a", "files": [{"name": name} for name in names]}
    files.Manifests(spark, str(tmp_path)).settle(manifest)
    assert [(place / name).read_text() for name in names] == ["whole"] * 3
    assert not attempt.exists()


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_move_that_is_refused_deletes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    manifests = files.Manifests(spark, str(tmp_path))
    asked: list[str] = []
    manifests._files = fake(
        SimpleNamespace(
            exists=lambda path: "attempts" in path.toString(),
            rename=lambda *_: False,
            delete=lambda *_: asked.append("delete"),
        )
    )
    with pytest.raises(StorageError, match="Nothing was deleted"):
        manifests.settle({"batch": 0, "attempt": "a", "files": []})
    assert asked == []


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_lost_checkpoint_is_refused(stream: Stream, tmp_path: Path) -> None:
    path = tmp_path / "files"
    stream.send(1, 2)
    rows = stream.rows().selectExpr("n", "n % 2 AS k")
    stream.run(rows, to_files(str(path), partition_by="k"))
    assert sorted(p.name for p in (path / "kohort_batch=0").glob("k=*")) == ["k=0", "k=1"]
    stream.checkpoint = tmp_path / "a new one"
    with pytest.raises(Exception, match="from another checkpoint"):
        stream.run(stream.rows(), to_files(str(path)))
    assert numbers_in(stream.spark, path) == [1, 2]


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_behind_a_table(stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is committed first; files that fail follow when the batch runs again."""
    path, database = tmp_path / "files", tmp_path / "t.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE t (n INTEGER)")

    def both() -> Any:
        return to_outputs(to_files(str(path)), to_table(f"sqlite:///{database}", "t"))

    stream.send(1, 2)
    with monkeypatch.context() as cut:
        cut.setattr(files.Manifests, "commit", _dies)
        with pytest.raises(Exception, match="the driver has died"):
            stream.run(stream.rows(), both())
    stream.run(stream.rows(), both())
    stream.send(3)
    stream.run(stream.rows(), both())
    with closing(sqlite3.connect(database)) as connection:
        assert sorted(connection.execute("SELECT n FROM t")) == [(1,), (2,), (3,)]
    assert numbers_in(stream.spark, path) == [1, 2, 3]


def _dies(*_: Any) -> None:
    raise RuntimeError("the driver has died")


def _dies_when_there_is_something(path: Path) -> Callable[..., None]:
    """At the manifest of the second batch; that of the first has nothing to move."""

    def settle(_: Any, manifest: dict[str, Any]) -> None:
        if manifest["batch"] == 1:
            _dies()

    return settle


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="format 'xml'; choose one of parquet"):
        to_files("/data", format="xml")
    with pytest.raises(ConfigError, match="name the directory"):
        to_files("")
    with pytest.raises(ConfigError, match="mode 'upsert'; choose one of append, replace"):
        to_delta("/data", mode="upsert")
    with pytest.raises(ConfigError, match="name the table"):
        to_iceberg("")
    with pytest.raises(ConfigError, match="two outputs into one place"):
        to_outputs(to_files("/data"), to_files("/data"))
