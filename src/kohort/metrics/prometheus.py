"""Metrics for Prometheus, through `prometheus_client` (the extra `kohort[prometheus]`).

    from prometheus_client import start_http_server
    from kohort.metrics.prometheus import export

    export(consumer, producer)
    start_http_server(9464)

Rules:
- Names are those that Micrometer gives Java's metrics, so that boards made for it fit:
  `kafka_consumer_fetch_manager_records_consumed_total`, with the tags as labels.
- Retry metrics of an `App` begin with `kohort_`: `kohort_retry_published_total`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from kohort.metrics.exporting import Client, Clients
from kohort.metrics.registry import Family


def export(*clients: Client, registry: CollectorRegistry = REGISTRY) -> ClientCollector:
    """Add these clients' metrics to a registry of `prometheus_client`."""
    collector = ClientCollector(clients)
    registry.register(collector)
    return collector


class ClientCollector(Collector):
    """Gives the present numbers at each scrape."""

    def __init__(self, clients: Iterable[Client] = ()) -> None:
        self.clients = Clients(clients)

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing in advance: series come and go with partitions and nodes."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Everything now, one family a name."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for family, tags, value in self.clients.samples(metric_name):
            name = metric_name(family)
            metric = families.get(name)
            if metric is None:
                labels = [label.replace("-", "_") for label, _ in tags]
                kind = CounterMetricFamily if family.is_counter else GaugeMetricFamily
                metric = families[name] = kind(name, family.description, labels=labels)
            metric.add_metric([text for _, text in tags], value)
        yield from families.values()


def metric_name(family: Family) -> str:
    """`consumer-fetch-manager-metrics`, `fetch-rate` -> `kafka_consumer_fetch_manager_fetch_rate`.

    Ours keep their own: `retry`, `retry_published_total` -> `kohort_retry_published_total`.
    """
    if not family.group.endswith("-metrics"):
        return f"kohort_{family.name}"
    group = family.group.removesuffix("-metrics")
    return f"kafka_{group}_{family.name}".replace("-", "_")
