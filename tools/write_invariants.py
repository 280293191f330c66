"""Write `docs/invariants.md` from `kohort.simulator.invariants`.

python tools/write_invariants.py            write it
python tools/write_invariants.py --check    fail when it is not up to date
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from kohort.simulator.invariants import SECTIONS, Section

TARGET = ROOT / "docs" / "invariants.md"

INTRODUCTION = """\
# Invariants

The promises behind the code, and the codes by which comments, tests, mutants and `kohort simulate`
cite them. Written by `make invariants` from `kohort/simulator/invariants.py`; a test fails when
this page is not up to date or when a code is cited that is not here. The requirements that they
serve, cited as `spec N.M`, are in [spec.md](spec.md); which checks run after every simulated event,
and what shows that each can fail, is in [simulator.md](simulator.md#invariants).
"""


def main() -> int:
    """Write the page, or say that it is stale."""
    if "--check" in sys.argv[1:]:
        return 1 if stale() else 0
    TARGET.write_text(page())
    return 0


def stale() -> bool:
    """Whether the page is another than it would be written now."""
    return not TARGET.exists() or TARGET.read_text() != page()


def page() -> str:
    """The page."""
    return INTRODUCTION + "".join(line for section in SECTIONS for line in _table(section))


def _table(section: Section) -> Iterator[str]:
    yield f"\n## {section.title}\n\n"
    if section.about:
        yield f"{section.about}\n\n"
    kind = "what happened" if "B1" in section.codes else "what holds"
    yield f"| code | {kind} |\n|---|---|\n"
    yield from (f"| {code} | {sentence} |\n" for code, sentence in section.codes.items())


if __name__ == "__main__":
    sys.exit(main())
