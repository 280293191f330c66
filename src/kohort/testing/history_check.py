"""Violations of a group's promises, found in the reports of its members and producers.

Rules:
- Only reported events count, in the order of their times; events of one member keep their order.
- A record exists when its producer's report says so. In a partition without any producer's report,
  every offset counts as a record.
- Reading uncommitted records again is allowed, as at least once says; with `exactly_once`
  nothing may be read twice.
- A member owns a partition from `assigned` until `revoked`, `lost` or its death. A member that was
  expelled believes longer than it owns: until it says `lost` it may read on, but not commit.
- Each offset is complained of once for each kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kohort.testing.ranges import Range, Ranges

Partition = tuple[str, int]
MAX_VIOLATIONS: Final = 1_000


class Kind(StrEnum):
    """What a group must never do."""

    LOST = "lost"
    """An acknowledged record was never read and cannot be any more; or it reads differently."""
    DUPLICATE = "duplicate"
    """A record was read again although it had been committed, or twice by one owner."""
    OUT_OF_ORDER = "out of order"
    """An owner read an earlier record after a later one."""
    SKIPPED = "skipped"
    """An owner went past an unread record."""
    COMMIT_BEYOND_POSITION = "commit beyond position"
    """A commit covers records that had not been read."""
    COMMIT_WENT_BACK = "commit went back"
    """A commit is lower than one before it: what lies between will be read again."""
    TWO_OWNERS = "two owners"
    """Two members owned a partition at once, or one read or committed what it did not own."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that must not have happened."""

    kind: Kind
    topic: str
    partition: int
    members: tuple[str, ...]
    first: int | None
    """The first offset concerned."""
    last: int | None
    """The last offset concerned."""
    time_ms: int
    """When it was seen, since 1970."""
    what: str
    """The violation as text."""

    def __str__(self) -> str:
        at = f"{self.time_ms / 1000:.3f}"
        offsets = "" if self.first is None else f" offset {self.first}"
        if self.first != self.last:
            offsets = f" offsets {self.first}-{self.last}"
        return f"[{at}] {self.kind}: {self.topic}-{self.partition}{offsets}: {self.what}"


class Act(StrEnum):
    """What a member or a producer did."""

    SENT = "sent"
    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"
    READ = "read"
    COMMITTED = "committed"
    MOVED = "moved"
    """It was sent elsewhere: a seek, a reset by an operator."""
    DIED = "died"


@dataclass(frozen=True, slots=True)
class Event:
    """One act, of one partition (DIED: of none)."""

    time_ms: int
    member: str
    act: Act
    topic: str = ""
    partition: int = -1
    first: int = -1
    """SENT, READ: the first offset; COMMITTED: the offset."""
    last: int = -1
    value: str | None = None
    """SENT, READ of one offset: the record's content, where it was reported."""


@dataclass(slots=True)
class Span:
    """A member's ownership of a partition."""

    since_ms: int
    owned: bool = True
    """False: it reads without ever having been assigned anything, by its own choice."""
    position: int | None = None
    """Where it will read next; None: not read yet."""
    start: int | None = None
    """What the group had committed when it began."""
    read: Ranges = field(default_factory=Ranges)
    rivals: dict[str, int] = field(default_factory=dict[str, int])
    """Who was assigned the partition meanwhile, and when."""


@dataclass(slots=True)
class Place:
    """What is known of one partition."""

    sent: Ranges = field(default_factory=Ranges)
    values: dict[int, str] = field(default_factory=dict[int, str])
    read: Ranges = field(default_factory=Ranges)
    first_read: int | None = None
    """Where the group began to read."""
    complained: Ranges = field(default_factory=Ranges)
    """Skipped offsets: they are not reported again as lost."""
    committed: int | None = None
    spans: dict[str, Span] = field(default_factory=dict[str, Span])

    def existing(self, start: int, stop: int) -> Iterator[Range]:
        """The records of a range, as far as is known."""
        if self.sent:
            yield from self.sent.within(start, stop)
        elif start < stop:
            yield start, stop

    def unread(self, start: int, stop: int) -> list[Range]:
        """The unread records of a range."""
        return [
            gap for low, high in self.existing(start, stop) for gap in self.read.missing(low, high)
        ]


class Replay:
    """Goes through a history once."""

    def __init__(
        self, *, from_start: bool = True, exactly_once: bool = False, zombies: bool = False
    ) -> None:
        self._from_start = from_start
        self._zombies = zombies
        self._exactly_once = exactly_once
        self._places: dict[Partition, Place] = {}
        self._grouped: set[str] = set()
        self._last_ms = 0
        self.violations: list[Violation] = []

    def run(self, acts: Sequence[Event], *, complete: bool) -> list[Violation]:
        """All violations. `complete`: the group has had time to read everything."""
        for one in acts:
            if one.act is Act.SENT:
                place = self._place(one)
                place.sent.add(one.first, one.last + 1)
                if one.value is not None:
                    place.values[one.first] = one.value
            elif one.act is Act.ASSIGNED:
                self._grouped.add(one.member)
        for one in acts:
            self._last_ms = one.time_ms
            self._take(one)
        for (topic, partition), place in self._places.items():
            self._ended(topic, partition, place, complete)
        return self.violations

    def _place(self, act: Event) -> Place:
        return self._places.setdefault((act.topic, act.partition), Place())

    def _take(self, act: Event) -> None:
        if act.act is Act.DIED:
            for place in self._places.values():
                place.spans.pop(act.member, None)
        elif act.act is Act.ASSIGNED:
            self._assigned(act, self._place(act))
        elif act.act in (Act.REVOKED, Act.LOST):
            self._given_up(act, self._place(act))
        elif act.act is Act.READ:
            self._read(act, self._place(act))
        elif act.act is Act.COMMITTED:
            self._committed(act, self._place(act))
        elif act.act is Act.MOVED:
            self._moved(act, self._place(act))

    def _complain(
        self, kind: Kind, act: Event, what: str, spans: Iterable[Range] = (), *others: str
    ) -> None:
        members = (act.member, *others) if act.member else others
        for first, stop in spans or [(-1, -1)]:
            if len(self.violations) >= MAX_VIOLATIONS:
                return
            known = stop > first
            self.violations.append(
                Violation(
                    kind,
                    act.topic,
                    act.partition,
                    members,
                    first if known else None,
                    stop - 1 if known else None,
                    act.time_ms,
                    what,
                )
            )

    # -- ownership

    def _assigned(self, act: Event, place: Place) -> None:
        for member, span in place.spans.items():
            if member != act.member and span.owned:
                span.rivals.setdefault(act.member, act.time_ms)
        place.spans[act.member] = Span(act.time_ms, start=place.committed)

    def _given_up(self, act: Event, place: Place) -> None:
        span = place.spans.pop(act.member, None)
        if span is None or act.act is Act.LOST or self._zombies:
            return
        for rival, since_ms in span.rivals.items():
            if since_ms < act.time_ms:
                self._complain(
                    Kind.TWO_OWNERS,
                    act,
                    f"{act.member} gave it up {act.time_ms - since_ms} ms after {rival} had it",
                    (),
                    rival,
                )

    def _span(self, act: Event, place: Place, doing: str) -> Span:
        """The present ownership; complains where there is none."""
        span = place.spans.get(act.member)
        if span is None:
            owned = act.member in self._grouped
            if owned:
                owners = [member for member, other in place.spans.items() if other.owned]
                owner = f", it was {owners[0]}'s" if owners else ""
                self._complain(
                    Kind.TWO_OWNERS,
                    act,
                    f"{act.member} {doing} what it did not own{owner}",
                    [(act.first, act.first + 1)],
                    *owners,
                )
            span = place.spans[act.member] = Span(act.time_ms, owned=False, start=place.committed)
        return span

    def _moved(self, act: Event, place: Place) -> None:
        span = place.spans.get(act.member)
        if span is not None:
            place.spans[act.member] = Span(span.since_ms, span.owned, None, act.first)
            place.spans[act.member].rivals = span.rivals
        if not act.member:
            place.committed = act.first

    # -- reading

    def _read(self, act: Event, place: Place) -> None:
        span = self._span(act, place, "read")
        first, stop = act.first, act.last + 1
        self._same_value(act, place)
        if self._exactly_once:
            again = list(place.read.within(first, stop))
            if again:
                self._complain(
                    Kind.DUPLICATE, act, f"{act.member} read what had been read before", again
                )
        if place.first_read is None:
            place.first_read = first
        if span.position is None:
            self._first_read(act, place, span)
        elif first < span.position:
            self._read_back(act, span)
        else:
            gaps = list(place.existing(span.position, first))
            self._skipped(act, place, gaps, f"{act.member} went from {span.position} to {first}")
        span.position = max(span.position or 0, stop)
        span.read.add(first, stop)
        place.read.add(first, stop)

    def _same_value(self, act: Event, place: Place) -> None:
        sent = place.values.get(act.first)
        if act.value is not None and sent is not None and sent != act.value:
            self._complain(
                Kind.LOST,
                act,
                f"{sent!r} was acknowledged, {act.member} read {act.value!r}",
                [(act.first, act.first + 1)],
            )

    def _first_read(self, act: Event, place: Place, span: Span) -> None:
        first, stop = act.first, act.last + 1
        start = span.start
        if start is None and not self._from_start:
            return
        begin = 0 if start is None else start
        told_of = (
            f"the group had committed {start}" if start is not None else "nothing was committed"
        )
        self._skipped(
            act, place, place.unread(begin, first), f"{act.member} began at {first}, {told_of}"
        )
        again = [] if self._exactly_once else list(place.read.within(first, min(stop, begin)))
        if again:
            self._complain(
                Kind.DUPLICATE, act, f"{act.member} read it again though {told_of}", again
            )

    def _skipped(self, act: Event, place: Place, gaps: Sequence[Range], what: str) -> None:
        fresh = [gap for start, stop in gaps for gap in place.complained.missing(start, stop)]
        for start, stop in fresh:
            place.complained.add(start, stop)
        if fresh:
            self._complain(Kind.SKIPPED, act, what, fresh)

    def _read_back(self, act: Event, span: Span) -> None:
        assert span.position is not None
        first, stop = act.first, min(act.last + 1, span.position)
        again = list(span.read.within(first, stop))
        if again and not self._exactly_once:
            self._complain(
                Kind.DUPLICATE, act, f"{act.member} read it twice in one ownership", again
            )
        earlier = list(span.read.missing(first, stop))
        if earlier:
            what = f"{act.member} had read up to {span.position - 1} before"
            self._complain(Kind.OUT_OF_ORDER, act, what, earlier)

    # -- committing

    def _committed(self, act: Event, place: Place) -> None:
        offset = act.first
        span = self._span(act, place, "committed")
        for rival, since_ms in span.rivals.items():
            if since_ms < act.time_ms:
                self._complain(
                    Kind.TWO_OWNERS,
                    act,
                    f"{act.member} committed {act.time_ms - since_ms} ms after {rival} had it",
                    [(offset, offset + 1)],
                    rival,
                )
                break
        position = span.position
        if position is None:
            position = max(place.committed or 0, place.read.stop)
        beyond = list(place.existing(position, offset))
        if beyond:
            self._complain(
                Kind.COMMIT_BEYOND_POSITION,
                act,
                f"{act.member} committed {offset}, its position was {position}",
                beyond,
            )
        if place.committed is not None and offset < place.committed:
            self._complain(
                Kind.COMMIT_WENT_BACK,
                act,
                f"{act.member} committed {offset} after {place.committed} had been",
                [(offset, place.committed)],
            )
        place.committed = offset

    # -- the end

    def _ended(self, topic: str, partition: int, place: Place, complete: bool) -> None:
        end = Event(self._last_ms, "", Act.DIED, topic, partition)
        for member, span in place.spans.items():
            if span.owned and span.rivals and not self._zombies:
                rival = next(iter(span.rivals))
                self._complain(
                    Kind.TWO_OWNERS,
                    end,
                    f"{member} never gave it up, and {rival} was assigned it",
                    (),
                    member,
                    rival,
                )
        if not place.sent:
            return
        stop = place.sent.stop if complete else place.committed or 0
        start = 0 if self._from_start else place.first_read
        gaps = [] if start is None else place.unread(start, stop)
        lost = [gap for low, high in gaps for gap in place.complained.missing(low, high)]
        if lost:
            committed = f"the group has committed {place.committed}"
            why = "read by nobody" if complete else f"read by nobody, and {committed}"
            self._complain(Kind.LOST, end, f"acknowledged, {why}", lost)
