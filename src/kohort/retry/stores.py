"""The databases that a store may be in, by the scheme of its URL."""

from __future__ import annotations

from urllib.parse import urlsplit

from kohort.errors import ConfigError
from kohort.retry.store import Store


def open_store(url: str) -> Store:
    """The store of a URL: `sqlite:///file.db`, `sqlite:////absolute.db`, `postgresql://…`.

    Nothing is connected yet. Raises ConfigError for another kind of URL.
    """
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        from kohort.retry.sqlite import SqliteStore  # each database only where it is used

        return SqliteStore(url)
    if scheme in {"postgresql", "postgres"}:
        from kohort.retry.postgres import PostgresStore

        return PostgresStore(url)
    raise ConfigError(
        f"{url!r} is not a store; write sqlite:///FILE.db or postgresql://USER@HOST/DATABASE"
    )
