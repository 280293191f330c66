"""Which of the two hot paths is in use: the compiled one, or its specification in Python.

`kohort.compiled` chooses; `FRONT` names the one in use.
"""

from __future__ import annotations

from kohort.compiled import implementation, is_compiled

if is_compiled("kohort.client.producer.plan._fast_send"):
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

FRONT = implementation("kohort.client.producer.plan._fast_send")

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
