"""Whether every SQLite database that was opened has been closed again.

From Python 3.13 on the interpreter warns of one that was not, whenever it is collected: in any
later test. This names it where it was opened, on every version.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest


class _Counted(sqlite3.Connection):
    left: dict[int, str]
    """What is open: one mapping for all connections of a test."""

    def __init__(self, database: Any, *args: Any, **options: Any) -> None:
        super().__init__(database, *args, **options)
        self.left[id(self)] = str(database)

    def close(self) -> None:
        self.left.pop(id(self), None)
        super().close()


@contextlib.contextmanager
def all_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails when one is left open."""
    left: dict[int, str] = {}
    factory = type("Counted", (_Counted,), {"left": left})
    connect = sqlite3.connect
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **{"factory": factory, **k}))
        yield
    assert list(left.values()) == []
