"""Walking the syntax of modules by statements where that is enough: most nodes are expressions."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement, exception handler and case inside, at any depth."""
    inside: list[ast.AST] = [tree]
    while inside:
        node = inside.pop()
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            children = getattr(node, block, ())
            yield from children
            inside += children
