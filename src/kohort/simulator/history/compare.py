"""All designs on one plan, at several sizes: what a table and the plots are made from.

Rules: a run depends on its design, its size and the seed alone; nothing here is measured by a
clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kohort.errors import ConfigError
from kohort.setting_keys import nearest
from kohort.simulator.history.assigning_world import AssigningWorld
from kohort.simulator.history.groups_world import GroupsWorld
from kohort.simulator.history.ledger import Figures, total
from kohort.simulator.history.members import Classic, Consumer
from kohort.simulator.history.plan import STEPS, Kind, Plan, Size, make_plan
from kohort.simulator.history.watchers_world import WatchersWorld
from kohort.simulator.history.world import World


@dataclass(frozen=True, slots=True)
class Design:
    """One way to divide partitions. `real`: the very machines of the broker and the client."""

    name: str
    text: str
    real: bool
    make: Callable[[Plan], World]


DESIGNS: dict[str, Design] = {
    design.name: design
    for design in (
        Design("zookeeper", "every consumer watches ZooKeeper", False, WatchersWorld),
        Design("server", "a coordinator watches and assigns", False, AssigningWorld),
        Design(
            "classic",
            "the leading client assigns (range, eager)",
            True,
            lambda plan: GroupsWorld(plan, Classic("range")),
        ),
        Design(
            "cooperative",
            "the leading client assigns (cooperative-sticky)",
            True,
            lambda plan: GroupsWorld(plan, Classic("cooperative-sticky")),
        ),
        Design(
            "kip848",
            "the coordinator assigns, each member moves by itself (KIP-848, uniform)",
            True,
            lambda plan: GroupsWorld(plan, Consumer()),
        ),
    )
}

SIZES = (Size(10, 100), Size(100, 1_000), Size(1_000, 10_000))
FULL_SIZE = Size(10_000, 100_000)


COLUMNS: tuple[str, ...] = (
    "design",
    "members",
    "partitions",
    "event",
    "at_s",
    "stable_s",
    "messages",
    "keep_alives",
    "notifications",
    "bytes",
    "unowned_partition_s",
    "split_brain_partition_s",
    "split_brains",
    "zombie_partition_s",
    "failed_claims",
    "moved",
)


@dataclass(frozen=True, slots=True)
class Run:
    """What one design did at one size: an entry for each event, and all after the start.

    `unowned` is, for each second, the most partitions that nobody owned at once. `from_the_log`:
    the group was there before its members started, so that its start cannot be compared.
    """

    design: str
    size: Size
    seed: int
    events: tuple[Figures, ...]
    unowned: tuple[int, ...] = ()
    from_the_log: bool = False

    @property
    def total(self) -> Figures:
        """All events after the start together."""
        return total(self.events)

    @property
    def start_s(self) -> float | None:
        """How long the start took until stable; None where it did not, or is not comparable."""
        return None if self.from_the_log else self.events[0].settled_s

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each event and one for all, with the keys `COLUMNS`."""
        for figures in (*self.events, self.total):
            yield self.row(figures)

    def row(self, figures: Figures) -> dict[str, Any]:
        """`figures` of this run, with the keys `COLUMNS`."""
        values = (
            self.design,
            self.size.members,
            self.size.partitions,
            figures.what,
            figures.at_s,
            figures.settled_s,
            figures.messages,
            figures.keep_alives,
            figures.notifications,
            figures.size,
            figures.unowned_s,
            figures.split_s,
            figures.splits,
            figures.overlap_s,
            figures.failed_claims,
            figures.moved,
        )
        return dict(zip(COLUMNS, values, strict=True))


Progress = Callable[[str, Size, int, int], None]
"""Called with the design, the size, and the virtual time that has passed."""


def designs_of(names: Sequence[str]) -> list[Design]:
    """The designs by name, all when none is named; ConfigError for one that is not known."""
    chosen: list[Design] = []
    for name in names or DESIGNS:
        if name not in DESIGNS:
            near = nearest(name, DESIGNS)
            hint = f"did you mean {near!r}?" if near else f"known: {', '.join(DESIGNS)}"
            raise ConfigError(f"unknown design {name!r}; {hint}")
        chosen.append(DESIGNS[name])
    return chosen


def compare(
    seed: int,
    sizes: Iterable[Size] = SIZES,
    designs: Sequence[Design] = (),
    kinds: Sequence[Kind] = STEPS,
    progress: Progress | None = None,
) -> list[Run]:
    """Run each of `designs` (all when empty) at each of `sizes`, under one plan a size."""
    runs: list[Run] = []
    for size in sizes:
        plan = make_plan(seed, size, kinds)
        for design in designs or DESIGNS.values():
            runs.append(run_one(design, plan, progress))
    return runs


def run_one(design: Design, plan: Plan, progress: Progress | None = None) -> Run:
    """One design under one plan."""

    def on_progress(now_ms: int, end_ms: int) -> None:
        if progress is not None:
            progress(design.name, plan.size, now_ms, end_ms)

    world = design.make(plan)
    events = world.run(on_progress)
    return Run(
        design.name,
        plan.size,
        plan.seed,
        tuple(events),
        tuple(world.unowned),
        world.from_the_log,
    )


def by_design(runs: Iterable[Run]) -> Mapping[str, list[Run]]:
    """The runs of each design, smallest size first."""
    grouped: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.size.members):
        grouped.setdefault(run.design, []).append(run)
    return {name: grouped[name] for name in DESIGNS if name in grouped}
