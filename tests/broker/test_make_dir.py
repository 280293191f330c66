"""A partition's directory is made once, and its name costs a flush only then (L4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kohort.broker.log.os_files import OsFiles


class Counting(OsFiles):
    """Counts flushes of directories; the ones that are to fail do."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.synced: list[str] = []
        self.failing = False

    def sync_dir(self, path: str) -> None:
        if self.failing:
            raise OSError("planted")
        self.synced.append(path)


def test_only_a_new_directory_is_flushed(tmp_path: Path) -> None:
    files = Counting(tmp_path)
    files.make_dir("t-0")
    files.make_dir("t-0")
    assert files.synced == [""]
    files.close()


def test_without_durability_nothing_is_flushed(tmp_path: Path) -> None:
    files = Counting(tmp_path)
    files.make_dir("t-0", durable=False)
    assert files.synced == []
    assert (tmp_path / "t-0").is_dir()
    files.close()


def test_a_name_that_could_not_be_flushed_is_flushed_by_the_next_attempt(tmp_path: Path) -> None:
    files = Counting(tmp_path)
    files.failing = True
    with pytest.raises(OSError, match="planted"):
        files.make_dir("t-0")
    files.failing = False
    files.make_dir("t-0")
    assert files.synced == [""]
    files.close()
