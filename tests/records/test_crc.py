"""CRC-32C against published vectors, and every path against the other (F3)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.records.conftest import IMPLEMENTATIONS

# RFC 3720, appendix B.4, and the usual check value.
VECTORS = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]
LANES = (192, 4096)
LONG = (1024, 1280, 1536, 100_096)
LENGTHS = sorted(
    {*range(40), *(3 * lane * n + d for lane in LANES for n in (1, 2) for d in (-9, -1, 0, 1, 8))}
    | {size + d for size in LONG for d in (-1, 0, 1, 255)}
)


@pytest.mark.parametrize(("data", "want"), VECTORS)
def test_published_vectors(impl: Any, data: bytes, want: int) -> None:
    assert impl.crc32c(data) == want


@pytest.mark.parametrize("length", LENGTHS)
def test_all_paths_agree_at_the_edges_of_their_lanes(length: int) -> None:
    data = random.Random(length).randbytes(length)
    paths = [module.crc32c for module in IMPLEMENTATIONS]
    paths += [m.crc32c_portable for m in IMPLEMENTATIONS if hasattr(m, "crc32c_portable")]
    assert len({path(data) for path in paths}) == 1
    assert len({path(data, 0xFFFFFFFF) for path in paths}) == 1
    assert len({path(data, 12345) for path in paths}) == 1


def test_it_goes_on_from_a_former_sum(impl: Any) -> None:
    data = random.Random(7).randbytes(100_000)
    for cut in (0, 1, 4097, 70_000, 100_000):
        assert impl.crc32c(data[cut:], impl.crc32c(data[:cut])) == impl.crc32c(data)
        assert impl.crc32c(memoryview(bytearray(data))[cut:]) == impl.crc32c(data[cut:])
