"""The diagrams in the documentation are what the tables say."""

from __future__ import annotations

from tests.pages import tool


def test_diagrams_are_up_to_date() -> None:
    assert tool("draw_diagrams").stale() == [], "run `make diagrams`"
