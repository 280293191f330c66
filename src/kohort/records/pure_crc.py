"""CRC-32C in pure Python: four bytes a step, by two tables of 65,536 (built at the first use)."""

from __future__ import annotations

from functools import cache
from struct import unpack_from

from kohort.records.layout import Readable

_POLYNOMIAL = 0x82F63B78
_WORDS_A_STEP = 4096


@cache
def _tables() -> tuple[list[int], list[int], list[int]]:
    """For one byte, and for the low and the high half of a word of four bytes."""
    byte_table: list[int] = []
    for value in range(256):
        crc = value
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        byte_table.append(crc)

    def over(crc: int) -> int:
        return (crc >> 8) ^ byte_table[crc & 0xFF]

    high = [over(over(value)) for value in range(65_536)]
    low = [over(over(crc)) for crc in high]
    return byte_table, low, high


def crc32c(data: Readable, crc: int = 0) -> int:
    """CRC-32C of `data`, continued from `crc`."""
    byte_table, low, high = _tables()
    crc ^= 0xFFFFFFFF
    words = len(data) // 4
    for start in range(0, words, _WORDS_A_STEP):
        count = min(_WORDS_A_STEP, words - start)
        for word in unpack_from(f"<{count}I", data, 4 * start):
            crc ^= word
            crc = low[crc & 0xFFFF] ^ high[crc >> 16]
    for byte in data[4 * words :]:
        crc = (crc >> 8) ^ byte_table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
