"""The one way in which a check says that an invariant is broken."""

from __future__ import annotations


class Violation(Exception):
    """An invariant is broken: its code (G1, C2, O7, …) and what was seen."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def demand(held: bool, code: str, text: str) -> None:
    """Raise a Violation unless it held. `text` says what was seen, not what should have been."""
    if not held:
        raise Violation(code, text)
