"""A consumer of the first design: it watches ZooKeeper and assigns for itself.

Rules (those of Kafka's consumer up to 0.8, with its names and limits):
- It registers itself as an ephemeral node below `ids`, and watches `ids` and the topics.
- At any change it looks at everything again (the consumers, each one's subscription, the topics),
  stops reading, releases the partitions it had, works out its own share by range over the sorted
  ids, and claims that: one ephemeral node a partition.
- A claim that fails means that somebody decided by another view. It gives back what it got, waits
  (`rebalance.backoff.ms`) and looks again, `rebalance.max.retries` times; then it gives up and
  reads nothing until a watch fires.
- A watch that fires in the middle is remembered, and a whole rebalance follows this one.
- It hears that its session expired only when it reaches ZooKeeper again, and reads on until then.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kohort.simulator.history.zookeeper import Close, Create, Delete, Look, Request, View

IDS, OWNERS, TOPICS = "/consumers/g/ids", "/consumers/g/owners", "/brokers/topics"


class State(enum.Enum):
    """What a consumer is doing."""

    DOWN = "down"
    REGISTERING = "registering"
    LOOKING = "looking"
    STOPPING = "stopping"
    RELEASING = "releasing"
    CLAIMING = "claiming"
    UNDOING = "giving back what it got"
    OWNING = "owning"
    BACKING_OFF = "backing off"
    GAVE_UP = "gave up"
    CLOSING = "closing"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Ask:
    """Send `request` to ZooKeeper; answer by `answered(token, …)`."""

    token: int
    request: Request


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop reading everything, then say `stopped`."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read `parts` from now on."""

    parts: Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Failed:
    """`count` claims have failed: for the books."""

    count: int


Effect = Ask | Stop | Read | Failed
IDLE = frozenset({State.OWNING, State.GAVE_UP})


class Watcher:
    """One consumer. Every input returns what is to be done, in order."""

    def __init__(self, name: str, topics: Sequence[str], retries: int, backoff_ms: int) -> None:
        self.name = name
        self.state = State.DOWN
        self.wake_ms: int | None = None
        self._look = Look(IDS, tuple(f"{TOPICS}/{topic}" for topic in topics))
        self._topics = tuple(topics)
        self._retries, self._backoff_ms = retries, backoff_ms
        self._token = 0
        self._tries = 0
        self._again = False
        self._reading = False
        self._claimed: tuple[str, ...] = ()
        self._asked: tuple[str, ...] = ()
        self._mine: dict[str, range] = {}
        self._view = View((), ())

    # -- inputs --------------------------------------------------------------------------------

    def start(self) -> list[Effect]:
        """Register; the rest follows."""
        self.state = State.REGISTERING
        return self._ask(Create((f"{IDS}/{self.name}",), ",".join(self._topics)))

    def close(self) -> list[Effect]:
        """Stop, and end the session: its nodes go with it."""
        self._token += 1
        self.state, self.wake_ms = State.CLOSING, None
        return [Stop()]

    def notified(self) -> list[Effect]:
        """A watch has fired."""
        if self.state in IDLE:
            return self._rebalance()
        self._again = True
        return []

    def expired(self) -> list[Effect]:
        """The session is gone, and every node with it: start over. It reads on until it stops."""
        self._claimed, self._again, self.wake_ms = (), False, None
        return self.start()

    def tick(self) -> list[Effect]:
        """The back-off is over."""
        self.wake_ms = None
        return self._try() if self.state is State.BACKING_OFF else []

    def stopped(self) -> list[Effect]:
        """Nothing is read any more."""
        self._reading = False
        if self.state is State.CLOSING:
            return self._ask(Close())
        return self._release() if self.state is State.STOPPING else []

    def answered(self, token: int, result: View | tuple[str, ...]) -> list[Effect]:
        """ZooKeeper's answer; one that was overtaken is dropped."""
        if token != self._token:
            return []
        if isinstance(result, View):
            return self._looked(result)
        if self.state is State.REGISTERING:
            return self._rebalance()
        if self.state is State.RELEASING:
            self._claimed = ()
            return self._claim()
        if self.state is State.CLAIMING:
            return self._claims_answered(result)
        if self.state is State.UNDOING:
            return self._undone()
        if self.state is State.CLOSING:
            self.state = State.CLOSED
        return []

    # -- a rebalance ---------------------------------------------------------------------------

    def _ask(self, request: Request) -> list[Effect]:
        self._token += 1
        return [Ask(self._token, request)]

    def _rebalance(self) -> list[Effect]:
        self._tries, self._again = 0, False
        return self._try()

    def _try(self) -> list[Effect]:
        self._tries += 1
        self.state = State.LOOKING
        return self._ask(self._look)

    def _looked(self, view: View) -> list[Effect]:
        self._view = view
        if self._reading:
            self.state = State.STOPPING
            return [Stop()]
        return self._release()

    def _release(self) -> list[Effect]:
        self.state = State.RELEASING
        return self._ask(Delete(self._claimed)) if self._claimed else self._claim()

    def _claim(self) -> list[Effect]:
        self._mine = share(self.name, self._view, self._topics)
        self._asked = tuple(
            f"{OWNERS}/{topic}/{number}"
            for topic, numbers in self._mine.items()
            for number in numbers
        )
        self.state = State.CLAIMING
        return (
            self._ask(Create(self._asked, self.name)) if self._asked else self._claims_answered(())
        )

    def _claims_answered(self, failed: tuple[str, ...]) -> list[Effect]:
        if failed:
            lost = set(failed)
            self._asked = tuple(path for path in self._asked if path not in lost)
            self.state = State.UNDOING
            effects: list[Effect] = [Failed(len(failed))]
            return effects + (self._ask(Delete(self._asked)) if self._asked else self._undone())
        self._claimed, self._reading = self._asked, bool(self._asked)
        self.state = State.OWNING
        return [Read(self._mine), *self._next()]

    def _undone(self) -> list[Effect]:
        if self._tries < self._retries:
            self.state = State.BACKING_OFF
            return []
        self.state = State.GAVE_UP
        return self._next()

    def _next(self) -> list[Effect]:
        return self._rebalance() if self._again else []

    def rest(self, now_ms: int) -> None:
        """Set the alarm when it is backing off; called after every input."""
        if self.state is State.BACKING_OFF and self.wake_ms is None:
            self.wake_ms = now_ms + self._backoff_ms


def share(name: str, view: View, topics: Sequence[str]) -> dict[str, range]:
    """Range: what `name` gets of each topic when all that `view` shows divide it."""
    members = view.children
    place = bisect_left(members, name)
    if place >= len(members) or members[place] != name:
        return {}
    parts: dict[str, range] = {}
    for topic, data in zip(topics, view.data, strict=True):
        each, rest = divmod(int(data or 0), len(members))
        first = place * each + min(place, rest)
        if each or place < rest:
            parts[topic] = range(first, first + each + (place < rest))
    return parts
