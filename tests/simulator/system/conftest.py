"""For all tests of whole systems."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kohort.cli.simulate.seeds import quiet_logging


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Simulated brokers log what happens to them; it is in the story."""
    with quiet_logging():
        yield
