"""The account of a rebalance: its cause, the moves, the necessary moves, its duration.

Rules:
- `describe` works out of a `history.Entry` (or of what `inference` made of a log) what people and
  programs are shown; it decodes and compares, and runs only on request.
- A move is needed when the partition had no owner, when its owner is gone or does not read the
  topic any more, or when balance takes it: as many of each member's partitions as the plan takes
  that is balanced with the fewest moves (spec 3.4, `assignors.level`). The others were not needed.
- Between broker and client it travels as JSON in a tagged field of DescribeGroups (KIP-482), which
  every other broker and client ignores. Lists are cut at `MOVES_MAX` and `NAMES_MAX`; counts never.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from kohort.errors import DecodeError
from kohort.group.assignors.base import GroupView, MemberView, Partitions, TopicView
from kohort.group.assignors.claims import Claim
from kohort.group.assignors.measure import moves as moves_of
from kohort.group.assignors.protocol import decode_assignment, decode_subscription
from kohort.group.assignors.sticky_plan import assign_level
from kohort.group.coordinator.state.classic_records import StoredGroup
from kohort.group.coordinator.state.rebalance_history import (
    Cause,
    ConsumerView,
    Entry,
    Trigger,
    View,
)
from kohort.group.coordinator.state.topics_image import by_name

TAG: Final = 19_272
"""The tagged field ("KH") that asks for the timeline, and that carries it."""
MOVES_MAX: Final = 200
NAMES_MAX: Final = 200
COORDINATOR_MAX: Final = 40_000
"""Partitions that a coordinator looks at for one answer."""
_PARTITION_BYTES: Final = 4
WEIGHED_MAX: Final = 200_000
"""Partitions up to which it is worked out what had to move."""
LAST_DEFAULT: Final = 20

CAUSES: Final = "causes"
JOINED: Final = "joined_ms"
MOVES: Final = "moves"
"""Fields that `inferred` may name."""

GOING_ON, STABLE, EMPTY, SUPERSEDED = "going on", "stable", "empty", "superseded"


@dataclass(frozen=True, slots=True)
class RebalanceCause:
    """One cause: a `history.Trigger` by name, and the member it is about."""

    trigger: str
    at_ms: int
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    host: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RebalanceMove:
    """A partition that changed hands. `needed`: "new" (it had no owner), "owner gone",
    "topic gone", "balance", or "" when it was not needed; None when that was not worked out."""

    topic: str
    partition: int
    source: str | None
    target: str | None
    needed: str | None


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One rebalance. Times are wall-clock milliseconds; None: not yet, or not known.

    `generation` is the epoch of a consumer group; None while members still join. `joined_ms` is
    when the generation (the target) was made, `settled_ms` when its assignment was stored (when
    every member had reached it). `needed` and `not_needed` count moves, None where they were not
    worked out. `gap`: so many generations before it are in no log any more. `from_log`: read off
    the log, not remembered by the coordinator; `inferred` names its fields that may be wrong.
    """

    group: str
    protocol: str
    generation: int | None
    outcome: str
    began_ms: int | None
    joined_ms: int | None
    settled_ms: int | None
    causes: tuple[RebalanceCause, ...] = ()
    causes_more: int = 0
    members: int = 0
    came: tuple[str, ...] = ()
    went: tuple[str, ...] = ()
    waited_for: str = ""
    gap: int = 0
    partitions: int = 0
    moved: int | None = None
    needed: int | None = None
    not_needed: int | None = None
    moves: tuple[RebalanceMove, ...] = ()
    from_log: bool = False
    inferred: tuple[str, ...] = ()
    names: dict[str, str] = field(default_factory=dict[str, str])
    """The client ids of members, by member id."""

    @property
    def joining_ms(self) -> int | None:
        """How long the first phase took."""
        return _between(self.began_ms, self.joined_ms)

    @property
    def settling_ms(self) -> int | None:
        """How long the second phase took."""
        return _between(self.joined_ms, self.settled_ms)


def _between(start_ms: int | None, end_ms: int | None) -> int | None:
    return None if start_ms is None or end_ms is None else max(0, end_ms - start_ms)


@dataclass(frozen=True, slots=True)
class _Scene:
    """A group at a moment, by names of topics."""

    members: dict[str, MemberView]
    has: dict[str, Partitions]


def describe_all(entries: Sequence[Entry]) -> list[Rebalance]:
    """What a coordinator says of its rebalances, the oldest first.

    It has others to serve meanwhile: what moved is worked out for so many partitions, beginning
    with the newest rebalance, and of the others a client works it out of the log (`merged`).
    """
    room, rebalances = COORDINATOR_MAX, list[Rebalance]()
    for entry in reversed(entries):
        room -= sum(_size(view) for view in (entry.before, entry.after) if view is not None)
        rebalances.append(describe(entry) if room >= 0 else _in_short(entry))
    return rebalances[::-1]


def _size(view: View) -> int:
    """About how many partitions it takes to look at it."""
    if isinstance(view, StoredGroup):
        members = view.members.values()
        return len(members) + sum(len(m.assignment) for m in members) // _PARTITION_BYTES
    targets = view.targets.values()
    return len(targets) + sum(len(numbers) for parts in targets for numbers in parts.values())


def _in_short(entry: Entry) -> Rebalance:
    """From the coordinator's own memory: its members, not the moves."""
    views = {"before": entry.before, "after": entry.after}
    known, now = ((view.members if view is not None else {}) for view in views.values())
    rebalance = describe(replace(entry, before=None, after=None))
    if entry.after is None:
        return rebalance
    return replace(
        rebalance,
        outcome=_outcome(entry),
        members=len(now),
        came=tuple(m for m in now if m not in known)[:NAMES_MAX],
        went=tuple(m for m in known if m not in now)[:NAMES_MAX],
    )


def describe(entry: Entry, inferred: Sequence[str] | None = None) -> Rebalance:
    """What there is to say of a rebalance; with `inferred`, one that was read off a log."""
    after = _scene(entry.after)
    before = _renamed(_scene(entry.before), after)
    causes, changed = list(entry.causes), _changed(before, after)
    causes = [_sharper(cause, changed) for cause in causes]
    named = {cause.member_id for cause in causes}
    causes += [
        Cause(Trigger.SUBSCRIPTION, entry.joined_ms or 0, member_id)
        for member_id in changed
        if member_id not in named
    ]
    rebalance = Rebalance(
        group=entry.group_id,
        protocol=entry.protocol,
        generation=entry.generation,
        outcome=_outcome(entry),
        began_ms=entry.began_ms,
        joined_ms=entry.joined_ms,
        settled_ms=entry.settled_ms,
        causes=tuple(RebalanceCause(c.trigger.name.lower(), *c[1:]) for c in causes),
        causes_more=entry.causes_more,
        waited_for=entry.last,
        gap=entry.gap,
        from_log=inferred is not None,
        inferred=tuple(inferred or ()),
        names=_names(entry),
    )
    return rebalance if after is None else _with_moves(rebalance, before, after)


def _renamed(before: _Scene | None, after: _Scene | None) -> _Scene | None:
    """A static member that came back under another id is who it was (KIP-345)."""
    if before is None or after is None:
        return before
    now = {v.instance_id: m for m, v in after.members.items() if v.instance_id}
    ids = {m: now.get(v.instance_id or "", m) for m, v in before.members.items()}
    return _Scene(
        {ids[m]: replace(view, member_id=ids[m]) for m, view in before.members.items()},
        {ids.get(m, m): parts for m, parts in before.has.items()},
    )


def _outcome(entry: Entry) -> str:
    if entry.superseded:
        return SUPERSEDED
    if entry.settled_ms is None:
        return GOING_ON
    return STABLE if entry.after is None or entry.after.members else EMPTY


def _sharper(cause: Cause, changed: Iterable[str]) -> Cause:
    if cause.trigger is Trigger.CHANGED and cause.member_id in changed:
        return cause._replace(trigger=Trigger.SUBSCRIPTION)
    return cause


def _changed(before: _Scene | None, after: _Scene | None) -> list[str]:
    """The members that read other topics than before."""
    if before is None or after is None:
        return []
    return [
        m
        for m, view in after.members.items()
        if m in before.members and before.members[m].topics != view.topics
    ]


def _names(entry: Entry) -> dict[str, str]:
    """The client ids of members, for ids say little to people; first of those named in causes."""
    names = {cause.member_id: cause.client_id for cause in entry.causes if cause.member_id}
    for view in (entry.after, entry.before):
        for member_id, member in view.members.items() if view is not None else ():
            if len(names) >= NAMES_MAX and member_id != entry.last:
                continue
            names.setdefault(member_id, member.client_id)
    return names


# What moved


def _with_moves(rebalance: Rebalance, before: _Scene | None, after: _Scene) -> Rebalance:
    had = before.has if before is not None else {}
    known = before.members if before is not None else {}
    topics = _topics(had, after.has)
    group = GroupView(after.members, topics)
    moved = moves_of(group, had, after.has)
    assigned = {topic for parts in after.has.values() for topic in parts}
    total = sum(topic.partitions for topic in topics.values())
    budgets = _budgets(group, had) if total <= WEIGHED_MAX and after.members else None
    moves: list[RebalanceMove] = []
    for move in moved:
        needed: str | None = ""
        if move.source is None:
            needed = "new"
        elif move.needed:
            needed = "owner gone"
        elif budgets is None:
            needed = None
        elif budgets[move.source] > 0:
            budgets[move.source] -= 1
            needed = "balance"
        elif move.topic not in assigned:
            needed = "topic gone"
        moves.append(RebalanceMove(move.topic, move.partition, move.source, move.target, needed))
    needless = sum(move.needed == "" for move in moves)
    weighed = all(move.needed is not None for move in moves)
    return replace(
        rebalance,
        members=len(after.members),
        came=tuple(m for m in after.members if m not in known)[:NAMES_MAX],
        went=tuple(m for m in known if m not in after.members)[:NAMES_MAX],
        partitions=sum(len(n) for parts in after.has.values() for n in parts.values()),
        moved=len(moves),
        needed=len(moves) - needless if weighed else None,
        not_needed=needless if weighed else None,
        moves=tuple(moves[:MOVES_MAX]),
    )


def _budgets(group: GroupView, had: Mapping[str, Partitions]) -> Counter[str]:
    """How many partitions balance takes from each member, when as few move as can be."""
    members = group.in_order()
    claims = [Claim(m.member_id, had.get(m.member_id, {}), 0) for m in members]
    best = assign_level(group, claims)
    taken = moves_of(group, had, best.assignments)
    return Counter(m.source for m in taken if m.source is not None and not m.needed)


def _topics(*plans: Mapping[str, Partitions]) -> dict[str, TopicView]:
    """The topics of these plans, as large as they are known to be."""
    sizes: dict[str, int] = {}
    for plan in plans:
        for parts in plan.values():
            for topic, numbers in parts.items():
                if numbers:
                    sizes[topic] = max(sizes.get(topic, 0), max(numbers) + 1)
    return {topic: TopicView(size) for topic, size in sorted(sizes.items())}


def _scene(view: View | None) -> _Scene | None:
    if view is None:
        return None
    if isinstance(view, StoredGroup):
        return _classic_scene(view)
    return _consumer_scene(view)


def _classic_scene(stored: StoredGroup) -> _Scene:
    members: dict[str, MemberView] = {}
    has: dict[str, Partitions] = {}
    for member in stored.members.values():
        try:
            members[member.member_id] = decode_subscription(
                member.member_id, member.subscription, member.instance_id
            )
            has[member.member_id] = decode_assignment(member.assignment)[0]
        except DecodeError:  # another kind of group than a consumer's: only its members are known
            members[member.member_id] = MemberView(member.member_id, frozenset())
            has[member.member_id] = {}
    return _Scene(members, has)


def _consumer_scene(view: ConsumerView) -> _Scene:
    members: dict[str, MemberView] = {}
    for member_id, member in view.members.items():
        resolved = view.regexes.get(member.regex) if member.regex else None
        topics = frozenset(member.topics) | frozenset(resolved.topics if resolved else ())
        members[member_id] = MemberView(member_id, topics, member.instance_id)
    return _Scene(members, {m: by_name(view.topics, t) for m, t in view.targets.items()})


def needs_log(exact: Sequence[Rebalance] | None, last: int) -> bool:
    """Whether the log may tell what the coordinator does not.

    Args:
        exact: what the coordinator remembers; None for one that never remembers any.
        last: how many rebalances are asked for.
    """
    lacking = any(one.moved is None and one.settled_ms is not None for one in exact or ())
    return lacking or len(exact or ()) < last


def merged(exact: Iterable[Rebalance], inferred: Iterable[Rebalance]) -> list[Rebalance]:
    """What the coordinator remembers, and before that what a log still says; the oldest first.

    The coordinator's word counts where both know of a generation. What moved, it leaves to the log
    where working it out would hold up others.
    """
    inferred = list(inferred)
    read = {(one.protocol, one.generation): one for one in inferred if MOVES not in one.inferred}
    rebalances = [_filled(one, read.get((one.protocol, one.generation))) for one in exact]
    known = {(one.protocol, one.generation) for one in rebalances}
    first_ms = min((one.began_ms for one in rebalances if one.began_ms is not None), default=None)
    older = [
        one
        for one in inferred
        if (one.protocol, one.generation) not in known
        and (first_ms is None or (one.settled_ms or one.joined_ms or 0) <= first_ms)
    ]
    return older + rebalances


def _filled(rebalance: Rebalance, read: Rebalance | None) -> Rebalance:
    """With what moved, out of the log, where the coordinator has not worked it out."""
    if read is None or rebalance.moved is not None or read.moved is None:
        return rebalance
    names = {**read.names, **rebalance.names}
    return replace(
        rebalance,
        partitions=read.partitions,
        moved=read.moved,
        needed=read.needed,
        not_needed=read.not_needed,
        moves=read.moves,
        names=names,
    )


# Between broker and client


def asks(tags: Sequence[tuple[int, bytes]] | None) -> int:
    """How many rebalances a request's tagged fields ask for; 0 for none."""
    for tag, value in tags or ():
        if tag == TAG:
            return int.from_bytes(value[:2], "big")
    return 0


def ask(last: int) -> list[tuple[int, bytes]]:
    """The tagged field that asks for the last rebalances."""
    return [(TAG, min(max(last, 1), 0xFFFF).to_bytes(2, "big"))]


def as_tag(rebalances: Iterable[Rebalance]) -> tuple[int, bytes]:
    """Rebalances as a tagged field."""
    return (TAG, json.dumps([asdict(r) for r in rebalances], separators=(",", ":")).encode())


def from_tags(tags: Sequence[tuple[int, bytes]] | None) -> list[Rebalance] | None:
    """What a coordinator remembers; None when it does not know of timelines. Raises DecodeError."""
    for tag, value in tags or ():
        if tag == TAG:
            try:
                return [_from_json(one) for one in json.loads(bytes(value))]
            except (ValueError, TypeError, KeyError) as error:
                raise DecodeError(f"the timeline of a group cannot be read: {error}") from error
    return None


def _from_json(document: dict[str, Any]) -> Rebalance:
    fields: dict[str, Any] = {
        **document,
        "causes": tuple(RebalanceCause(**cause) for cause in document["causes"]),
        "moves": tuple(RebalanceMove(**move) for move in document["moves"]),
    }
    for name in ("came", "went", "inferred"):
        fields[name] = tuple(document[name])
    return Rebalance(**fields)
