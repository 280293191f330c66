"""A plan out of a seed: topology, members, protocol, workload, and a random part of the faults.

Rules:
- Swarm testing: each seed takes a random subset of the faults, so that some runs have many of one
  kind and none of the others; faults that hide one another are seen alone.
- A plan is only data. Everything that a fault needs later (a restart after a kill) is a step too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kohort.errors import ConfigError
from kohort.simulator.plan import ConsumerPlan, Plan, Settings
from kohort.simulator.schedule import Random

NAMES = "abcdefghij"
ASSIGNORS = (
    "range",
    "roundrobin",
    "sticky",
    "cooperative-sticky",
    "range,cooperative-sticky",
)
PROTOCOLS = ("classic", "classic", "consumer", "consumer", "mixed")
"""`mixed`: each member speaks one of the two, and the group migrates to and fro (KIP-848)."""
APIS = ("JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "OffsetFetch", "LeaveGroup", "Fetch")
PATTERNS = (".*", "[no].*", "orders|notes", "(bill|order|note)s")
"""Each matches `orders`, which is always there."""
LATER = ("notes", "parcels")
"""Topics that are made while the world runs."""
MAX_MEMBERS = len(NAMES)


class _Cast:
    """What faults may name."""

    def __init__(self, chance: Random, names: Sequence[str], topics: dict[str, int], nodes: int):
        self.chance = chance
        self.names = names
        self.topics = topics
        self.nodes = nodes
        self.static = False

    def who(self) -> str:
        return self.chance.choice(self.names)

    def node(self) -> str:
        number = self.chance.randint(0, self.nodes)
        return f"node {number}" if number else "the coordinator"

    def tp(self) -> str:
        topic = self.chance.choice(sorted(self.topics))
        return f"{topic}-{self.chance.randrange(self.topics[topic])}"

    def ms(self, least: int, most: int) -> int:
        return self.chance.randint(least, most)


Fault = Callable[[_Cast], list[tuple[int, str]]]
"""Sentences, each with its distance in ms from the first."""


def _frames(c: _Cast) -> list[tuple[int, str]]:
    api, nth = c.chance.choice(APIS), c.chance.choice(("next", "next", "2nd", "3rd"))
    which = c.chance.choice(("the", "the answer to the"))
    if c.chance.random() < 0.5:
        return [(0, f"lose {which} {nth} {api} of {c.who()}")]
    return [(0, f"delay {which} {nth} {api} of {c.who()} by {c.ms(100, 6_000)} ms")]


def _kill(how: str) -> Fault:
    def fault(c: _Cast) -> list[tuple[int, str]]:
        node = c.node()
        again = "restart the coordinator" if node == "the coordinator" else f"restart {node}"
        return [(0, how.format(node)), (c.ms(100, 6_000), again)]

    return fault


def _pause(c: _Cast) -> list[tuple[int, str]]:
    who, tp = c.who(), c.tp()
    return [(0, f"pause {who} in {tp}"), (c.ms(500, 6_000), f"resume {who} in {tp}")]


def _leave(c: _Cast) -> list[tuple[int, str]]:
    who = c.who()
    how = c.chance.choice(("close", "crash"))
    return [(0, f"{how} {who}"), (c.ms(200, 15_000), f"start {who}")]


def _unsubscribe(c: _Cast) -> list[tuple[int, str]]:
    who = c.who()
    topics = " ".join(sorted(c.topics))
    return [(0, f"unsubscribe {who}"), (c.ms(100, 8_000), f"subscribe {who} to {topics}")]


def _grow(c: _Cast) -> list[tuple[int, str]]:
    topic = c.chance.choice(sorted(c.topics))
    c.topics[topic] = min(8, c.topics[topic] + c.chance.randint(1, 2))
    return [(0, f"grow {topic} to {c.topics[topic]} partitions")]


def _create(c: _Cast) -> list[tuple[int, str]]:
    topic = c.chance.choice(LATER)
    if topic in c.topics:
        return []
    c.topics[topic] = c.chance.randint(1, 3)
    return [(0, f"create {topic} with {c.topics[topic]} partitions")]


def _twin(c: _Cast) -> list[tuple[int, str]]:
    return [(0, f"start a twin of {c.who()}")] if c.static else []


FAULTS: dict[str, Fault] = {
    "create": _create,
    "cut": lambda c: [(0, f"cut {c.who()}")],
    "cut-node": lambda c: [(0, f"cut {c.who()} from {c.node()}")],
    "block": lambda c: [(0, f"block {c.who()} from {c.node()} for {c.ms(100, 9_000)} ms")],
    "frames": _frames,
    "slow-net": lambda c: [(0, f"slow the network to {c.ms(20, 300)} ms")],
    "kill": _kill("kill {}"),
    "kill-silently": _kill("kill {} silently"),
    "power": _kill("cut the power of {}"),
    "stall-node": lambda c: [(0, f"stall {c.node()} for {c.ms(50, 5_000)} ms")],
    "move": lambda c: [(0, "move the coordinator")],
    "move-leader": lambda c: [(0, f"move {c.tp()} to node {c.ms(1, c.nodes)}")],
    "loading": lambda c: [(0, "hold loading"), (c.ms(500, 7_000), "release loading")],
    "refuse": lambda c: [(0, f"refuse {c.ms(1, 2)} appends")],
    "slow-disk": lambda c: [(0, f"slow the disk by {c.ms(50, 1_500)} ms")],
    "stall": lambda c: [(0, f"stall {c.who()} for {c.ms(100, 10_000)} ms")],
    "slow": lambda c: [(0, f"slow {c.who()} for {c.ms(1_000, 18_000)} ms")],
    "leave": _leave,
    "restart": lambda c: [(0, f"restart {c.who()}")],
    "seek": lambda c: [(0, f"seek {c.who()} to {c.ms(0, 10)} in {c.tp()}")],
    "pause": _pause,
    "sessions": lambda c: [(0, f"forget the fetch sessions of {c.node()}")],
    "wake": lambda c: [(0, f"wake {c.who()}")],
    "commit": lambda c: [(0, f"commit {c.who()}")],
    "unsubscribe": _unsubscribe,
    "grow": _grow,
    "trim": lambda c: [(0, f"trim {c.tp()} to {c.ms(1, 200)}")],
    "twin": _twin,
}


def generate(
    seed: int,
    *,
    protocol: str | None = None,
    members: int | None = None,
    faults: Sequence[str] | None = None,
) -> Plan:
    """The plan of a seed. `faults` limits what may go wrong; empty means nothing does.

    Raises ConfigError for names that are not known.
    """
    chance = Random(f"plan {seed}")
    nodes = chance.choice((1, 2, 3, 3))
    topics = {name: chance.randint(1, 4) for name in ("orders", "bills")[: chance.randint(1, 2)]}
    count = chance.choice((1, 2, 2, 3, 3, 4, 5)) if members is None else members
    if not 1 <= count <= MAX_MEMBERS:
        raise ConfigError(f"{count} members: the simulator plans 1 to {MAX_MEMBERS}")
    consumers = _consumers(chance, count, topics, protocol)
    cast = _Cast(chance, [each.name for each in consumers], dict(topics), nodes)
    cast.static = any(each.instance for each in consumers)
    steps = _steps(chance, cast, _swarm(chance, faults))
    drift = chance.random() < 0.3
    return Plan(
        seed=seed,
        nodes=nodes,
        topics=topics,
        consumers=consumers,
        steps=steps,
        group_partitions=chance.choice((1, 2, 4)),
        settings=_settings(chance, Random(f"fetch sessions {seed}"), static=cast.static),
        node_permille=tuple(chance.randint(970, 1_030) if drift else 1_000 for _ in range(nodes)),
        name=f"seed {seed}",
    )


def _swarm(chance: Random, allowed: Sequence[str] | None) -> list[str]:
    names = sorted(FAULTS if allowed is None else set(allowed))
    for name in names:
        if name not in FAULTS:
            raise ConfigError(f"no fault {name!r}; there are {', '.join(sorted(FAULTS))}")
    share = chance.choice((0.15, 0.3, 0.6))
    return [name for name in names if chance.random() < share] or names[:1]


def _consumers(
    chance: Random, count: int, topics: dict[str, int], protocol: str | None
) -> tuple[ConsumerPlan, ...]:
    assignor, static = chance.choice(ASSIGNORS), chance.random() < 0.25
    chosen = chance.choice(PROTOCOLS) if protocol is None else protocol
    drift = chance.random() < 0.3
    resets = chance.choice((("earliest",), ("earliest",), ("latest",), ("earliest", "latest")))
    patterns = chance.random() < 0.2
    consumers: list[ConsumerPlan] = []
    for name in NAMES[:count]:
        some = sorted(topics) if chance.random() < 0.8 else [chance.choice(sorted(topics))]
        consumers.append(
            ConsumerPlan(
                name=name,
                topics=tuple(some),
                protocol=chance.choice(PROTOCOLS[1:3]) if chosen == "mixed" else chosen,
                assignor=assignor,
                instance=f"i-{name}" if static else None,
                commit=chance.choice(("auto", "auto", "sync", "async", "none")),
                poll_ms=chance.choice((100, 500, 1_000, 2_000)),
                work_ms=chance.choice((0, 20, 400)),
                records=chance.choice((1, 5, 50, 500)),
                permille=chance.randint(970, 1_030) if drift else 1_000,
                pattern=chance.choice(PATTERNS) if patterns else "",
                reset=chance.choice(resets),
                fence=chance.random() < 0.3,
            )
        )
    return tuple(consumers)


def _settings(chance: Random, sessions: Random, *, static: bool) -> Settings:
    newest: dict[str, int] = {}
    if chance.random() < 0.3:  # nodes that know nothing of topic ids
        newest |= {"FetchRequest": 12, "OffsetCommitRequest": 9, "OffsetFetchRequest": 9}
    if chance.random() < 0.2 and not static:  # and of neither member ids nor static members
        newest |= {"JoinGroupRequest": 3, "SyncGroupRequest": 2, "HeartbeatRequest": 2}
    return Settings(
        session_ms=chance.choice((4_000, 6_000)),
        heartbeat_ms=chance.choice((500, 1_300)),
        initial_delay_ms=chance.choice((0, 0, 1_000)),
        newest=newest,
        fetch_slots=sessions.choice((1_000, 1_000, 2, 1)),
        fetch_eviction_ms=sessions.choice((0, 300)),
    )


def _steps(chance: Random, cast: _Cast, swarm: list[str]) -> tuple[str, ...]:
    timed: list[tuple[int, str]] = []
    at_ms = 0
    for name in cast.names:
        timed.append((at_ms, f"start {name}"))
        at_ms += chance.choice((0, 10, 500, 3_000))
    for _ in range(chance.randint(1, 14) if swarm else 0):
        at_ms += chance.choice((1, 20, 200, 1_000, 4_000))
        timed += [(at_ms + later_ms, text) for later_ms, text in FAULTS[chance.choice(swarm)](cast)]
    end_ms = at_ms + 1_000
    for _ in range(chance.randint(3, 12)):
        records = chance.choice((1, 3, 20, 200))
        what = "write a marker" if chance.random() < 0.2 else f"write {records} records"
        timed.append((chance.randint(0, end_ms), f"{what} to {cast.tp()}"))
    timed.sort(key=lambda entry: entry[0])
    return tuple(f"at {when_ms}: {text}" for when_ms, text in timed)
