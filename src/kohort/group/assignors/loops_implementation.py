"""Which of the two sets of loops is in use: the compiled one, or its specification in Python.

`kohort.compiled` chooses; `LOOPS` names the one in use.
"""

from __future__ import annotations

from kohort.compiled import implementation, is_compiled

if is_compiled("kohort.group.assignors._loops"):
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

LOOPS = implementation("kohort.group.assignors._loops")

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
