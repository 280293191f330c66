"""What one simulated system consists of, and what goes wrong in it: drawn from a seed, made smaller
by leaving out parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kohort.simulator.schedule import Random

UPGRADE: Final = "upgrade"
STORE_CRASH: Final = "store_crash"
FAULTS: Final = (
    "node_kill",
    "node_stop",
    "leader_move",
    "coordinator_move",
    "broker_kill",
    "broker_stop",
    "power_cut",
    "cut",
    "block",
    "slow_disk",
    "full_disk",
    "disk_error",
    "client_kill",
    "client_stall",
    "client_twin",
    "wall_jump",
    "slow_network",
    UPGRADE,
    STORE_CRASH,
)
_DRAWN_FAULTS: Final = FAULTS[: FAULTS.index(UPGRADE)]
_DRAWN: Final = ("load", "update", "transact", "move", "read", "handle", "book")
PROGRAMS: Final = (
    *_DRAWN,
    "fill",
    "trail",
    "trim",
    "redrive",
    "remake",
    "refill",
    "span",
    "look",
    "watch",
)

READ_INPUT: Final = frozenset({"move", "read", "handle", "book"})
"""The programs that need another one to write."""


@dataclass(frozen=True)
class SystemPlan:
    """One world.

    Args:
        seed: decides everything else.
        programs: which program runs how many times.
        faults: which kinds of faults happen; empty for none.
        fault_count: how many happen.
        work_ms: how long the programs work before they are asked to finish.
        nodes: nodes of the broker.
        partitions: partitions of each topic.
        protocol: the group protocol of the consumers: classic, consumer, mixed.
        durability: fsync or os.
    """

    seed: int
    programs: tuple[tuple[str, int], ...]
    faults: tuple[str, ...]
    fault_count: int
    work_ms: int
    nodes: int
    partitions: int
    protocol: str
    durability: str

    def smaller(self) -> list[SystemPlan]:
        """Plans with one part less; what still fails among them is simpler."""
        plans: list[SystemPlan] = [
            replace(self, faults=tuple(f for f in self.faults if f != fault))
            for fault in self.faults
        ]
        for program, count in self.programs:
            if count > 1:
                fewer = tuple((p, 1 if p == program else n) for p, n in self.programs)
                plans.append(replace(self, programs=fewer))
            elif len(self.programs) > 1:
                plans.append(
                    replace(self, programs=tuple(p for p in self.programs if p[0] != program))
                )
        if self.fault_count > 1:
            plans.append(replace(self, fault_count=self.fault_count // 2))
            plans.append(replace(self, fault_count=self.fault_count - 1))
        if self.nodes > 1:
            plans.append(replace(self, nodes=1))
        if self.partitions > 1:
            plans.append(replace(self, partitions=1))
        if self.work_ms > 2_000:
            plans.append(replace(self, work_ms=self.work_ms // 2))
        return plans

    def command(self) -> str:
        """The command that runs this plan again."""
        words = [f"kohort simulate system --seed {self.seed}"]
        drawn = plan_of(self.seed)
        if self == drawn:
            return words[0]
        programs = ",".join(f"{name}:{count}" for name, count in self.programs)
        words.append(f"--programs {programs}")
        words.append(f"--faults {','.join(self.faults) or 'none'}")
        words.append(f"--fault-count {self.fault_count} --work-ms {self.work_ms}")
        words.append(f"--nodes {self.nodes} --partitions {self.partitions}")
        words.append(f"--protocol {self.protocol} --durability {self.durability}")
        return " ".join(words)


def plan_of(seed: int) -> SystemPlan:
    """The plan of a seed: a random subset of programs and of faults."""
    chance = Random(f"system/{seed}")
    chosen = [p for p in _DRAWN if chance.random() < 0.6] or [chance.choice(_DRAWN)]
    if READ_INPUT.intersection(chosen):
        chosen = list(dict.fromkeys(["load", *chosen]))
    durability = "fsync" if chance.random() < 0.85 else "os"
    faults = [f for f in _DRAWN_FAULTS if chance.random() < 0.4]
    if durability == "os":
        faults = [f for f in faults if f not in {"power_cut", "disk_error"}]
    drawn_apart = (*_upgrades(seed), *(_store_crashes(seed) if "book" in chosen else ()))
    return SystemPlan(
        seed,
        (
            *((p, chance.choice((1, 1, 2, 3))) for p in chosen),
            *_retained(seed),
            *_remade(seed),
            *(_watched(seed) if READ_INPUT.intersection(chosen) else ()),
            *(_redrives(seed) if "handle" in chosen else ()),
        ),
        (*faults, *drawn_apart),
        chance.randint(1, 12) if faults else 2 * len(drawn_apart),
        chance.choice((4_000, 10_000, 20_000)),
        chance.choice((1, 2, 3)),
        chance.choice((1, 2, 4)),
        chance.choice(("classic", "consumer", "mixed")),
        durability,
    )


def _upgrades(seed: int) -> tuple[str, ...]:
    """Whether processes come back as another release, drawn by itself."""
    return (UPGRADE,) if Random(f"upgrade/{seed}").random() < 0.35 else ()


def _store_crashes(seed: int) -> tuple[str, ...]:
    """Whether processes die between two statements of their store, drawn by itself."""
    return (STORE_CRASH,) if Random(f"store/{seed}").random() < 0.5 else ()


def _retained(seed: int) -> tuple[tuple[str, int], ...]:
    """The programs of a topic that is deleted from its beginning, drawn by themselves: the rest of
    a plan does not depend on them."""
    chance = Random(f"retention/{seed}")
    if chance.random() < 0.65:
        return ()
    trims = (("trim", 1),) if chance.random() < 0.5 else ()
    return (("fill", chance.choice((1, 2))), ("trail", chance.choice((1, 2))), *trims)


def _remade(seed: int) -> tuple[tuple[str, int], ...]:
    """The programs of a topic that is deleted and created again, drawn by themselves."""
    chance = Random(f"remade/{seed}")
    if chance.random() < 0.7:
        return ()
    spans = (("span", 1),) if chance.random() < 0.5 else ()
    return (("remake", 1), ("refill", chance.choice((1, 2))), ("look", 1), *spans)


def _watched(seed: int) -> tuple[tuple[str, int], ...]:
    """Who asks for committed offsets, drawn by itself too."""
    chance = Random(f"watch/{seed}")
    return (("watch", chance.choice((1, 2))),) if chance.random() < 0.5 else ()


def _redrives(seed: int) -> tuple[tuple[str, int], ...]:
    """Redrives of what an app could not handle, drawn by themselves as well."""
    chance = Random(f"redrive/{seed}")
    return (("redrive", chance.choice((1, 1, 2))),) if chance.random() < 0.4 else ()
