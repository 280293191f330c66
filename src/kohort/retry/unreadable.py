"""Unreadable record batches: their bytes go to the dead-letter topic, reading continues.

Rules (spec 5.1, 5.6, 6.5):
- Damage is permanent: a batch is retried by the client (F6), never by a retry topic.
- One dead-letter record represents the whole batch: its offset range, the reason, and the bytes as
  fetched, so that an engineer who knows the producer can still read them.
- Where the next readable offset is unknown, nothing is guessed: the partition stops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kohort.errors import CorruptRecordError
from kohort.retry.classify import Disposition, Failure, stated
from kohort.retry.copies import Attempt, Copy, copy_for
from kohort.retry.headers import Origin
from kohort.retry.policy import RetryTopics

REASON = "unreadable_batch"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Offsets [offset, next_offset) of one partition, which no client can read.

    Args:
        why: what is damaged, for people.
        batch: the bytes of the batch as they were fetched; None where they are not known.
    """

    topic: str
    partition: int
    offset: int
    next_offset: int
    why: str
    batch: bytes | None

    @classmethod
    def of(cls, error: CorruptRecordError) -> Unreadable | None:
        """The range named by a consumer's error; None when it does not say where reading
        continues."""
        if error.topic is None or error.partition is None:
            return None
        if error.offset is None or error.next_offset is None or error.next_offset <= error.offset:
            return None
        return cls(
            error.topic, error.partition, error.offset, error.next_offset, str(error), error.batch
        )

    @property
    def offsets(self) -> str:
        """The range for people."""
        last = self.next_offset - 1
        one = f"offset {self.offset}"
        return one if last == self.offset else f"offsets {self.offset} to {last}"

    def failure(self) -> Failure:
        """Why these offsets are never handled."""
        text = f"{self.topic}-{self.partition}, {self.offsets}: {self.why}"
        return stated(
            REASON,
            permanent=True,
            message=text,
            disposition=Disposition.UNREADABLE,
            error_class="kohort.errors.CorruptRecordError",
        )

    def attempt(self, topic_id: str = "") -> Attempt:
        """The batch that replaces an unreadable record."""
        origin = Origin(self.topic, self.partition, self.offset, -1, -1, topic_id)
        place = (self.topic, self.partition, self.offset)
        return Attempt(origin, 0, place, None, self.batch, ())

    def copy(self, attempt: Attempt, topics: RetryTopics, now_ms: int) -> Copy:
        """The dead-letter record, its offset range in the headers."""
        copy, _ = copy_for(attempt, self.failure(), topics=topics, now_ms=now_ms)
        return replace(copy, retry=replace(copy.retry, origin_next_offset=self.next_offset))
