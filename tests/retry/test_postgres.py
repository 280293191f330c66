"""The PostgreSQL store keeps the same promises (spec 6.3), where PostgreSQL is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kohort.retry.effects import Execute, Insert, statements
from kohort.retry.ledger import FenceMove
from kohort.retry.postgres import translate_marks
from kohort.retry.store import (
    Applied,
    ConstraintError,
    Store,
    StoreBusyError,
    Transaction,
    open_store,
)
from tests.retry.test_fenced import handle
from tests.retry.world import World


def program(name: str) -> str | None:
    """A program of PostgreSQL, wherever the distribution keeps it."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server on a free loopback port; the tests are skipped where there is no PostgreSQL."""
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra kohort[sql])")
    initdb, postgres = program("initdb"), program("postgres")
    if initdb is None or postgres is None:
        pytest.skip("PostgreSQL is not installed on this machine")
    as_user: dict[str, Any] = {}
    if os.getuid() == 0:  # PostgreSQL refuses to run as root
        try:
            as_user = {"user": pwd.getpwnam("nobody").pw_uid}
        except KeyError:
            pytest.skip("PostgreSQL does not run as root, and there is no user nobody")
    directory = Path(tempfile.mkdtemp(prefix="kohort-pg-"))
    directory.chmod(0o777)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = directory / "data"
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **as_user}
    made = subprocess.run(
        [initdb, "-D", str(data), "-A", "trust", "-U", "kohort", "--no-sync"],
        cwd=directory,
        **quiet,
    )
    if made.returncode:
        shutil.rmtree(directory, ignore_errors=True)
        pytest.skip("initdb does not work here")
    process = subprocess.Popen(
        [postgres, "-D", str(data), "-h", "127.0.0.1", "-p", str(port), "-k", str(directory),
         "-c", "fsync=off"], cwd=directory, **quiet,
    )  # fmt: skip
    url = f"postgresql://kohort@127.0.0.1:{port}/postgres"
    try:
        _await(url, process)
        yield url
    finally:
        process.send_signal(signal.SIGINT)  # a fast shutdown: it does not wait for clients
        process.wait(30)
        shutil.rmtree(directory, ignore_errors=True)


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        store = open_store(url)
        try:
            store.query("SELECT 1")
            return
        except StoreBusyError:
            continue
        finally:
            store.close()
    pytest.skip("PostgreSQL did not start here")


@pytest.fixture
def store(server: str) -> Iterator[Store]:
    made = open_store(server)
    made.execute(
        statements(
            Execute(f"DROP TABLE IF EXISTS {t}")
            for t in ("kohort_fence", "kohort_ledger", "loaded")
        )
    )
    yield made
    made.close()


def test_everything_ends_loaded_or_failed(store: Store) -> None:
    """The whole story of tests/retry/test_fenced.py, with kills, on the other database."""
    world = World(store.url, handle=handle)
    world.produce(0, b"ok", b"bad", b"1", b"3", b"4")
    world.produce(1, b"2", b"ok")
    world.kills.at = [
        "after publish", "before transaction", "after commit", "before commit log",
        "during publish", "after commit",
    ]  # fmt: skip
    world.run_all(chunk=2)
    world.check()
    assert world.failed() == ["in/0/1", "in/0/4"]


def test_the_fence_orders_two_writers(store: Store) -> None:
    """X5: the loser of the compare-and-set changes nothing; a broken constraint neither."""
    world = World(store.url, handle=handle)
    store.open_fence("p", "in", "id-1", 0, 0, 1)
    row = Insert("loaded", {"id": "a", "attempt": 0, "small": 1})
    change = Transaction("p", FenceMove("in", 0, 0, 5), 1, statements([row]))
    other = open_store(store.url)
    assert store.apply(change) is Applied.COMMITTED
    assert other.apply(change) is Applied.FENCE_LOST
    broken = Insert("loaded", {"id": "b", "attempt": 0, "small": 2_000_000_000})
    with pytest.raises(ConstraintError):
        store.apply(Transaction("p", FenceMove("in", 0, 5, 6), 1, statements([broken])))
    found = store.probe([statements([row]), statements([broken]), statements([row])])
    assert list(found) == [1]
    assert world.loaded() == ["a"]
    fence = store.fence("p", "in", 0)
    assert fence is not None
    assert fence.next_offset == 5
    other.close()


def test_marks_are_translated_outside_of_quotes() -> None:
    assert translate_marks("a = ? AND b LIKE 'x?%' AND \"c?\" = ?") == (
        "a = %s AND b LIKE 'x?%%' AND \"c?\" = %s"
    )
