"""Which of the two sets of loops is in use: the compiled one, or its specification in Python.

`KOHORT_PURE=1` in the environment asks for the latter, as in `kohort.records`; a build that did not
compile it falls back to it. `LOOPS` names the one in use.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

if os.environ.get("KOHORT_PURE") == "1":
    _compiled = False
else:
    _compiled = find_spec("kohort.group.assignors._loops") is not None

if _compiled:
    from kohort.group.assignors._loops import (
        PartitionReader,
        PartitionWriter,
        deal,
        hand_out,
        held,
        keep,
        note,
        tally,
    )
else:
    from kohort.group.assignors.loops import (
        PartitionReader,
        PartitionWriter,
        deal,
        hand_out,
        held,
        keep,
        note,
        tally,
    )

LOOPS = "cython" if _compiled else "python"

__all__ = [
    "LOOPS",
    "PartitionReader",
    "PartitionWriter",
    "deal",
    "hand_out",
    "held",
    "keep",
    "note",
    "tally",
]
