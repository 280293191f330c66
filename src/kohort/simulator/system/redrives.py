"""Redrives of dead letters in a simulated system, as an operator runs them.

Rules:
- A redrive is run again, under the same id, until it has come to its end: after kills too.
- It mends each value, so that the handler gets a record of its own end; the id is in the value.
- A redrive that has ended sends nothing more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kohort.client.common.completion import pause
from kohort.client.common.types import TopicPartition
from kohort.errors import UsageError
from kohort.retry.headers import Header
from kohort.retry.redrive import Redrive
from kohort.simulator.checks.violation import Violation
from kohort.simulator.system.apps import HANDLERS, retry_topics
from kohort.simulator.system.history import History
from kohort.simulator.system.programs import CLIENT, Life

LAST: Final = 4
"""The number of a program's last redrive: each sends the dead letters of those before it, too."""


def mended(redrive_id: str, value: bytes) -> bytes:
    """What a redrive sends instead of a value."""
    return f"{redrive_id}>".encode() + value


def is_mended(value: bytes) -> bool:
    """Whether a redrive has sent this value."""
    return b">" in value


@dataclass(frozen=True)
class Redriven:
    """What redrives have left behind.

    Args:
        letters: the dead-letter topic: its values by partition and offset.
        sent: the values of the entry topic.
        ends: up to where each redrive goes, by id, as its commits say.
    """

    letters: Mapping[TopicPartition, Mapping[int, bytes]] = field(
        default_factory=dict[TopicPartition, Mapping[int, bytes]]
    )
    sent: tuple[bytes, ...] = ()
    ends: Mapping[str, Mapping[TopicPartition, int]] = field(
        default_factory=dict[str, Mapping[TopicPartition, int]]
    )


def redrive(life: Life) -> None:
    """Send the handlers' dead letters back, one redrive after the other."""
    history, topics = life.history, retry_topics(HANDLERS)
    while True:
        pause(life.chance.randint(200, 3_000) / 1_000)
        is_last = life.finishing()
        number = history.redrives.setdefault(life.name, 0)
        has_ended = f"{life.name}-{number}" in history.ended_redrives
        if has_ended and number < LAST and (is_last or life.chance.random() < 0.5):
            number = history.redrives[life.name] = LAST if is_last else number + 1
        redrive_id = f"{life.name}-{number}"

        def edit(
            key: bytes | None, value: bytes | None, headers: Sequence[Header], own: str = redrive_id
        ) -> tuple[bytes | None, bytes | None, Sequence[Header]]:
            return key, mended(own, value or b""), headers

        client = {"bootstrap_servers": life.bootstrap, **CLIENT}
        try:
            report = Redrive(redrive_id, topics, client, edit=edit).run(rate_per_s=8)
        except UsageError:  # nothing has failed yet
            if is_last:
                return
            continue
        if not report.finished:
            continue
        if report.sent and redrive_id in history.ended_redrives:
            history.sent_after_the_end.append((redrive_id, report.sent))
        history.ended_redrives.add(redrive_id)
        if is_last:
            return


def check_redrives(history: History, redriven: Redriven) -> None:
    """SY16: a redrive sends each dead letter that was there when it began once, and no other.

    Raise the first Violation.
    """
    for redrive_id, count in history.sent_after_the_end:
        raise Violation("SY16", f"{redrive_id} had ended, and sent {count} records more")
    for redrive_id, ends in redriven.ends.items():
        own = mended(redrive_id, b"")
        asked = Counter(
            mended(redrive_id, value)
            for place, letters in redriven.letters.items()
            for offset, value in letters.items()
            if offset < ends.get(place, 0) and not value.startswith(own)
        )
        sent = Counter(value for value in redriven.sent if value.startswith(own))
        for value, count in (sent - asked).items():
            raise Violation("SY16", f"{redrive_id} sent {value!r} {count} times too often")
        for value in asked - sent:
            raise Violation("SY16", f"{redrive_id} has passed a dead letter, not sent as {value!r}")
