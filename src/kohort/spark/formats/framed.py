"""Values in a schema registry's wire format whose payload is read by one schema: JSON, Protobuf.

Rules:
- A zero byte and four of the schema's id come first, then, in Protobuf, the place of the message in
  its file. The payload is what another decoder reads.
- A value that does not begin so has that as its error.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from kohort.spark.formats.decoded import Decoded, Decoder, spread

pc: Any = pyarrow.compute
UNFRAMED: Final = "it does not begin as a schema registry's format does (0 and an id)"
OTHER_MESSAGE: Final = "it is another message of its file"
_HEADER: Final = 5


class FramedDecoder:
    """Decodes the payloads of framed values.

    Args:
        payload: decodes what is behind the schema's id.
        place_of: of a schema's id the bytes behind it, which say what message the payload is, or a
            text: why no value of that schema is read. None where nothing is behind it.
    """

    def __init__(
        self, payload: Decoder, place_of: Callable[[int], bytes | str] | None = None
    ) -> None:
        self.type = payload.type
        self._payload, self._place_of = payload, place_of

    def decode(self, column: pa.Array) -> Decoded:
        """One row for each value; see `Decoded`."""
        valid = column.is_valid()
        good, payloads, reasons = self._split(column)
        decoded = self._payload.decode(payloads)
        errors = decoded.errors
        if errors is not None:
            errors = spread(errors, good)
        bad = pc.and_(valid, pc.invert(good))
        if pc.any(bad).as_py():
            errors = pc.if_else(bad, reasons, errors or pa.nulls(len(column), pa.string()))
        rescued = decoded.rescued
        return Decoded(
            spread(decoded.values, good),
            errors,
            None if rescued is None else spread(rescued, good),
        )

    def _split(self, column: pa.Array) -> tuple[Any, Any, Any]:
        """Which values have a payload that is read, those payloads, and what is wrong with the
        others."""
        long_enough = pc.greater_equal(pc.binary_length(column), _HEADER)
        framed = pc.and_(pc.starts_with(column, pattern="\0"), long_enough).fill_null(False)
        if self._place_of is None:
            return *_payloads(column, [(framed, _HEADER)]), pa.scalar(UNFRAMED)
        heads = pc.binary_slice(column, 0, _HEADER)
        parts: list[tuple[Any, int]] = []
        reasons = pa.scalar(UNFRAMED)
        for head in pc.unique(heads.filter(framed)).to_pylist():
            ours = pc.and_(framed, pc.equal(heads, pa.scalar(head, column.type))).fill_null(False)
            place = self._place_of(int.from_bytes(head[1:], "big"))
            if isinstance(place, str):
                reasons = pc.if_else(ours, place, reasons)
                continue
            begin = _HEADER + len(place)
            if place:
                found = pc.binary_slice(column, _HEADER, begin)
                reasons = pc.if_else(ours, OTHER_MESSAGE, reasons)
                same = pc.equal(found, pa.scalar(place, column.type))
                ours = pc.and_(ours, same).fill_null(False)
            parts.append((ours, begin))
        return *_payloads(column, parts), reasons


def _payloads(column: pa.Array, parts: list[tuple[Any, int]]) -> tuple[Any, Any]:
    """Of each part's values what is behind its beginning; which values those are."""
    if len(parts) == 1:
        [(ours, begin)] = parts
        return ours, pc.binary_slice(column.filter(ours), begin)
    good, payloads = pa.repeat(False, len(column)), pa.nulls(len(column), column.type)
    for ours, begin in parts:
        good = pc.or_(good, ours)
        payloads = pc.coalesce(payloads, spread(pc.binary_slice(column.filter(ours), begin), ours))
    return good, payloads.filter(good)
