"""Which files the second run of `make test`, without the compiled modules, leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
ONCE = {
    f"test_{name}.py"
    for name in [
        "fetch_sessions", "group_configs", "make_dir", "many_logs", "group_hints", "os_files",
        "other_systems", "start",
    ]
}  # fmt: skip
"""They are about files, processes, limits and what is loaded when, which are the same Python in
both; records and messages go through them as through the other files, too."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and item.path.name in ONCE:
            item.add_marker("once")
