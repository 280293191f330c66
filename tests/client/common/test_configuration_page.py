"""docs/configuration.md is what the configuration classes say, all of it."""

from __future__ import annotations

from types import ModuleType

import pytest

from kohort import AdminConfig, ConsumerConfig, ProducerConfig
from tests.pages import tool


@pytest.fixture(scope="module", name="tool")
def writer() -> ModuleType:
    return tool("write_configuration")


def test_the_page_is_up_to_date(tool: ModuleType) -> None:
    assert not tool.stale(), "run `make configuration`"


def test_no_setting_is_missing(tool: ModuleType) -> None:
    """Each stands once, with what it means."""
    names = {
        name for c in (ConsumerConfig, ProducerConfig, AdminConfig) for name in c.field_names()
    }
    rows = [line.split(" | ")[0] for line in tool.page().splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(f"| `{name}`" for name in names)
