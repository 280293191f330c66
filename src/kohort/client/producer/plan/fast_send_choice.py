"""Which of the two hot paths is in use: the compiled one, or its specification in Python.

`KOHORT_PURE=1` in the environment asks for the latter, as in `kohort.records`; a build that did not
compile it falls back to it. `FRONT` names the one in use.
"""

from __future__ import annotations

from importlib import import_module

from kohort.records import KERNEL

_compiled = KERNEL == "cython"
if _compiled:
    try:
        import_module("kohort.client.producer.plan._fast_send")
    except ModuleNotFoundError:
        _compiled = False

if _compiled:
    from kohort.client.producer.plan._fast_send import (
        Front,
        Guard,
        RecordFuture,
        Slot,
        TopicSlots,
        for_key,
        murmur2,
        rows_by_key,
    )
else:
    from kohort.client.producer.plan.fast_send import Front, Guard, RecordFuture, Slot, TopicSlots
    from kohort.client.producer.plan.partitioner import for_key, murmur2, rows_by_key

FRONT = "cython" if _compiled else "python"

__all__ = [
    "FRONT",
    "Front",
    "Guard",
    "RecordFuture",
    "Slot",
    "TopicSlots",
    "for_key",
    "murmur2",
    "rows_by_key",
]
