"""What the worlds of all designs have in common: time, network, books, and the plan's events.

Rules: a world carries out each event of the plan in its own terms, and says to the ledger what
consumers take and give up and what goes over the network. Nothing else decides anything.
"""

from __future__ import annotations

from collections.abc import Callable

from kohort.simulator.history.ledger import Figures, Ledger
from kohort.simulator.history.network import Network
from kohort.simulator.history.plan import START_MS, Event, Kind, Plan
from kohort.simulator.schedule import Schedule

Progress = Callable[[int, int], None]
"""Called with the virtual time that has passed, and that of the whole run, in milliseconds."""

SLOW_FOR_MS = 18_000
BOUNCE_MS, DOWN_MS = 10_000, 2_000
STEP_MS = 1_000


class World:
    """One design under one plan. Subclasses say what the plan's events are to them."""

    from_the_log: bool = False

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.timing = plan.timing
        self.schedule = Schedule(plan.seed)
        self.network = Network(self.schedule, plan.timing)
        self.topics = plan.size.by_topic()
        self.ledger = Ledger(self.topics, self.fenced)
        self.unowned: list[int] = []
        """For each second of the run, the most partitions that nobody owned at once."""
        self._draw = self.schedule.split("world")

    # -- what a design has to say ----------------------------------------------------------------

    def fenced(self, member: int) -> bool:
        """Whether a commit of `member` would be refused now."""
        del member
        return False

    def start(self, member: int) -> None:
        """The consumer's process starts."""
        raise TypeError(f"{type(self).__name__} does not say how consumer {member} starts")

    def leave(self, member: int) -> None:
        """The consumer closes."""
        raise TypeError(f"{type(self).__name__} does not say how consumer {member} closes")

    def crash(self, member: int) -> None:
        """The consumer's process dies."""
        raise TypeError(f"{type(self).__name__} does not say how consumer {member} dies")

    def grow(self, topic: str) -> None:
        """`self.topics[topic]` has risen."""

    def slow(self, member: int, by_ms: int) -> None:
        """What the consumer hears comes `by_ms` late from now on; 0: no more."""

    def cut(self, member: int, cut: bool) -> None:
        """The consumer's link to the service is cut, or mended."""

    def server_dies(self) -> None:
        """The coordinating server dies; another can take its place `failover_ms` later."""

    def depose(self) -> None:
        """The coordinating server is cut off from the cluster, not from its clients."""

    def learns(self) -> None:
        """The deposed server hears of it."""

    # -- the run -----------------------------------------------------------------------------------

    def run(self, progress: Progress | None = None) -> list[Figures]:
        """Everything to the plan's end; what each event cost."""
        for event in self.plan.events:
            self.schedule.at(event.at_ms, self._apply, event)
        for now_ms in range(STEP_MS, self.plan.end_ms + STEP_MS, STEP_MS):
            self.schedule.run_until(min(now_ms, self.plan.end_ms))
            self.unowned.append(self.ledger.ownership.peak())
            if progress is not None:
                progress(self.schedule.now_ms, self.plan.end_ms)
        self.ledger.begin(None, self.schedule.now_ms)
        return self.ledger.lines

    def _apply(self, event: Event) -> None:
        now = self.schedule.now_ms
        self.ledger.begin(event, now)
        kind = event.kind
        if kind is Kind.START:
            for member in event.members:
                self.schedule.at(now + self._draw.randrange(START_MS), self.start, member)
        elif kind is Kind.GROW:
            self.topics[event.topic] = event.partitions
            self.ledger.ownership.grow(event.topic, event.partitions, now)
            self.grow(event.topic)
        elif kind is Kind.BOUNCE:
            self._bounce(event, now)
        elif kind is Kind.SLOW:
            for member in event.members:
                self.slow(member, self.timing.slow_ms)
                self.schedule.at(now + SLOW_FOR_MS, self.slow, member, 0)
        elif kind is Kind.SERVER_DIES:
            self.server_dies()
        elif kind is Kind.DEPOSED:
            self.depose()
        elif kind is Kind.LEARNS:
            self.learns()
        else:
            self._to_members(event)
        if event.newcomer >= 0:
            self.schedule.at(event.newcomer_ms, self.start, event.newcomer)

    def _to_members(self, event: Event) -> None:
        for member in event.members:
            if event.kind is Kind.LEAVE:
                self.leave(member)
            elif event.kind is Kind.CRASH:
                self.crash(member)
            else:
                self.cut(member, event.kind is Kind.CUT)

    def _bounce(self, event: Event, now: int) -> None:
        for member in event.members:
            down_ms = now + self._draw.randrange(BOUNCE_MS)
            self.schedule.at(down_ms, self.leave, member)
            self.schedule.at(down_ms + DOWN_MS, self.start, member)
