"""The network and the servers' capacity, the same for all designs.

Rules:
- Each consumer has one link to the coordinating service. What is sent over a link arrives in order.
- A slow link is slow towards the consumer: notifications and answers come late. A link that is cut
  carries nothing either way; the design's world decides whether sent messages are lost (a request
  with its connection) or held (a ZooKeeper session moves to another server).
- A server handles one message at a time, `service_us` each. A request that represents many
  (`count`) is handled after the earlier ones.
"""

from __future__ import annotations

from kohort.simulator.history.plan import Timing
from kohort.simulator.schedule import Schedule


class Link:
    """One consumer's way to and from the service."""

    __slots__ = ("cut", "down_ms", "slow_ms", "up_ms")

    def __init__(self) -> None:
        self.up_ms = self.down_ms = 0
        self.slow_ms = 0
        self.cut = False


class Network:
    """Draws how long things take."""

    def __init__(self, schedule: Schedule, timing: Timing) -> None:
        self._schedule = schedule
        self._draw = schedule.split("network")
        self._least, self._most = timing.network_ms

    def delay_ms(self) -> int:
        """One way between any two machines."""
        return self._least + int((self._most - self._least + 1) * self._draw.random())

    def up(self, link: Link) -> int:
        """The arrival time of a message sent to the service now."""
        link.up_ms = max(link.up_ms, self._schedule.now_ms + self.delay_ms())
        return link.up_ms

    def down(self, link: Link, from_ms: int) -> int:
        """When what the service sends at `from_ms` is with the consumer."""
        link.down_ms = max(link.down_ms, from_ms + self.delay_ms() + link.slow_ms)
        return link.down_ms


class Station:
    """One server, or several that share the work: what it handles takes time."""

    def __init__(self, service_us: int, servers: int = 1) -> None:
        self._service_us = service_us / servers
        self._free_us = 0.0

    def done_ms(self, now_ms: int, count: int = 1) -> int:
        """When `count` messages that arrive now have been handled (milliseconds, rounded up)."""
        begin = max(self._free_us, now_ms * 1_000.0)
        self._free_us = begin + count * self._service_us
        return -int(-self._free_us // 1_000)
