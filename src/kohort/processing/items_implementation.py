"""Which items are in use: the compiled ones, or their specification in Python (`KOHORT_PURE=1`)."""

from __future__ import annotations

from importlib import import_module

from kohort.records import KERNEL

_compiled = KERNEL == "cython"
if _compiled:
    try:
        import_module("kohort.processing._items")
    except ModuleNotFoundError:
        _compiled = False

if _compiled:
    from kohort.processing._items import (
        Item,
        by_key,
        in_one_lane,
        lanes_of,
        offsets_and_size,
        offsets_of,
    )
else:
    from kohort.processing.items import (
        Item,
        by_key,
        in_one_lane,
        lanes_of,
        offsets_and_size,
        offsets_of,
    )

__all__ = [
    "Item",
    "by_key",
    "in_one_lane",
    "lanes_of",
    "offsets_and_size",
    "offsets_of",
]
