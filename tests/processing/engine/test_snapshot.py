"""The text beside a committed offset: sizes, damage, and that it always fits (W1)."""

from __future__ import annotations

import base64
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.processing.engine.snapshot import (
    MAX_CHARS,
    PREFIX,
    Snapshot,
    SnapshotError,
    capacity,
    decode,
    encode,
)
from kohort.processing.engine.tracker import PartitionTracker


def ranges(base: int, done: set[int]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for offset in sorted(done):
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return tuple(found)


@given(
    base=st.integers(0, 1 << 40),
    done=st.sets(st.integers(1, 4_000)),
    crashes=st.integers(0, 300),
    ahead=st.integers(-1, 5_000),
)
def test_round_trip(base: int, done: set[int], crashes: int, ahead: int) -> None:
    suspect = -1 if ahead < 0 else base + ahead
    snapshot = Snapshot(ranges(base, {base + d for d in done}), crashes, suspect)
    assert decode(base, encode(base, snapshot)) == snapshot


def test_nothing_to_say_is_no_text() -> None:
    assert encode(7, Snapshot()) == ""
    assert decode(7, "") == Snapshot()


def test_a_text_beside_another_offset_is_found_out() -> None:
    """PC#894: payload and offset of different instants would skip a record."""
    text = encode(100, Snapshot(((101, 105),)))
    with pytest.raises(SnapshotError, match="another offset"):
        decode(101, text)


@given(st.binary(max_size=40), st.integers(0, 1 << 33))
def test_damage_is_one_typed_error(raw: bytes, base: int) -> None:
    text = encode(base, Snapshot(((base + 2, base + 90), (base + 95, base + 99))))
    damaged = text[:5] + raw.hex() + text[9:]
    try:
        found = decode(base, damaged)
    except SnapshotError:
        return
    assert damaged == text
    assert found.done


@pytest.mark.parametrize("text", ["x", "ko1.", "ko1.!!!!", "ko1.AAAA", "\x01\x02streams"])
def test_foreign_metadata_is_not_believed(text: str) -> None:
    """PC#909: taking undecodable metadata as "the base is done" skips one record."""
    with pytest.raises(SnapshotError):
        decode(5, text)


def test_sizes() -> None:
    """Measured sizes: one stuck record costs a few bytes."""
    assert len(encode(0, Snapshot(((1, 50_001),)))) < 30
    slow = set(random.Random(1).sample(range(1, 10_000), 16))
    assert len(encode(0, Snapshot(ranges(0, set(range(1, 10_000)) - slow)))) < 90
    one_percent = set(random.Random(2).sample(range(1, 20_000), 200))
    assert len(encode(0, Snapshot(ranges(0, set(range(1, 20_000)) - one_percent)))) < 480


@pytest.mark.parametrize("seed", range(5))
def test_the_window_always_fits(seed: int) -> None:
    """The never-drop bound: whatever is done in the window, the text fits."""
    window = capacity().offsets
    assert window > 24_000
    chance = random.Random(seed)
    done = {o for o in range(1, window) if chance.random() < (0.5, 0.1, 0.9, 0.3, 0.7)[seed]}
    snapshot = Snapshot(ranges(0, done), crashes=9, suspect=window - 1)
    assert len(encode(0, snapshot)) <= MAX_CHARS


def test_few_unfinished_always_fit_in_a_wide_window() -> None:
    unfinished = set(random.Random(3).sample(range(1, 1 << 21), capacity().runs - 1))
    gaps = sorted(unfinished | {0})
    done = tuple((a + 1, b) for a, b in zip(gaps, [*gaps[1:], 1 << 21], strict=True) if a + 1 < b)
    text = encode(0, Snapshot(done))
    assert len(text) <= MAX_CHARS
    assert decode(0, text).done == done


def test_too_long_is_refused() -> None:
    chance = random.Random(4)
    done = ranges(0, {o for o in range(1, 4_000) if chance.random() < 0.5})
    with pytest.raises(SnapshotError, match="characters of 64"):
        encode(0, Snapshot(done), 64)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (bytes([7, 2]), "unknown encoding 7"),
        (bytes([1, 2, 1, 5]), "runs past its span of 2"),
        (bytes([2, 2, 0b1000]), "runs past its span of 2"),
        (bytes([1, *[0xFF] * 5, 0x7F]), "ends inside a number"),
        (bytes([3, 2, 1, 2, 3]), "is damaged"),
    ],
    ids=["later version", "runs", "bitmap", "number", "zip"],
)
def test_a_text_that_this_version_would_not_write_is_told_not_believed(raw, message) -> None:
    """W1: of a later version or a foreign tool, its checksum in order. Half of it would be worse
    than nothing: what it calls done would never be handled."""
    sealed = raw + (zlib.crc32(raw, zlib.crc32((40).to_bytes(8, "big")))).to_bytes(4, "big")
    text = PREFIX + base64.urlsafe_b64encode(sealed).decode().rstrip("=")
    with pytest.raises(SnapshotError, match=message):
        decode(40, text)
    tracker = PartitionTracker(1, 40, text)
    assert message in tracker.unreadable
    assert tracker.polled([40, 41], 42) == [40, 41]
