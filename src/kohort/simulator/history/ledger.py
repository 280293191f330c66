"""What a run is measured by, the same for every design.

Rules:
- A consumer *owns* a partition while it reads it: from the moment its thread has taken the
  partition in until its thread has given it up. What servers believe does not count.
- A partition that nobody owns counts by the time (partition-seconds).
- Two owners at once are a *zombie's overlap* when all but one of them are fenced (their commits
  would be refused), and *split brain* when two are not. The design's world says who is fenced.
- A group is *settled* after an event when every partition has one owner and nothing changes hands
  any more until the next event; the time to that is the time of the last change of hands.
- A message is one request, one answer or one notification on the network. Keep-alives (heartbeats,
  pings and their answers) are counted apart: they continue when nothing happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kohort.simulator.history.plan import Event, Kind

Fenced = Callable[[int], bool]
"""Whether a commit of this consumer would be refused now."""

KEEP_ALIVE = "keep-alive"
NOTIFICATION = "notification"


class Ownership:
    """Who reads what, over time. Consumers are numbers, partitions (topic, number)."""

    def __init__(self, topics: Mapping[str, int], fenced: Fenced) -> None:
        self._index = {topic: n << 20 for n, topic in enumerate(topics)}
        self._total = sum(topics.values())
        self._sizes = dict(topics)
        self._fenced = fenced
        self._owner: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._held: dict[int, set[int]] = {}
        self._shared: dict[int, set[int]] = {}
        self._split: set[int] = set()
        self._at_ms = 0
        self.unowned_ms = self.overlap_ms = self.split_ms = 0
        self.moved = self.splits = self.overlaps = 0
        self.changed_ms = 0
        self._peak = self._total

    @property
    def settled(self) -> bool:
        """Whether every partition has exactly one owner."""
        return len(self._owner) == self._total and not self._shared

    @property
    def unowned(self) -> int:
        """How many partitions nobody owns."""
        return self._total - len(self._owner)

    def peak(self) -> int:
        """The most partitions that nobody owned at once since the last call."""
        peak, self._peak = max(self._peak, self.unowned), self.unowned
        return peak

    def advance(self, now_ms: int) -> None:
        """Add up the time since the last change."""
        passed, self._at_ms = now_ms - self._at_ms, now_ms
        if passed:
            self.unowned_ms += passed * (self._total - len(self._owner))
            self.overlap_ms += passed * (len(self._shared) - len(self._split))
            self.split_ms += passed * len(self._split)

    def grow(self, topic: str, partitions: int, now_ms: int) -> None:
        """`topic` now has `partitions`."""
        self.advance(now_ms)
        self._total += partitions - self._sizes[topic]
        self._sizes[topic] = partitions
        self.changed_ms = now_ms

    def take(self, member: int, parts: Mapping[str, Iterable[int]], now_ms: int) -> None:
        """`member` now reads `parts` too."""
        self.advance(now_ms)
        held = self._held.setdefault(member, set())
        for flat in self._flat(parts):
            if flat in held:
                continue
            held.add(flat)
            self.changed_ms = now_ms
            if self._last.get(flat, member) != member:
                self.moved += 1
            self._last[flat] = member
            owner = self._owner.setdefault(flat, member)
            if owner != member:
                self._share(flat, owner, member)

    def _share(self, flat: int, owner: int, member: int) -> None:
        together = self._shared.setdefault(flat, {owner})
        if len(together) == 1:
            self.overlaps += 1
        together.add(member)
        if flat not in self._split and sum(not self._fenced(each) for each in together) > 1:
            self._split.add(flat)
            self.splits += 1

    def drop(self, member: int, parts: Mapping[str, Iterable[int]], now_ms: int) -> None:
        """`member` reads `parts` no more."""
        self._drop(member, self._flat(parts), now_ms)

    def drop_all(self, member: int, now_ms: int) -> None:
        """`member` reads nothing any more."""
        self._drop(member, list(self._held.get(member, ())), now_ms)

    def _drop(self, member: int, flats: Iterable[int], now_ms: int) -> None:
        self.advance(now_ms)
        held = self._held.get(member, set())
        for flat in flats:
            if flat not in held:
                continue
            held.remove(flat)
            self.changed_ms = now_ms
            together = self._shared.get(flat)
            if together is None:
                del self._owner[flat]
                continue
            together.remove(member)
            self._owner[flat] = next(iter(together))
            self._split.discard(flat)
            if len(together) == 1:
                del self._shared[flat]
        self._peak = max(self._peak, self.unowned)

    def _flat(self, parts: Mapping[str, Iterable[int]]) -> list[int]:
        index = self._index
        return [index[topic] + number for topic, numbers in parts.items() for number in numbers]


@dataclass
class Traffic:
    """Messages and bytes by kind."""

    messages: Counter[str] = field(default_factory=Counter[str])
    sizes: Counter[str] = field(default_factory=Counter[str])

    def add(self, kind: str, count: int, size: int) -> None:
        """`count` messages of `kind`, `size` bytes together."""
        self.messages[kind] += count
        self.sizes[kind] += size


@dataclass(frozen=True, slots=True)
class Figures:
    """What one event cost, or a whole run. Seconds are of virtual time.

    `settled_s` is None where the group did not settle before the next event. `messages` leaves out
    keep-alives; notifications are among them. `by_kind` has all, keep-alives too.
    """

    what: str
    at_s: float
    settled_s: float | None
    messages: int
    keep_alives: int
    notifications: int
    size: int
    unowned_s: float
    split_s: float
    splits: int
    overlap_s: float
    failed_claims: int
    moved: int
    by_kind: Mapping[str, int]


class Ledger:
    """The books of one run: what is counted, cut at each event."""

    def __init__(self, topics: Mapping[str, int], fenced: Fenced) -> None:
        self.ownership = Ownership(topics, fenced)
        self.traffic = Traffic()
        self.failed_claims = 0
        self.lines: list[Figures] = []
        self._event: Event | None = None
        self._from = self._now()

    def _now(self) -> tuple[Counter[str], Counter[str], Sequence[int]]:
        own = self.ownership
        numbers = (
            own.unowned_ms,
            own.split_ms,
            own.splits,
            own.overlap_ms,
            self.failed_claims,
            own.moved,
        )
        return self.traffic.messages.copy(), self.traffic.sizes.copy(), numbers

    def begin(self, event: Event | None, now_ms: int) -> None:
        """An event begins (None: the end of the run), and with it what the last one cost is known.

        Call it before anything of the new event happens.
        """
        self.ownership.advance(now_ms)
        if self._event is not None:
            self.lines.append(self._figures(self._event))
        self._event, self._from = event, self._now()
        self.ownership.changed_ms = now_ms

    def _figures(self, event: Event) -> Figures:
        (messages, sizes, before), (messages_now, sizes_now, now) = self._from, self._now()
        by_kind, by_size = messages_now - messages, sizes_now - sizes
        unowned, split, splits, overlap, failed, moved = (
            b - a for a, b in zip(before, now, strict=True)
        )
        changed = max(0, self.ownership.changed_ms - event.from_ms)
        return Figures(
            what=event.kind.value,
            at_s=event.at_ms / 1_000,
            settled_s=changed / 1_000 if self.ownership.settled else None,
            messages=sum(by_kind.values()) - by_kind[KEEP_ALIVE],
            keep_alives=by_kind[KEEP_ALIVE],
            notifications=by_kind[NOTIFICATION],
            size=sum(by_size.values()),
            unowned_s=unowned / 1_000,
            split_s=split / 1_000,
            splits=splits,
            overlap_s=overlap / 1_000,
            failed_claims=failed,
            moved=moved,
            by_kind=dict(sorted(by_kind.items())),
        )


_FAULT_LASTS = {Kind.CUT.value, Kind.DEPOSED.value}


def total(lines: Sequence[Figures]) -> Figures:
    """What all events after the start cost. `settled_s` is the longest; None if one never did.

    While a consumer or a server is cut off, who does not know it reads on, so nothing can settle:
    those events count when they are mended.
    """
    counted = [line for line in lines if line.what != Kind.START.value]
    times = [line.settled_s for line in counted if line.what not in _FAULT_LASTS]
    by_kind: Counter[str] = Counter()
    for line in counted:
        by_kind.update(line.by_kind)
    return Figures(
        what="all after the start",
        at_s=counted[0].at_s if counted else 0.0,
        settled_s=None if None in times else max((t for t in times if t is not None), default=0.0),
        messages=sum(line.messages for line in counted),
        keep_alives=sum(line.keep_alives for line in counted),
        notifications=sum(line.notifications for line in counted),
        size=sum(line.size for line in counted),
        unowned_s=round(sum(line.unowned_s for line in counted), 3),
        split_s=round(sum(line.split_s for line in counted), 3),
        splits=sum(line.splits for line in counted),
        overlap_s=round(sum(line.overlap_s for line in counted), 3),
        failed_claims=sum(line.failed_claims for line in counted),
        moved=sum(line.moved for line in counted),
        by_kind=dict(sorted(by_kind.items())),
    )
