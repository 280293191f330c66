"""Which codecs are in use: the compiled machine, or the generated Python that specifies it.

`kohort.compiled` chooses; `CODECS` names the one in use.
"""

from __future__ import annotations

from kohort.compiled import implementation, is_compiled

if is_compiled("kohort.wire._compiled"):
    from kohort.wire import _compiled as machine
else:
    machine = None

CODECS = implementation("kohort.wire._compiled")

__all__ = ["CODECS", "machine"]
