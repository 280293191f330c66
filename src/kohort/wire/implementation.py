"""Which codecs are in use: the compiled machine, or the generated Python that specifies it.

`KOHORT_PURE=1` in the environment asks for the latter, as in `kohort.records`; a build that did not
compile it falls back to it. `CODECS` names the one in use.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

if os.environ.get("KOHORT_PURE") == "1":
    _compiled = False
else:
    _compiled = find_spec("kohort.wire._compiled") is not None

if _compiled:
    from kohort.wire._compiled import Decoder, Encoder, layout_of
else:
    Decoder = Encoder = layout_of = None

CODECS = "cython" if _compiled else "python"

__all__ = ["CODECS", "Decoder", "Encoder", "layout_of"]
