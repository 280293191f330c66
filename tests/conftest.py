"""What holds for all tests, and what those of several packages share.

Rules:
- A property is judged by its examples, not by the load of a machine: neither how long one takes nor
  how long it takes to make one up is a failure.
- What `make test` says depends on the change alone: properties make up the same examples each time.
  KOHORT_EXPLORE=1 (`make nightly`) makes up others, and what it finds becomes a test of its own.
- `make test` runs files side by side (pytest-xdist): a file's tests stay together and in order, so
  that they share its cluster; files with Spark in `ONE_AFTER_ANOTHER` share a session.
- Side by side, long files come first, so that none of them is left for the end.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from kohort.retry.postgres import PostgresStore
from tests.budget import Budget
from tests.effort import examples, extend
from tests.postgres import PostgresServer, unavailable

settings.register_profile(
    "kohort",
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="KOHORT_EXPLORE" not in os.environ,
)
settings.load_profile("kohort")

ROOT = Path(__file__).resolve().parent.parent
ONE_AFTER_ANOTHER = ("tests/spark/",)
"""One Spark session serves them all, and takes longer to start than most of them."""


@cache
def scope_of(file: str) -> str:
    """Which tests stay together: those of a file, or all that share a Spark session."""
    for package in ONE_AFTER_ANOTHER:
        if file.startswith(package) and "mark.spark" in (ROOT / file).read_text():
            return package
    return file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """How `--dist loadfile` shares the tests out."""
    from xdist.scheduler import LoadFileScheduling  # there, or this would not be called

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid.split("::", 1)[0])

    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_configure(config: pytest.Config) -> None:
    """Nothing of what is imported and collected becomes garbage: see `pytest_collection_finish`."""
    gc.disable()
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Budget(config))


def pytest_collection_finish() -> None:
    """No later collection goes through modules and items again: hundreds of tests collect."""
    gc.freeze()
    gc.enable()


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Each worker first imports a share of the modules of its own.

    All workers import all of them, but the first import of a module rewrites its `assert`s: on a
    fresh clone 20 s of processor time, which each worker would spend at the same time.
    """
    worker = getattr(collector.config, "workerinput", None)
    if worker is None or not isinstance(collector, pytest.Session):
        return
    folders = [path for arg in collector.config.args if (path := ROOT / arg).is_dir()]
    modules = sorted(file for folder in folders for file in folder.rglob("test_*.py"))
    for file in modules[int(worker["workerid"][2:]) :: worker["workercount"]]:
        # collection reports what cannot be imported
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


LONGEST_FIRST = (
    "tests/spark/",
    "tests/e2e/test_interop_consumer_protocol.py",
    "tests/e2e/test_interop_failures.py",
    "tests/demo/test_flights_kill.py",
    "tests/processing/test_exact_kills.py",
    "tests/e2e/test_interop_groups.py",
    "tests/cli/test_docs.py",
    "tests/e2e/test_crash_points.py",
    "tests/cli/common/test_process.py",
    "tests/e2e/test_interop_transactions.py",
    "tests/processing/test_docs.py",
    "tests/broker/apis/test_hostile.py",
    "tests/test_tidy.py",
    "tests/console/test_pages.py",
    "tests/simulator/test_worlds.py",
    "tests/retry/test_fenced.py",
    "tests/retry/test_redrive.py",
    "tests/processing/test_app.py",
    "tests/simulator/system/test_worlds.py",
    "tests/test_promises_pages.py",
    "tests/testing/test_verifiable.py",
    "tests/testing/test_plugin.py",
    "tests/wire/test_compiled.py",
)
"""What takes longest, by measured time; those with a JVM apart, so that not all of them begin at
once. Whatever is slow and not named here comes next."""


@pytest.hookimpl(tryfirst=True)  # before `-m` is looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Rows beyond a test's sample are extended; long files first, where others run beside them."""
    extend(items)
    if not hasattr(config, "workerinput"):
        return
    slow = {i.path for i in items if i.get_closest_marker("slow") or "spark" in i.keywords}

    def place(item: pytest.Item) -> tuple[int, bool]:
        named = (n for n, long in enumerate(LONGEST_FIRST) if item.nodeid.startswith(long))
        return next(named, len(LONGEST_FIRST)), item.path not in slow

    items.sort(key=place)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL of its own; the test is skipped, with the reason, where there can be none."""
    if reason := unavailable():
        pytest.skip(reason)
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture(scope="module")
def peers_collected() -> Iterator[None]:
    """What kafka-python and aiokafka leave open is collected here: else a later test fails for it.

    A socket that is being connected while its client closes stays open, for example.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def database(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty database. The test fails when this process leaves connections open."""
    connect = PostgresStore._connect
    opened: list[Any] = []

    def connect_noted(store: PostgresStore, *, read_only: bool) -> Any:
        opened.append(connect(store, read_only=read_only))
        return opened[-1]

    monkeypatch.setattr(PostgresStore, "_connect", connect_noted)
    yield postgres.new_database()
    left = [connection for connection in opened if not connection.closed]
    assert not left, f"{len(left)} of {len(opened)} connections are open after the test"
