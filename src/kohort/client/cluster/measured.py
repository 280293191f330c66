"""What every client shows of what it measures (`kohort.client.cluster.metrics`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # comes with the first client
    from kohort.client.cluster.metrics import ClientMetrics
    from kohort.metrics.events import Events
    from kohort.metrics.registry import MetricName


class Observed:
    """What every client shows of itself. Any thread may ask."""

    _metrics: ClientMetrics

    def metrics(self) -> dict[MetricName, float]:
        """What this client measures of itself, under Java's names; NaN where nothing was of late.

        `kohort.metrics.prometheus` and `kohort.metrics.opentelemetry` export it.
        """
        return self._metrics.metrics()

    @property
    def measured(self) -> ClientMetrics:
        """For exporters: the metrics with what they mean."""
        return self._metrics

    @property
    def events(self) -> Events:
        """Everything that happens to this client, to subscribe to; see `kohort.metrics`."""
        return self._metrics.events
