"""Every module whose tests run kafka-python or aiokafka collects what these leave open."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.syntax import statements

TESTS = Path(__file__).resolve().parent
PEERS = {"kafka", "aiokafka"}
# these open nothing
OF_RECORDS = {"record", "codec"}

Name = tuple[str, str]
"""A module of tests, and a name of its top level; `""` for the module's own statements."""


def runs_a_peer(module: str) -> bool:
    package, *inside = module.split(".")
    return package in PEERS and not (inside and inside[0] in OF_RECORDS)


def imports(statement: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Module, name in it, name here: of one import."""
    if isinstance(statement, ast.Import):
        yield from ((alias.name, "", alias.asname or alias.name) for alias in statement.names)
    elif isinstance(statement, ast.ImportFrom) and statement.module:
        for alias in statement.names:
            yield statement.module, alias.name, alias.asname or alias.name


def defined(node: ast.stmt) -> list[str]:
    """What a statement of a module's top level gives names to; `""` where that is nothing."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [each.id for each in targets if isinstance(each, ast.Name)] or [""]


def uses(module: str, tree: ast.Module) -> dict[Name, set[Name]]:
    """What each definition of a module names: of the module itself, and of those it imports."""
    known = {
        here: (source, name) for node in statements(tree) for source, name, here in imports(node)
    }
    found: dict[Name, set[Name]] = {}
    for node in tree.body:
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        inside = {(source, name) for each in statements(node) for source, name, _ in imports(each)}
        used = {known.get(name, (module, name)) for name in names} | inside
        for name in defined(node):
            found.setdefault((module, name), set()).update(used)
    return found


def modules_with_peers() -> set[str]:
    """The modules in which something runs such a client, itself or by what it calls."""
    graph: dict[Name, set[Name]] = {}
    for path in TESTS.rglob("*.py"):
        module = ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)
        graph |= uses(module, ast.parse(path.read_text()))
    running = {
        who for who, names in graph.items() if any(runs_a_peer(source) for source, _ in names)
    }
    while more := {who for who, names in graph.items() if names & running} - running:
        running |= more
    return {module for module, _ in running}


def test_what_peers_leave_open_is_collected_where_they_ran() -> None:
    """Else a later test of the same process fails for a socket that it never opened."""
    paths = [TESTS.parent / f"{name.replace('.', '/')}.py" for name in modules_with_peers()]
    # the conftest of e2e marks all modules there
    tests = [p for p in paths if p.name.startswith("test_") and TESTS / "e2e" not in p.parents]
    assert len(tests) >= 2, "the search finds nothing"
    bare = [p for p in tests if "pytestmark = PEERS" not in p.read_text()]
    assert sorted(str(p.relative_to(TESTS)) for p in bare) == []
