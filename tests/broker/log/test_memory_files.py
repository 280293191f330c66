"""Files in memory: what is appended is there in its order, and large pieces are not copied (L7)."""

from __future__ import annotations

import random

from kohort.broker.log.files import Buffer, MemoryFile
from kohort.records.implementation import allocate


def filled(size: int, byte: int) -> memoryview:
    frame = allocate(size)
    frame[:] = bytes([byte]) * size
    return frame


def test_whatever_is_appended_is_read_back() -> None:
    pick = random.Random(3)
    file, whole = MemoryFile("t"), b""
    for turn in range(60):
        buffers: list[Buffer] = []
        for _ in range(pick.randrange(4)):
            size = pick.choice((0, 1, 500, 65_535, 65_536, 90_000))
            frame = filled(size + pick.choice((0, 40, 2_000_000)), turn)
            piece = frame[len(frame) - size :]
            buffers.append(pick.choice((piece, piece.toreadonly(), bytes(piece))))
        file.append(buffers)
        whole += b"".join(buffers)
        if pick.random() < 0.1:
            size = pick.randrange(len(whole) + 1)
            file.truncate(size)
            whole = whole[:size]
        assert file.size == len(whole)
        start = pick.randrange(len(whole) + 1)
        count = pick.randrange(200_000)
        assert bytes(file.read(start, count)) == whole[start : start + count]
        assert b"".join(file.views(start, count)) == whole[start : start + count]


def test_a_large_piece_is_kept_where_it_is_and_cannot_be_written_to() -> None:
    file, frame = MemoryFile("t"), filled(100_000, 1)
    file.append([b"small", frame[80:99_000], b"and ", b"behind"])
    first, large, last = file.views(0, file.size)
    assert (bytes(first), bytes(last)) == (b"small", b"and behind")
    assert isinstance(large, memoryview)
    assert large.obj is frame.obj
    assert large.readonly


def test_a_small_piece_does_not_keep_what_it_was_received_in() -> None:
    """Of a frame whose other batches were refused little would be used for ever."""
    file, frame = MemoryFile("t"), filled(4_000_000, 1)
    file.append([frame[:1_000]])
    file.append([frame[:100_000]])
    for view in file.views(0, file.size):
        assert isinstance(view, memoryview)
        assert isinstance(view.obj, bytes)
