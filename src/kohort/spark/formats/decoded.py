"""The result of every format's decoder: Arrow columns, and what did not decode.

Rules (spec 6.5, 6.6):
- A null value (a tombstone) is a null row and no error.
- A value that does not decode is a null row with an error; its neighbours are not touched, and the
  result for a record never depends on the records beside it.
- A schema registry that does not answer is raised (ConnectionFailedError), never a record's error.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute
_MESSAGE_MAX: Final = 300
_NOISE: Final = re.compile(r"JSON parse error: | in row \d+$|\. If these timestamps .*$")


class Decoded(NamedTuple):
    """A decoded column.

    Args:
        values: one row for each value, of the decoder's `type`.
        errors: the reason (string) where a value did not decode; None when every value did.
        rescued: JSON text of the fields that the schema does not have, null where there are none;
            None when the decoder does not collect them, or when there are none at all.
    """

    values: pa.Array
    errors: pa.Array | None = None
    rescued: pa.Array | None = None


class Decoder(Protocol):
    """Decodes Arrow binary columns; pure but for the schema registry, and picklable."""

    type: pa.DataType

    def decode(self, column: pa.Array) -> Decoded:
        """Decode a binary column. Raises a KohortError when a registry does not answer."""
        ...


def isolate(
    column: pa.Array, parse: Callable[[pa.Array], pa.Array], type_: pa.DataType
) -> tuple[pa.Array, dict[int, str]]:
    """Parse a column without nulls, and find the values that do not parse by halving.

    Args:
        parse: gives one row for each value, or raises ArrowInvalid, ValueError or TypeError.

    Returns:
        The rows, null where a value did not parse, and the reason by row.
    """
    count = len(column)
    try:
        return parse(column), {}
    except (pa.ArrowInvalid, ValueError, TypeError) as error:
        if count == 1:
            return pa.nulls(1, type_), {0: reason(error)}
    half = count // 2
    low, bad = isolate(column.slice(0, half), parse, type_)
    high, more = isolate(column.slice(half), parse, type_)
    return pa.concat_arrays([low, high]), bad | {half + row: why for row, why in more.items()}


def as_text(column: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Bytes as text, null where they are not UTF-8, and the reasons by row."""
    valid = column.is_valid()
    texts, bad = isolate(column.drop_null(), lambda part: part.cast(pa.string()), pa.string())
    errors = messages(len(texts), bad)
    return spread(texts, valid), None if errors is None else spread(errors, valid)


def spread(values: pa.Array, places: pa.Array) -> pa.Array:
    """The values in order at the true rows of a mask; null at the others."""
    if len(values) == len(places):
        return values
    index = pc.subtract(pc.cumulative_sum(places.cast(pa.int32())), 1)
    return values.take(pc.if_else(places, index, pa.scalar(None, pa.int32())))


def messages(count: int, bad: Mapping[int, str]) -> pa.Array | None:
    """The errors as a column; None when there are none."""
    return pa.array([bad.get(row) for row in range(count)], pa.string()) if bad else None


def reason(error: Exception) -> str:
    """Why a value did not decode, without what only its library means."""
    return _NOISE.sub("", str(error))[:_MESSAGE_MAX]
