"""What a check of the doctor finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

OK: Final = "ok"
WARNING: Final = "warning"
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report; `cure` is empty when nothing is wrong."""

    check: str
    state: str
    found: str
    cure: str = ""
