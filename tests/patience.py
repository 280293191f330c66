"""How long a test waits for what must come: only a guard against waiting for ever.

Rules:
- Nothing is shown by this limit, so it is generous: a machine may stand still for seconds, or run
  at a tenth of its usual speed. What must be soon is shown on a virtual clock or by counting.
- It is well below the limit of a whole test (`timeout` in pyproject.toml), so that what did not
  come is named.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE_S = 100.0


def until(met: Callable[[], object], what: str = "", patience_s: float = PATIENCE_S) -> None:
    """Wait for what another thread or process brings about; fail and say `what` did not come."""
    deadline = time.monotonic() + patience_s
    tick = threading.Event()
    while not met():
        assert time.monotonic() < deadline, f"{what or met} did not come in {patience_s} s"
        tick.wait(0.01)
