"""A PostgreSQL of its own for tests: in a temporary directory, on a free port of 127.0.0.1.

`unavailable()` says why there can be none. It refuses to run as root, and then runs as `nobody`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from kohort.retry.store import StoreBusyError
from kohort.retry.stores import open_store
from tests.known import known

PATIENCE_S = 60.0
_numbers = count()


def program(name: str) -> str | None:
    """A program of PostgreSQL, wherever the distribution keeps it."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


def unavailable() -> str:
    """Why no server can be started here; "" when one can."""
    if find_spec("psycopg") is None:
        return "psycopg is not installed (extra kohort[sql])"
    if program("initdb") is None or program("postgres") is None:
        return "PostgreSQL is not installed on this machine"
    if os.getuid() == 0 and "nobody" not in {user.pw_name for user in pwd.getpwall()}:
        return "PostgreSQL does not run as root, and there is no user nobody"
    return ""


class PostgresServer:
    """One server, which can be stopped, killed and started again where it was."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="kohort-pg-"))
        self.directory.chmod(0o777)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "cwd": self.directory}
        if os.getuid() == 0:
            self._quiet["user"] = pwd.getpwnam("nobody").pw_uid
        self._process: subprocess.Popen[str] | None = None
        made = subprocess.run(
            [
                program("initdb") or "",
                "-D",
                str(self.data),
                "-A",
                "trust",
                "-U",
                "kohort",
                "--no-sync",
            ],
            stderr=subprocess.PIPE,
            **self._quiet,
        )
        assert not made.returncode, made.stderr.decode()
        self.start()

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://kohort@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    program("postgres") or "",
                    "-D",
                    str(self.data),
                    "-h",
                    "127.0.0.1",
                    "-p",
                    str(self.port),
                    "-k",
                    str(self.directory),
                    "-c",
                    "fsync=off",
                    "-c",
                    "max_connections=300",
                ],
                stderr=log,
                **self._quiet,
            )
        until = time.monotonic() + PATIENCE_S
        while known(self._process).poll() is None and time.monotonic() < until:
            try:
                self.ask("SELECT 1")
                return
            except StoreBusyError:
                continue
        raise AssertionError((self.directory / "log").read_text()[-2_000:])

    def stop(self, *, crash: bool = False) -> None:
        """Cut every connection and end; with `crash` it has to recover when it starts again."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT if crash else signal.SIGINT)
            self._process.wait(PATIENCE_S)
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def ask(self, sql: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """A query on a connection of its own."""
        store = open_store(self.url(database))
        try:
            return store.query(sql)
        finally:
            store.close()

    def run(self, *statements: str, database: str = "postgres") -> None:
        """Statements, each in a transaction of its own (or in none, as CREATE DATABASE wants)."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for sql in statements:
                connection.execute(sql.encode())

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"test_{next(_numbers)}"
        self.run(f"CREATE DATABASE {name}")
        return self.url(name)
