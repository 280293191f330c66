"""Which codecs are in use: the compiled machine, or the generated Python that specifies it.

`KOHORT_PURE=1` in the environment asks for the latter, as in `kohort.records`; a build that did not
compile it falls back to it. `CODECS` names the one in use.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

if os.environ.get("KOHORT_PURE") != "1" and find_spec("kohort.wire._compiled") is not None:
    from kohort.wire import _compiled as machine
else:
    machine = None

CODECS = "python" if machine is None else "cython"

__all__ = ["CODECS", "machine"]
