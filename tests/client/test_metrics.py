"""What clients measure of themselves at work (issue C: Java's names, from day one)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kohort import Admin, Consumer, NewTopic, Producer
from kohort.client.cluster import metrics as client_metrics
from kohort.client.consumer import metrics as consumer_metrics
from kohort.client.consumer.rebalance_watch import RebalanceWatch
from kohort.client.producer import metrics as producer_metrics
from kohort.metrics import (
    BatchStored,
    MetricName,
    OffsetsCommitted,
    PartitionsAssigned,
    RebalanceBegun,
    RebalanceEnded,
    RequestDone,
)
from kohort.metrics.sensor import View
from tests.clusters import Cluster
from tests.patience import PATIENCE_S

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Cluster() as cluster:
        yield cluster.bootstrap


def value(metrics: dict[MetricName, float], name: str, **tags: str) -> float:
    """The one metric of this name with exactly these tags beside the client's."""
    found = [
        number
        for metric, number in metrics.items()
        if metric.name == name
        and {k: v for k, v in metric.tags if k != "client-id"}
        == {k.replace("_", "-"): v for k, v in tags.items()}
    ]
    assert len(found) == 1, (name, tags, found)
    return found[0]


def read_all(consumer: Consumer, count: int) -> None:
    seen = 0
    while seen < count:
        records = consumer.poll(PATIENCE_S)
        assert records, f"{seen} of {count} records came"
        seen += len(records)


def test_a_producer_and_a_consumer_count_what_they_did(servers: str) -> None:
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic("measured", 2)])
        assert value(admin.metrics(), "request-total") >= 1
    stored: list[BatchStored] = []
    with Producer(bootstrap_servers=servers) as producer:
        producer.events.subscribe(BatchStored, stored.append)
        for number in range(100):
            producer.send("measured", b"x" * 50, partition=number % 2)
        producer.flush()
        counted = producer.metrics()
    assert sum(batch.records for batch in stored) == 100
    assert value(counted, "record-send-total") == 100
    assert value(counted, "record-send-total", topic="measured") == 100
    assert value(counted, "record-error-total") == 0
    assert value(counted, "byte-total") == sum(batch.bytes for batch in stored) > 5_000
    assert value(counted, "flush-time-ns-total") >= 0
    assert value(counted, "buffer-available-bytes") == value(counted, "buffer-total-bytes")
    assert value(counted, "requests-in-flight") == 0

    seen: list[object] = []
    with Consumer(
        bootstrap_servers=servers, group_id="measuring", auto_offset_reset="earliest"
    ) as consumer:
        for kind in (RequestDone, RebalanceBegun, RebalanceEnded, PartitionsAssigned):
            consumer.events.subscribe(kind, seen.append)
        consumer.events.subscribe(OffsetsCommitted, seen.append)
        consumer.subscribe(["measured"])
        read_all(consumer, 100)
        consumer.commit()
        for _ in range(2):
            assert consumer.poll(0.01) == []
        counted = consumer.metrics()
    assert value(counted, "records-consumed-total") == 100
    assert value(counted, "records-consumed-total", topic="measured") == 100
    assert value(counted, "bytes-consumed-total") > 5_000
    assert value(counted, "assigned-partitions") == 2
    assert value(counted, "records-lag", topic="measured", partition="0") == 0
    assert value(counted, "records-lead", topic="measured", partition="1") == 50
    assert value(counted, "records-lag-max") == 0
    assert value(counted, "rebalance-total") == 1
    assert value(counted, "failed-rebalance-total") == 0
    assert value(counted, "join-total") >= 1
    assert value(counted, "sync-total") == 1
    assert value(counted, "commit-total") >= 1
    assert value(counted, "commit-sync-time-ns-total") >= 0
    assert value(counted, "fetch-total") >= 1
    assert value(counted, "fetch-buffer-limit-bytes") > 0
    assert 0 <= value(counted, "poll-idle-ratio-avg") <= 1
    kinds = [type(event) for event in seen]
    assert kinds.index(RebalanceBegun) < kinds.index(RebalanceEnded)
    assert OffsetsCommitted in kinds
    apis = {event.api for event in seen if isinstance(event, RequestDone)}
    assert {"JoinGroup", "SyncGroup", "Fetch", "OffsetCommit"} <= apis


def test_series_of_a_partition_end_when_it_is_given_up(servers: str) -> None:
    with (
        Producer(bootstrap_servers=servers) as producer,
        Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
    ):
        producer.send("moved", b"1").result(PATIENCE_S)
        consumer.assign([("moved", 0)])
        read_all(consumer, 1)
        assert any(("partition", "0") in metric.tags for metric in consumer.metrics())
        consumer.unsubscribe()
        assert not any(("partition", "0") in metric.tags for metric in consumer.metrics())


def test_nothing_is_known_of_a_client_that_did_nothing() -> None:
    with Consumer(bootstrap_servers="localhost:1", group_id="g") as consumer:
        counted = consumer.metrics()
    assert value(counted, "rebalance-total") == 0
    assert math.isnan(value(counted, "rebalance-latency-avg"))
    assert math.isnan(value(counted, "records-lag-max"))
    assert math.isnan(value(counted, "last-heartbeat-seconds-ago"))


def test_every_name_is_on_the_page() -> None:
    page = PAGE.read_text()
    with (
        Consumer(bootstrap_servers="localhost:1", group_id="g") as consumer,
        Producer(bootstrap_servers="localhost:1") as producer,
        Admin(bootstrap_servers="localhost:1") as admin,
    ):
        families = [f for c in (consumer, producer, admin) for f in c.measured.families()]
    missing = {family.name for family in families if f"`{family.name}`" not in page}
    assert not missing


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["DISCOVERING", "JOINING", "SYNCING", "ASSIGNING", "STABLE"], ["begun", True]),
        (["STABLE", "REDISCOVERING", "STABLE"], []),
        (["STABLE", "JOINING", "OVERDUE", "REVOKING", "STABLE"], ["begun", False, "begun", True]),
        (["DISCOVERING", "CLOSING", "LEAVING", "LEFT"], ["begun", False]),
        (["STABLE", "RECONCILING", "ACKNOWLEDGING", "STABLE"], ["begun", True]),
    ],
)
def test_rebalances_are_seen_from_the_states(states: list[str], expected: list[object]) -> None:
    watch, seen = RebalanceWatch(), list[object]()
    for at_ms, state in enumerate(states):
        event = watch.seen(state, "why", at_ms * 10)
        if isinstance(event, RebalanceEnded):
            assert event.latency_ms > 0
            seen.append(event.completed)
        elif event is not None:
            seen.append("begun")
    assert seen == expected


def views(found: object) -> Iterator[tuple[str, View]]:
    """Every name with what it shows, in the tables of a module."""
    if isinstance(found, dict):
        for name, value in found.items():
            if isinstance(value, tuple) and isinstance(value[0], View):
                yield str(name), value[0]
            else:
                yield from views(value)


@pytest.mark.parametrize("module", [client_metrics, consumer_metrics, producer_metrics])
def test_a_name_says_what_is_shown(module: ModuleType) -> None:
    """As Java's: an average is one, and what is said of an hour is of an hour."""
    ends = {
        "-rate-per-hour": {View.HOURLY},
        "-ns-total": {View.SUM_NS},
        "-seconds-ago": {View.AGO},
        "-avg": {View.AVG},
        "-max": {View.MAX},
        "-rate": {View.RATE, View.SUM_RATE},
        "-total": {View.COUNT, View.SUM},
    }
    found = [pair for table in vars(module).values() for pair in views(table)]
    assert found
    for name, view in found:
        end = next(end for end in ends if name.endswith(end))
        assert view in ends[end], name
