"""Which items are in use: the compiled ones, or their specification in Python (`KOHORT_PURE=1`)."""

from __future__ import annotations

from importlib import import_module

from kohort.records import KERNEL

_compiled = KERNEL == "cython"
if _compiled:
    try:
        import_module("kohort.processing.engine._items")
    except ModuleNotFoundError:
        _compiled = False

if _compiled:
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
