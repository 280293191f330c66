"""What a producer measures of itself, under Java's names.

Rules:
- A batch is measured when its outcome is known, in all and for its topic; nothing a record.
- Sizes are of batches as they go over the wire.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kohort.client.cluster.metrics import ClientMetrics
from kohort.client.producer.core import ProducerCore
from kohort.metrics.events import (
    BatchFailed,
    BatchRetried,
    BatchStored,
    CallDone,
    ProduceSent,
    RequestDone,
)
from kohort.metrics.registry import Family, Sample, Tags
from kohort.metrics.sensor import Sensor, View

PRODUCER: Final = "producer-metrics"
TOPIC: Final = "producer-topic-metrics"

_Views = dict[str, tuple[View, str]]
_SENT: Final[_Views] = {
    "record-send-rate": (View.SUM_RATE, "The number of records stored per second"),
    "record-send-total": (View.SUM, "The total number of records stored"),
}
_BYTES: Final[_Views] = {
    "byte-rate": (View.SUM_RATE, "The number of bytes stored per second"),
    "byte-total": (View.SUM, "The total number of bytes stored"),
}
_FAILED: Final[_Views] = {
    "record-error-rate": (View.SUM_RATE, "The number of records given up per second"),
    "record-error-total": (View.SUM, "The total number of records given up"),
}
_RETRIED: Final[_Views] = {
    "record-retry-rate": (View.SUM_RATE, "The number of records sent again per second"),
    "record-retry-total": (View.SUM, "The total number of records sent again"),
}
_BATCH: Final[_Views] = {
    "batch-size-avg": (View.AVG, "The average size of a batch in bytes"),
    "batch-size-max": (View.MAX, "The maximum size of a batch in bytes"),
}
_QUEUED: Final[_Views] = {
    "record-queue-time-avg": (View.AVG, "The average time in ms of a batch before it was sent"),
    "record-queue-time-max": (View.MAX, "The maximum time in ms of a batch before it was sent"),
}
_REQUEST: Final[_Views] = {
    "records-per-request-avg": (View.AVG, "The average number of records in a request"),
}
_THROTTLED: Final[_Views] = {
    "produce-throttle-time-avg": (View.AVG, "The average time in ms that the broker throttled"),
    "produce-throttle-time-max": (View.MAX, "The maximum time in ms that the broker throttled"),
}
_CALLS: Final = {
    "flush": "flush-time-ns-total",
    "init_transactions": "txn-init-time-ns-total",
    "send_offsets_to_transaction": "txn-send-offsets-time-ns-total",
    "commit_transaction": "txn-commit-time-ns-total",
    "abort_transaction": "txn-abort-time-ns-total",
}
_GAUGES: Final = {
    name: Family(PRODUCER, name, text)
    for name, text in (
        ("buffer-total-bytes", "The most that records may take before they are stored"),
        ("buffer-available-bytes", "What of it is free"),
        ("requests-in-flight", "The number of produce requests not answered yet"),
        ("waiting-threads", "The number of callers that wait for room"),
    )
}


class ProducerMetrics(ClientMetrics):
    """The metrics of one producer."""

    def __init__(self, core: ProducerCore) -> None:
        super().__init__("producer", core.config.client_id, core.events, core.thread.loop)
        self._core = core
        sensors = self.registry.sensors
        kinds = {"sent": _SENT, "bytes": _BYTES, "failed": _FAILED, "retried": _RETRIED}
        self._all = {kind: sensors(PRODUCER, views).of(self.tags) for kind, views in kinds.items()}
        self._topics = {kind: sensors(TOPIC, views) for kind, views in kinds.items()}
        self._batch = sensors(PRODUCER, _BATCH).of(self.tags)
        self._queued = sensors(PRODUCER, _QUEUED).of(self.tags)
        self._request = sensors(PRODUCER, _REQUEST).of(self.tags)
        self._throttled = sensors(PRODUCER, _THROTTLED).of(self.tags)
        self._calls: dict[str, Sensor] = {
            call: sensors(PRODUCER, {name: (View.SUM_NS, f"The total time in ns in {call}()")}).of(
                self.tags
            )
            for call, name in _CALLS.items()
        }
        self.registry.add(_GAUGES.values(), self._gauges)
        self.events.subscribe(BatchStored, self._stored)
        self.events.subscribe(BatchFailed, self._failed)
        self.events.subscribe(BatchRetried, self._retried)
        self.events.subscribe(ProduceSent, self._sent)
        self.events.subscribe(RequestDone, self._answered)
        self.events.subscribe(CallDone, self._called)

    def _tags(self, topic: str) -> Tags:
        return (*self.tags, ("topic", topic))

    def _count(self, kind: str, topic: str, value: int, now_ms: int) -> None:
        self._all[kind].record(value, now_ms)
        self._topics[kind].of(self._tags(topic)).record(value, now_ms)

    def _stored(self, event: BatchStored) -> None:
        now_ms = self.now_ms()
        self._count("sent", event.topic, event.records, now_ms)
        self._count("bytes", event.topic, event.bytes, now_ms)
        self._batch.record(event.bytes, now_ms)

    def _failed(self, event: BatchFailed) -> None:
        self._count("failed", event.topic, event.records, self.now_ms())

    def _retried(self, event: BatchRetried) -> None:
        self._count("retried", event.topic, event.records, self.now_ms())

    def _sent(self, event: ProduceSent) -> None:
        now_ms = self.now_ms()
        self._request.record(event.records, now_ms)
        for queued_ms in event.queued_ms:
            self._queued.record(queued_ms, now_ms)

    def _answered(self, event: RequestDone) -> None:
        if event.api == "Produce":
            self._throttled.record(event.throttle_ms, self.now_ms())

    def _called(self, event: CallDone) -> None:
        sensor = self._calls.get(event.call)
        if sensor is not None:
            sensor.record(event.latency_ms, self.now_ms())

    def _gauges(self, _: int) -> Iterable[Sample]:
        total, free, in_flight, waiting = self._core.usage()
        for family, value in zip(_GAUGES.values(), (total, free, in_flight, waiting), strict=True):
            yield Sample(family, self.tags, float(value))
