"""Values in a schema registry's wire format whose payload needs no schema to be read: JSON.

Rules:
- A zero byte and four of the schema's id come first; the payload is what another decoder reads.
- A value that does not begin so has that as its error.
"""

# pyarrow carries no complete types, so strict checking would only speak of it.
# pyright: basic
from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from kohort.spark.formats.decoded import Decoded, Decoder, spread

pc: Any = pyarrow.compute
UNFRAMED: Final = "it does not begin as a schema registry's format does (0 and an id)"
_HEADER: Final = 5


class FramedDecoder:
    """Decodes the payloads of framed values.

    Args:
        payload: decodes what is behind the schema's id.
    """

    def __init__(self, payload: Decoder) -> None:
        self.type = payload.type
        self._payload = payload

    def decode(self, column: pa.Array) -> Decoded:
        """One row for each value; see `Decoded`."""
        valid = column.is_valid()
        framed = pc.and_(
            pc.starts_with(column, pattern="\0"),
            pc.greater_equal(pc.binary_length(column), _HEADER),
        ).fill_null(False)
        decoded = self._payload.decode(pc.binary_slice(column.filter(framed), _HEADER))
        errors = decoded.errors
        if errors is not None:
            errors = spread(errors, framed)
        bad = pc.and_(valid, pc.invert(framed))
        if pc.any(bad).as_py():
            errors = pc.if_else(bad, UNFRAMED, errors or pa.nulls(len(column), pa.string()))
        rescued = decoded.rescued
        return Decoded(
            spread(decoded.values, framed),
            errors,
            None if rescued is None else spread(rescued, framed),
        )
