"""What the end-to-end tests share: a broker in this process, and an eye on what it logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.clusters import Cluster

SESSIONS = {
    "group_min_session_timeout_ms": 1_000,
    "group_consumer_session_timeout_ms": 3_000,
    "group_consumer_min_session_timeout_ms": 3_000,
    "group_consumer_heartbeat_interval_ms": 300,
    "group_consumer_min_heartbeat_interval_ms": 300,
}
"""Sessions so short that a killed member is noticed within a test's patience."""


class Watch(logging.Handler):
    """Remembers what a healthy broker and client never log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.bad: list[str] = []
        self.allowed: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        refused = record.getMessage().startswith("closed the connection of")
        if record.levelno >= logging.ERROR or record.exc_info or refused:
            self.bad.append(f"{record.name}: {self.format(record)}")

    def allow(self, text: str) -> None:
        """A test expects log lines with this text."""
        self.allowed.append(text)

    def unexpected(self) -> list[str]:
        return [line for line in self.bad if not any(text in line for text in self.allowed)]


@pytest.fixture(autouse=True)
def watch() -> Iterator[Watch]:
    """Fails a test in which the product logged an error, a traceback, or a refused client."""
    watch = Watch()
    logger = logging.getLogger("kohort")
    logger.addHandler(watch)
    yield watch
    logger.removeHandler(watch)
    assert watch.unexpected() == []


@pytest.fixture(scope="module", autouse=True)
def nothing_left_to_others(peers_collected: None) -> None:
    """All modules here run other people's clients."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(**SESSIONS) as cluster:
        yield cluster


def pytest_itemcollected(item: pytest.Item) -> None:
    """What peers warn of in their own code, or because we use an old call on purpose, and the
    sockets that they leave open."""
    item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
    for text in (".*_text is deprecated", "alter_configs has been deprecated"):
        item.add_marker(pytest.mark.filterwarnings(f"ignore:{text}:DeprecationWarning"))
