"""Which implementation of the hot paths is in use: the compiled kernel, or its pure-Python twin.

`KOHORT_PURE=1` in the environment asks for the twin. A build without the kernel falls back to it;
`kohort doctor` says which one runs.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

if os.environ.get("KOHORT_PURE") == "1":
    _compiled = False
else:
    _compiled = find_spec("kohort.records._kernel") is not None

if _compiled:
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
        lz4_blocks,
        whole_batches,
    )
else:
    from kohort.records.compression import lz4_blocks
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

KERNEL = "cython" if _compiled else "python"

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
    "lz4_blocks",
    "whole_batches",
]
