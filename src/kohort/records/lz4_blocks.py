"""The blocks of an lz4 frame, on the way out: by compiled code, or by the library in Python.

`kohort.compiled` chooses. The compiled one packs all blocks in one call (docs/adr/0017).
"""

from __future__ import annotations

from struct import Struct

from kohort.compiled import is_compiled
from kohort.records.layout import Readable

_BLOCK_BYTES = 64 * 1024
_STORED = 0x80000000
_UINT32_LE = Struct("<I")


def pack_by_library(data: Readable, out: memoryview) -> int:
    """Compress `data` into `out`, block by block; how many bytes of `out` the blocks take."""
    from cramjam import lz4  # loaded by the first batch that needs it

    pack, data, at = lz4.compress_block_into, memoryview(data), 0
    for start in range(0, len(data), _BLOCK_BYTES):
        block = data[start : start + _BLOCK_BYTES]
        size: int = pack(block, out[at + 4 :], store_size=False)
        if size < len(block):
            _UINT32_LE.pack_into(out, at, size)
        else:
            size = len(block)
            _UINT32_LE.pack_into(out, at, _STORED | size)
            out[at + 4 : at + 4 + size] = block
        at += 4 + size
    _UINT32_LE.pack_into(out, at, 0)
    return at + 4


if is_compiled("kohort.records._lz4"):
    from kohort.records._lz4 import lz4_blocks
else:
    lz4_blocks = pack_by_library

__all__ = ["lz4_blocks", "pack_by_library"]
