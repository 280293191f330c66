"""Registry, events, and what exporters send of it."""

from __future__ import annotations

import logging
import math
import time

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from prometheus_client import CollectorRegistry, generate_latest

from kohort.metrics import ConnectionOpened, Events, Family, Polled, Registry, Sample
from kohort.metrics import opentelemetry as otel
from kohort.metrics.exporting import Clients
from kohort.metrics.prometheus import export, metric_name
from kohort.metrics.registry import MAX_TAGS
from kohort.metrics.sensor import View
from tests.known import known, of_type

VIEWS = {
    "fetch-total": (View.COUNT, "Fetches"),
    "fetch-latency-avg": (View.AVG, "Their time"),
}
GROUP = "consumer-fetch-manager-metrics"


class Fake:
    """A client with a registry and a clock."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.sensors = self.registry.sensors(GROUP, VIEWS)
        self.now_ms = 1_000

    @property
    def measured(self) -> Fake:
        return self

    def families(self) -> list[Family]:
        return self.registry.families()

    def samples(self) -> list[Sample]:
        return self.registry.samples(self.now_ms)


def of(client: str, **more: str) -> tuple[tuple[str, str], ...]:
    return (("client-id", client), *more.items())


def test_tags_are_bounded_and_the_one_that_was_silent_the_longest_goes() -> None:
    sensors = Registry().sensors(GROUP, VIEWS)
    for number in range(MAX_TAGS):
        sensors.of(of("a", topic=str(number))).record(1, number)
    sensors.of(of("a", topic="0")).record(1, MAX_TAGS)
    sensors.of(of("a", topic="new")).record(1, MAX_TAGS + 1)
    topics = {dict(tags)["topic"] for _, tags, _ in sensors.read(MAX_TAGS + 2)}
    assert len(topics) == MAX_TAGS
    assert {"0", "new"} <= topics
    assert "1" not in topics


def test_many_more_tags_than_are_kept_cost_no_search_each() -> None:
    """A consumer of 5,000 partitions looks at the lag of each, again and again."""
    sensors = Registry().sensors(GROUP, VIEWS)
    began = time.thread_time()
    for number in range(30 * MAX_TAGS):
        sensors.of(of("a", topic=str(number)))
    assert time.thread_time() - began < 3


def test_what_is_forgotten_is_gone() -> None:
    fake = Fake()
    fake.sensors.of(of("a")).record(5, 1_000)
    fake.sensors.forget(of("a"))
    assert fake.samples() == []
    assert [family.name for family in fake.families()] == list(VIEWS)


def test_events_go_to_the_subscribers_of_their_kind_until_they_end_it() -> None:
    events, seen = Events(), []
    end = events.subscribe(Polled, seen.append)
    events.emit(ConnectionOpened(1))
    events.emit(Polled(1, 2, 3))
    end()
    events.emit(Polled(4, 5, 6))
    assert seen == [Polled(1, 2, 3)]
    assert not events.wants(Polled)


def test_a_subscriber_that_fails_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    events, seen = Events(), []

    def broken(_: Polled) -> None:
        raise ZeroDivisionError

    events.subscribe(Polled, broken)
    events.subscribe(Polled, seen.append)
    with caplog.at_level(logging.ERROR, "kohort.metrics"):
        events.emit(Polled(1, 0, 0))
    assert seen == [Polled(1, 0, 0)]
    assert "a subscriber of Polled failed" in caplog.text


def test_the_deepest_of_a_name_goes_out_and_nan_does_not() -> None:
    fake = Fake()
    fake.sensors.of(of("a")).record(3, 1_000)
    fake.sensors.of(of("a", topic="t")).record(3, 1_000)
    fake.now_ms = 10_000_000
    assert any(math.isnan(sample.value) for sample in fake.samples())
    out = Clients([fake]).samples(metric_name)
    assert [(s.family.name, s.tags, s.value) for s in out] == [
        ("fetch-total", of("a", topic="t"), 1.0)
    ]


def test_two_clients_of_one_id_are_two_series() -> None:
    one, two = Fake(), Fake()
    for fake, times in ((one, 1), (two, 2)):
        for _ in range(times):
            fake.sensors.of(of("same")).record(1, 1_000)
    clients = Clients([one, two])
    found = {
        s.tags[0][1]: s.value for s in clients.samples(metric_name) if "total" in s.family.name
    }
    assert found == {"same": 1, "same-2": 2}
    clients.remove(one)
    assert {s.tags[0][1] for s in clients.samples(metric_name)} == {"same-2"}


def test_what_only_grows_is_a_counter_under_javas_names_and_ours() -> None:
    for name, counts in (("fetch-total", True), ("held_total", True), ("fetch-rate", False)):
        assert Family(GROUP, name, "").is_counter == counts


def test_prometheus_reads_it_with_micrometers_names() -> None:
    fake, registry = Fake(), CollectorRegistry()
    fake.sensors.of(of("a")).record(7, 1_000)
    export(fake, registry=registry)
    text = generate_latest(registry).decode()
    assert "# TYPE kafka_consumer_fetch_manager_fetch_total counter" in text
    assert 'kafka_consumer_fetch_manager_fetch_total{client_id="a"} 1.0' in text
    assert 'kafka_consumer_fetch_manager_fetch_latency_avg{client_id="a"} 7.0' in text


def test_opentelemetry_reads_it_with_the_names_of_its_java_instrumentation() -> None:
    fake, reader = Fake(), InMemoryMetricReader()
    fake.sensors.of(of("a")).record(7, 1_000)
    provider = MeterProvider(metric_readers=[reader])
    otel.export(fake, meter=provider.get_meter("test"))
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: [
            (dict(known(p.attributes)), of_type(p, NumberDataPoint).value)
            for p in metric.data.data_points
        ]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert found == {
        "kafka.consumer.fetch_total": [({"client-id": "a"}, 1.0)],
        "kafka.consumer.fetch_latency_avg": [({"client-id": "a"}, 7.0)],
    }
    provider.shutdown()
