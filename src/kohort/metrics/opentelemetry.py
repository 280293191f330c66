"""Metrics for OpenTelemetry, through its API (the extra `kohort[opentelemetry]`).

    from kohort.metrics.opentelemetry import export

    export(consumer, producer)      # to the meter provider that the program has set

Rules:
- Names are those of OpenTelemetry's own instrumentation of the Java client:
  `kafka.consumer.records_consumed_total`, with the tags as attributes.
- Every instrument is observed at each collection; nothing is recorded in between.
- Where and how often it is sent is the program's choice (its `MeterProvider`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

import kohort
from kohort.metrics.exporting import Client, Clients
from kohort.metrics.registry import Family


def export(*clients: Client, meter: Meter | None = None) -> Clients:
    """Observe these clients. Others of the same kinds may be added to what is returned."""
    chosen = get_meter("kohort", kohort.__version__) if meter is None else meter
    exported = Clients(clients)
    families: dict[str, Family] = {}
    for family in exported.families():
        families.setdefault(instrument_name(family), family)
    for name, family in families.items():
        create = (
            chosen.create_observable_counter
            if family.is_counter
            else chosen.create_observable_gauge
        )
        create(name, callbacks=[_observer(exported, name)], description=family.description)
    return exported


def instrument_name(family: Family) -> str:
    """`consumer-fetch-manager-metrics`, `fetch-rate` -> `kafka.consumer.fetch_rate`."""
    if not family.group.endswith("-metrics"):
        return f"kohort.{family.name}"
    role = family.group.split("-")[0]
    return f"kafka.{role}.{family.name}".replace("-", "_")


def _observer(clients: Clients, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        for family, tags, value in clients.samples(instrument_name):
            if instrument_name(family) == name:
                yield Observation(value, dict(tags))

    return observe
