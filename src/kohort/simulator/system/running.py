"""Runs of simulated systems: by seed, overridden in parts, and made smaller when they fail."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

from kohort.simulator.system.plan import FAULTS, SystemPlan, plan_of
from kohort.simulator.system.states import all_states
from kohort.simulator.system.world import Outcome, run

SHRINK_RUNS: Final = 60


@dataclass(frozen=True)
class Overrides:
    """Parts of a plan that are set instead of drawn; None leaves what the seed draws."""

    programs: tuple[tuple[str, int], ...] | None = None
    faults: tuple[str, ...] | None = None
    fault_count: int | None = None
    work_ms: int | None = None
    nodes: int | None = None
    partitions: int | None = None
    protocol: str | None = None
    durability: str | None = None

    def plan(self, seed: int) -> SystemPlan:
        """The plan of a seed with these parts in place of its own."""
        changes = {name: value for name, value in vars(self).items() if value is not None}
        return replace(plan_of(seed), **changes)


def run_seed(seed: int, overrides: Overrides) -> Outcome:
    """Run one seed. The story of a run that held is dropped, because thousands are kept."""
    outcome = run(overrides.plan(seed))
    return outcome if outcome.failed else replace(outcome, story=[])


def smallest(failing: Outcome, runs: int = SHRINK_RUNS) -> Outcome:
    """The smallest plan found that breaks the same promise, within a number of runs."""
    best, left = failing, runs
    tried: set[SystemPlan] = set()
    while left > 0:
        for plan in best.plan.smaller():
            if plan in tried:
                continue
            tried.add(plan)
            left -= 1
            outcome = run(plan)
            if outcome.code == failing.code:
                best = outcome
                break
            if left <= 0:
                return best
        else:
            return best
    return best


@dataclass
class Coverage:
    """Which faults happened and which coordinator states were seen, over many runs."""

    reached: Counter[str]

    def missing(self) -> list[str]:
        """What no run has reached, by name."""
        everything = {f"fault {fault}" for fault in FAULTS} | all_states()
        return sorted(everything - set(self.reached))

    def lines(self) -> list[str]:
        """The report."""
        rows = [f"{count:>9,}  {name}" for name, count in sorted(self.reached.items())]
        return [*rows, f"not reached: {', '.join(self.missing()) or 'nothing'}"]
