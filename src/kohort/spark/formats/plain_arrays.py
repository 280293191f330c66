"""Arrow arrays of Python values without pandas. Pure.

`pa.array(values)` asks whether `values` is a pandas Series and so imports pandas, where it is
installed: half a second of processor time in every process that Spark starts.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

_CODES: Final = {pa.int32(): "i", pa.int64(): "q"}


def plain_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """An array of numbers, texts or bytes.

    Args:
        values: None is null.
        kind: int32, int64, string or binary.

    Raises OverflowError for a number that `kind` cannot hold, or 2 GiB of text or bytes.
    """
    nulls = sum(value is None for value in values)
    valid = _bitmap(values) if nulls else None
    code = _CODES.get(kind)
    if code is not None:
        numbers = array(code, [0 if value is None else value for value in values])
        parts = [pa.py_buffer(numbers)]
    else:
        whole = [_encoded(value) for value in values]
        offsets = array("i", accumulate(map(len, whole), initial=0))
        parts = [pa.py_buffer(offsets), pa.py_buffer(b"".join(whole))]
    return pa.Array.from_buffers(kind, len(values), [valid, *parts], nulls)


def _encoded(value: str | bytes | None) -> bytes:
    if value is None:
        return b""
    return value.encode() if isinstance(value, str) else value


def _bitmap(values: Sequence[Any]) -> pa.Buffer:
    """One bit for each value, the lowest first; 0 for null."""
    bits = bytearray((len(values) + 7) // 8)
    for index, value in enumerate(values):
        if value is not None:
            bits[index >> 3] |= 1 << (index & 7)
    return pa.py_buffer(bytes(bits))
