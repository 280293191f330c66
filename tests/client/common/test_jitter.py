"""The clients' randomness is their own."""

from __future__ import annotations

import ast
import random
from pathlib import Path

from kohort.client.common.jitter import uniform

SOURCE = Path(__file__).parents[3] / "src" / "kohort"
OWN_GENERATORS = {"Random", "SystemRandom"}


def uses_of_the_global_generator(text: str) -> list[int]:
    """The lines that read a function of the module `random`."""
    if "random" not in text:
        return []
    nodes = list(ast.walk(ast.parse(text)))
    return [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "random"
        and node.attr not in OWN_GENERATORS
    ] + [
        node.lineno
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        and node.module == "random"
        and not {name.name for name in node.names} <= OWN_GENERATORS
    ]


def test_a_seeded_program_has_no_influence() -> None:
    drawn = set[float]()
    for _ in range(10):
        random.seed(1)
        before = random.getstate()
        drawn.add(uniform())
        assert random.getstate() == before
    assert len(drawn) == 10
    assert all(0 <= value < 1 for value in drawn)


def test_nothing_draws_from_the_global_generator() -> None:
    assert uses_of_the_global_generator("import random\nx = random.random()") == [2]
    assert uses_of_the_global_generator("from random import choice") == [1]
    uses = {
        f"{path.relative_to(SOURCE)}:{line}"
        for path in SOURCE.rglob("*.py")
        if "simulator" not in path.parts
        if "random" in (text := path.read_text())
        for line in uses_of_the_global_generator(text)
    }
    assert not uses
