"""Screen 10, the topics: who reads them; retry topics folded under their source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kohort.console.views.figures import Paging, Shown, count, paging, records, whole
from kohort.observe.lag import total

if TYPE_CHECKING:
    from kohort.client.admin.types import ConfigEntry, TopicDescription
    from kohort.client.common.types import TopicPartition
    from kohort.observe.overview import GroupView, Overview
    from kohort.observe.retry_owners import RetryOwner

ROWS: Final = 50
READERS: Final = 6


@dataclass(frozen=True, slots=True)
class FoldedTopic:
    """A retry topic or dead-letter topic under its source."""

    name: str
    kind: str
    group: str


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One topic."""

    name: str
    partitions: int
    replicas: str
    trouble: str
    readers: Sequence[str]
    readers_more: int
    folded: Sequence[FoldedTopic]
    internal: bool


@dataclass(frozen=True, slots=True)
class TopicsView:
    """The topics page."""

    rows: Sequence[TopicRow]
    paging: Paging
    q: str
    internal: bool


def readers_of(overview: Overview) -> dict[str, list[str]]:
    """Which groups have offsets in a topic, or members that read it."""
    readers: dict[str, list[str]] = {}
    for name, view in overview.groups.items():
        for topic in sorted({tp.topic for tp in view.look.partitions}):
            readers.setdefault(topic, []).append(name)
    return readers


def topics_view(
    overview: Overview, owners: Sequence[RetryOwner], query: Mapping[str, str]
) -> TopicsView:
    """The topics page for a query: `q`, `internal`, `page`."""
    folded = _folded(owners)
    hidden = {one.name for some in folded.values() for one in some}
    q, internal = query.get("q", "").strip(), query.get("internal", "") == "yes"
    readers = readers_of(overview)
    names = [
        name
        for name, topic in sorted(overview.snapshot.topics.items())
        if name not in hidden
        and (internal or not topic.is_internal)
        and (q.lower() in name.lower() or any(q in one.name for one in folded.get(name, ())))
    ]
    place = paging(len(names), whole(query.get("page", ""), 1), ROWS)
    rows = [
        _row(overview.snapshot.topics[name], readers.get(name, []), folded.get(name, []))
        for name in names[place.first : place.last]
    ]
    return TopicsView(rows, place, q, internal)


def _folded(owners: Sequence[RetryOwner]) -> dict[str, list[FoldedTopic]]:
    folded: dict[str, list[FoldedTopic]] = {}
    for owner in owners:
        some = folded.setdefault(owner.topic, [])
        some += [FoldedTopic(name, "retry", owner.group) for name in owner.retry_topics]
        if owner.dead_letter:
            some.append(FoldedTopic(owner.dead_letter, "dead letters", owner.group))
    return folded


def _row(topic: TopicDescription, readers: list[str], folded: Sequence[FoldedTopic]) -> TopicRow:
    counts = {len(p.replicas) for p in topic.partitions}
    return TopicRow(
        topic.name,
        len(topic.partitions),
        "–".join(str(n) for n in sorted(counts)),
        trouble_of(topic),
        readers[:READERS],
        max(0, len(readers) - READERS),
        folded,
        topic.is_internal,
    )


def trouble_of(topic: TopicDescription) -> str:
    """The problem of a topic's replicas, as text; empty when there is none."""
    offline = sum(p.leader < 0 for p in topic.partitions)
    short = sum(len(p.isr) < len(p.replicas) for p in topic.partitions)
    if offline:
        return f"{offline} without a leader"
    return f"{short} under-replicated" if short else ""


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """A group that reads the topic."""

    group: str
    state: str
    health: str
    members: str
    lag: Shown


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition of a topic."""

    partition: int
    leader: str
    replicas: str
    isr: str
    first: str
    end: str
    records: str
    trouble: str


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """One setting: set by hand, or a default."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic."""

    name: str
    partitions: Sequence[PartitionRow]
    paging: Paging
    readers: Sequence[ReaderRow]
    folded: Sequence[FoldedTopic]
    configs: Sequence[ConfigRow]
    defaults: int
    note: str


def topic_view(
    overview: Overview,
    owners: Sequence[RetryOwner],
    name: str,
    spans: Mapping[TopicPartition, tuple[int | None, int | None]],
    configs: Sequence[ConfigEntry],
    query: Mapping[str, str],
) -> TopicView:
    """One topic's page.

    Args:
        overview: the last overview.
        owners: of all retry topics.
        name: the topic.
        spans: where its logs begin and end; None where no leader tells.
        configs: its settings.
        query: `page` of the partitions.
    """
    from kohort.client.common.types import TopicPartition

    topic = overview.snapshot.topics[name]
    place = paging(len(topic.partitions), whole(query.get("page", ""), 1), 100)
    rows: list[PartitionRow] = []
    for p in topic.partitions[place.first : place.last]:
        first, end = spans.get(TopicPartition(name, p.partition), (None, None))
        held = None if first is None or end is None else end - first
        away = [str(n) for n in p.replicas if n not in p.isr]
        trouble = "no leader" if p.leader < 0 else f"not in sync: {', '.join(away)}" * bool(away)
        rows.append(
            PartitionRow(
                p.partition,
                "–" if p.leader < 0 else str(p.leader),
                ", ".join(map(str, p.replicas)),
                ", ".join(map(str, p.isr)),
                count(first),
                count(end),
                count(held),
                trouble,
            )
        )
    readers = [
        _reader(overview.groups[group], name) for group in readers_of(overview).get(name, [])
    ]
    mine = next(
        (
            f"retry topic of {o.topic}, group {o.group}"
            for o in owners
            if name in o.retry_topics or name == o.dead_letter
        ),
        "",
    )
    set_ones = [c for c in configs if not c.is_default]
    return TopicView(
        name,
        rows,
        place,
        readers,
        _folded(owners).get(name, []),
        [
            ConfigRow(c.name, "(hidden)" if c.value is None else c.value, c.source)
            for c in sorted(set_ones, key=lambda c: c.name)
        ],
        len(configs) - len(set_ones),
        mine,
    )


def _reader(view: GroupView, topic: str) -> ReaderRow:
    lag = total(one.records for tp, one in view.lags.items() if tp.topic == topic)
    line = view.line
    return ReaderRow(line.group, line.state, line.health.value, count(line.members), records(lag))
