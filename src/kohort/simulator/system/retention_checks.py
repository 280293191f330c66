"""What must hold of a log whose beginning goes.

SY14 Retention and DeleteRecords take only the beginning of a log, retention no more than the
     topic's limit allows; what DeleteRecords has answered does not come back.
SY15 A reader misses only records that were deleted before it came to them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from kohort.client.common.types import TopicPartition
from kohort.simulator.checks.violation import Violation
from kohort.simulator.system.history import Fate, History
from kohort.simulator.system.retained import RETENTION_BYTES, WINDOW, Window


def check_retention(
    history: History, windows: Mapping[TopicPartition, Window], *, lost_power: bool
) -> None:
    """Raise the first Violation."""
    _starts(history, windows)
    if not lost_power:  # else retention may have counted bytes that the disk did not have
        _kept(history, windows)
    _read_on(history)


def _starts(history: History, windows: Mapping[TopicPartition, Window]) -> None:
    for program, place, before, first in history.wrong_starts:
        raise Violation(
            "SY14", f"{program} deleted all of {_name(place)} below {before}; it begins at {first}"
        )
    for read in history.reads:
        if read.log_start is not None and read.log_start < read.trimmed:
            raise Violation(
                "SY14",
                f"{_name(read.partition)} was deleted up to {read.trimmed} and begins at "
                f"{read.log_start} again when {read.label} reads offset {read.offset}",
            )
    for place, trimmed in history.trimmed.items():
        if place in windows and windows[place].start < trimmed:
            raise Violation(
                "SY14",
                f"{_name(place)} was deleted up to {trimmed} and begins at {windows[place].start}",
            )


def _kept(history: History, windows: Mapping[TopicPartition, Window]) -> None:
    for place, window in windows.items():
        by_retention = window.start > 0 and (place, window.start) not in history.trims
        if by_retention and window.size < RETENTION_BYTES:
            raise Violation(
                "SY14",
                f"retention has left {window.size} bytes of {_name(place)}, which may keep "
                f"{RETENTION_BYTES}",
            )


def _read_on(history: History) -> None:
    stored: dict[TopicPartition, dict[int, bytes]] = defaultdict(dict)
    for sent in history.sent:
        if sent.partition.topic == WINDOW and sent.fate is Fate.DONE:
            stored[sent.partition][sent.offset] = sent.value
    last: dict[tuple[str, TopicPartition], int] = {}
    for read in history.reads:
        known = stored[read.partition]
        if known.get(read.offset, read.value) != read.value:
            raise Violation(
                "SY7",
                f"{read.label} was given {read.value!r} at {_name(read.partition)}@{read.offset}; "
                f"{known[read.offset]!r} was acknowledged there",
            )
        key = read.label, read.partition
        if last.get(key, -1) >= read.offset:
            raise Violation(
                "SY15",
                f"{read.label} was given {_name(read.partition)}@{read.offset} after offset "
                f"{last[key]}",
            )
        last[key] = read.offset
        if read.log_start is None:
            continue
        start = max(read.log_start, read.deleted)
        first = max(read.after + 1, start)
        missed = min((o for o in known if first <= o < read.offset), default=None)
        if missed is not None:
            raise Violation(
                "SY15",
                f"{read.label} went from {read.after} to {read.offset} in "
                f"{_name(read.partition)}, which began at {start}: it was never given "
                f"{known[missed]!r}",
            )


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"
