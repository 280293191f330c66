"""Kafka's small text files: offsets by partition, and leader epochs. Pure text in and out.

A checkpoint is `0`, the number of lines, then the lines. One that does not read back whole is
treated as absent: everything in it can be found again from the log, only more slowly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

_VERSION = "0"
TopicPartition = tuple[str, int]


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """`recovery-point-offset-checkpoint` and `log-start-offset-checkpoint`."""
    return _encode([f"{topic} {p} {offset}" for (topic, p), offset in sorted(offsets.items())])


def decode_offsets(data: bytes | None) -> dict[TopicPartition, int]:
    """The offsets of a checkpoint file; empty when it is missing or damaged."""
    offsets: dict[TopicPartition, int] = {}
    for line in _lines(data):
        parts = line.split(" ")
        if len(parts) != 3 or not parts[1].isdigit() or not parts[2].isdigit():
            return {}
        offsets[parts[0], int(parts[1])] = int(parts[2])
    return offsets


def encode_segments(segments: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    """What a clean shutdown leaves: the base offsets of each log's segments, then its end."""
    return _encode(
        [f"{topic} {p} {','.join(map(str, s))}" for (topic, p), s in sorted(segments.items())]
    )


def decode_segments(data: bytes | None) -> dict[TopicPartition, list[int]]:
    """The offsets of `encode_segments`; empty when the file is missing, damaged or of Kafka."""
    segments: dict[TopicPartition, list[int]] = {}
    for line in _lines(data):
        parts = line.split(" ")
        offsets = parts[-1].split(",")
        if len(parts) != 3 or not all(each.isdigit() for each in (parts[1], *offsets)):
            return {}
        segments[parts[0], int(parts[1])] = [int(each) for each in offsets]
    return segments


def missing_offsets(offsets: Sequence[int], there: Collection[int]) -> list[tuple[int, int]]:
    """The offsets whose segment file is gone, as `(first, behind the last)`.

    Args:
        offsets: Base offsets of the segments that there were, then the end of the log.
        there: Base offsets of the segments that there are.
    """
    return [(base, end) for base, end in pairwise(offsets) if base not in there and base < end]


class LeaderEpochs:
    """Which leader epoch began at which offset (KIP-101); `leader-epoch-checkpoint`."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []

    @property
    def latest(self) -> int:
        """The newest epoch, -1 before the first."""
        return self.entries[-1][0] if self.entries else -1

    def begin(self, epoch: int, start_offset: int) -> bool:
        """An epoch begins at an offset; False when it had begun before."""
        if epoch <= self.latest:
            return False
        self.entries = [e for e in self.entries if e[1] < start_offset]
        self.entries.append((epoch, start_offset))
        return True

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """`(epoch, end offset)` for OffsetForLeaderEpoch: the largest known epoch at or below it.

        One below all that are known ended before the first of them began, as Apache Kafka has it:
        it wrote nothing, or nothing is left of it. (-1, -1) above them.
        """
        if epoch == self.latest:
            return epoch, log_end
        if self.entries and 0 <= epoch < self.entries[0][0]:
            return epoch, self.entries[0][1]
        epoch_end = (-1, -1)
        for at, (known, _) in enumerate(self.entries):
            if known > epoch:
                break
            end = self.entries[at + 1][1] if at + 1 < len(self.entries) else log_end
            epoch_end = (known, end)
        return epoch_end if epoch < self.latest else (-1, -1)

    def truncate_to(self, log_end: int) -> None:
        """Forget the epochs that began beyond the end of the log."""
        self.entries = [e for e in self.entries if e[1] <= log_end]

    def at(self, offset: int) -> int:
        """The epoch in which a record at `offset` was written."""
        epoch_at = -1
        for epoch, start in self.entries:
            if start > offset:
                break
            epoch_at = epoch
        return epoch_at

    def encode(self) -> bytes:
        return _encode([f"{epoch} {start}" for epoch, start in self.entries])

    def restore(self, data: bytes | None) -> None:
        """Take the content of a checkpoint file; nothing when it is missing or damaged."""
        entries: list[tuple[int, int]] = []
        for line in _lines(data):
            parts = line.split(" ")
            if len(parts) != 2 or not all(p.isdigit() for p in parts):
                return
            entries.append((int(parts[0]), int(parts[1])))
        self.entries = entries


def _encode(lines: list[str]) -> bytes:
    return "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()


def _lines(data: bytes | None) -> list[str]:
    if data is not None and not data.endswith(b"\n"):
        return []  # torn, perhaps within its last number
    lines = (data or b"").decode("utf-8", "replace").splitlines()
    if len(lines) < 2 or lines[0] != _VERSION or lines[1] != str(len(lines) - 2):
        return []
    return lines[2:]
