"""Answers that could not be decoded, by API: one is requested again, several in a row are reported.

Rules:
- A damaged answer costs its connection, and the request is made again over a new one: one flipped
  bit heals without a word.
- `IN_A_ROW` damaged answers of one API, with no sound one between them, are more than bad luck: a
  `poll` that brings nothing raises the last error, and `health()` shows it, until an answer is
  sound again or nothing of the kind was asked for `FORGOTTEN_MS`.
- An API of which the two sides share no version counts as well: nothing that is asked comes back.

Pure; lives on the network thread, except that any thread may ask for `worst`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kohort.errors import KohortError

IN_A_ROW: Final = 3
FORGOTTEN_MS: Final = 30_000


class _Row(NamedTuple):
    length: int
    error: KohortError
    at_ms: int


class DamagedAnswers:
    """What one client could not decode since the last sound answer of the same API."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def note(self, api: str, error: KohortError, now_ms: int) -> None:
        """An answer of `api` could not be decoded, or could not be asked for."""
        before = self._rows.get(api)
        self._rows[api] = _Row(1 if before is None else before.length + 1, error, now_ms)

    def sound(self, api: str) -> None:
        """An answer of `api` was decoded."""
        self._rows.pop(api, None)

    def worst(self, now_ms: int) -> KohortError | None:
        """The error of an API that only damaged answers come from; None where there is none."""
        rows = [
            row
            for row in list(self._rows.values())
            if row.length >= IN_A_ROW and now_ms - row.at_ms < FORGOTTEN_MS
        ]
        return max(rows, key=lambda row: row.length).error if rows else None
