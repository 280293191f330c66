"""The shortest story that still breaks the same invariant.

Rules:
- Shrinking applies to the plan (its steps, then its consumers, topics and nodes), never the
  seed: small chances stay the same as far as possible.
- Delta debugging: halves, quarters, … of the steps are left out as long as the run still fails with
  the same code. `budget` bounds the runs that this takes.
"""

from __future__ import annotations

from collections.abc import Callable

from kohort.simulator.plan import Plan
from kohort.simulator.runs.simulation import Outcome, Simulation

DEFAULT_BUDGET = 300


class Shrinker:
    """Makes one failing plan smaller."""

    def __init__(
        self,
        failing: Outcome,
        *,
        budget: int = DEFAULT_BUDGET,
        run: Callable[[Plan], Outcome] = lambda plan: Simulation(plan).run(),
    ) -> None:
        self.best = failing
        self.runs = 0
        self._budget = budget
        self._run = run

    def shrink(self) -> Outcome:
        """The outcome of the smallest plan that was found."""
        smaller = True
        while smaller and self.runs < self._budget:
            size = self._size()
            self._fewer_steps()
            self._fewer_consumers()
            self._closer_together()
            self._smaller_world()
            smaller = self._size() < size
        return self.best

    def _size(self) -> tuple[int, int, int]:
        plan = self.best.plan
        return len(plan.steps), len(plan.consumers), self.best.at_ms

    def _fails(self, plan: Plan) -> bool:
        """Whether a smaller plan fails in the same way; then it is the best so far."""
        if self.runs >= self._budget:
            return False
        self.runs += 1
        outcome = self._run(plan)
        if outcome.code != self.best.code:
            return False
        self.best = outcome
        return True

    def _fewer_steps(self) -> None:
        pieces = 2
        while pieces <= 2 * len(self.best.plan.steps) and self.runs < self._budget:
            steps = self.best.plan.steps
            length = max(1, len(steps) // pieces)
            at, removed = 0, False
            while at < len(self.best.plan.steps):
                steps = self.best.plan.steps
                if self._fails(self.best.plan.but(steps=steps[:at] + steps[at + length :])):
                    removed = True
                else:
                    at += length
            if length == 1 and not removed:
                return
            pieces = pieces if removed and length > 1 else pieces * 2

    def _fewer_consumers(self) -> None:
        for consumer in self.best.plan.consumers:
            plan = self.best.plan
            left = tuple(each for each in plan.consumers if each.name != consumer.name)
            steps = tuple(s for s in plan.steps if consumer.name not in s.split())
            if left:
                self._fails(plan.but(consumers=left, steps=steps))

    def _closer_together(self) -> None:
        """Steps that wait for a time wait less, where that makes no difference."""
        for share in (4, 2):
            steps = tuple(_sooner(text, share) for text in self.best.plan.steps)
            if steps != self.best.plan.steps:
                self._fails(self.best.plan.but(steps=steps))

    def _smaller_world(self) -> None:
        plan = self.best.plan
        if plan.node_permille:
            self._fails(plan.but(node_permille=()))
        for nodes in range(1, self.best.plan.nodes):
            if self._fails(self.best.plan.but(nodes=nodes)):
                break
        for topic in sorted(self.best.plan.topics):
            for partitions in range(1, self.best.plan.topics[topic]):
                topics = {**self.best.plan.topics, topic: partitions}
                if self._fails(self.best.plan.but(topics=topics)):
                    break


def _sooner(text: str, share: int) -> str:
    head, colon, rest = text.partition(": ")
    words = head.split()
    if colon and len(words) == 2 and words[0] == "at":
        return f"at {int(words[1]) // share}: {rest}"
    return text
