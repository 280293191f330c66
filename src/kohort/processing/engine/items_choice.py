"""Which items are in use: the compiled ones, or their specification in Python.

`kohort.compiled` chooses.
"""

from __future__ import annotations

from kohort.compiled import is_compiled

if is_compiled("kohort.processing.engine._items"):
    from kohort.processing.engine._items import (
        Item,
        Shown,
        by_key,
        enter_lanes,
        in_one_lane,
        leave_lanes,
        of_one_partition,
        offsets_and_size,
        offsets_of,
        run_plain,
        take_done,
    )
else:
    from kohort.processing.engine.items import (
        Item,
        Shown,
        by_key,
        enter_lanes,
        in_one_lane,
        leave_lanes,
        of_one_partition,
        offsets_and_size,
        offsets_of,
        run_plain,
        take_done,
    )

__all__ = [
    "Item",
    "Shown",
    "by_key",
    "enter_lanes",
    "in_one_lane",
    "leave_lanes",
    "of_one_partition",
    "offsets_and_size",
    "offsets_of",
    "run_plain",
    "take_done",
]
