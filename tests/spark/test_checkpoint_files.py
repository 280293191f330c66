"""Checkpoints in a local directory and wherever Hadoop can write."""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kohort.errors import ConfigError, ProtocolError
from kohort.spark.checkpoint import (
    begin_anew_after_absence,
    begin_anew_for_other_topics,
    check_state,
    check_topics,
    note_queries,
    topics_of,
)
from kohort.spark.checkpoint_files import CheckpointFiles, LocalFiles, checkpoint_files
from kohort.spark.stages import read_range
from tests.spark.dataframes.job import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster


@pytest.fixture(params=["local", pytest.param("hadoop", marks=pytest.mark.spark)])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointFiles:
    if request.param == "local":
        return LocalFiles(tmp_path)
    return checkpoint_files(f"file://{tmp_path}/", request.getfixturevalue("spark"))


@pytest.mark.extended
def test_a_checkpoint_of_other_topics_is_begun_anew(files: CheckpointFiles, tmp_path: Path) -> None:
    assert not begin_anew_for_other_topics(files, "source", ["b", "a"])
    assert topics_of(files, "source") is None, "there is no checkpoint yet"
    (tmp_path / "source").mkdir()
    assert not begin_anew_for_other_topics(files, "source", ["a", "b"])
    assert topics_of(files, "source") == ["a", "b"]
    assert begin_anew_for_other_topics(files, "source", ["a"])
    assert not (tmp_path / "source").exists()
    assert files.location("source").endswith(f"{tmp_path}/source")


def test_a_state_is_of_the_topics_that_it_was_made_of(files: CheckpointFiles) -> None:
    """Other ones would be counted into it, and what it has not read yet would be lost."""
    check_topics(files, "stage-sums", "sums", ["b", "a"])
    check_topics(files, "stage-sums", "sums", ["c"])  # nothing has run yet
    files.write("stage-sums/offsets/0", "v1")
    check_topics(files, "stage-sums", "sums", ["c"])
    with pytest.raises(ConfigError, match="has kept state of c and would read d now"):
        check_topics(files, "stage-sums", "sums", ["d"])
    check_topics(files, "stage-sums", "sums", ["c"])


def test_a_step_without_its_state_does_not_begin_behind_rows_that_were_read(
    files: CheckpointFiles,
) -> None:
    check_state(files, "stage-sums", "sums", ["a", "b"], {"orders"})  # the first start
    with pytest.raises(ConfigError, match=r"rows of b were read before.*stage-sums was deleted"):
        check_state(files, "stage-sums", "sums", ["a", "b"], {"orders", "b"})
    files.write("stage-sums/offsets/0", "v1")
    check_state(files, "stage-sums", "sums", ["a", "b"], {"orders", "b"})


def test_a_query_that_was_away_begins_anew(files: CheckpointFiles) -> None:
    """Its positions are older than the store's: none of its batches could be committed."""
    for name in ("source", "stage-orders"):
        files.write(f"{name}/offsets/0", "v1")
    assert begin_anew_after_absence(files, ["source"]) == []  # an older release made no note
    note_queries(files, ["stage-orders", "stage-sums"])
    assert begin_anew_after_absence(files, ["stage-orders", "retry_topics"]) == []
    assert begin_anew_after_absence(files, ["stage-orders", "source"]) == ["source"]
    assert begin_anew_after_absence(files, ["stage-orders", "source"]) == []
    assert files.exists("stage-orders")
    assert not files.exists("source")


def test_a_state_is_of_every_run(files: CheckpointFiles) -> None:
    """A step that was left out has missed rows, whichever run asks; one that never ran has not."""
    files.write("stage-sums/offsets/0", "v1")
    check_state(files, "stage-sums", "sums", ["a"], {"a"})  # an older release has made no note
    note_queries(files, ["stage-sums", "stage-orders"])
    check_state(files, "stage-sums", "sums", ["a"], {"a"})
    note_queries(files, ["stage-orders"])
    for _ in range(2):
        with pytest.raises(ConfigError, match="step sums was taken out for a run"):
            check_state(files, "stage-sums", "sums", ["a"], {"a"})
    check_state(files, "stage-counts", "counts", ["b"], {"a"})


def test_the_offsets_of_a_batch_are_read_from_sparks_log(files: CheckpointFiles) -> None:
    files.write("q/offsets/0", 'v1\n{}\n{"t": {"0": 5}}')
    files.write("q/offsets/1", 'v1\n{}\n{"t": {"0": 9}}\n-')
    files.write("q/offsets/2", "v9\n{}\n-")
    span = read_range(files, "q", 1)
    assert (span.start, span.end) == ({("t", 0): 5}, {("t", 0): 9})
    with pytest.raises(ProtocolError, match="is of version 'v9'"):
        read_range(files, "q", 2)
    with pytest.raises(ProtocolError, match="q/offsets/7 is of version 'nothing'"):
        read_range(files, "q", 7)


@pytest.mark.spark
@pytest.mark.extended
@pytest.mark.timeout(600)
def test_a_pipeline_with_its_checkpoint_behind_a_url(
    spark: SparkSession, cluster: Cluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    """Issue 16: narrow and stateful stages, over two runs."""
    job = Job(cluster, topic, tmp_path)
    job.price("nut", 2)
    for number in range(4):
        job.order(number, "nut", number)
        job.pipeline = job.made()
        job.pipeline.checkpoint = f"file://{tmp_path}/far/away"
        if number % 2:
            job.pipeline.run("available_now", spark=spark, max_restarts=0)
    job.check()
    assert (tmp_path / "far/away/stage-totals/offsets/0").exists()
    assert not (tmp_path / "checkpoint").exists()
