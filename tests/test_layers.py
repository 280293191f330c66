"""The layers of the source tree as a test: who may import whom, and what is pure (DESIGN.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.import_graph import (
    SRC,
    circles,
    folder_graph,
    folder_of,
    module_graph,
    modules,
)
from tests.syntax import statements

LAYERS: tuple[tuple[str, ...], ...] = (
    ("kohort.*",),
    ("kohort.wire", "kohort.records", "kohort.sasl", "kohort.metrics"),
    ("kohort.net", "kohort.serdes", "kohort.group.assignors"),
    ("kohort.group.member", "kohort.group.coordinator.state"),
    ("kohort.group.coordinator.handlers", "kohort.group.explain"),
    ("kohort.group.coordinator", "kohort.group"),
    ("kohort.transactions",),
    ("kohort.client.common",),
    ("kohort.client.cluster",),
    ("kohort.client.consumer.plan", "kohort.client.producer.plan"),
    ("kohort.client.consumer",),
    ("kohort.client.producer", "kohort.client.admin"),
    ("kohort.client.shared",),
    ("kohort.client",),
    ("kohort.broker.log",),
    ("kohort.broker.base",),
    ("kohort.broker.security",),
    ("kohort.broker.state",),
    ("kohort.broker.authorization",),
    ("kohort.broker.fast_path",),
    ("kohort.broker.coordinator",),
    ("kohort.broker.apis",),
    ("kohort.broker.node",),
    ("kohort.broker.faults",),
    ("kohort.broker.server",),
    ("kohort.broker.control",),
    ("kohort.broker",),
    ("kohort.simulator",),
    ("kohort.simulator.checks", "kohort.simulator.history"),
    ("kohort.simulator.runs",),
    ("kohort.retry",),
    ("kohort.remote",),
    ("kohort.processing.engine",),
    ("kohort.processing.workers",),
    ("kohort.processing.runtime",),
    ("kohort.processing",),
    ("kohort.simulator.system",),
    ("kohort.observe",),
    ("kohort.sampling",),
    ("kohort.spark.worker", "kohort.spark.formats", "kohort.spark.plans"),
    ("kohort.spark.outputs",),
    ("kohort.spark.dataframes",),
    ("kohort.spark",),
    ("kohort.demo",),
    ("kohort.console.views",),
    ("kohort.console.screens",),
    ("kohort.console.web",),
    ("kohort.console",),
    ("kohort.cli.common",),
    (
        "kohort.cli.acl",
        "kohort.cli.app",
        "kohort.cli.broker",
        "kohort.cli.config",
        "kohort.cli.cluster",
        "kohort.cli.completion",
        "kohort.cli.console",
        "kohort.cli.demo",
        "kohort.cli.dlq",
        "kohort.cli.doctor",
        "kohort.cli.faults",
        "kohort.cli.group",
        "kohort.cli.pipeline",
        "kohort.cli.records",
        "kohort.cli.profile",
        "kohort.cli.retry",
        "kohort.cli.simulate",
        "kohort.cli.topic",
        "kohort.cli.transaction",
        "kohort.cli.user",
        "kohort.cli.verifiable",
    ),
    ("kohort.cli",),
    ("kohort",),
)
"""Lowest first. A folder imports only from layers before its own."""

ANYWHERE = {"kohort.testing"}
"""It may import everything; only `kohort.cli` and users import it."""

PURE = (
    "kohort.wire",
    "kohort.records",
    "kohort.sasl",
    "kohort.group",
    "kohort.transactions",
    "kohort.client.consumer.plan",
    "kohort.client.producer.plan",
    "kohort.processing.engine",
    "kohort.observe",
    "kohort.console.views",
)
"""They decide: no sockets, threads, clocks or randomness."""
SHELLS_IN_PURE_FOLDERS = {
    "kohort.client.producer.plan.fast_send",  # a lock: `send` runs on the caller's thread
    "kohort.records.compression",  # one zstd context a thread
    "kohort.wire.local_files",  # the name of the running kernel
}
"""May only shrink."""
SHELL_MODULES = {"time", "random", "secrets", "threading", "socket", "selectors", "subprocess"}

MAX_FILES = 30
FLAT = {"kohort.broker.apis"}
"""One module for each API of Kafka."""

RANK = {folder: rank for rank, layer in enumerate(LAYERS) for folder in layer}


@pytest.mark.parametrize("folder", sorted({folder_of(module) for module in modules()}))
def test_a_folder_imports_only_lower_layers(folder: str) -> None:
    if folder in ANYWHERE:
        return
    assert folder in RANK, f"{folder} has no layer; name it in LAYERS"
    upward = {
        target for target in folder_graph()[folder] if RANK.get(target, len(LAYERS)) >= RANK[folder]
    }
    assert not upward, f"{folder} imports {sorted(upward)}: only layers before its own"


def test_every_layer_exists() -> None:
    assert set(RANK) <= set(folder_graph()), sorted(set(RANK) - set(folder_graph()))


def test_no_module_is_in_a_circle() -> None:
    """Prints the largest strongly connected component: 1."""
    found = circles(module_graph())
    print("largest strongly connected component:", max((len(c) for c in found), default=1))
    assert not found, [sorted(circle) for circle in found]


def pure_modules() -> list[str]:
    return [m for m in modules() if folder_of(m).startswith(PURE)]


@pytest.mark.parametrize("module", pure_modules())
def test_pure_folders_import_no_shell(module: str) -> None:
    if module in SHELLS_IN_PURE_FOLDERS:
        return
    tree = ast.parse(modules()[module].read_text())
    assert "\nShell:" not in (ast.get_docstring(tree) or ""), "a shell does not belong here"
    imported = {
        name.split(".")[0]
        for node in statements(tree)
        for name in (
            [a.name for a in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert not imported & SHELL_MODULES, f"{module} is pure, and imports {imported & SHELL_MODULES}"


def folders() -> list[Path]:
    return sorted({path.parent for path in modules().values()})


@pytest.mark.parametrize("folder", folders(), ids=lambda p: str(p.relative_to(SRC)))
def test_a_folder_can_be_taken_in_at_a_glance(folder: Path) -> None:
    name = ".".join(folder.relative_to(SRC).parts)
    files = [p for p in folder.iterdir() if p.suffix in {".py", ".pyx"} and p.name != "__init__.py"]
    assert name in FLAT or len(files) <= MAX_FILES, f"{name} has {len(files)} files"
    tree = ast.parse((folder / "__init__.py").read_text())
    text = ast.get_docstring(tree) or ""
    assert text.count(".") > 1 or "Rules:" in text, (
        f"{name}/__init__.py says in two or three sentences what lives there and what it imports"
    )
