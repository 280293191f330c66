"""What an app measures of itself: retries, retry topics, circuits, and what is under way.

Rules:
- What is counted: A2; exporters put `kohort_` in front. Everything carries
  the group; topics are source topics; a retry topic is called by its delay ("5m"), `redrive` or
  `dlt`.
- The figures are this process's: a sum over processes is the group's.
- Depths of retry topics are those that the poller knows: one is requested when it is read, and at
  most a second old where the cluster answers (else up to 30 s).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from kohort.config import format_duration
from kohort.metrics.registry import Family, MetricName, Sample, Tags, by_name
from kohort.processing.engine.circuit_breaker import CircuitState
from kohort.processing.engine.health import REDRIVE
from kohort.processing.engine.partition_state import Partition
from kohort.processing.runtime.runner import Runner
from kohort.retry.copies import due_ms

GROUP: Final = "retry"
_CIRCUIT: Final = {CircuitState.CLOSED: 0, CircuitState.HALF_OPEN: 1, CircuitState.OPEN: 2}
_TEXTS: Final = {
    "records_succeeded_total": "Records whose handler succeeded",
    "records_failures_total": "Calls of handlers that failed, tries in place included",
    "retry_published_total": "Copies for a retry topic or the dead-letter topic, by disposition",
    "retry_success_total": "Records that succeeded in a retry, by which one it was",
    "dead_lettered_total": "Records sent to the dead-letter topic",
    "early_read_total": "Records of a retry topic that were read before they were due; must be 0",
    "retry_publish_errors_total": "Copies and results that were refused, and are tried again",
    "dup_dropped_total": "Records read again that had been done before, and were passed over",
    "held_total": "Records sent after an earlier one of their key (hold_key)",
    "ledger_scheduled_total": "Retries noted in the store's ledger (exactly once)",
    "transactions_total": "Transactions of results and offsets that went through (exactly once)",
    "transactions_aborted_total": "Transactions that were aborted and done again (exactly once)",
    "retry_topic_depth": "Records in a retry topic that this process has not read yet",
    "retry_topic_due": "Of these, those that are due",
    "retry_topic_due_lag_seconds": "How long the oldest due record that was read has been overdue",
    "dead_letter_oldest_age_seconds": "Age of the oldest dead letter; 0 when there is none",
    "clock_skew_ms": "How far the brokers' clock is ahead of this machine's, by the last copy",
    "circuit_state": "0 closed, 1 half open, 2 open: of a partition of a source topic",
    "partitions_stopped": "Partitions that are stopped until something changes",
    "oldest_unfinished_seconds": "For how long the oldest unfinished record has held up the commit",
    "workers": "Workers of a kind",
    "workers_busy": "Of these, those that have records",
    "records_outstanding": "Records read and not done",
    "records_in_flight": "Records that workers hold",
    "bytes_outstanding": "Bytes of records read and not done",
}
FAMILIES: Final = {name: Family(GROUP, name, text) for name, text in _TEXTS.items()}
_COUNTED: Final = {
    "records_succeeded_total": "succeeded",
    "records_failures_total": "failures",
    "retry_publish_errors_total": "publish_errors",
    "dup_dropped_total": "done_before",
    "held_total": "held",
    "ledger_scheduled_total": "to_retry",
    "transactions_total": "transactions",
    "transactions_aborted_total": "transactions_aborted",
}
_EXACTLY_ONCE: Final = frozenset(
    {"ledger_scheduled_total", "transactions_total", "transactions_aborted_total"}
)


class AppMetrics:
    """The metrics of one app; empty while it does not run."""

    def __init__(self, group: str, runner: Callable[[], Runner | None], *, exactly: bool) -> None:
        self._group: Tags = (("group", group),)
        self._runner = runner
        self._exactly = exactly

    def families(self) -> list[Family]:
        """Every name there may be."""
        return list(FAMILIES.values())

    def metrics(self) -> dict[MetricName, float]:
        """Every number now, by its name."""
        return by_name(self.samples())

    def samples(self) -> list[Sample]:
        """Every number now."""
        runner = self._runner()
        if runner is None:
            return []
        return [*self._counted(runner), *self._standing(runner), *self._retry_topics(runner)]

    def _of(self, name: str, value: float, **tags: object) -> Sample:
        named = tuple((tag, str(text)) for tag, text in tags.items())
        return Sample(FAMILIES[name], (*self._group, *named), float(value))

    def _counted(self, runner: Runner) -> Iterable[Sample]:
        engine = runner.engine
        for name, counted in _COUNTED.items():
            if self._exactly or name not in _EXACTLY_ONCE:
                yield self._of(name, engine.counts[counted])
        failed: Counter[str] = Counter()
        for (topic, retry_topic, disposition), number in list(engine.tally.copies.items()):
            yield self._of(
                "retry_published_total",
                number,
                topic=topic,
                retry_topic=retry_topic,
                disposition=disposition,
            )
            failed[topic] += number if retry_topic == "dlt" else 0
        for topic in dict.fromkeys(p.route.topic for p in list(engine.partitions.values())):
            yield self._of("dead_lettered_total", failed[topic], topic=topic)
            yield self._of("early_read_total", engine.tally.early[topic], topic=topic)
        for (topic, number), count in list(engine.tally.recovered.items()):
            yield self._of("retry_success_total", count, topic=topic, retry_number=number)

    def _standing(self, runner: Runner) -> Iterable[Sample]:
        engine, report = runner.engine, runner.report
        yield self._of("records_outstanding", engine.outstanding)
        yield self._of("records_in_flight", engine.in_flight)
        yield self._of("bytes_outstanding", engine.outstanding_bytes)
        yield self._of("partitions_stopped", sum(bool(why) for why in report.status().values()))
        now_ms = runner.now_ms()
        for topic, oldest in report.oldest_failures().items():
            age_ms = 0 if oldest is None else max(0, now_ms - oldest)
            yield self._of("dead_letter_oldest_age_seconds", age_ms / 1_000, topic=topic)
        skew_ms = report.skew_ms()
        if skew_ms is not None:
            yield self._of("clock_skew_ms", skew_ms)
        for kind, crew in report.workers().items():
            yield self._of("workers", crew.workers, workers=kind)
            yield self._of("workers_busy", crew.busy, workers=kind)
        for partition in list(engine.partitions.values()):
            topic, number, oldest_ms = partition.topic, partition.number, 0
            if partition.tracker.head is not None:
                oldest_ms = max(0, now_ms - partition.head_since_ms)
            yield self._of(
                "oldest_unfinished_seconds", oldest_ms / 1_000, topic=topic, partition=number
            )
            if partition.is_source:
                state = _CIRCUIT[partition.circuit.state]
                yield self._of("circuit_state", state, topic=topic, partition=number)

    def _retry_topics(self, runner: Runner) -> Iterable[Sample]:
        depth, due, known = Counter[Tags](), Counter[Tags](), set[Tags]()
        for key, (behind, ready) in runner.report.retry_topics().items():
            partition = runner.engine.partitions.get(key)
            if partition is not None:
                tags = self._retry_topic(partition)
                known.add(tags)
                depth[tags] += behind
                due[tags] += ready
        late: dict[Tags, float] = {}
        now_ms = runner.now_ms()
        for partition in list(runner.engine.partitions.values()):
            if not partition.is_source:
                tags = self._retry_topic(partition)
                late_ms = _overdue_ms(partition, now_ms)
                late[tags] = max(late.get(tags, 0.0), late_ms / 1_000)
        for tags in known:
            yield Sample(FAMILIES["retry_topic_depth"], tags, float(depth[tags]))
            yield Sample(FAMILIES["retry_topic_due"], tags, float(due[tags]))
            if late.get(tags) or not due[tags]:  # due and none read yet: the time is unknown
                yield Sample(FAMILIES["retry_topic_due_lag_seconds"], tags, late.get(tags, 0.0))

    def _retry_topic(self, partition: Partition) -> Tags:
        delay_ms = partition.delay_ms
        retry_topic = format_duration(delay_ms) if delay_ms else REDRIVE
        return (*self._group, ("topic", partition.route.topic), ("retry_topic", retry_topic))


def _overdue_ms(partition: Partition, now_ms: int) -> int:
    """How long the first record that waits here, read and not begun, has been due."""
    waiting = partition.aside
    if not waiting:
        return 0
    item = waiting[0]
    if item.attempt is None:
        return 0
    due = due_ms(item.attempt, item.record.timestamp, partition.delay_ms or 0)
    return max(0, now_ms - due)
