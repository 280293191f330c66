"""What every client measures: its requests and connections, in all and for each node.

Rules:
- Fed by events, on the network thread; see `kohort.metrics`.
- Groups are Java's: `consumer-metrics`, `consumer-node-metrics`, and so for producers and admins.
"""

from __future__ import annotations

from typing import Final, Literal

from kohort.metrics.events import ConnectionLost, ConnectionOpened, Events, RequestDone
from kohort.metrics.registry import Family, MetricName, Registry, Sample, Tags, by_name
from kohort.metrics.sensor import View
from kohort.net import Loop

Role = Literal["consumer", "producer", "admin"]
_LATENCY: Final = {
    "request-latency-avg": (View.AVG, "The average time in ms that a request took"),
    "request-latency-max": (View.MAX, "The maximum time in ms that a request took"),
    "response-rate": (View.RATE, "The number of responses received per second"),
    "response-total": (View.COUNT, "The total number of responses received"),
}
_OUT: Final = {
    "outgoing-byte-rate": (View.SUM_RATE, "The number of outgoing bytes per second"),
    "outgoing-byte-total": (View.SUM, "The total number of outgoing bytes"),
    "request-rate": (View.RATE, "The number of requests sent per second"),
    "request-total": (View.COUNT, "The total number of requests sent"),
    "request-size-avg": (View.AVG, "The average size of requests in bytes"),
    "request-size-max": (View.MAX, "The maximum size of requests in bytes"),
}
_IN: Final = {
    "incoming-byte-rate": (View.SUM_RATE, "The number of incoming bytes per second"),
    "incoming-byte-total": (View.SUM, "The total number of incoming bytes"),
}
_OPENED: Final = {
    "connection-creation-rate": (View.RATE, "The number of connections opened per second"),
    "connection-creation-total": (View.COUNT, "The total number of connections opened"),
}
_LOST: Final = {
    "connection-close-rate": (View.RATE, "The number of connections lost per second"),
    "connection-close-total": (View.COUNT, "The total number of connections lost"),
}


class ClientMetrics:
    """The metrics of one client; consumers and producers add their own to `registry`."""

    def __init__(self, role: Role, client_id: str, events: Events, loop: Loop) -> None:
        self.registry = Registry()
        self.events = events
        self.tags: Tags = (("client-id", client_id),)
        self._loop = loop
        sensors = self.registry.sensors
        everything, node = f"{role}-metrics", f"{role}-node-metrics"
        kinds = (_LATENCY, _OUT, _IN)
        self._requests = [sensors(everything, views).of(self.tags) for views in kinds]
        self._by_node = [sensors(node, views) for views in kinds]
        self._opened = sensors(everything, _OPENED).of(self.tags)
        self._lost = sensors(everything, _LOST).of(self.tags)
        events.subscribe(RequestDone, self._request_done)
        events.subscribe(ConnectionOpened, self._connection_opened)
        events.subscribe(ConnectionLost, self._connection_lost)

    # -- asked from any thread -------------------------------------------------------------------

    def families(self) -> list[Family]:
        """Every name there may be."""
        return self.registry.families()

    def samples(self) -> list[Sample]:
        """Every number now."""
        return self.registry.samples(self._loop.now_ms())

    def metrics(self) -> dict[MetricName, float]:
        """Every number now, by its name."""
        return by_name(self.samples())

    # -- for those that add to it ----------------------------------------------------------------

    def now_ms(self) -> int:
        """The time that sensors are fed with."""
        return self._loop.now_ms()

    # -- on the network thread -------------------------------------------------------------------

    def _request_done(self, event: RequestDone) -> None:
        now_ms = self._loop.now_ms()
        values = (event.latency_ms, event.bytes_out, event.bytes_in)
        tags = (*self.tags, ("node-id", f"node-{event.node}"))
        for value, total, nodes in zip(values, self._requests, self._by_node, strict=True):
            total.record(value, now_ms)
            nodes.of(tags).record(value, now_ms)

    def _connection_opened(self, _: ConnectionOpened) -> None:
        self._opened.record(1, self._loop.now_ms())

    def _connection_lost(self, _: ConnectionLost) -> None:
        self._lost.record(1, self._loop.now_ms())
