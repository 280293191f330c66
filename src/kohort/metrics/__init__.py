"""Metrics and events of clients and apps, and their export.

Rules:
- Everything that happens is a typed event (`events`). Metrics are one subscriber among others:
  programs that log, trace or count something else subscribe beside them.
- Names, groups and meanings are those of the Java client, where it has them; ours are named so.
- An unknown value is absent or NaN, never 0 or -1. A partition that was given up, or a node that is
  no longer used, takes its series with it.
- No exporter is imported here: `kohort.metrics.prometheus` and `kohort.metrics.opentelemetry` are
  extras and carry nothing but the translation.
"""

from kohort.metrics.events import (
    BatchFailed,
    BatchRetried,
    BatchStored,
    CallDone,
    ConnectionLost,
    ConnectionOpened,
    Events,
    FetchDone,
    OffsetsCommitted,
    PartitionsAssigned,
    PartitionsLost,
    PartitionsRevoked,
    Polled,
    ProduceSent,
    RebalanceBegun,
    RebalanceEnded,
    RefusalEnded,
    Refused,
    RequestDone,
)
from kohort.metrics.registry import (
    Family,
    Measured,
    MetricName,
    Registry,
    Sample,
)

__all__ = [
    "BatchFailed",
    "BatchRetried",
    "BatchStored",
    "CallDone",
    "ConnectionLost",
    "ConnectionOpened",
    "Events",
    "Family",
    "FetchDone",
    "Measured",
    "MetricName",
    "OffsetsCommitted",
    "PartitionsAssigned",
    "PartitionsLost",
    "PartitionsRevoked",
    "Polled",
    "ProduceSent",
    "RebalanceBegun",
    "RebalanceEnded",
    "RefusalEnded",
    "Refused",
    "Registry",
    "RequestDone",
    "Sample",
]
