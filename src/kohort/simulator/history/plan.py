"""What happens to a group, and when: one list of events for all designs, from one seed.

Rules:
- An event says what happens to consumers, topics and servers, never what a protocol does about it.
  Each design's world carries it out in its own terms (`SERVER_DIES` is the coordinator's node, or
  the leader of the ZooKeeper ensemble).
- Events are far enough apart that a design which can settle has settled before the next.
- Consumers are numbered; those that come later have the next numbers.

Shell: randomness (seeded).
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from kohort.errors import ConfigError

MAX_MEMBERS, MAX_PARTITIONS = 10_000, 100_000


class Kind(enum.Enum):
    """What can happen; the value is how a table calls it."""

    START = "start"
    JOIN = "join"
    LEAVE = "leave"
    CRASH = "crash"
    GROW = "grow"
    BOUNCE = "bounce"
    SLOW = "slow links"
    SERVER_DIES = "server dies"
    CUT = "cut off"
    BACK = "back again"
    DEPOSED = "deposed"
    LEARNS = "learns of it"


MEANING: dict[Kind, str] = {
    Kind.START: "all consumers start within two seconds",
    Kind.JOIN: "one more consumer",
    Kind.LEAVE: "one consumer closes",
    Kind.CRASH: "one consumer's process dies",
    Kind.GROW: "a topic gets a tenth more partitions",
    Kind.BOUNCE: "a tenth of the consumers (at most a hundred) close and start again, over ten "
    "seconds",
    Kind.SLOW: "a twentieth of the consumers hear everything three seconds late; one more joins",
    Kind.SERVER_DIES: "the coordinator's node, or the leader of the ZooKeeper ensemble, dies",
    Kind.CUT: "one consumer loses the coordinating service for longer than its session, and reads "
    "on from the brokers",
    Kind.BACK: "that consumer's link is mended",
    Kind.DEPOSED: "the coordinating node loses the cluster, another takes its place, and it does "
    "not know; one more consumer joins",
    Kind.LEARNS: "the old coordinating node learns that it was deposed",
}


@dataclass(frozen=True, slots=True)
class Size:
    """How large: consumers at the start, partitions of all topics together, topics."""

    members: int
    partitions: int
    topics: int = 4

    def __post_init__(self) -> None:
        if not 2 <= self.members <= MAX_MEMBERS:
            raise ConfigError(f"{self.members} members: choose from 2 to {MAX_MEMBERS:,}")
        if not self.topics <= self.partitions <= MAX_PARTITIONS:
            raise ConfigError(
                f"{self.partitions} partitions: choose from {self.topics} (one a topic) to "
                f"{MAX_PARTITIONS:,}"
            )

    def by_topic(self) -> dict[str, int]:
        """Partitions of each topic; the first ones get what does not divide."""
        each, rest = divmod(self.partitions, self.topics)
        return {f"t{n}": each + (n < rest) for n in range(self.topics)}

    def __str__(self) -> str:
        return f"{self.members}x{self.partitions}"

    @classmethod
    def parse(cls, text: str) -> Size:
        """From `MEMBERSxPARTITIONS`; ConfigError for anything else."""
        members, _, partitions = text.partition("x")
        if not (members.isdecimal() and partitions.isdecimal()):
            raise ConfigError(f"size {text!r}: write MEMBERSxPARTITIONS, such as 100x1000")
        return cls(int(members), int(partitions))


@dataclass(frozen=True, slots=True)
class Timing:
    """What the world's things take. Milliseconds, unless the name says otherwise.

    Sessions and heartbeats are the same in all designs, so that no design wins by a setting.
    `step_ms` is how long a consumer's own thread takes to come to a change of its assignment;
    `metadata_ms` how old a client's knowledge of the topics may become.
    """

    session_ms: int = 10_000
    heartbeat_ms: int = 3_000
    network_ms: tuple[int, int] = (0, 1)
    service_us: int = 10
    write_ms: int = 5
    step_ms: int = 20
    metadata_ms: int = 5_000
    failover_ms: int = 3_000
    slow_ms: int = 3_000
    rebalance_retries: int = 4
    rebalance_backoff_ms: int = 2_000


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happens: to `members`, or to `topic`, which then has `partitions`.

    A `newcomer` starts at `newcomer_ms`; the time to stable counts from there.
    """

    at_ms: int
    kind: Kind
    members: tuple[int, ...] = ()
    newcomer: int = -1
    newcomer_ms: int = 0
    topic: str = ""
    partitions: int = 0

    @property
    def from_ms(self) -> int:
        """When all of it has begun."""
        return max(self.at_ms, self.newcomer_ms)


@dataclass(frozen=True, slots=True)
class Plan:
    """A workload with its faults. `seed` also decides the network's delays."""

    seed: int
    size: Size
    events: tuple[Event, ...]
    end_ms: int
    timing: Timing = field(default_factory=Timing)


STEPS = (
    Kind.JOIN,
    Kind.LEAVE,
    Kind.CRASH,
    Kind.GROW,
    Kind.BOUNCE,
    Kind.SLOW,
    Kind.SERVER_DIES,
    Kind.CUT,
    Kind.DEPOSED,
)
GAP_MS = 30_000
JITTER_MS = 3_000
"""A heartbeat's interval: members whose heartbeats keep step are met at any point of it."""
CUT_MS = 20_000
DEPOSED_MS = 20_000
SUCCESSOR_MS = 4_000
START_MS = 2_000
MOST_BOUNCED = 100
MOST_DEPOSED = 2_000
"""In larger groups no coordinator is deposed: everybody would join a group of strangers at once."""


def make_plan(
    seed: int, size: Size, kinds: Iterable[Kind] = STEPS, timing: Timing | None = None
) -> Plan:
    """The start, then one event of each of `kinds`, in their order, at seeded moments.

    A large group (`MOST_DEPOSED`) is spared the deposed coordinator.
    """
    draw = random.Random(f"{seed}/plan")
    maker = _Maker(draw, size)
    now = START_MS + GAP_MS
    for kind in kinds:
        if kind is Kind.DEPOSED and size.members > MOST_DEPOSED:
            continue
        at_ms = now + draw.randrange(JITTER_MS)
        maker.add(kind, at_ms)
        if kind in {Kind.CUT, Kind.DEPOSED}:
            now += CUT_MS if kind is Kind.CUT else DEPOSED_MS
        now += GAP_MS
    return Plan(seed, size, tuple(maker.events), now, timing or Timing())


class _Maker:
    def __init__(self, draw: random.Random, size: Size) -> None:
        self.draw = draw
        self.live = list(range(size.members))
        self.next = size.members
        self.partitions = size.by_topic()
        self.events = [Event(0, Kind.START, tuple(self.live))]

    def add(self, kind: Kind, at_ms: int) -> None:
        if kind is Kind.JOIN:
            self._event(at_ms, kind, newcomer=self._newcomer())
        elif kind in {Kind.LEAVE, Kind.CRASH}:
            gone = self._some(1)
            self.live.remove(gone[0])
            self._event(at_ms, kind, gone)
        elif kind is Kind.GROW:
            topic = self.draw.choice(sorted(self.partitions))
            self.partitions[topic] += max(1, self.partitions[topic] // 10)
            size = self.partitions[topic]
            self.events.append(Event(at_ms, kind, topic=topic, partitions=size))
        elif kind is Kind.BOUNCE:
            self._event(at_ms, kind, self._some(min(MOST_BOUNCED, max(1, len(self.live) // 10))))
        elif kind is Kind.SLOW:
            slow = self._some(max(1, len(self.live) // 20))
            self._event(at_ms, kind, slow, self._newcomer())
        elif kind is Kind.CUT:
            cut = self._some(1)
            self._event(at_ms, kind, cut)
            self._event(at_ms + CUT_MS, Kind.BACK, cut)
        elif kind is Kind.DEPOSED:
            self._event(at_ms, kind, newcomer=self._newcomer())
            self._event(at_ms + DEPOSED_MS, Kind.LEARNS)
        elif kind is Kind.SERVER_DIES:
            self._event(at_ms, kind)
        else:
            raise ConfigError(f"{kind.value!r} cannot be alone in a plan")

    def _event(
        self, at_ms: int, kind: Kind, members: tuple[int, ...] = (), newcomer: int = -1
    ) -> None:
        # To a deposed server's successor, so not before there is one.
        later = SUCCESSOR_MS if kind is Kind.DEPOSED else 0
        joins_ms = at_ms + later if newcomer >= 0 else 0
        self.events.append(Event(at_ms, kind, members, newcomer, joins_ms))

    def _some(self, count: int) -> tuple[int, ...]:
        return tuple(sorted(self.draw.sample(self.live, count)))

    def _newcomer(self) -> int:
        self.live.append(self.next)
        self.next += 1
        return self.next - 1
