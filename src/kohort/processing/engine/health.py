"""The health of an app as text: every partition's state, lag, oldest unfinished record, and why.

Rules:
- Pure over what the engine, the gate and the consumer know at one instant; asking costs no request
  and changes nothing. Any thread may look, so figures of one partition may be of two instants.
- A partition is *moving* when nothing has to happen outside before its records are done: it is
  worked on, or read to its end. Everything else has a reason that names who can mend it; what the
  consumer has to say of a partition counts, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kohort.client.consumer.health import ConsumerHealth
from kohort.config import format_duration, format_elapsed
from kohort.processing.engine.failures import FailedAttempt
from kohort.processing.engine.partition_state import Partition

REDRIVE: Final = "redrive"
"""What the entry topic is called among the retry topics."""
PAUSED: Final = "so many records are outstanding that no more are read (max_records, max_bytes)"
RetryTopics = Mapping[tuple[str, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class AppPartitionHealth:
    """One partition. Times are milliseconds; None where something is not known (yet).

    Attributes:
        partition: (topic, number), of a source topic or of one of its retry topics.
        retry topic: "" of a source topic, else the retry topic's delay, or "redrive".
        state: its present activity, and `since_ms` for how long.
        done: every record below this offset is done.
        oldest: the offset of the oldest record that was read and is not done, and `oldest_ms` for
            how long it has been that.
        outstanding: records that were read and are not done.
        lag: records that are not done: those, and those that were not read.
        due: of a retry topic, how many that are due were not read.
        circuit: of a source topic: closed, open, half-open.
        why: why it is not moving; "" when it is.
    """

    partition: tuple[str, int]
    retry_topic: str
    state: str
    since_ms: int
    done: int
    oldest: int | None
    oldest_ms: int
    outstanding: int
    lag: int | None
    due: int | None
    circuit: str
    why: str

    @property
    def moving(self) -> bool:
        """True when nothing is in its way."""
        return not self.why

    def __str__(self) -> str:
        lag = "unknown" if self.lag is None else f"{self.lag:,}"
        parts = [f"{self.state} for {format_elapsed(self.since_ms)}", f"lag {lag}"]
        if self.due:
            parts.append(f"{self.due:,} due")
        if self.oldest is not None:
            parts.append(f"offset {self.oldest} unfinished for {format_elapsed(self.oldest_ms)}")
        if self.why:
            parts.append(self.why)
        return f"{self.partition[0]}-{self.partition[1]}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of one kind, how many of them have something, and how many records that are."""

    workers: int
    busy: int
    records: int


@dataclass(frozen=True, slots=True)
class Retries:
    """What waits for its next try, in the retry topics of this member and in memory.

    Attributes:
        waiting: records; those in partitions whose lag is not known yet are left out.
        due: how many of them are due.
        next_due_in_ms: in how many milliseconds the next one is due; None: not known, or none.
    """

    waiting: int
    due: int
    next_due_in_ms: int | None

    def __str__(self) -> str:
        parts = ["1 record waits" if self.waiting == 1 else f"{self.waiting:,} records wait"]
        if self.due:
            parts.append(f"{self.due:,} due")
        if self.next_due_in_ms is not None:
            parts.append(f"next due in {format_elapsed(self.next_due_in_ms)}")
        return f"retries: {', '.join(parts)} (`kohort retry list` shows which, and why)"


def retries_in(
    partitions: Sequence[AppPartitionHealth], in_place: int, next_due_ms: int | None, now_ms: int
) -> Retries:
    """What waits, by the partitions of retry topics and by what waits in memory."""
    retry_topics = [each for each in partitions if each.retry_topic]
    waiting = sum(each.lag or 0 for each in retry_topics)
    due = sum((each.due or 0) + each.outstanding for each in retry_topics)
    left = None if next_due_ms is None else max(0, next_due_ms - now_ms)
    return Retries(waiting + in_place, due, left)


@dataclass(frozen=True, slots=True)
class AppHealth:
    """An app at one instant.

    Attributes:
        running: whether it runs; else all is empty, but for what it waits for before it begins.
        workers: by kind: threads, tasks, processes.
        partitions: every assigned partition of source topics and retry topics.
        concerns: what is wrong outside, with no partition in particular.
        consumer: the membership, and what is read.
        retries: what waits for its next try; None while it does not run.
        last_failure: the last failed attempt since it began, at `now_ms` when looked at.
    """

    group: str
    running: bool
    workers: Mapping[str, Workers]
    partitions: Sequence[AppPartitionHealth]
    concerns: Sequence[str]
    consumer: ConsumerHealth | None
    retries: Retries | None = None
    last_failure: FailedAttempt | None = None
    now_ms: int = 0

    @property
    def moving(self) -> bool:
        """True when nothing is in anybody's way."""
        return not self.concerns and all(each.moving for each in self.partitions)

    def __str__(self) -> str:
        if not self.running:
            return "\n".join([f"app {self.group} does not run", *self._lines()])
        moving = sum(each.moving for each in self.partitions)
        parts = [f"{moving} of {len(self.partitions)} partitions are moving"]
        parts += [f"{w.busy} of {w.workers} {kind} are busy" for kind, w in self.workers.items()]
        first = f"app {self.group}: {', '.join(parts)}"
        return "\n".join([first, *self._lines(), *map(str, self.partitions)])

    def _lines(self) -> list[str]:
        lines = [f"trouble: {concern}" for concern in self.concerns]
        if self.retries is not None and self.retries.waiting:
            lines.append(str(self.retries))
        if self.last_failure is not None:
            ago = format_elapsed(max(0, self.now_ms - self.last_failure.failed_ms))
            lines.append(f"last failure {ago} ago: {self.last_failure}")
        return lines


@dataclass(frozen=True, slots=True)
class Reading:
    """How far a partition is read.

    Args:
        unread: records that were not read yet; None: not known yet.
        due: of a retry topic, how many of these are due.
        why: why it is not read on, as the consumer says.
    """

    unread: int | None = None
    due: int | None = None
    why: str = ""


def positions_in(consumer: ConsumerHealth) -> dict[tuple[str, int], int]:
    """Where every partition was read at the instant at which the consumer was looked at."""
    return {
        (each.partition.topic, each.partition.partition): each.position
        for each in consumer.partitions
        if each.position is not None
    }


def reading(consumer: ConsumerHealth, retry_topics: RetryTopics) -> dict[tuple[str, int], Reading]:
    """How far every partition is read; `retry topics`: unread records and due ones of theirs."""
    readings: dict[tuple[str, int], Reading] = {}
    for each in consumer.partitions:
        key = (each.partition.topic, each.partition.partition)
        why = PAUSED if each.paused else "" if each.at_bound else each.why  # the gate's bound
        if key not in retry_topics:
            readings[key] = Reading(each.lag, None, why)
            continue
        unread, due = retry_topics[key]
        readings[key] = Reading(unread, due, why)
    return readings


def examine(partition: Partition, now_ms: int, read: Reading) -> AppPartitionHealth:
    """One partition at this instant."""
    tracker, status, since_ms = partition.tracker, partition.status, partition.status_since_ms
    if (present := partition.present_status()) is not status:
        status, since_ms = present, now_ms
    delay_ms, head = partition.delay_ms, tracker.head
    # A retry topic is read up to what is due: only that can be held up.
    ready = read.unread if partition.is_source else read.due
    not_read = read.why if ready and not partition.outstanding else ""
    return AppPartitionHealth(
        partition=partition.key,
        retry_topic="" if delay_ms is None else format_duration(delay_ms) if delay_ms else REDRIVE,
        state=status.value,
        since_ms=max(0, now_ms - since_ms),
        done=tracker.base,
        oldest=head,
        oldest_ms=0 if head is None else max(0, now_ms - partition.head_since_ms),
        outstanding=partition.outstanding,
        lag=None if read.unread is None else read.unread + partition.outstanding,
        due=read.due,
        circuit=partition.circuit.state.value if partition.is_source else "",
        why=partition.why_stopped(now_ms) or not_read,
    )
