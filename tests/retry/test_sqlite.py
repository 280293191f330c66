"""What is SQLite's own of the store."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from kohort.retry.sqlite import SqliteStore


def test_two_that_open_a_new_file_at_once_both_get_it(tmp_path: Path) -> None:
    """SQLite refuses one of two switches to a write-ahead log at once, about every tenth time."""
    failures: list[BaseException] = []
    for number in range(60):
        path = tmp_path / f"{number}.db"
        path.touch()
        both = threading.Barrier(2)

        def ask(path: Path = path, both: threading.Barrier = both) -> None:
            store = SqliteStore(f"sqlite:///{path}")
            both.wait()
            try:
                assert store.query("SELECT 1") == [(1,)]
            except BaseException as error:  # a thread's own: shown by the test
                failures.append(error)
            finally:
                store.close()

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_a_switch_that_is_refused_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = 2

    class Refusing(sqlite3.Connection):
        def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
            nonlocal refusals
            if "journal_mode" in sql and refusals:
                refusals -= 1
                raise sqlite3.OperationalError("database is locked")
            return super().execute(sql, *parameters)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(SqliteStore, "connection_type", Refusing)
    (tmp_path / "rows.db").touch()
    store = SqliteStore(f"sqlite:///{tmp_path}/rows.db")
    try:
        assert store.query("SELECT 1") == [(1,)]
        assert store.query("PRAGMA journal_mode") == [("wal",)]
    finally:
        store.close()
    assert refusals == 0
