"""The import graph of `src/kohort`: modules, folders, and the circles among them.

Imports inside functions and under TYPE_CHECKING count: a reader has to follow them, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from tests.syntax import statements

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
GENERATED = SRC / "kohort" / "wire" / "messages"
GENERATED_MODULES = "kohort.wire.messages"
"""The generated messages import one another and three lowest modules of `kohort.wire`."""
Graph = dict[str, set[str]]


@cache
def modules() -> dict[str, Path]:
    """Every hand-written module by its dotted name, compiled ones by their `.pyi`."""
    root = SRC / "kohort"
    paths = sorted([*root.rglob("*.py"), *(p.with_suffix(".pyi") for p in root.rglob("*.pyx"))])
    return {_name(p): p for p in paths if GENERATED not in p.parents and not p.is_symlink()}


def _name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def folder_of(module: str) -> str:
    """The folder that a module is in; `kohort.*` for the modules beside the packages."""
    path = modules()[module]
    folder = ".".join(path.parent.relative_to(SRC).parts)
    beside = folder == "kohort" and path.name not in {"__init__.py", "__main__.py"}
    return "kohort.*" if beside else folder


@cache
def module_graph() -> Graph:
    """Module -> the modules that it imports."""
    graph: Graph = {}
    for name, path in modules().items():
        targets = {_resolved(target) for target in _targets(ast.parse(path.read_text()))}
        graph[name] = targets - {name, "kohort", ""}
    return graph


def _targets(tree: ast.Module) -> Iterable[str]:
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "kohort")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kohort":
            names = (f"{node.module}.{a.name}" for a in node.names)
            yield from (n if n in modules() else str(node.module) for n in names)


def _resolved(name: str) -> str:
    if name.startswith(GENERATED_MODULES):
        return ""
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name


@cache
def folder_graph() -> Graph:
    """Folder -> the other folders that its modules import from."""
    graph: Graph = {}
    for module, targets in module_graph().items():
        folder = folder_of(module)
        graph.setdefault(folder, set()).update(folder_of(t) for t in targets)
    return {folder: targets - {folder} for folder, targets in graph.items()}


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The strongly connected components of more than one node, largest first (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            component: set[str] = set()
            while node not in component:
                component.add(stack.pop())
            if len(component) > 1:
                found.append(component)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found, key=len, reverse=True)
