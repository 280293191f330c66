"""Retries of a schema registry before the query fails.

Shell: waits.

Rules (spec 6.5):
- A registry that does not answer is retried, at least once and for `PATIENCE_S`. Then the task
  fails; no record is dead-lettered for it.
"""

from __future__ import annotations

import time
from typing import Any, Final

from kohort.errors import ConnectionFailedError
from kohort.serdes.registry import SchemaRegistry

PATIENCE_S: Final = 30.0
_FIRST_WAIT_S: Final = 0.2
_LONGEST_WAIT_S: Final = 5.0


class PatientRegistry(SchemaRegistry):
    """A client that asks again while no address answers.

    Args:
        url: as of `SchemaRegistry`.
        patience_s: how long it continues asking.
    """

    def __init__(self, url: str, *, patience_s: float = PATIENCE_S, **settings: Any) -> None:
        super().__init__(url, **settings)
        self._patient_url, self._patience_s = url, patience_s

    def __reduce__(self) -> tuple[Any, ...]:
        """By configuration: another process has a cache of its own."""
        return _made, (self._patient_url, self._patience_s)

    def _call(
        self, path: str, body: dict[str, Any] | None = None, *, everywhere: bool = False
    ) -> dict[str, Any]:
        until, wait = time.monotonic() + self._patience_s, _FIRST_WAIT_S
        asked_again = False
        while True:
            try:
                return super()._call(path, body, everywhere=everywhere)
            except ConnectionFailedError:
                if asked_again and time.monotonic() + wait > until:
                    raise
            time.sleep(wait)
            asked_again = True
            wait = min(wait * 2, _LONGEST_WAIT_S)


def _made(url: str, patience_s: float) -> PatientRegistry:
    return PatientRegistry(url, patience_s=patience_s)
