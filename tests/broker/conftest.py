"""Which files the second run of `make test`, without the compiled modules, leaves out."""

from __future__ import annotations

import pytest

ONCE = {
    f"test_{name}.py"
    for name in [
        "fetch_sessions",
        "group_configs",
        "make_dir",
        "many_logs",
        "group_hints",
        "os_files",
        "other_systems",
        "start",
    ]
}
"""They are about files, processes, limits and what is loaded when, which are the same Python in
both; records and messages go through them as through the other files, too."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.name in ONCE:
        item.add_marker("once")
