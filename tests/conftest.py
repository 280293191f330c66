"""What holds for all tests, and what those of several packages share.

A property is judged by its examples, not by the load of a machine.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.postgres import PostgresServer, unavailable

settings.register_profile("kohort", deadline=None)
settings.load_profile("kohort")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL of its own; the test is skipped, with the reason, where there can be none."""
    if reason := unavailable():
        pytest.skip(reason)
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    """The URL of an empty database."""
    return postgres.new_database()
