"""Many runs: seeds one after the other, scenarios in all their variants.

Rules: a run is named by its seed and the options that its plan was generated with; the command that
replays it holds both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kohort.simulator.generate import generate
from kohort.simulator.plan import Plan
from kohort.simulator.runs.shrink import DEFAULT_BUDGET, Shrinker
from kohort.simulator.runs.simulation import Outcome, Simulation
from kohort.simulator.scenario import Scenario


@dataclass(frozen=True)
class Options:
    """What limits the plans that seeds give."""

    protocol: str | None = None
    members: int | None = None
    faults: tuple[str, ...] | None = None

    def plan(self, seed: int) -> Plan:
        """The plan of a seed."""
        return generate(seed, protocol=self.protocol, members=self.members, faults=self.faults)

    def command(self, seed: int) -> str:
        """What replays one seed."""
        words = ["kohort simulate run --seed", str(seed)]
        if self.protocol is not None:
            words += ["--protocol", self.protocol]
        if self.members is not None:
            words += ["--members", str(self.members)]
        if self.faults is not None:
            words += ["--faults", ",".join(self.faults) or "none"]
        return " ".join(words)


def run(plan: Plan) -> Outcome:
    """One run."""
    return Simulation(plan).run()


def run_seed(seed: int, options: Options) -> Outcome:
    """One seed; the story is dropped when all held, because thousands of them are kept."""
    outcome = run(options.plan(seed))
    return outcome if outcome.failed else outcome._replace(story=[])


def run_scenario(scenario: Scenario, first_seed: int = 1) -> Iterator[Outcome]:
    """A scenario in all its variants and seeds."""
    for plan in scenario.plans(first_seed):
        yield run(plan)


def shortest(failing: Outcome, budget: int = DEFAULT_BUDGET) -> Outcome:
    """The smallest plan that fails as this one did."""
    return Shrinker(failing, budget=budget).shrink()
