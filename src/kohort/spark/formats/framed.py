"""Values in a schema registry's wire format whose payload is read by one schema: JSON, Protobuf.

Rules:
- A zero byte and four of the schema's id come first, then, in Protobuf, the place of the message in
  its file. The payload is what another decoder reads.
- A value that does not begin so has that as its error.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

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
        place: the bytes behind the id, which say what message the payload is.
    """

    def __init__(self, payload: Decoder, place: bytes = b"") -> None:
        self.type = payload.type
        self._payload, self._place = payload, place

    def decode(self, column: pa.Array) -> Decoded:
        """One row for each value; see `Decoded`."""
        valid = column.is_valid()
        begin = _HEADER + len(self._place)
        framed = pc.and_(
            pc.starts_with(column, pattern="\0"), pc.greater_equal(pc.binary_length(column), begin)
        ).fill_null(False)
        others = None
        if self._place:
            place = pc.equal(pc.binary_slice(column, _HEADER, begin), self._place)
            others = pc.and_(framed, pc.invert(place)).fill_null(False)
            framed = pc.and_(framed, place).fill_null(False)
        decoded = self._payload.decode(pc.binary_slice(column.filter(framed), begin))
        errors = decoded.errors
        if errors is not None:
            errors = spread(errors, framed)
        bad = pc.and_(valid, pc.invert(framed))
        if pc.any(bad).as_py():
            errors = pc.if_else(bad, UNFRAMED, errors or pa.nulls(len(column), pa.string()))
            if others is not None:
                errors = pc.if_else(others, OTHER_MESSAGE, errors)
        rescued = decoded.rescued
        return Decoded(
            spread(decoded.values, framed),
            errors,
            None if rescued is None else spread(rescued, framed),
        )
