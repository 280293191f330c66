"""The PostgreSQL store, through psycopg (extra `kohort[sql]`).

Rules:
- Read committed is enough: the fence's row lock, taken first by its compare-and-set, orders the
  writers of a partition; partitions do not wait for each other.
- A lost connection is retriable. Whether its transaction committed, the fence tells on the next
  attempt (retry reference E2, row "reply lost").
"""

from __future__ import annotations

import importlib
import re
from functools import lru_cache
from typing import Any, Final

from kohort.errors import ConfigError
from kohort.retry.store import ConstraintError, Store, StoreBusyError

CONNECT_TIMEOUT_S: Final = 10
_MARKS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\?|%")


class PostgresStore(Store):
    """`postgresql://user@host/database`. Passwords belong into PGPASSFILE or PGPASSWORD."""

    share_lock = "FOR SHARE"

    def _connect(self, *, read_only: bool) -> Any:
        connection: Any = _psycopg().connect(
            self.url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S, application_name="kohort"
        )
        if read_only:
            connection.execute("SET default_transaction_read_only = on")
        return connection

    def _begin(self, connection: Any) -> None:
        connection.execute("BEGIN")

    def _sql(self, sql: str) -> str:
        return translate_marks(sql)

    def _translate(self, error: Exception) -> Exception:
        psycopg = _psycopg()
        if isinstance(error, (psycopg.IntegrityError, psycopg.DataError)):
            return ConstraintError(str(error))
        if isinstance(error, psycopg.ProgrammingError) and "cannot adapt" in str(error):
            return ConstraintError(str(error))
        if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
            return StoreBusyError(f"PostgreSQL could not be used: {error}")
        return error


def _psycopg() -> Any:
    try:
        return importlib.import_module("psycopg")
    except ImportError:
        raise ConfigError(
            "a postgresql:// store needs psycopg; install it with: pip install 'kohort[sql]'"
        ) from None


@lru_cache(maxsize=1024)
def translate_marks(sql: str) -> str:
    """`?` to `%s` and `%` to `%%`, outside of quoted text for the marks."""

    def change(match: re.Match[str]) -> str:
        text = match[0]
        return "%s" if text == "?" else text.replace("%", "%%")

    return _MARKS.sub(change, sql)
