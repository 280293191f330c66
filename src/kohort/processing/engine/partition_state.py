"""One partition that is being worked on: its route, its tracker, and why it may be standing still.

Rules:
- Created when the partition is assigned and dropped when it is taken away; items in workers refer
  to the old object, which is no longer `live`, and their results are ignored (C7).
- Whether it is read on is computed each time from the present state, never remembered (W4).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from kohort.config import format_elapsed
from kohort.processing.engine import items_choice
from kohort.processing.engine.circuit_breaker import Circuit, CircuitConfig, CircuitState
from kohort.processing.engine.dispatcher import Dispatcher, Order
from kohort.processing.engine.in_place_retries import Blocking
from kohort.processing.engine.tracker import PartitionTracker
from kohort.retry.policy import RetryTopics

if TYPE_CHECKING:
    Item: TypeAlias = items_choice.Item["Partition"]
else:
    Item = items_choice.Item  # the compiled class has no type parameters


class OnFailure(StrEnum):
    """What becomes of a key's order when one of its records goes to a retry topic."""

    PASS = "pass"
    """Later records of the key continue; the key's order is lost."""
    HOLD_KEY = "hold_key"
    """Later records of the key follow it into the retry topic, and are tried after it."""
    STOP_PARTITION = "stop_partition"
    """Nothing goes to a retry topic: the partition stops until the record is done."""


class Status(StrEnum):
    """What a partition is doing."""

    IDLE = "nothing to do"
    WORKING = "working"
    LINGERING = "waiting for a fuller batch"
    WAITING = "waiting for records in flight"
    """Retries in place, copies and outputs under way, offsets that are too far ahead to begin."""
    GUARDED = "waiting for its first commit"
    SCANNING = "waiting for its retry topics to be read"
    REFUSED = "waiting for what is refused"
    UNREADABLE = "waiting for what cannot be read"
    OPEN = "circuit open"
    PROBING = "trying one record"
    STOPPED = "stopped"
    DRAINING = "being handed over"


@dataclass(frozen=True)
class Route:
    """What the records of one source topic, and of its retry topics, are to go through.

    Args:
        topics: the retry topics of (source topic, group), with the policy of delays.
        order: what keeps its order.
        blocking: tries in place, before the retry topics.
        on_failure: what becomes of a key's order on a failure.
        pool: the workers that its handler runs on.
        max_batch: the most records of one call of a batch handler; 0 of a handler of one record.
        linger_ms: how long records of a batch handler wait for a fuller batch; 0: not at all.
        handler: the name that its handler is registered under; the topic by default.
    """

    topics: RetryTopics
    order: Order = Order.KEY
    blocking: Blocking = field(default_factory=Blocking)
    on_failure: OnFailure = OnFailure.PASS
    circuit: CircuitConfig = field(default_factory=CircuitConfig)
    pool: str = "threads"
    max_batch: int = 0
    linger_ms: int = 0
    handler: str = ""

    def __post_init__(self) -> None:
        if not self.handler:
            object.__setattr__(self, "handler", self.topics.topic)

    def of_topic(self, topic: str) -> Route:
        """The same route for another topic, which has retry topics of its own."""
        return replace(self, topics=replace(self.topics, topic=topic))

    @property
    def topic(self) -> str:
        """The source topic."""
        return self.topics.topic

    @property
    def stops_lane(self) -> bool:
        """Whether a worker has to give back the records behind a failed record of its lane."""
        return bool(self.blocking.delays_ms) or self.on_failure is not OnFailure.PASS


class Partition:
    """State of one assigned partition. `delay_ms` is None for a source topic, 0 for the entry."""

    __slots__ = (
        "alone",
        "aside",
        "begin_version",
        "careful",
        "circuit",
        "damage",
        "delay_ms",
        "dispatcher",
        "draining",
        "early",
        "evicting",
        "head",
        "head_since_ms",
        "lingers",
        "live",
        "number",
        "outstanding",
        "outstanding_bytes",
        "probing",
        "publish_blocked",
        "publish_refusal",
        "publishing",
        "route",
        "status",
        "status_since_ms",
        "stopped",
        "stopped_items",
        "suspect",
        "topic",
        "topic_id",
        "tracker",
        "unknown",
        "unreadable",
    )

    def __init__(
        self,
        topic: str,
        number: int,
        route: Route,
        tracker: PartitionTracker,
        dispatcher: Dispatcher,
        delay_ms: int | None = None,
        topic_id: str = "",
    ) -> None:
        self.topic = topic
        self.number = number
        self.route = route
        self.tracker = tracker
        self.dispatcher = dispatcher
        self.delay_ms = delay_ms
        self.topic_id = topic_id
        self.live = True
        self.draining = False
        """It is about to be taken away: nothing more of it is begun."""
        self.publishing = 0
        """Records whose copy or outputs are not acknowledged yet."""
        self.publish_blocked = 0
        """Those among them that were refused; it is not read on until they are through."""
        self.publish_refusal = ""
        """Why the last of these was refused."""
        self.outstanding: int = 0
        """Records that were read and are not done, and their bytes."""
        self.outstanding_bytes: int = 0
        self.aside: deque[Item] = deque()
        """Records that were read and may not be begun yet."""
        self.lingers = False
        """They only wait for a fuller batch, so that the partition is read on."""
        self.circuit = Circuit(route.circuit)
        self.probing = False
        """One record is being tried to see whether the circuit may close."""
        self.stopped = ""
        """Why an operator has to act (`stop_partition`), and which record it is about."""
        self.stopped_items: list[Item] = []
        self.careful = 0
        """So many more records go one at a time, since processes died here (crash-loop guard)."""
        self.suspect = -1
        self.alone: Item | None = None
        self.begin_version = 0
        """What has to be committed before anything is begun (crash-loop guard)."""
        self.status, self.status_since_ms = Status.IDLE, 0
        """As last looked at, and since when."""
        self.head: int = -1
        self.head_since_ms = 0
        """The committed offset as last looked at, and since when it has not moved."""
        self.evicting: int | None = None
        self.unknown = ""
        """Why it is not known yet which keys are held (`hold_key`)."""
        self.early: set[int] = set()
        """Of a retry topic: offsets that were asked for by hand, and do not wait to be due."""
        self.damage: bytes | None = None
        """The last batch that could not be read."""
        self.unreadable = ""
        """Why it cannot be read on, where it is not known what is to be passed."""

    @property
    def key(self) -> tuple[str, int]:
        """(topic, number)."""
        return (self.topic, self.number)

    @property
    def is_source(self) -> bool:
        """Whether it is of a source topic, not of a retry topic."""
        return self.delay_ms is None

    @property
    def must_be_mended(self) -> bool:
        """Whether it is stopped until something outside is repaired (stopped, circuit,
        publishing)."""
        circuit = self.circuit.state
        stopped = self.stopped or self.unknown or self.publish_blocked or self.unreadable
        return bool(stopped) or circuit is not CircuitState.CLOSED

    @property
    def may_linger(self) -> bool:
        """Whether its backlog could begin at once, if it were not for a fuller batch."""
        closed = self.circuit.state is CircuitState.CLOSED
        return closed and not (self.stopped or self.unknown or self.careful)

    def present_status(self) -> Status:
        """Its present activity."""
        circuit = self.circuit.state
        statuses = (
            (self.draining, Status.DRAINING),
            (self.stopped, Status.STOPPED),
            (self.unknown, Status.SCANNING),
            (self.unreadable, Status.UNREADABLE),
            (self.publish_blocked, Status.REFUSED),
            (circuit is CircuitState.OPEN, Status.OPEN),
            (circuit is CircuitState.HALF_OPEN, Status.PROBING),
            (self.aside and self.tracker.committed_version < self.begin_version, Status.GUARDED),
            (self.lingers, Status.LINGERING),
            (self.aside, Status.WAITING),
            (self.outstanding > self.publishing, Status.WORKING),
            (self.outstanding, Status.WAITING),
        )
        return next((status for holds, status in statuses if holds), Status.IDLE)

    def clock_stepped(self, step_ms: int) -> None:
        """The time of day was set by so much."""
        self.status_since_ms += step_ms
        self.head_since_ms += step_ms
        self.circuit.reopens_ms += step_ms

    def look(self, now_ms: int) -> None:
        """Note since when it has been doing what it does, and since when its head has not moved."""
        if (status := self.present_status()) is not self.status:
            self.status, self.status_since_ms = status, now_ms
        if self.tracker.base != self.head:
            self.head, self.head_since_ms = self.tracker.base, now_ms

    def why_stopped(self, now_ms: int) -> str:
        """Why no record of it begins at present, as text; "" when one may."""
        if self.stopped:
            return self.stopped
        if self.unknown:
            return self.unknown
        if self.unreadable:
            return self.unreadable
        if self.publish_blocked:
            return (
                f"{self.publish_blocked} records could not be published ({self.publish_refusal}); "
                "mend the cause, it is tried again"
            )
        if self.circuit.state == "open":
            left = format_elapsed(max(0, self.circuit.reopens_ms - now_ms))
            return f"too many records failed (circuit open); one is tried in {left}"
        if self.aside and not self.lingers:
            return f"{len(self.aside)} records wait until offset {self.tracker.base} is done"
        return ""

    def __repr__(self) -> str:
        return f"Partition({self.topic}-{self.number}, base={self.tracker.base})"
