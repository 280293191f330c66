"""Records of batch handlers that wait for a fuller batch. Pure.

Rules (spec 4.12):
- The records of a topic wait together, over all of its partitions: as many as whole batches hold
  begin at once, the others when the oldest of them has waited `linger_ms`.
- A partition that waits is read on, or its batch could never become fuller.
- What waits was not begun: a partition that is taken away takes it along, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kohort.processing.engine.partition_state import Partition, Route


@dataclass
class _Waiting:
    """The partitions of one topic whose records wait, in the order in which they began to."""

    route: Route
    due_ms: int
    partitions: dict[Partition, None] = field(default_factory=dict[Partition, None])


class Lingering:
    """What waits, by source topic."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}

    def deadlines(self) -> Iterable[int]:
        """When `tick` has something to do, for each topic."""
        return (waiting.due_ms for waiting in self._waiting.values())

    def clock_stepped(self, step_ms: int) -> None:
        """The time of day was set by so much."""
        for waiting in self._waiting.values():
            waiting.due_ms += step_ms

    def enter(self, partition: Partition, now_ms: int) -> None:
        """The backlog of a partition waits for a fuller batch."""
        route = partition.route
        if (waiting := self._waiting.get(route.topic)) is None:
            waiting = self._waiting[route.topic] = _Waiting(route, now_ms + route.linger_ms)
        waiting.partitions[partition] = None
        partition.lingers = True

    def leave(self, partition: Partition) -> None:
        """It waits no longer, or for something else."""
        partition.lingers = False
        waiting = self._waiting.get(partition.route.topic)
        if waiting is not None:
            waiting.partitions.pop(partition, None)
            if not waiting.partitions:
                del self._waiting[partition.route.topic]

    def tick(self, now_ms: int) -> None:
        """Begin what has waited long enough."""
        due = [each.route for each in self._waiting.values() if each.due_ms <= now_ms]
        for route in due:
            self.begin(route, now_ms, all_of_it=True)

    def begin(self, route: Route, now_ms: int, *, all_of_it: bool) -> None:
        """Begin whole batches, or all that waits; what is left waits `linger_ms` from now on."""
        waiting = self._waiting.get(route.topic)
        if waiting is None:
            return
        for partition in [each for each in waiting.partitions if not each.may_linger]:
            self.leave(partition)
        count = sum(len(partition.aside) for partition in waiting.partitions)
        whole = count if all_of_it else count // route.max_batch * route.max_batch
        if not whole:
            return
        waiting.due_ms = now_ms + route.linger_ms
        for partition in list(waiting.partitions):
            aside = partition.aside
            begun = [aside.popleft() for _ in range(min(whole, len(aside)))]
            partition.dispatcher.add(begun)
            whole -= len(begun)
            if not aside:
                self.leave(partition)
