"""One run: a plan is carried out in a world until it is over, checked after every event.

Rules:
- Everything random comes from the plan's seed; equal plans give equal journals, byte for byte.
- After the last step the world is mended (`heal`) and left in peace; then liveness is judged.
- The first broken invariant ends the run. So does an error that comes out of the real code.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import NamedTuple

from kohort.simulator.checks import Checks, Violation
from kohort.simulator.conditions import EXPECTATIONS
from kohort.simulator.event_log import Line
from kohort.simulator.plan import Plan
from kohort.simulator.script import Script
from kohort.simulator.world import World

MAX_EVENTS = 600_000
"""A small world that has not come to its end by then runs in circles."""


class Outcome(NamedTuple):
    """What became of a run."""

    plan: Plan
    code: str | None
    """The broken invariant; None when all held."""
    what: str
    digest: str
    events: int
    at_ms: int
    story: list[Line]
    read: int
    """Records that consumers were handed."""
    generations: int

    @property
    def failed(self) -> bool:
        """Whether something was broken."""
        return self.code is not None


class Simulation:
    """One world, its checks and its script."""

    checks: Checks

    def __init__(self, plan: Plan) -> None:
        self.world = World(plan, self._checks_of)
        self.script = Script(self.world, plan.steps)

    def _checks_of(self, world: World) -> Checks:
        self.checks = Checks(world)
        return self.checks

    def run(self) -> Outcome:
        """Until the end, or until something is broken."""
        try:
            self._until(lambda: self.script.over)
            if self.script.missed is not None:
                raise Violation("STORY", f"this never came: {self.script.missed}")
            self.world.heal()
            self._in_peace()
            self._expected()
        except Violation as violation:
            return self._outcome(violation.code, str(violation))
        except Exception as error:  # any error of the real code in its loop is a finding
            lines = traceback.format_exception(error)
            self.world.journal.tell(f"{type(error).__name__}: {error}")
            return self._outcome("CRASH", "".join(lines))
        return self._outcome(None, "")

    def _until(self, over: Callable[[], bool]) -> None:
        while not over():
            if not self.world.schedule.step():
                return
            self._after_event()

    def _after_event(self) -> None:
        self.checks.after_event()
        if not self.script.over:
            self.script.look()
        if self.world.schedule.events > MAX_EVENTS:
            raise Violation("GL4", f"{MAX_EVENTS} events and no end: it runs in circles")

    def _run_until(self, when_ms: int) -> None:
        while (due := self.world.schedule.next_ms) is not None and due <= when_ms:
            self.world.schedule.step()
            self._after_event()
        self.world.schedule.run_until(when_ms)

    def _in_peace(self) -> None:
        """Liveness: settled within the bound, then every member reads the new records."""
        bound_ms = self.world.plan.peace_ms or self.checks.liveness.bound_ms()
        begin_ms = self.world.schedule.now_ms
        while (
            not self.world.observed.is_settled()
            and self.world.schedule.now_ms < begin_ms + bound_ms
        ):
            self._run_until(self.world.schedule.now_ms + 500)
        self.checks.liveness.settled()
        # Who is still at its slow work has not come to read yet; that is no promise broken.
        busy_ms = max([app.busy_until_ms for app in self.world.live()], default=0)
        self._run_until(max(busy_ms, self.world.schedule.now_ms))
        for log in self.world.cluster.all_logs():
            log.append(1, self.world.schedule.now_ms)
            self.world.cluster.progressed(log)
        self._until_read()
        self.checks.liveness.everything_read()
        self._run_until(self.world.schedule.now_ms + 2 * self.world.settings.heartbeat_ms)
        self._grace()
        self.checks.at_the_end()

    def _grace(self) -> None:
        """Until everything is committed and the dead are gone, or until they must be."""
        lives = self.checks.lives
        lives.rest()
        end_ms = self.world.schedule.now_ms + lives.grace_ms()
        while self.world.schedule.now_ms < end_ms and (lives.uncommitted() or lives.strangers()):
            self._run_until(self.world.schedule.now_ms + 500)
            if lives.moved_on():  # it was thrown out before, and hears of it only now
                self._until_read()
                lives.rest()
                end_ms = self.world.schedule.now_ms + lives.grace_ms()

    def _until_read(self) -> None:
        """Until every record was handed out, or none was for as long as one may take."""
        read, since_ms = -1, self.world.schedule.now_ms
        while not self.checks.liveness.all_read():
            now_ms, so_far = (
                self.world.schedule.now_ms,
                sum(app.read for app in self.world.all_apps),
            )
            if so_far > read:
                read, since_ms = so_far, now_ms
            if now_ms > since_ms + self.checks.liveness.read_bound_ms():
                return
            self._run_until(now_ms + 500)

    def _expected(self) -> None:
        for text in self.world.plan.expect:
            sentence = EXPECTATIONS.parse(text)
            if not sentence.call(self.world, *sentence.args):
                raise Violation("STORY", f"expected at the end: {text}")

    def _outcome(self, code: str | None, what: str) -> Outcome:
        read = sum(app.read for app in self.world.all_apps)
        return Outcome(
            self.world.plan,
            code,
            what,
            self.world.journal.digest,
            self.world.schedule.events,
            self.world.schedule.now_ms,
            self.world.journal.story,
            read,
            self.world.observed.generation(),
        )
