"""Screen 2, one group: the verdict, its causes, partitions by severity, and a cure for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from kohort.console.views.figures import (
    DASH,
    Paging,
    Shown,
    age,
    ago,
    clock,
    count,
    duration,
    paging,
    rate,
    records,
    whole,
)
from kohort.console.views.groups import TrendShown, trend_shown
from kohort.observe.overview import ORDER, WORDS, GroupView, Health
from kohort.observe.verdicts import Finding

if TYPE_CHECKING:
    from kohort.client.admin.types import MemberDescription
    from kohort.client.common.types import TopicPartition
    from kohort.observe.trend import Sample

PARTITIONS: Final = 100
MEMBERS: Final = 100
SENTENCES: Final = 8
_TIMELINE: Final = "who left last, and why"


@dataclass(frozen=True, slots=True)
class Cause:
    """Partitions of one reason: how many, which, the sentence, and where the cure is."""

    health: str
    why: str
    partitions: Sequence[str]
    more: int


@dataclass(frozen=True, slots=True)
class Cure:
    """Something to do: a page of the console, and the same as a command."""

    text: str
    to: str
    command: str


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition of the group."""

    topic: str
    partition: int
    health: str
    committed: str
    end: str
    lag: Shown
    time_lag: Shown
    done_per_s: str
    written_per_s: str
    owner: str
    why: str
    record: str
    """Where the record at the committed offset is shown; empty when there is none."""


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member of the group."""

    client_id: str
    host: str
    member_id: str
    instance_id: str
    partitions: int
    assignment: str
    epoch: str
    lag: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over time: seconds since 1970, then a line for each name; None is a gap."""

    names: Sequence[str]
    at_s: Sequence[float]
    lines: Sequence[Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class GroupPage:
    """One group."""

    group: str
    state: str
    protocol: str
    coordinator: str
    health: str
    why: str
    since: str
    since_at: str
    watched: str
    lag: Shown
    time_lag: Shown
    trend: TrendShown
    written_per_s: str
    done_per_s: str
    members_count: str
    changed: str
    concerns: Sequence[str]
    notes: Sequence[str]
    causes: Sequence[Cause]
    cures: Sequence[Cure]
    partitions: Sequence[PartitionRow]
    paging: Paging
    members: Sequence[MemberRow]
    members_more: int
    chart: Chart


def group_page(
    view: GroupView, samples: Sequence[Sample], query: Mapping[str, str], now_ms: int
) -> GroupPage:
    """One group's page.

    Args:
        view: the group as it was last seen.
        samples: its history.
        query: `page` of the partitions.
        now_ms: milliseconds since 1970.

    Returns:
        Verdict, causes, cures, partitions and members.
    """
    line, verdict = view.line, view.verdict
    findings = sorted(verdict.findings, key=_severity) if verdict else []
    listed = [f.partition for f in findings] or sorted(view.look.partitions)
    by_partition = {f.partition: f for f in findings}
    place = paging(len(listed), whole(query.get("page", ""), 1), PARTITIONS)
    owners = {tp: m for m in view.look.group.members for tp in m.assignment}
    rows = [
        _row(view, tp, by_partition.get(tp), owners.get(tp))
        for tp in listed[place.first : place.last]
    ]
    members = sorted(view.look.group.members, key=lambda m: (m.client_id, m.member_id))
    watched = verdict.watched_s * 1000 if verdict else None
    return GroupPage(
        group=line.group,
        state=line.state,
        protocol=" ".join(x for x in (line.group_type, line.protocol) if x) or DASH,
        coordinator=line.coordinator,
        health=line.health.value,
        why=line.why,
        since=duration(None if line.since_ms is None else max(0, now_ms - line.since_ms)),
        since_at=clock(line.since_ms),
        watched=duration(watched),
        lag=records(line.lag),
        time_lag=age(line.time_lag),
        trend=trend_shown(line.trend),
        written_per_s=rate(line.trend.written_per_s),
        done_per_s=rate(line.trend.done_per_s),
        members_count=count(line.members),
        changed=ago(line.changed_ms, now_ms),
        concerns=tuple(verdict.concerns) if verdict else (),
        notes=tuple(verdict.notes) if verdict else (),
        causes=_causes(findings),
        cures=_cures(view),
        partitions=rows,
        paging=place,
        members=[_member(view, m) for m in members[:MEMBERS]],
        members_more=max(0, len(members) - MEMBERS),
        chart=chart_of(samples),
    )


def chart_of(samples: Sequence[Sample]) -> Chart:
    """Lag in records, and its age in seconds, over the history."""
    ages = [None if s.time_lag_ms is None else s.time_lag_ms / 1000 for s in samples]
    return Chart(
        ("records behind", "oldest unread record, s"),
        [s.at_ms / 1000 for s in samples],
        [[s.lag for s in samples], ages],
    )


def _severity(finding: Finding) -> tuple[int, int, TopicPartition]:
    return (ORDER[WORDS[finding.state]], -(finding.seen.lag or 0), finding.partition)


def _causes(findings: Sequence[Finding]) -> list[Cause]:
    """Partitions of one reason together, in the order of severity."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in findings:
        if one.why:
            found.setdefault((WORDS[one.state].value, one.why), []).append(str(one.partition))
    causes = [
        Cause(health, why, some[:SENTENCES], max(0, len(some) - SENTENCES))
        for (health, why), some in found.items()
    ]
    return causes[:SENTENCES]


def _cures(view: GroupView) -> list[Cure]:
    """What helps, by what is in the way."""
    group = view.line.group
    cures: list[Cure] = []
    if view.line.health in (Health.STUCK, Health.WAITING, Health.BEHIND):
        cures.append(
            Cure(
                f"See {_TIMELINE}",
                f"/group/timeline?{urlencode({'name': group})}",
                f"kohort group timeline {quoted(group)}",
            )
        )
    if not view.look.group.members and view.look.partitions:
        cures.append(
            Cure(
                "Set where the group continues",
                f"/group/offsets?{urlencode({'name': group})}",
                f"kohort group reset {quoted(group)} --to latest",
            )
        )
    return cures


def quoted(text: str) -> str:
    """A text as one word of a shell command."""
    import shlex

    return shlex.quote(text)


def _row(
    view: GroupView, tp: TopicPartition, finding: Finding | None, owner: MemberDescription | None
) -> PartitionRow:
    seen, lag = view.look.partitions[tp], view.lags[tp]
    there = seen.committed is not None and seen.lag and (seen.first or 0) <= seen.committed
    place = {"topic": tp.topic, "partition": tp.partition, "offset": seen.committed}
    return PartitionRow(
        topic=tp.topic,
        partition=tp.partition,
        health=WORDS[finding.state].value if finding else Health.WATCHING.value,
        committed=count(seen.committed),
        end=count(seen.end),
        lag=records(lag.records),
        time_lag=age(lag.time),
        done_per_s=rate(finding.done_per_s if finding else None),
        written_per_s=rate(finding.written_per_s if finding else None),
        owner=DASH if owner is None else f"{owner.client_id} ({owner.host.lstrip('/')})",
        why=finding.why if finding else "",
        record=f"/record?{urlencode(place)}" if there else "",
    )


def _member(view: GroupView, member: MemberDescription) -> MemberRow:
    lags = [view.look.partitions[tp].lag for tp in member.assignment if tp in view.look.partitions]
    known = [lag for lag in lags if lag is not None]
    return MemberRow(
        client_id=member.client_id,
        host=member.host.lstrip("/"),
        member_id=member.member_id,
        instance_id=member.group_instance_id or "",
        partitions=len(member.assignment),
        assignment=assignment_text(member.assignment),
        epoch=count(member.epoch),
        lag=count(sum(known) if known else None),
    )


def assignment_text(partitions: Sequence[TopicPartition]) -> str:
    """`orders(0,1,2) payments(4)`."""
    topics: dict[str, list[str]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(str(number))
    return " ".join(f"{topic}({','.join(numbers)})" for topic, numbers in topics.items()) or DASH
