"""One line for each group, worst first: who is behind, since when, is it growing, and why.

Rules: the line says what `verdicts` found between two looks; a group that was looked at once has no
verdict yet. Nothing is asked here: looks, histories and open transactions come in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from kohort.observe.lag import ZERO, Figure, Total, records_behind, time_behind, total, worst
from kohort.observe.trend import Sample, Trend, trend
from kohort.observe.verdicts import REBALANCING, RECENT_MS, State, Verdict, judge

if TYPE_CHECKING:
    from kohort.client.admin.types import GroupListing
    from kohort.client.common.types import TopicPartition
    from kohort.observe.open_transactions import Open
    from kohort.observe.snapshot import ClusterSnapshot, Look
    from kohort.observe.trend import Ends


class Health(StrEnum):
    """What a group does, in a word; the worst first."""

    STUCK = "stuck"
    BEHIND = "falling behind"
    NOT_SEEN = "not visible"
    WAITING = "waiting"
    UNKNOWN = "unknown"
    WATCHING = "watching"
    MOVING = "moving"
    READ = "caught up"


ORDER: Final = {health: place for place, health in enumerate(Health)}
WORDS: Final = {
    State.STUCK: Health.STUCK,
    State.BEHIND: Health.BEHIND,
    State.WAITING: Health.WAITING,
    State.UNKNOWN: Health.UNKNOWN,
    State.MOVING: Health.MOVING,
    State.CAUGHT_UP: Health.READ,
}
_MEANING: Final = {
    Health.READ: "everything is read",
    Health.MOVING: "records are read and committed",
    Health.WATCHING: "a verdict needs two looks some seconds apart",
}


@dataclass(frozen=True)
class GroupLine:
    """One group on the groups page and in `kohort group lag --total`.

    Attributes:
        lag: records behind over all partitions.
        time_lag: the age of the oldest unread record of any partition, in milliseconds.
        why: the verdict's first sentence.
        since_ms: since when the health is this one; None when not known.
        changed_ms: when members or their partitions were last seen to change; None: not since the
            first look.
        rebalances_ms: when rebalances were seen between two looks, the recent ones.
        error: why the group could not be described; empty otherwise.
        last_seen: where it is not visible, its line when it last was.
    """

    group: str
    state: str
    group_type: str
    protocol: str
    members: int | None
    coordinator: str
    partitions: int
    lag: Total
    time_lag: Total
    health: Health
    why: str
    trend: Trend
    since_ms: int | None = None
    error: str = ""
    changed_ms: int | None = None
    rebalances_ms: tuple[int, ...] = ()
    last_seen: GroupLine | None = None

    @property
    def severity(self) -> tuple[int, int, int, str]:
        """Sorts the worst group first."""
        lag = self.lag.value or 0
        return (ORDER[self.health], -(self.time_lag.value or 0), -lag, self.group)


@dataclass(frozen=True)
class Evidence:
    """What the looks themselves do not hold.

    Attributes:
        transactions: those that are open in partitions that groups read.
        nothing_to_read: partitions without a record between committed offset and end, by group.
        written_ms: when the record at a committed offset was written, by (group, partition).
        ends: histories of logs.
        samples: histories of groups, the present sample not included.
    """

    transactions: Sequence[Open] = ()
    nothing_to_read: Mapping[str, Collection[TopicPartition]] = field(
        default_factory=dict[str, "Collection[TopicPartition]"]
    )
    written_ms: Mapping[tuple[str, TopicPartition], int] = field(
        default_factory=dict[tuple[str, "TopicPartition"], int]
    )
    ends: Mapping[TopicPartition, Ends] = field(default_factory=dict["TopicPartition", "Ends"])
    samples: Mapping[str, Sequence[Sample]] = field(default_factory=dict[str, Sequence[Sample]])


class PartitionLag(NamedTuple):
    """How far a group is behind in one partition, in records and in time."""

    records: Figure
    time: Figure


_NO_LAG: Final = PartitionLag(ZERO, ZERO)


@dataclass(frozen=True)
class GroupView:
    """A group with its verdict and the lag of each partition.

    Attributes:
        verdict: None while there was only one look.
        sample: the figures of this look, for the history.
    """

    line: GroupLine
    look: Look
    verdict: Verdict | None
    lags: Mapping[TopicPartition, PartitionLag]
    sample: Sample


@dataclass(frozen=True)
class Overview:
    """All groups of a snapshot."""

    snapshot: ClusterSnapshot
    groups: Mapping[str, GroupView]
    lines: Sequence[GroupLine]
    """Of groups that could not be described, too; the worst first."""


def overview(
    now: ClusterSnapshot,
    before: ClusterSnapshot | None,
    evidence: Evidence,
    previous: Overview | None = None,
) -> Overview:
    """Judge every group of a snapshot.

    Args:
        now: the present snapshot.
        before: an older one, some seconds to a minute before it; None when there is none yet.
        evidence: what else is known.
        previous: the last overview; a group's health lasts from there while it is the same.

    Returns:
        The groups, and a line for each.
    """
    known = {line.group: line for line in previous.lines} if previous else {}
    views = {
        name: _view(
            name,
            look,
            now.at_ms,
            before.last_look(name) if before else None,
            evidence,
            _rebalances(
                known.get(name),
                previous.snapshot.last_look(name) if previous else None,
                look,
                now.at_ms,
            ),
        )
        for name, look in now.groups.items()
    }

    def lasting(line: GroupLine) -> GroupLine:
        return _lasting(line, known.get(line.group), previous, now)

    views = {name: replace(view, line=lasting(view.line)) for name, view in views.items()}
    lines = [view.line for view in views.values()]
    lines += [lasting(_not_described(name, why)) for name, why in now.not_described.items()]
    return Overview(now, views, sorted(lines, key=lambda line: line.severity))


def _lasting(
    line: GroupLine, was: GroupLine | None, previous: Overview | None, now: ClusterSnapshot
) -> GroupLine:
    """With since when it has been so, and when its members were last seen to change."""
    if was is None or previous is None:
        return replace(line, since_ms=now.at_ms)
    visible = was.last_seen or was
    if line.health is Health.NOT_SEEN:
        last_seen = None if visible.health is Health.NOT_SEEN else visible
        line = replace(line, rebalances_ms=was.rebalances_ms, last_seen=last_seen)
    else:
        was = visible
    since_ms = was.since_ms if was.health is line.health else now.at_ms
    before, after = previous.snapshot.last_look(line.group), now.groups.get(line.group)
    moved = before is not None and after is not None and _owners(before) != _owners(after)
    return replace(line, since_ms=since_ms, changed_ms=now.at_ms if moved else was.changed_ms)


def _rebalances(
    line: GroupLine | None, before: Look | None, now: Look, at_ms: int
) -> tuple[int, ...]:
    """When rebalances were seen; one that lasts over several looks counts once."""
    recent = tuple(at for at in (line.rebalances_ms if line else ()) if at > at_ms - RECENT_MS)
    if before is None or before.group.state in REBALANCING:
        return recent
    begun = now.group.state in REBALANCING or _owners(before) != _owners(now)
    return (*recent, at_ms) if begun else recent


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S UTC")


def _owners(look: Look) -> dict[str, tuple[TopicPartition, ...]]:
    return {m.member_id: tuple(sorted(m.assignment)) for m in look.group.members}


def _not_described(name: str, why: str) -> GroupLine:
    nothing = Total(None, 1, True)
    return GroupLine(
        name,
        "",
        "",
        "",
        None,
        "",
        0,
        nothing,
        nothing,
        Health.NOT_SEEN,
        f"its coordinator does not describe it: {why}",
        trend(()),
        error=why,
    )


def _view(
    name: str,
    look: Look,
    at_ms: int,
    before: Look | None,
    evidence: Evidence,
    rebalances_ms: tuple[int, ...],
) -> GroupView:
    nothing = evidence.nothing_to_read.get(name, ())
    verdict = None
    if before is not None:
        mine = [one for one in evidence.transactions if one.partition in look.partitions]
        seen = [_clock(at) for at in rebalances_ms]
        verdict = judge(before, look, mine, seen, nothing_to_read=nothing)
    lags = {tp: _lag(name, tp, look, at_ms, evidence) for tp in look.partitions}
    lag, time_lag = total(x.records for x in lags.values()), worst(x.time for x in lags.values())
    whole = _all_ends_known(look)
    sample = Sample(
        at_ms,
        lag.value if whole else None,
        time_lag.value,
        _known(seen.end for seen in look.partitions.values()) if whole else None,
        _known(seen.committed for seen in look.partitions.values()),
    )
    health, why = health_of(verdict)
    group = look.group
    node = group.coordinator
    line = GroupLine(
        name,
        group.state,
        group.group_type,
        group.protocol,
        len(group.members),
        f"{node.host}:{node.port} ({node.node_id})",
        len(look.partitions),
        lag,
        time_lag,
        health,
        why,
        trend([*evidence.samples.get(name, ()), sample]),
        rebalances_ms=rebalances_ms,
    )
    return GroupView(line, look, verdict, lags, sample)


def _lag(name: str, tp: TopicPartition, look: Look, at_ms: int, evidence: Evidence) -> PartitionLag:
    seen = look.partitions[tp]
    behind = records_behind(seen)
    if behind is ZERO:
        return _NO_LAG
    if tp in evidence.nothing_to_read.get(name, ()):
        return PartitionLag(behind, ZERO)
    ends = evidence.ends.get(tp)
    written = evidence.written_ms.get((name, tp))
    points = ends.points if ends is not None else ()
    return PartitionLag(behind, time_behind(seen, at_ms, written_ms=written, ends=points))


def _all_ends_known(look: Look) -> bool:
    """Whether sums over the logs compare with those of another look: each leader has answered."""
    return all(seen.end is not None for seen in look.partitions.values() if seen.exists)


def _known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def health_of(verdict: Verdict | None) -> tuple[Health, str]:
    """A group's health in a word, and the sentence behind it.

    Args:
        verdict: the comparison of two looks; None while there was only one.

    Returns:
        The word and its evidence.
    """
    if verdict is None:
        return Health.WATCHING, _MEANING[Health.WATCHING]
    if verdict.concerns:
        return Health.STUCK, verdict.concerns[0]
    if not verdict.findings:
        return Health.READ, "it reads nothing, and has no committed offsets"
    worst_one = min(verdict.findings, key=lambda f: (ORDER[WORDS[f.state]], -(f.seen.lag or 0)))
    health = WORDS[worst_one.state]
    count = sum(f.state is worst_one.state for f in verdict.findings)
    if worst_one.why:
        more = f" (and {count - 1:,} more partitions)" if count > 1 else ""
        return health, f"{worst_one.partition}: {worst_one.why}{more}"
    if verdict.notes:
        return health, verdict.notes[0]
    return health, _MEANING.get(health, worst_one.state.value)


def listed_lines(listings: Iterable[GroupListing]) -> list[GroupLine]:
    """Lines of groups of which only the listing is known yet: no figures, no verdicts.

    Args:
        listings: as `Admin.list_groups` returns them.
    """
    nothing = Total(None, 1, True)
    return [
        GroupLine(
            one.group_id,
            one.state,
            one.group_type,
            "",
            None,
            "",
            0,
            nothing,
            nothing,
            Health.WATCHING,
            "the first sample is being taken",
            trend(()),
        )
        for one in listings
    ]


def refined(
    overview_: Overview,
    before: ClusterSnapshot | None,
    evidence: Evidence,
    previous: Overview | None = None,
) -> Overview:
    """The same overview with more evidence for some groups: those alone are judged again.

    Args:
        overview_: what was judged without it.
        before: the older snapshot that it was judged with.
        evidence: with times and partitions without records, of the groups to judge again.
        previous: the last overview.

    Returns:
        The overview; groups without new evidence share their objects.
    """
    names = {name for name, _ in evidence.written_ms} | set(evidence.nothing_to_read)
    some = replace(
        overview_.snapshot,
        groups={n: look for n, look in overview_.snapshot.groups.items() if n in names},
        not_described={},
    )
    again = overview(some, before, evidence, previous)
    lines = [line for line in overview_.lines if line.group not in names] + list(again.lines)
    return Overview(
        overview_.snapshot,
        {**overview_.groups, **again.groups},
        sorted(lines, key=lambda x: x.severity),
    )
