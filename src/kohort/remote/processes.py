"""Processes by their last status: which of them run, and which are gone.

Rules:
- A process is gone when its status is older than `MISSED` of its intervals. The time is the
  broker's, of the record, against the newest record of all: clocks of machines are not compared.
- One that has ended leaves a tombstone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from kohort.remote.messages import MessageFault, ProcessStatus, decode_status

MISSED: Final = 4
GRACE_MS: Final = 5_000


class Stored(Protocol):
    """The part of a record that is read."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def timestamp(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Process:
    """One process.

    Attributes:
        status: what it has status last.
        seen_ms: when that was stored.
        silent_ms: for how long it has status nothing.
    """

    status: ProcessStatus
    seen_ms: int
    silent_ms: int

    @property
    def gone(self) -> bool:
        """Whether it has missed its turn so often that it has probably ended or hangs."""
        return self.silent_ms > MISSED * self.status.interval_ms + GRACE_MS

    @property
    def state(self) -> str:
        """Its state, or `gone`."""
        return "gone" if self.gone else self.status.state

    def __str__(self) -> str:
        status = self.status
        return f"{status.process} ({status.kind} {status.group}): {self.state}"


def processes(records: Iterable[Stored], now_ms: int) -> list[Process]:
    """Every process in a status topic, by group and name.

    Args:
        records: of the topic, oldest first.
        now_ms: the present time of the reader, for topics whose last record is old.
    """
    last: dict[bytes, tuple[ProcessStatus, int]] = {}
    newest_ms = 0
    for record in records:
        newest_ms = max(newest_ms, record.timestamp)
        key = record.key or b""
        if not record.value:
            last.pop(key, None)
            continue
        try:
            last[key] = decode_status(record.value), record.timestamp
        except MessageFault:  # another program's record, or another version's
            continue
    at_ms = max(newest_ms, now_ms)
    found = [Process(status, ms, max(0, at_ms - ms)) for status, ms in last.values()]
    return sorted(found, key=lambda one: (one.status.group, one.status.process))
