"""The PostgreSQL store, through psycopg (extra `kohort[sql]`).

Rules:
- Read committed, also where the database's default is another: the fence's row lock, taken first
  by its compare-and-set, orders the writers of a partition, and what a statement sees after it has
  waited for a lock is what is true then. The snapshot of `repeatable read` would hide a copy that
  was scheduled meanwhile. Partitions do not wait for each other.
- A lost connection is retriable. Whether its transaction committed, the fence tells on the next
  attempt (E2, row "reply lost"). A server that has fallen silent is given up after
  half a minute; the URL may say otherwise (`?tcp_user_timeout=5000`).
- Transactions that write the same rows in different orders deadlock. Upserts are therefore written
  by table and key, and what PostgreSQL ends all the same (40P01, 40001) is run again.
- Programs that start at once set up one after another: of two that make one table at the same time
  PostgreSQL refuses one, IF NOT EXISTS or not.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from kohort.errors import ConfigError
from kohort.retry.ledger import LedgerRow
from kohort.retry.sql_statements import Statement, in_lock_order, quote
from kohort.retry.store import ConflictError, ConstraintError, Store, StoreBusyError

DEFAULTS: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
    "application_name": "kohort",
    "client_encoding": "UTF8",
}
"""What of a connection the URL does not say; seconds, and milliseconds for `tcp_user_timeout`."""
SETUP_LOCK: Final = 0x6B6F686F7274
"""The advisory lock for creating tables: "kohort" in ASCII."""
PASSING: Final = frozenset({"25006", "25P03", "25P04"})
"""Read-only after a failover, idle or whole transaction too long; the rest that passes has a class
of its own (serialization, deadlock, shutdown, no connection)."""
CONFLICTS: Final = frozenset({"40001", "40P01"})
"""Serialization failure and deadlock: the transaction was undone, and may be run again."""
SORTABLE: Final[dict[str, type]] = {
    "smallint": int,
    "integer": int,
    "bigint": int,
    "text": str,
    "character varying": str,
    "uuid": UUID,
    "bytea": bytes,
}
"""Types of key columns whose equal values are equal in Python too, and the type there."""
_KEY_TYPES: Final = (
    "SELECT a.attname, format_type(a.atttypid, NULL), coalesce(c.collisdeterministic, true) "
    "FROM pg_attribute a LEFT JOIN pg_collation c ON c.oid = a.attcollation "
    "WHERE a.attrelid = to_regclass(?) AND a.attnum > 0 AND NOT a.attisdropped"
)
_MARKS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\?|%")


class PostgresStore(Store):
    """`postgresql://user@host/database`. Passwords belong into PGPASSFILE or PGPASSWORD."""

    share_lock = "FOR SHARE"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._key_types: dict[str, dict[str, type]] = {}

    def _in_lock_order(self, parts: Sequence[Statement]) -> Sequence[Statement]:
        return in_lock_order(parts, self._sortable)

    def _sortable(self, part: Statement) -> bool:
        """True when every key is of a type whose values are equal in Python when they are here."""
        known = self._key_types.get(part.table)
        if known is None:
            known = self._key_types[part.table] = {
                name: SORTABLE[kind]
                for name, kind, exact in self.query(_KEY_TYPES, (quote(part.table),))
                if exact and kind in SORTABLE
            }
        types = tuple(known.get(column) for column in part.key)
        return None not in types and all(
            tuple(map(type, part.key_of(row))) == types for row in part.rows
        )

    def _connect(self, *, read_only: bool) -> Any:
        psycopg = _psycopg()
        parameters = {**DEFAULTS, **psycopg.conninfo.conninfo_to_dict(self.url)}
        connection: Any = psycopg.connect(autocommit=True, **parameters)
        try:
            if read_only:
                connection.execute("SET default_transaction_read_only = on")
        except BaseException:  # any error: nothing else has the connection
            connection.close()
            raise
        return connection

    def _begin(self, connection: Any) -> None:
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")

    @contextmanager
    def setting_up(self) -> Generator[None]:
        """As `Store.setting_up`."""
        with self._errors():
            connection = self._connect(read_only=False)
        with connection:
            with self._errors():
                connection.execute("SELECT pg_advisory_lock(%s)", (SETUP_LOCK,))
            yield

    def _sql(self, sql: str) -> str:
        return translate_marks(sql)

    def _storable(self, row: LedgerRow) -> LedgerRow:
        texts = {"error_class": row.error_class, "error_message": row.error_message}
        return replace(row, **{name: self._plain(text) for name, text in texts.items()})

    def _plain(self, text: str) -> str:
        """Without NUL, and in ASCII for a database whose encoding may lack a character."""
        text = text.replace("\0", "\\x00")
        if self._writing().info.parameter_status("server_encoding") == "UTF8":
            return text
        return text.encode("ascii", "backslashreplace").decode()

    def _translate(self, error: Exception) -> Exception:
        psycopg = _psycopg()
        if isinstance(error, (psycopg.IntegrityError, psycopg.DataError, UnicodeEncodeError)):
            return ConstraintError(str(error))
        if isinstance(error, psycopg.ProgrammingError) and "cannot adapt" in str(error):
            return ConstraintError(str(error))
        if getattr(error, "sqlstate", None) in CONFLICTS:
            return ConflictError(f"PostgreSQL ended a transaction for another: {_line(error)}")
        passes = getattr(error, "sqlstate", None) in PASSING
        if passes or isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
            return StoreBusyError(f"PostgreSQL could not be used: {_line(error)}")
        return error


def _line(error: Exception) -> str:
    """psycopg's texts have lines."""
    return " ".join(str(error).split())


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
