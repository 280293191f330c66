"""Encoded batches in files beside the shuffle, where all tasks run on one machine."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kohort.spark.outputs import writing
from kohort.spark.outputs.spool import (
    Place,
    SpoolReader,
    SpoolWriter,
    emptied,
    spool_directory,
)
from kohort.spark.outputs.topics import TopicOutput


def test_batches_come_back_from_the_files_of_all_tasks(tmp_path: Path) -> None:
    one, other = SpoolWriter(tmp_path), SpoolWriter(tmp_path)
    places = [one.put(b"abc"), other.put(memoryview(b"12345")), one.put(b""), one.put(b"de")]
    with SpoolReader(tmp_path) as reader:
        assert [reader.get(place) for place in places] == [b"abc", b"12345", b"", b"de"]
    one.close()
    other.close()
    assert len({place.file for place in places}) == 2


def test_a_file_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    place = writer.put(b"abc")
    writer.close()
    cut = Place(place.file, 1, 3)
    with SpoolReader(tmp_path) as reader, pytest.raises(OSError, match=re.escape(str(cut))):
        reader.get(cut)


def test_a_job_finds_its_directory_empty_and_leaves_none(tmp_path: Path) -> None:
    """Also what a task that was still running has written after its job."""
    directory = tmp_path / "root" / "spool"
    directory.mkdir(parents=True)
    (directory / "late").write_bytes(b"x")
    with emptied(directory):
        assert not [*directory.iterdir()]
        SpoolWriter(directory).close()
    assert not directory.exists()
    with emptied(None):
        pass


@pytest.mark.parametrize("master", ["spark://h:7077", "local-cluster[2,1,1024]", "yarn"])
def test_tasks_of_a_cluster_share_no_disk(master: str) -> None:
    assert spool_directory(SimpleNamespace(master=master), "q") is None


def encode(spool: Path | None) -> list[dict[str, Any]]:
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"one", b"two"], pa.binary())})
    output = TopicOutput("t", (), {})
    batches = writing.encoded(output, {"t": 1}, {"t": 0}, 1, spool)(iter([rows]))
    return [row for batch in batches for row in batch.to_pylist()]


def test_the_same_bytes_go_through_the_shuffle_or_the_spool(tmp_path: Path) -> None:
    """All but the time at which they were encoded."""
    (carried,) = encode(None)
    (spooled,) = encode(tmp_path)
    assert spooled["payload"] is None
    place = Place(*(spooled.pop(name) for name in Place._fields))
    with SpoolReader(tmp_path) as reader:
        payload = reader.get(place)
    head, times = 21, 16  # from here to the attributes is a checksum, behind them are the times
    assert payload[:17] == carried["payload"][:17]
    assert payload[head : head + 6] == carried["payload"][head : head + 6]
    assert payload[head + 6 + times :] == carried["payload"][head + 6 + times :]
    assert {k: v for k, v in spooled.items() if k != "payload"} == {
        k: v for k, v in carried.items() if k not in ("payload", *Place._fields)
    }
