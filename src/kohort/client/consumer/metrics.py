"""What a consumer measures of itself, under Java's names.

Rules:
- Requests tell of joins, syncs, heartbeats, commits and fetches; the calls of the user and the
  member's states tell the rest. Nothing is measured a record: what has been handed out is counted
  by topic and computed once a second, and on request.
- A partition's series begin with its first fetch and end when it is given up.
- `records-per-request-avg` and the byte counts are of what came over the wire, still compressed.

Shell: threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from kohort.client.cluster.metrics import ClientMetrics
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.core import ConsumerCore
from kohort.metrics.events import (
    CallDone,
    FetchDone,
    PartitionsAssigned,
    PartitionsLost,
    PartitionsRevoked,
    Polled,
    RebalanceEnded,
    RequestDone,
)
from kohort.metrics.registry import Family, Sample, Sensors, Tags
from kohort.metrics.sensor import NOTHING, Sensor, View

LOOK_MS: Final = 1_000
CONSUMER: Final = "consumer-metrics"
FETCHES: Final = "consumer-fetch-manager-metrics"
COORDINATOR: Final = "consumer-coordinator-metrics"


def _timed(what: str, doing: str) -> dict[str, tuple[View, str]]:
    return {
        f"{what}-avg": (View.AVG, f"The average time in ms {doing}"),
        f"{what}-max": (View.MAX, f"The maximum time in ms {doing}"),
    }


def _counted(what: str, doing: str) -> dict[str, tuple[View, str]]:
    return {
        f"{what}-rate": (View.RATE, f"The number of {doing} per second"),
        f"{what}-total": (View.COUNT, f"The total number of {doing}"),
    }


def _summed(what: str, doing: str) -> dict[str, tuple[View, str]]:
    return {
        f"{what}-rate": (View.SUM_RATE, f"The number of {doing} per second"),
        f"{what}-total": (View.SUM, f"The total number of {doing}"),
    }


_REQUESTS: Final = {
    "Heartbeat": "heartbeat",
    "ConsumerGroupHeartbeat": "heartbeat",
    "JoinGroup": "join",
    "SyncGroup": "sync",
    "OffsetCommit": "commit",
}
_COORDINATED: Final[dict[str, dict[str, tuple[View, str]]]] = {
    "heartbeat": {
        "heartbeat-response-time-max": (View.MAX, "The maximum time in ms of a heartbeat"),
        **_counted("heartbeat", "heartbeats"),
        "last-heartbeat-seconds-ago": (View.AGO, "Seconds since the last heartbeat was answered"),
    },
    "join": {**_timed("join-time", "of a group join"), **_counted("join", "group joins")},
    "sync": {**_timed("sync-time", "of a group sync"), **_counted("sync", "group syncs")},
    "commit": {**_timed("commit-latency", "of a commit"), **_counted("commit", "commits")},
    "rebalance": {
        **_timed("rebalance-latency", "of a rebalance"),
        "rebalance-latency-total": (View.SUM, "The total time in ms spent in rebalances"),
        "rebalance-rate-per-hour": (View.HOURLY, "Rebalances per hour"),
        "rebalance-total": (View.COUNT, "The total number of completed rebalances"),
        "last-rebalance-seconds-ago": (View.AGO, "Seconds since the last rebalance ended"),
    },
    "failed": {
        "failed-rebalance-rate-per-hour": (View.HOURLY, "Rebalances not completed per hour"),
        "failed-rebalance-total": (View.COUNT, "The total number of rebalances not completed"),
    },
    "assigned": _timed("partition-assigned-latency", "of on_partitions_assigned"),
    "revoked": _timed("partition-revoked-latency", "of on_partitions_revoked"),
    "lost": _timed("partition-lost-latency", "of on_partitions_lost"),
}
_FETCHED: Final[dict[str, dict[str, tuple[View, str]]]] = {
    "latency": {
        **_timed("fetch-latency", "that a fetch took"),
        **_counted("fetch", "fetches"),
    },
    "size": {
        "fetch-size-avg": (View.AVG, "The average number of bytes of a fetch"),
        "fetch-size-max": (View.MAX, "The maximum number of bytes of a fetch"),
    },
    "throttle": _timed("fetch-throttle-time", "that the broker throttled a fetch"),
}
_POLLED: Final[dict[str, dict[str, tuple[View, str]]]] = {
    "between": {
        **_timed("time-between-poll", "between the beginnings of polls"),
        "last-poll-seconds-ago": (View.AGO, "Seconds since the last poll began"),
    },
    "commit": {"commit-sync-time-ns-total": (View.SUM_NS, "The total time in ns in commit()")},
    "committed": {"committed-time-ns-total": (View.SUM_NS, "The total time in ns in committed()")},
}
_RECORDS: Final = _summed("records-consumed", "records handed out")
_BYTES: Final = _summed("bytes-consumed", "bytes of what was handed out")
_LAG: Final = {
    "records-lag-avg": (View.AVG, "The average lag of the partition, in records"),
    "records-lag-max": (View.MAX, "The maximum lag of the partition, in records"),
}

_GAUGES: Final = {
    name: Family(group, name, text)
    for group, name, text in (
        (CONSUMER, "poll-idle-ratio-avg", "The share of its time that it spends in polls"),
        (COORDINATOR, "assigned-partitions", "The number of partitions assigned to this consumer"),
        (FETCHES, "records-lag-max", "The largest lag of any partition, in records"),
        (FETCHES, "records-lead-min", "The smallest lead of any partition, in records"),
        (FETCHES, "records-per-request-avg", "The average number of records in a fetch"),
        (FETCHES, "fetch-buffer-bytes", "Bytes fetched and not handed out, paused ones too"),
        (FETCHES, "fetch-buffer-limit-bytes", "The one byte budget of this consumer"),
    )
}
_OF_PARTITION: Final = {
    name: Family(FETCHES, name, text)
    for name, text in (
        ("records-lag", "The lag of the partition, in records"),
        ("records-lead", "Records between the beginning of the partition and the position"),
    )
}


class ConsumerMetrics(ClientMetrics):
    """The metrics of one consumer."""

    def __init__(self, core: ConsumerCore) -> None:
        super().__init__("consumer", core.config.client_id, core.cluster.events, core.loop)
        self._core = core
        self._lock = threading.Lock()
        self._looked_ms = 0
        self._consumed: dict[str, tuple[int, int]] = {}
        one = self._one
        self._coordinated = {kind: one(COORDINATOR, v) for kind, v in _COORDINATED.items()}
        self._fetched = {kind: one(FETCHES, views) for kind, views in _FETCHED.items()}
        self._polled = {kind: one(CONSUMER, views) for kind, views in _POLLED.items()}
        self._inside, self._outside = Sensor(), Sensor()
        self._records, self._bytes = one(FETCHES, _RECORDS), one(FETCHES, _BYTES)
        self._topic_records = self.registry.sensors(FETCHES, _RECORDS)
        self._topic_bytes = self.registry.sensors(FETCHES, _BYTES)
        self._lags: Sensors = self.registry.sensors(FETCHES, _LAG)
        self._watched: set[TopicPartition] = set()
        self.registry.add([*_GAUGES.values(), *_OF_PARTITION.values()], self._gauges)
        subscribe = self.events.subscribe
        subscribe(RequestDone, self._requested)
        subscribe(FetchDone, self._fetch_done)
        subscribe(RebalanceEnded, self._rebalanced)
        subscribe(PartitionsAssigned, lambda event: self._listener_called("assigned", event))
        subscribe(PartitionsRevoked, lambda event: self._listener_called("revoked", event))
        subscribe(PartitionsLost, lambda event: self._listener_called("lost", event))
        subscribe(Polled, self._poll_begun)
        subscribe(CallDone, self._called)

    def _one(self, group: str, views: dict[str, tuple[View, str]]) -> Sensor:
        return self.registry.sensors(group, views).of(self.tags)

    def samples(self) -> list[Sample]:
        """Every number now."""
        self._look(self.now_ms())
        return super().samples()

    # -- recording -------------------------------------------------------------------------------

    def _requested(self, event: RequestDone) -> None:
        if event.api == "Fetch":
            self._fetched["throttle"].record(event.throttle_ms, self.now_ms())
        kind = _REQUESTS.get(event.api)
        if kind is not None and event.error is None:
            self._coordinated[kind].record(event.latency_ms, self.now_ms())

    def _fetch_done(self, event: FetchDone) -> None:
        now_ms = self.now_ms()
        self._fetched["latency"].record(event.latency_ms, now_ms)
        self._fetched["size"].record(event.bytes, now_ms)
        if now_ms - self._looked_ms >= LOOK_MS:
            self._look(now_ms)

    def _rebalanced(self, event: RebalanceEnded) -> None:
        kind = "rebalance" if event.completed else "failed"
        self._coordinated[kind].record(event.latency_ms, self.now_ms())

    def _listener_called(
        self, kind: str, event: PartitionsAssigned | PartitionsRevoked | PartitionsLost
    ) -> None:
        self._coordinated[kind].record(event.latency_ms, self.now_ms())

    def _poll_begun(self, event: Polled) -> None:
        now_ms = self.now_ms()
        between_ms = event.inside_ms + event.outside_ms
        self._polled["between"].record(between_ms, now_ms, event.polls)
        self._inside.record(event.inside_ms, now_ms)
        self._outside.record(event.outside_ms, now_ms)

    def _called(self, event: CallDone) -> None:
        if event.call in self._polled:
            self._polled[event.call].record(event.latency_ms, self.now_ms())

    # -- looked up -------------------------------------------------------------------------------

    def _look(self, now_ms: int) -> None:
        """Take over what was counted, and each partition's lag."""
        core = self._core
        with self._lock:
            self._looked_ms = now_ms
            for topic, (records, size) in list(core.reader.consumed.items()):
                seen = self._consumed.get(topic, (0, 0))
                self._consumed[topic] = (records, size)
                tags = (*self.tags, ("topic", topic))
                for total, by_topic, value in (
                    (self._records, self._topic_records, records - seen[0]),
                    (self._bytes, self._topic_bytes, size - seen[1]),
                ):
                    if value:
                        total.record(value, now_ms)
                        by_topic.of(tags).record(value, now_ms)
            lags = self._lags_now()
            for tp in self._watched - lags.keys():
                self._lags.forget(self._of(tp))
            self._watched = set(lags)
            for tp, (lag, _) in lags.items():
                self._lags.of(self._of(tp)).record(lag, now_ms)

    def _lags_now(self) -> dict[TopicPartition, tuple[int, int | None]]:
        """Lag and lead of each partition where they are known."""
        core = self._core
        only = core.config.isolation_level == "read_committed"
        lags: dict[TopicPartition, tuple[int, int | None]] = {}
        with core.lock:
            for position in core.positions:
                lag = position.lag(committed_only=only)
                if lag is not None:
                    start = position.log_start
                    lags[position.tp] = (lag, position.offset - start if start >= 0 else None)
        return lags

    def _of(self, tp: TopicPartition) -> Tags:
        return (*self.tags, ("topic", tp.topic), ("partition", str(tp.partition)))

    def _gauges(self, now_ms: int) -> Iterable[Sample]:
        core, lags = self._core, self._lags_now()
        with core.lock:
            assigned, buffered = len(core.positions), core.positions.buffered_bytes
        inside, outside = self._inside.sum_rate(now_ms), self._outside.sum_rate(now_ms)
        fetches = self._fetched["latency"].rate(now_ms)
        leads = [lead for _, lead in lags.values() if lead is not None]
        values = {
            "poll-idle-ratio-avg": inside / (inside + outside) if inside + outside else NOTHING,
            "assigned-partitions": assigned,
            "records-lag-max": max((lag for lag, _ in lags.values()), default=NOTHING),
            "records-lead-min": min(leads, default=NOTHING),
            "records-per-request-avg": (
                self._records.sum_rate(now_ms) / fetches if fetches else NOTHING
            ),
            "fetch-buffer-bytes": buffered,
            "fetch-buffer-limit-bytes": core.config.fetch_buffer_bytes,
        }
        for name, value in values.items():
            yield Sample(_GAUGES[name], self.tags, float(value))
        for tp, (lag, lead) in lags.items():
            yield Sample(_OF_PARTITION["records-lag"], self._of(tp), float(lag))
            if lead is not None:
                yield Sample(_OF_PARTITION["records-lead"], self._of(tp), float(lead))
