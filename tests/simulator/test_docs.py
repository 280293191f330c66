"""docs/simulator.md lists every sentence that the simulator knows, and no other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kohort.simulator.actions import ACTIONS
from kohort.simulator.conditions import CONDITIONS, EXPECTATIONS
from kohort.simulator.grammar import Grammar

PAGE = Path(__file__).parent.parent.parent / "docs" / "simulator.md"
BEGIN = "<!-- words: written by KOHORT_WRITE_DOCS=1 pytest tests/simulator/test_docs.py -->\n"
END = "<!-- end of words -->\n"


def table(title: str, grammar: Grammar[Any]) -> Iterator[str]:
    yield f"**{title}**\n\n| sentence | meaning |\n|---|---|\n"
    for pattern, (_, _, fn) in grammar.patterns.items():
        yield f"| `{pattern}` | {' '.join((fn.__doc__ or '').split()).rstrip('.')} |\n"
    yield "\n"


def test_every_sentence_is_documented() -> None:
    """The tables are written from the grammars."""
    words = "".join(
        [
            "\n",
            *table("Actions", ACTIONS),
            *table("Conditions", CONDITIONS),
            *table("Expectations", EXPECTATIONS),
        ]
    )
    page = PAGE.read_text()
    head, rest = page.split(BEGIN)
    tail = rest.split(END)[1]
    wanted = head + BEGIN + words + END + tail
    if os.environ.get("KOHORT_WRITE_DOCS"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted
