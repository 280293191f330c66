"""The SQLite store: one file, one writer at a time, readers beside it.

Shell: the clock (waits for a lock), files.

Rules:
- WAL, so that readers never wait for the writer; `synchronous=FULL`, so that data committed before
  a power cut is still there and the fence is never behind the checkpoint.
- A write transaction takes the write lock at once (`BEGIN IMMEDIATE`): waiting happens before
  anything is done, and never ends in a deadlock between two readers that both want to write.
- Foreign keys are on. SQLite has them off by default.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any, ClassVar, Final

from kohort.errors import ConfigError, StorageError
from kohort.retry.store import ConstraintError, Store, StoreBusyError

BUSY_TIMEOUT_S: Final = 60.0
SWITCH_PAUSE_S: Final = 0.005
READ_CACHE_KIB: Final = 16 * 1024
_CONSTRAINTS = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    OverflowError,
    UnicodeEncodeError,
)
"""Broken constraints, and values that SQLite refuses: a text with half of a surrogate pair."""


def use_write_ahead_log(connection: sqlite3.Connection, name: str = "main") -> None:
    """Keep a write-ahead log.

    Of two connections that switch a new file at once, SQLite refuses one without waiting, because
    each holds the lock that the other one needs. The refused one tries again.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute(f'PRAGMA "{name}".journal_mode=WAL')
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise
        time.sleep(SWITCH_PAUSE_S)


def _lower(text: Any) -> Any:
    return text.lower() if isinstance(text, str) else text


class SqliteStore(Store):
    """`sqlite:///relative.db` (made absolute here, since executors run elsewhere)."""

    lower = "kohort_lower"  # SQLite's own knows ASCII letters only
    connection_type: ClassVar[type[sqlite3.Connection]] = sqlite3.Connection
    """What makes its connections; a simulator's may end its process between two statements."""

    def __init__(self, url: str) -> None:
        path = url.removeprefix("sqlite:///")
        if path == url or not path or path == ":memory:":
            raise ConfigError(
                f"{url!r}: write sqlite:///FILE.db or sqlite:////ABSOLUTE/FILE.db; a database in "
                "memory cannot be shared by the processes of a pipeline"
            )
        self.path = Path(path).expanduser().absolute()
        self._inode: tuple[int, int] | None = None
        super().__init__(f"sqlite:///{self.path}")

    def _connect(self, *, read_only: bool) -> Any:
        if not self.path.parent.is_dir():
            raise StorageError(f"{self.path.parent} is not a directory; make it, then start again")
        if read_only and not self.path.exists():  # looking must not make a file
            raise StorageError(f"there is no database {self.path}; is its name spelt right?")
        connection = sqlite3.connect(
            self.path,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            factory=self.connection_type,
            check_same_thread=not read_only,  # a handler's is closed by the app, not by its thread
        )
        try:
            use_write_ahead_log(connection)
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA foreign_keys=ON")
            connection.execute(f"PRAGMA cache_size=-{READ_CACHE_KIB}")
            if read_only:
                connection.execute("PRAGMA query_only=ON")
                connection.create_function(self.lower, 1, _lower, deterministic=True)
        except BaseException:  # any error: nothing else has the connection
            connection.close()
            raise
        self._inode = self._present()
        return connection

    def _present(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _replaced(self) -> bool:
        """A deleted file lives on for processes that have it open, and its writes would be lost."""
        return self._inode is not None and self._present() != self._inode

    def _begin(self, connection: Any) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def attach(self, path: Path, name: str) -> None:
        """Let transactions see another file as `name`; nothing that it holds has to outlive a crash
        of the machine."""
        with self._errors():
            connection = self._writing()
            attached = {row[1] for row in connection.execute("PRAGMA database_list")}
            if name not in attached:
                connection.execute(f'ATTACH DATABASE ? AS "{name}"', (str(path),))
                use_write_ahead_log(connection, name)
                connection.execute(f'PRAGMA "{name}".synchronous=OFF')

    def _sql(self, sql: str) -> str:
        return sql

    def _translate(self, error: Exception) -> Exception:
        if isinstance(error, _CONSTRAINTS):
            return ConstraintError(str(error))
        if isinstance(error, sqlite3.ProgrammingError) and "binding parameter" in str(error):
            return ConstraintError(str(error))
        if isinstance(error, sqlite3.OperationalError) and (
            "locked" in str(error) or "busy" in str(error)
        ):
            return StoreBusyError(f"{self.path} was locked for {BUSY_TIMEOUT_S:g} s: {error}")
        return error
