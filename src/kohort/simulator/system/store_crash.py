"""Connections to a store whose process may die between any two statements.

Rules:
- A step is before each statement, before each commit and after it: then the store has what the
  process does not know of.
- A process that dies leaves its connection as a killed one does: closed, and what was not committed
  is gone.

Shell: files (a database's).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any, Self

from kohort.retry.sqlite import SqliteStore

Step = Callable[[], None]
"""Raises what ends the process, or does nothing."""
_steps: list[Step] = []
"""That of the process that runs now, where one does."""


@contextmanager
def stepping(step: Step) -> Generator[None]:
    """Within it the connections of stores call `step`."""
    before = SqliteStore.connection_type
    SqliteStore.connection_type = _Connection
    _steps.append(step)
    try:
        yield
    finally:
        _steps.pop()
        SqliteStore.connection_type = before


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        _step(self.connection)
        return super().execute(sql, parameters)

    def executemany(self, sql: str, seq_of_parameters: Iterable[Any], /) -> Self:
        _step(self.connection)
        return super().executemany(sql, seq_of_parameters)


class _Connection(sqlite3.Connection):
    def cursor(self, factory: Any = _Cursor) -> Any:
        """Also those that `execute` of a connection makes."""
        return super().cursor(factory)

    def commit(self) -> None:
        _step(self)
        super().commit()
        _step(self)

    def rollback(self) -> None:
        _step(self)
        super().rollback()


def _step(connection: sqlite3.Connection) -> None:
    for step in _steps[-1:]:
        try:
            step()
        except BaseException:  # the process is dead
            with suppress(sqlite3.ProgrammingError):  # it has been closed already
                sqlite3.Connection.rollback(connection)  # `close` alone waits for open cursors
            connection.close()
            raise
