"""Programs over a topic whose beginning goes: by retention, and by DeleteRecords.

Rules:
- A record that was acknowledged is there until the log start passes it; where the log starts at a
  moment is read from the broker itself.
- A reader that was passed begins again at the log start, and misses nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kohort.client.admin.admin import Admin
from kohort.client.common.completion import pause
from kohort.client.common.types import TopicPartition
from kohort.errors import KohortError
from kohort.simulator.system.history import Fate, Read, Sent
from kohort.simulator.system.programs import CLIENT, Life, send

WINDOW: Final = "window"
RETENTION_BYTES: Final = 2_000
SEGMENT_BYTES: Final = 600
CHECK_INTERVAL_MS: Final = 900
_PADDING: Final = b"." * 40
_FETCH_BYTES: Final = 500
"""Little at a time: a slow reader is passed before its next fetch."""


@dataclass(frozen=True)
class Window:
    """A partition of the topic at the end: where its log starts, and its bytes."""

    start: int
    size: int


async def fill(life: Life) -> None:
    """Send numbered records to the topic, faster than its retention allows them to stay."""
    async with life.producer(linger_ms=life.chance.choice((0, 20))) as producer:
        number = 0
        while not life.finishing():
            for _ in range(life.chance.randint(1, 5)):
                value = f"{life.label}:{number}".encode() + _PADDING
                await send(life, producer, Sent(life.label, number, life.partition(WINDOW), value))
                number += 1
            await life.pause(200)


async def trail(life: Life) -> None:
    """Read the topic slowly from the last commit, or from the log start where that is gone."""
    history = life.history
    consumer = life.consumer(
        group_id=life.name,
        isolation_level="read_uncommitted",
        enable_auto_commit=False,
        max_partition_fetch_bytes=_FETCH_BYTES,
    )
    places = [TopicPartition(WINDOW, index) for index in range(life.partitions[WINDOW])]
    after: dict[TopicPartition, int] = {}
    async with consumer:
        await consumer.assign(places)
        while True:
            passed: dict[TopicPartition, int] = {}
            for record in await consumer.poll(0.5):
                place = TopicPartition(record.topic, record.partition)
                # It began at a commit of this program, whose lives may overlap; answered or not.
                began = history.positions.get((life.name, place), 0) - 1
                history.reads.append(
                    Read(
                        life.name,
                        life.label,
                        place,
                        record.offset,
                        record.value or b"",
                        after.get(place, began),
                        life.log_start(place),
                        history.trimmed.get(place, 0),
                        life.deleted(place),
                    )
                )
                after[place] = record.offset
                passed[place] = record.offset + 1
            await _linger(life)
            if passed and life.chance.random() < 0.5:
                for place, offset in passed.items():
                    key = life.name, place
                    history.positions[key] = max(history.positions.get(key, 0), offset)
                await consumer.commit(passed)


async def _linger(life: Life) -> None:
    """Now and then until retention passes."""
    if life.finishing():
        await life.pause(10)
    else:
        await life.pause(4_000 if life.chance.random() < 0.2 else 300)


def trim(life: Life) -> None:
    """Delete records before an acknowledged offset, again and again."""
    history = life.history
    with Admin(bootstrap_servers=life.bootstrap, **CLIENT) as admin:
        while not life.finishing():
            pause(life.chance.randint(200, 2_500) / 1_000)
            place = life.partition(WINDOW)
            stored = [
                sent.offset
                for sent in history.sent
                if sent.partition == place and sent.fate is Fate.DONE
            ]
            if not stored:
                continue
            before = life.chance.choice(stored[-20:])
            history.trims.add((place, before))
            try:
                first = admin.delete_records({place: before})[place]
            except KohortError:
                continue  # done, or not
            history.trimmed[place] = max(history.trimmed.get(place, 0), before)
            if first < before:
                history.wrong_starts.append((life.label, place, before, first))
