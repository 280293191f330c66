"""Sending records of the dead-letter topic back for another round (spec 5.6, A2).

    choice = Choice(reason="down", since_ms=...)
    redrive = Redrive("2026-11-21-down", topics, client, choice)
    redrive.preview()                   # the records to send, by kind; nothing is changed
    redrive.run(rate_per_s=100)         # again with the same id: continues where it stopped

Rules:
- The copies go to the group's own entry topic, never to the source: no other group reads them
  again. A retry topic, or any other topic, can be chosen instead. Nothing is ever deleted.
- Progress is a group of its own, `redrive.ID`: its commits say how far each partition has been gone
  through, and beside them up to where this redrive goes, which its first run decided. So it can be
  stopped and continued, and a second run of a finished one does nothing (R9).
- A page's copies and the commit that passes it are one transaction, whose id is the redrive's
  (`redrive.ID.FAILED-TOPIC`): after a crash every sent record is passed, and of two runs at once
  the second continues where the first was, and the first ends (KIP-98's fence). That holds for
  readers of committed records from the target, as `App`.
- A record that was redriven by this id and failed again is not sent again by it.
- A stub's value is read at its origin; when it is gone there, the record is skipped and reported.
  When it is not known whether it is gone, the run ends, and nothing of the page is passed.
- What is too large for the target is skipped and reported: it would abort its page in every run.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kohort.client.admin.admin import Admin
from kohort.client.common import arguments
from kohort.client.common.completion import pause, steady_s, wall_ms
from kohort.client.common.config import AdminConfig, ConsumerConfig, ProducerConfig, known_to
from kohort.client.common.types import OffsetAndMetadata, TopicPartition
from kohort.client.consumer.consumer import Consumer
from kohort.client.producer.producer import Producer
from kohort.config import format_duration
from kohort.errors import BrokerError, ConfigError, ErrorCode, FencedError, UsageError
from kohort.records import Record
from kohort.retry.classify import Disposition
from kohort.retry.copies import Attempt, Copy, is_stub, redrive_copy
from kohort.retry.headers import Header, HeaderFault, RetryHeaders, parse
from kohort.retry.origins import Origins
from kohort.retry.policy import RetryTopics
from kohort.retry.reading import pages_between
from kohort.retry.size_limit import SizeLimit
from kohort.retry.topics import MAX_MESSAGE_BYTES

GROUP_PREFIX: Final = "redrive."
PAGE_RECORDS: Final = 500
STOP_POLL_S: Final = 0.1
_PROGRESS: Final = re.compile(r"redrive end=(\d+)")

Edit = Callable[
    [bytes | None, bytes | None, Sequence[Header]],
    "tuple[bytes | None, bytes | None, Sequence[Header]] | None",
]
"""(key, value, headers) to what is to be sent instead; None leaves the record where it is."""
Backs = Callable[[Record, RetryHeaders], bool]
"""Whether a copy is the one that counts; a ledger knows."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which failures; what is None or empty chooses all.

    Args:
        offsets: ranges [start, end) of the dead-letter topic's offsets, by partition.
    """

    reason: str | None = None
    error_class: str | None = None
    fingerprint: str | None = None
    since_ms: int | None = None
    offsets: Mapping[int, Sequence[tuple[int, int]]] = field(
        default_factory=dict[int, Sequence[tuple[int, int]]]
    )

    def takes(self, record: Record, retry: RetryHeaders) -> bool:
        """Whether this copy is chosen."""
        pairs = (
            (self.reason, retry.reason),
            (self.error_class, retry.error_class),
            (self.fingerprint, retry.fingerprint),
        )
        if any(wanted is not None and wanted != value for wanted, value in pairs):
            return False
        if self.since_ms is not None and retry.last_failed_at_ms < self.since_ms:
            return False
        if not self.offsets:
            return True
        ranges = self.offsets.get(record.partition, ())
        return any(start <= record.offset < end for start, end in ranges)


@dataclass(slots=True)
class Report:
    """What a redrive has done, or would do."""

    sent: int = 0
    """Copies that were sent and acknowledged."""
    not_chosen: int = 0
    inert: int = 0
    """Copies that no ledger row backs, and records that are none of ours."""
    again: int = 0
    """Records that this redrive sent before and that failed again."""
    left_by_edit: int = 0
    value_gone: int = 0
    """Stubs whose value is no longer at their origin."""
    too_large: int = 0
    """Records over the target's max.message.bytes or the client's max_request_size."""
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """(reason, error class) of what was sent."""
    unreadable: int = 0
    """Batches that could not be read: no handler gets their bytes as a record."""
    finished: bool = False
    """Everything up to the end that the first run decided has been gone through."""


class Redrive:
    """One redrive, known by its id.

    Args:
        redrive_id: letters, digits, `.`, `_`, `-`; the same id continues the same redrive.
        topics: the retry topics of (source topic, group).
        client: the clients' configuration, in Kafka's names.
        target: "entry", "retry:30m", or "topic:NAME".
        edit: changes, or leaves out, each record before it is sent; an error of it ends the run
            with UsageError.
        backs: a ledger's word on which copies count.
    """

    def __init__(
        self,
        redrive_id: str,
        topics: RetryTopics,
        client: Mapping[str, Any],
        choice: Choice | None = None,
        *,
        target: str = "entry",
        edit: Edit | None = None,
        backs: Backs | None = None,
    ) -> None:
        if not redrive_id or not all(c.isalnum() or c in "._-" for c in redrive_id):
            raise ConfigError(
                f"redrive id {redrive_id!r}: use letters, digits, dots, underscores and dashes; "
                "it is part of a group's name"
            )
        self.id = redrive_id
        self.group = f"{GROUP_PREFIX}{redrive_id}"
        self._topics = topics
        self._client = dict(client)
        self._choice = choice or Choice()
        self._target, self._number = _target(topics, target)
        self._edit = edit
        self._backs = backs
        self._stop = False
        self._starts: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._limit = SizeLimit(self._producer_config(), None)

    def stop(self) -> None:
        """End the present run after the current page; the same id continues later. Any thread."""
        self._stop = True

    def cancel(self) -> None:
        """Forget its progress: the id starts over. Sent records stay sent.

        A run that is under way ends with FencedError, and sends nothing more.
        """
        with self._producer() as producer:
            producer.init_transactions()
        with Admin(**known_to(AdminConfig, self._client)) as admin:
            passed, failed = admin.list_group_offsets(self.group), self._topics.dead_letter
            mine = [at for at in passed if at.topic == failed]
            if mine:  # those of other topics are of other redrives, though their id is the same
                admin.delete_group_offsets(self.group, mine)

    def preview(self) -> Report:
        """Go through everything that a run would, and send nothing."""
        report = Report()
        with self._consumer() as consumer, Origins(self._client) as origins:
            for page in self._pages(consumer):
                for _ in self._copies(origins, page, report):
                    report.sent += 1
        return report

    def run(
        self,
        *,
        rate_per_s: float | None = None,
        on_progress: Callable[[Report], None] | None = None,
    ) -> Report:
        """Send what is chosen, at most `rate_per_s` records a second and no more of them at once.

        Raises what the producer raises for a copy that is refused; then nothing of its page is
        sent, and the next run begins there. Raises FencedError when another run of this id has
        begun meanwhile: that one continues from where this one was. Raises KafkaTimeoutError when
        the value of a stub does not come, though it is not known to be gone.
        """
        self._stop = False
        report, started = Report(), steady_s()
        with (
            self._consumer() as consumer,
            Origins(self._client) as origins,
            self._producer() as producer,
            self._fencing_explained(),
        ):
            count = self._counts()[self._target]
            producer.init_transactions()  # before the progress is read: it is ours from here on
            at_once = min(PAGE_RECORDS, max(1, int(rate_per_s))) if rate_per_s else PAGE_RECORDS
            for page in self._pages(consumer, at_once):
                copies = list(self._copies(origins, page, report))
                with producer.transaction():
                    for copy in copies:
                        partition = copy.partition_hint % count
                        producer.send(
                            copy.topic, copy.value, copy.key, partition, headers=copy.headers
                        )
                    self._pass(consumer, producer)
                report.sent += len(copies)
                if on_progress is not None:
                    on_progress(report)
                if rate_per_s:
                    self._wait_until(started + report.sent / rate_per_s)
                if self._stop:
                    return report
            if self._ends:
                with producer.transaction():
                    self._pass(consumer, producer)
        report.finished = True
        return report

    # -- inside ----------------------------------------------------------------------------------

    def _consumer(self) -> Consumer:
        ours = {
            "group_id": self.group,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "allow_auto_create_topics": False,
            # A copy of a transaction that was aborted never failed.
            "isolation_level": "read_committed",
        }
        mine = known_to(ConsumerConfig, self._client)
        return Consumer(ConsumerConfig.from_mapping({**mine, **ours}))

    def _producer(self) -> Producer:
        ours = {"acks": "all", "transactional_id": f"{self.group}.{self._topics.dead_letter}"}
        return Producer(self._producer_config(**ours))

    def _producer_config(self, **ours: Any) -> ProducerConfig:
        mine = known_to(ProducerConfig, self._client)
        return ProducerConfig.from_mapping({"max_request_size": 16 << 20, **mine, **ours})

    @contextlib.contextmanager
    def _fencing_explained(self) -> Generator[None]:
        try:
            yield
        except FencedError as error:
            raise FencedError(
                error.code,
                f"redrive {self.id}: another run of it has begun, or it was cancelled; this one "
                "ends here, and has sent nothing that the other does not know of",
            ) from error

    def _counts(self) -> dict[str, int]:
        """Partitions of the dead-letter topic and the target. Raises UsageError if missing."""
        with Admin(**known_to(AdminConfig, self._client)) as admin:
            counts = {topic.name: topic.partition_count for topic in admin.list_topics()}
        if self._topics.dead_letter not in counts:
            raise UsageError(
                f"{self._topics.dead_letter} does not exist: nothing of {self._topics.topic!r} has "
                f"failed in group {self._topics.group!r}"
            )
        if self._target not in counts:
            raise UsageError(
                f"{self._target} does not exist, so no program would read the records; it is "
                "created when the program that retries is started"
            )
        return counts

    def _limit_of_target(self) -> SizeLimit:
        """How large a copy may be. A client that may not ask the topic knows its own limit only."""
        with Admin(**known_to(AdminConfig, self._client)) as admin:
            try:
                entry = admin.describe_configs(self._target).get(MAX_MESSAGE_BYTES)
            except BrokerError as error:
                if error.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    raise
                entry = None
        value = None if entry is None else entry.value
        return SizeLimit(self._producer_config(), None if value is None else int(value))

    def _wait_until(self, time_s: float) -> None:
        """Wait for a time of the monotonic clock, or until the run is stopped."""
        while not self._stop and (left_s := time_s - steady_s()) > 0:
            pause(min(left_s, STOP_POLL_S))

    def _pages(self, consumer: Consumer, at_once: int = PAGE_RECORDS) -> Iterator[list[Record]]:
        """The dead-letter topic from this redrive's position to its end, a page at a time."""
        counts = self._counts()
        self._limit = self._limit_of_target()
        failed = self._topics.dead_letter
        partitions = [TopicPartition(failed, number) for number in range(counts[failed])]
        committed = consumer.committed(partitions)
        ends = consumer.end_offsets(partitions)
        firsts = consumer.beginning_offsets(partitions)
        self._starts, self._ends = {}, {}
        for tp in partitions:
            known = committed.get(tp)
            progress = None if known is None else _PROGRESS.match(known.metadata)
            self._ends[tp] = ends[tp] if progress is None else min(int(progress[1]), ends[tp])
            self._starts[tp] = max(firsts[tp], 0 if known is None else known.offset)
        yield from pages_between(consumer, self._starts, self._ends, at_once)

    def _copies(self, origins: Origins, page: Sequence[Record], report: Report) -> Iterator[Copy]:
        """What is to be sent for a page."""
        now_ms = wall_ms()
        for record in page:
            try:
                retry = parse(record.headers)
            except HeaderFault:
                report.inert += 1
                continue
            if self._backs is not None and not self._backs(record, retry):
                report.inert += 1
            elif retry.redrive_id == self.id:
                report.again += 1
            elif not self._choice.takes(record, retry):
                report.not_chosen += 1
            elif retry.disposition is Disposition.UNREADABLE:
                report.unreadable += 1
            else:
                copy = self._copy(origins, record, retry, report, now_ms)
                if copy is not None and not self._limit.takes(copy):
                    report.too_large += 1
                elif copy is not None:
                    report.kinds[retry.reason, retry.error_class] += 1
                    yield copy

    def _copy(
        self, origins: Origins, record: Record, retry: RetryHeaders, report: Report, now_ms: int
    ) -> Copy | None:
        key, value, headers = record.key, record.value, tuple(record.headers)
        if is_stub(headers):
            original = origins.record(retry.origin)
            if original is None:
                report.value_gone += 1
                return None
            value = original.value
        if self._edit is not None:
            edited = _edited(self._edit, record, value)
            if edited is None:
                report.left_by_edit += 1
                return None
            key, value, headers = edited
        place = (record.topic, record.partition, record.offset)
        attempt = Attempt(retry.origin, retry.number, place, key, value, headers, retry)
        return redrive_copy(
            attempt,
            topics=self._topics,
            redrive_id=self.id,
            now_ms=now_ms,
            topic=self._target,
            number=self._number,
        )

    def _pass(self, consumer: Consumer, producer: Producer) -> None:
        """How far it has come, and beside that its end, into the transaction that is open."""
        positions, assigned = consumer.positions(), set(consumer.assignment())
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for tp, end in self._ends.items():
            # A partition that is not assigned had nothing to read.
            reached = positions.get(tp, self._starts[tp]) if tp in assigned else end
            offsets[tp] = OffsetAndMetadata(reached, f"redrive end={end}")
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())


def _edited(
    edit: Edit, record: Record, value: bytes | None
) -> tuple[bytes | None, bytes | None, tuple[Header, ...]] | None:
    """The record as the user's function wants it. Raises UsageError, which names the record."""
    try:
        edited = edit(record.key, value, tuple(record.headers))
        if edited is None:
            return None
        if len(edited) != 3:
            raise TypeError("it must return (key, value, headers) or None")
        key, value, headers = edited[0], edited[1], tuple(edited[2])
        arguments.record(record.topic, value, key, None, None, headers)
    except Exception as error:  # the function is the user's, and may raise anything
        place = f"{record.topic}-{record.partition} offset {record.offset}"
        raise UsageError(
            f"edit() failed for {place}: {type(error).__name__}: {error}. Nothing of this page is "
            "sent; mend the function and run the same id again"
        ) from error
    return key, value, headers


def _target(topics: RetryTopics, text: str) -> tuple[str, int]:
    """The topic to send to, and the attempt number that the copies carry there."""
    kind, _, name = text.partition(":")
    if kind == "entry" and not name:
        return topics.entry, 0
    if kind == "topic" and name:
        return name, 0
    if kind == "retry":
        for number in range(1, topics.policy.retries + 1):
            step = topics.policy.step(number)
            if step is not None and format_duration(step.delay_ms) == name:
                return topics.retry_topic(step.delay_ms), number
        known = ", ".join(map(format_duration, topics.policy.distinct_delays_ms)) or "none"
        raise ConfigError(
            f"target {text!r}: there is no such retry topic; the policy has {known}. "
            "Give the group's own "
            "delays as retries (--retries '5m 30m 1h')"
        )
    raise ConfigError(f"target {text!r}: write entry, retry:30m or topic:NAME")
