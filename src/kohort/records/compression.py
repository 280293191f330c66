"""Compression codecs of record batches: gzip, snappy, lz4, zstd.

Rules:
- Nothing is allocated on the word of compressed data beyond the caller's limit. The size of the
  output is bounded from the frame's own block headers before a byte is decompressed; what does not
  fit raises `CorruptRecordError` (spec F5).
- Every codec's own exceptions become `CorruptRecordError`; nothing else leaves this module.
- Levels are explicit. cramjam's own default for lz4 is seven times slower than level 1 for a tenth
  less size; zstd's level 1 takes a fifth to a half less time than 3 (ADR 0018). lz4 blocks never
  depend on each other, which Kafka's Java client refuses to read.
- Where a codec can, it writes into the caller's memory with the interpreter's lock let go, so that
  several threads compress side by side. cramjam's lz4 frames hold the lock, and its blocks take it
  back one by one; where there is a kernel it packs all of them at once (ADR 0017).
- zstd is compressed with a context that each thread keeps (ADR 0018): a new one for each batch
  takes as long as a small batch itself.
- Snappy is written in the framing of snappy-java, which Kafka's Java client uses, and read with it
  or raw, as librdkafka writes it. lz4 is the standard frame, as it is since message format 2.

Shell: threads (buffers kept for each; nothing is shared).
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

from kohort.errors import ConfigError, CorruptRecordError, DecompressionLimitError
from kohort.records.layout import Readable
from kohort.records.lz4_blocks import lz4_blocks

Allocate = Callable[[int], bytearray | memoryview]

DEFAULT_MAX_DECOMPRESSED_BYTES = 64 * 1024 * 1024


class Compression(IntEnum):
    """The codec of a batch: the low three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def parse(cls, name: str) -> Compression:
        """The codec called `name` (as in `compression.type`). `ConfigError` for any other."""
        try:
            return cls[name.upper()]
        except KeyError:
            names = ", ".join(codec.name.lower() for codec in cls)
            raise ConfigError(f"unknown compression type {name!r}; choose one of {names}") from None


DEFAULT_LEVELS = {Compression.GZIP: 6, Compression.LZ4: 1, Compression.ZSTD: 1}
LEVEL_RANGES = {Compression.GZIP: (1, 9), Compression.LZ4: (1, 12), Compression.ZSTD: (1, 22)}

_XERIAL_HEADER = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HEADER = _LZ4_MAGIC + b"\x60\x40\x82"  # independent blocks of 64 KB, no checksums of their own
_LZ4_BLOCK_BYTES = 64 * 1024
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK_BYTES = 128 * 1024
_GZIP_MEMBERS_MAX = 64
"""The decoder copies what is behind each member, so that countless ones take quadratic time."""
_PARTS_FREE, _PART_BYTES = 4_096, 16
"""So many blocks may be of any size; of more, the average has at least so many bytes."""
_UINT32_BE = Struct(">I")
_UINT32_LE = Struct("<I")


def compress(codec: int, data: Readable, level: int | None = None) -> bytes | memoryview:
    """Compresses `data`. `level` None takes the codec's default; snappy has no levels.

    `ConfigError` for a level that the codec does not have.
    """
    if codec == Compression.NONE:
        return bytes(data)
    out = memoryview(bytearray(compress_bound(codec, len(data))))
    return out[: compress_into(codec, data, out, level)]


def compress_bound(codec: int, size: int) -> int:
    """Room for `compress_into` of `size` bytes of any content."""
    if codec == Compression.LZ4:
        blocks = size // _LZ4_BLOCK_BYTES + 1
        return len(_LZ4_HEADER) + size + 4 * blocks + 4 + _LZ4_BLOCK_BYTES // 255 + 64
    if codec == Compression.SNAPPY:
        blocks = size // _XERIAL_BLOCK_BYTES + 1
        return len(_XERIAL_HEADER) + size + size // 6 + 36 * blocks
    return size + size // 128 + 1_024  # zstd, gzip: a little more for each block they cannot pack


def compress_into(codec: int, data: Readable, out: memoryview, level: int | None = None) -> int:
    """Compresses `data` into `out`, which has `compress_bound` bytes; how many it takes.

    `ConfigError` for a level that the codec does not have.
    """
    codec = Compression(codec)
    if level is not None:
        check_level(codec, level)
    chosen = DEFAULT_LEVELS.get(codec, 0) if level is None else level
    if codec is Compression.ZSTD:
        packed: Readable = _zstd_packer(chosen).compress(data)
    elif codec is Compression.LZ4 and chosen == DEFAULT_LEVELS[codec]:
        return _compress_lz4(memoryview(data), out)
    elif codec is Compression.GZIP:
        packer = zlib.compressobj(chosen, zlib.DEFLATED, 31)
        packed = packer.compress(data) + packer.flush()
    elif codec is Compression.SNAPPY:
        packed = _compress_snappy(memoryview(data))
    elif codec is Compression.LZ4:
        # Kafka's Java client refuses blocks that depend on each other.
        frame = _cramjam().lz4.Compressor(chosen, content_checksum=False, block_linked=False)
        frame.compress(bytes(data))  # it takes no other kind of buffer
        packed = memoryview(frame.finish())
    else:
        packed = data
    out[: len(packed)] = packed
    return len(packed)


def check_level(codec: Compression, level: int) -> None:
    """Raises `ConfigError` when `codec` has no level `level`."""
    if codec not in LEVEL_RANGES:
        raise ConfigError(f"compression {codec.name.lower()} has no levels; leave the level out")
    low, high = LEVEL_RANGES[codec]
    if not low <= level <= high:
        raise ConfigError(f"{codec.name.lower()} level {level} is not between {low} and {high}")


def decompress(
    codec: int,
    data: Readable,
    limit: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    allocate: Allocate = bytearray,
) -> bytes | bytearray | memoryview:
    """Decompresses `data` into at most `limit` bytes, in a buffer that `allocate` gives.

    `CorruptRecordError` when the data is damaged or the codec unknown, `DecompressionLimitError`
    when the output would pass `limit`; never more than `limit` bytes are allocated for it.
    """
    if codec == Compression.NONE:
        return data
    if codec == Compression.GZIP:
        return _decompress_gzip(data, limit)
    view = memoryview(data)
    if codec == Compression.SNAPPY:
        return _decompress_snappy(view, limit, allocate)
    if codec == Compression.LZ4:
        return _decompress_lz4(view, limit, allocate)
    if codec == Compression.ZSTD:
        return _decompress_frame("zstd", view, _zstd_bound(view, limit), limit, allocate)
    raise CorruptRecordError(f"unknown compression codec {codec}")


def _cramjam() -> Any:
    import cramjam

    return cramjam


_own = threading.local()


def _zstd_packer(level: int) -> Any:
    """This thread's, which must not be used by two at once. One level is kept: the last."""
    kept: tuple[int, Any] | None = getattr(_own, "zstd", None)
    if kept is None or kept[0] != level:
        import zstandard

        kept = _own.zstd = (level, zstandard.ZstdCompressor(level=level))
    return kept[1]


def _too_large(codec: str, limit: int) -> DecompressionLimitError:
    return DecompressionLimitError(
        f"{codec} data expands past the limit of {limit} bytes a batch; it is damaged, hostile, "
        "or the limit must be raised"
    )


def _damaged(codec: str, why: object) -> CorruptRecordError:
    return CorruptRecordError(f"{codec} data is damaged: {why}")


def _check_parts(codec: str, parts: int, size: int) -> None:
    """Refuses data of countless tiny parts: each costs time, even an empty one.

    Producers fill the parts of a codec; even one that ends a part behind each record stays above.
    """
    if parts > _PARTS_FREE and size < parts * _PART_BYTES:
        raise _damaged(codec, f"{parts} blocks hold only {size} bytes")


# gzip -------------------------------------------------------------------------------------------


def _decompress_gzip(data: Readable, limit: int) -> bytes:
    """All members of a gzip stream; trailing zero bytes are padding (RFC 1952)."""
    parts: list[bytes] = []
    left = limit
    rest: Readable = data
    while len(parts) < _GZIP_MEMBERS_MAX:
        unpacker = zlib.decompressobj(31)
        try:
            part = unpacker.decompress(rest, left + 1)
        except zlib.error as error:
            raise _damaged("gzip", error) from None
        if len(part) > left:
            raise _too_large("gzip", limit)
        if not unpacker.eof:
            raise _damaged("gzip", "it ends in the middle of the stream")
        parts.append(part)
        left -= len(part)
        rest = unpacker.unused_data
        if not rest.strip(b"\x00"):
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise _damaged("gzip", f"it has more than {_GZIP_MEMBERS_MAX} members")


# lz4, the way out --------------------------------------------------------------------------------


def _compress_lz4(data: memoryview, out: memoryview) -> int:
    """A standard frame of blocks that are compressed to their place; the batch has the CRC."""
    start = len(_LZ4_HEADER)
    out[:start] = _LZ4_HEADER
    return start + lz4_blocks(data, out[start:])


# snappy -----------------------------------------------------------------------------------------


def _compress_snappy(data: memoryview) -> bytes:
    snappy = _cramjam().snappy
    parts: list[bytes | memoryview] = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = memoryview(snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_UINT32_BE.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _snappy_size(block: memoryview, left: int, limit: int) -> int:
    """The size that a raw snappy block says it has, if that is possible at all."""
    size = shift = 0
    for index in range(min(5, len(block))):
        size |= (block[index] & 0x7F) << shift
        shift += 7
        if block[index] < 0x80:
            break
    else:
        raise _damaged("snappy", "its size is cut off")
    # A copy of at most 64 bytes takes at least 2 bytes: no block grows more than 32 times.
    if size > 32 * len(block):
        raise _damaged("snappy", f"{len(block)} bytes cannot expand to {size}")
    if size > left:
        raise _too_large("snappy", limit)
    return size


def _decompress_snappy(data: memoryview, limit: int, allocate: Allocate) -> bytearray | memoryview:
    xerial = bytes(data[:8]) == _XERIAL_HEADER[:8]
    blocks: list[memoryview] = []
    sizes: list[int] = []
    left = limit
    for block in _xerial_blocks(data) if xerial else (data,):
        blocks.append(block)
        sizes.append(_snappy_size(block, left, limit))
        left -= sizes[-1]
        _check_parts("snappy", len(sizes), limit - left)
    library = _cramjam()
    out = allocate(limit - left)
    position = 0
    for block, size in zip(blocks, sizes, strict=True):
        target = memoryview(out)[position : position + size]
        try:
            written = library.snappy.decompress_raw_into(block, target)
        except library.DecompressionError as error:
            raise _damaged("snappy", error) from None
        if written != size:
            raise _damaged("snappy", f"a block has {written} bytes and says {size}")
        position += size
    return out


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    position = len(_XERIAL_HEADER)
    if len(data) < position:
        raise _damaged("snappy", "its header is cut off")
    while position < len(data):
        if len(data) - position < 4:
            raise _damaged("snappy", "a block's length is cut off")
        (size,) = _UINT32_BE.unpack_from(data, position)
        position += 4
        if size > len(data) - position:
            raise _damaged("snappy", f"a block of {size} bytes runs past the end")
        yield data[position : position + size]
        position += size


# lz4 and zstd: the frame's block headers bound the output ---------------------------------------


def _decompress_frame(
    name: str, data: memoryview, bound: int, limit: int, allocate: Allocate
) -> memoryview:
    """Decompresses into a buffer of `bound` bytes, which is at most `limit`."""
    library = _cramjam()
    out = allocate(bound)
    try:
        size = getattr(library, name).decompress_into(data, out)
    except library.DecompressionError as error:
        if bound == limit and "whole buffer" in str(error):
            raise _too_large(name, limit) from None
        raise _damaged(name, error) from None
    return memoryview(out)[:size]


class _Lz4Frame(NamedTuple):
    """What the headers of an lz4 frame say: its blocks as (start, size, stored as they are)."""

    blocks: list[tuple[int, int, bool]]
    block_max: int
    bound: int  # the most bytes it can hold, at most the limit
    plain: bool  # one frame of independent blocks and nothing behind it


def _lz4_frame(data: memoryview, limit: int) -> _Lz4Frame:
    """Walks the block headers of an lz4 frame, until it is known to pass `limit`."""
    if len(data) < 7 or bytes(data[:4]) != _LZ4_MAGIC:
        raise _damaged("lz4", "it does not begin with an lz4 frame")
    flags, block_code = data[4], (data[5] >> 4) & 7
    block_max = 1 << (8 + 2 * max(block_code, 4))
    checksum = 4 if flags & 0x10 else 0
    position = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    plain, bound = False, 0
    blocks: list[tuple[int, int, bool]] = []
    while bound < limit and position + 4 <= len(data):
        (word,) = _UINT32_LE.unpack_from(data, position)
        position += 4
        if word == 0:
            position += 4 if flags & 0x04 else 0
            plain = position == len(data) and flags & 0xE1 == 0x60
            bound = bound if position >= len(data) else limit
            break
        size, stored = word & 0x7FFFFFFF, word >= 0x80000000
        blocks.append((position, size, stored))
        # A compressed byte can represent at most 255 bytes of a match.
        bound += size if stored else min(block_max, 255 * size)
        position += size + checksum
        _check_parts("lz4", len(blocks), bound)
    return _Lz4Frame(blocks, block_max, min(bound, limit), plain)


def _decompress_lz4(data: memoryview, limit: int, allocate: Allocate) -> bytearray | memoryview:
    """Independent blocks, as Kafka demands them, one by one: three times as fast as the frame.

    The frame's own checksums are not looked at then: the batch has a CRC over all of it.
    """
    frame = _lz4_frame(data, limit)
    if not frame.plain:
        return _decompress_frame("lz4", data, frame.bound, limit, allocate)
    library = _cramjam()
    out = allocate(frame.bound)
    view, written = memoryview(out), 0
    for start, size, stored in frame.blocks:
        room = min(frame.block_max, frame.bound - written)
        if stored:
            if size > room:
                raise _damaged("lz4", f"a block of {size} bytes where {room} fit")
            view[written : written + size] = data[start : start + size]
            written += size
            continue
        target = view[written : written + room]
        try:
            written += library.lz4.decompress_block_into(data[start : start + size], target)
        except library.DecompressionError as error:
            raise _damaged("lz4", error) from None
    return view[:written]


def _zstd_bound(data: memoryview, limit: int) -> int:
    """The most bytes that a zstd frame can hold, by its block headers; at most `limit`."""
    if len(data) < 5 or bytes(data[:4]) != _ZSTD_MAGIC:
        raise _damaged("zstd", "it does not begin with a zstd frame")
    descriptor = data[4]
    single = bool(descriptor & 0x20)
    position = 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3]
    position += (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    bound = blocks = 0
    while bound < limit and position + 3 <= len(data):
        header = data[position] | data[position + 1] << 8 | data[position + 2] << 16
        last, kind, size = header & 1, (header >> 1) & 3, header >> 3
        bound += _ZSTD_BLOCK_BYTES if kind == 2 else size
        position += 3 + (1 if kind == 1 else size)
        blocks += 1
        _check_parts("zstd", blocks, bound)
        if last:
            after = position + (4 if descriptor & 4 else 0)
            return min(bound, limit) if after >= len(data) else limit
    return min(bound, limit)
