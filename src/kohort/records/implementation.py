"""Which implementation of the hot paths is in use: the compiled kernel, or its pure-Python twin.

`kohort.compiled` chooses.
"""

from __future__ import annotations

from kohort.compiled import implementation, is_compiled

if is_compiled("kohort.records._kernel"):
    from kohort.records._kernel import (
        CRC_PATH,
        BatchBuilder,
        Chunk,
        Lent,
        Record,
        allocate,
        check_records,
        crc32c,
        end_of_set,
        whole_batches,
    )
else:
    from kohort.records.layout import end_of_set, whole_batches
    from kohort.records.pure import (
        CRC_PATH,
        BatchBuilder,
        Chunk,
        Record,
        check_records,
        crc32c,
    )
    from kohort.records.pure_columns import allocate

    Lent = None  # without it Arrow's arrays are built buffer by buffer

KERNEL = implementation("kohort.records._kernel")

__all__ = [
    "CRC_PATH",
    "KERNEL",
    "BatchBuilder",
    "Chunk",
    "Lent",
    "Record",
    "allocate",
    "check_records",
    "crc32c",
    "end_of_set",
    "whole_batches",
]
