"""Apps in a simulated system: handlers of the input topic that fail by plan, with retries.

Rules:
- What a handler does with a record is decided by the record alone: how often it fails before it
  succeeds, or that it never does. So every input has one right end.
- `handle` runs at least once; `book` writes its rows into a store behind fence and ledger.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

from kohort.client.common.completion import pause
from kohort.client.common.types import TopicPartition
from kohort.processing.app import App
from kohort.processing.app_options import policy_of
from kohort.processing.engine.circuit_breaker import CircuitConfig
from kohort.processing.workers.handlers import Received
from kohort.retry.handling import SetupStore
from kohort.retry.policy import RetryTopics
from kohort.simulator.system.history import Attempt
from kohort.simulator.system.programs import INPUT, Life

HANDLERS, BOOKERS = "handlers", "bookers"
RETRIES = "400ms 2s"
DELAYS_MS = (400, 2_000)
SKEW_MS = 100
"""How far the clocks of apps and broker differ at most, as the apps expect: those of apps are
ahead by up to a half, the broker's moves by up to 40 ms."""
BOOKED = "booked"
NO_CIRCUIT = CircuitConfig(tokens=0)
"""A third of all attempts fails by plan: that would be reason enough for long pauses."""


def failures_of(value: bytes) -> int:
    """How often the handler fails for a record; more than there are retries: for ever."""
    draw = crc32(value) % 20
    return 0 if draw < 13 else (1, 1, 1, 2, 2, 9, 9)[draw - 13]


def is_dead(value: bytes) -> bool:
    """Whether a record's end is the dead-letter topic."""
    return failures_of(value) > len(DELAYS_MS)


def retry_topics(group: str) -> RetryTopics:
    """The retry topics of an app's input."""
    return RetryTopics(INPUT, group, policy_of(RETRIES))


class HandlerError(Exception):
    """The handler's own failure."""


def _app(life: Life, group: str, store: str | None) -> App:
    consumer = life.options.get("group_protocol") == "consumer"
    timing = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 1_000}
    client = {
        "request_timeout_ms": 3_000,
        "default_api_timeout_ms": 20_000,
        "max_poll_records": 7,
        **({"group_protocol": "consumer"} if consumer else timing),
    }
    return App(
        group,
        bootstrap_servers=life.bootstrap,
        retries=RETRIES,
        clock_skew=f"{SKEW_MS}ms",
        commit_interval="300ms",
        drain="2s",
        crash_guard=False,  # kills at one record twice are no fault of the record here
        exactly_once=store,
        client=client,
    )


def _attempt(life: Life, group: str, record: Received) -> bytes:
    """Note the attempt; its value, or the failure that is the record's."""
    value = record.value or b""
    if life.chance.random() < 0.05:
        pause(life.chance.randint(1, 300) / 1_000)
    fails = record.attempt < failures_of(value)
    place = TopicPartition(record.topic, record.partition)
    now_ms = life.process.machine.schedule.now_ms
    life.history.attempts.append(
        Attempt(group, life.label, place, record.offset, value, record.attempt, now_ms, not fails)
    )
    if fails:
        raise HandlerError(f"attempt {record.attempt}")
    return value


def handle(life: Life) -> None:
    """Handle the input topic at least once, with retries and dead letters."""
    app = _app(life, HANDLERS, None)

    @app.handler(INPUT, circuit=NO_CIRCUIT)
    def work(record: Received) -> None:
        _attempt(life, HANDLERS, record)

    app.run(signals=False)


def book(life: Life) -> None:
    """Write the input topic into a store exactly once, with retries and dead letters."""
    app = _app(life, BOOKERS, f"sqlite:///{store_path(life)}")

    @app.setup
    def tables(store: SetupStore) -> None:
        store.run(f"CREATE TABLE IF NOT EXISTS {BOOKED} (value TEXT, part INTEGER, at INTEGER)")

    @app.handler(INPUT, circuit=NO_CIRCUIT, table=BOOKED, origin=("part", "at"))
    def work(record: Received) -> dict[str, str]:
        return {"value": _attempt(life, BOOKERS, record).decode()}

    app.run(signals=False)


def store_path(life: Life) -> Path:
    """The database file of this world."""
    return life.options["directory"] / "books.db"


APPS = {"handle": handle, "book": book}
"""By the word that a plan uses."""


class Books:
    """What is in the store of a world."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "books.db"

    def rows(self) -> list[tuple[str, int, int]]:
        """Every row that was booked: value, partition, offset."""
        return self._all(f"SELECT value, part, at FROM {BOOKED}")

    def dead(self) -> list[tuple[int, int]]:
        """Partition and offset of every record that the ledger knows as failed."""
        return self._all(
            "SELECT origin_partition, origin_offset FROM kohort_ledger WHERE status = 'failed'"
        )

    def _all(self, sql: str) -> list[Any]:
        if not self._path.exists():
            return []
        with closing(sqlite3.connect(self._path)) as connection:
            try:
                return connection.execute(sql).fetchall()
            except sqlite3.OperationalError:  # no app has come to making its tables
                return []
