"""Screen 9, a record's journey: its first place, its retries, its dead letter, its redrives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kohort.client.common.types import TopicPartition
from kohort.console.screens.dead_letters import owners_of, whole_of
from kohort.console.screens.desk import Desk, NotThereError, PageRequest, Screen
from kohort.console.views.dead_letters import HeaderRow
from kohort.console.views.figures import clock
from kohort.sampling.retry_records import RetryCopy, latest_copies, record_at

if TYPE_CHECKING:
    from kohort.console.views.masks import Content
    from kohort.records import Record

LOOKED_AT: Final = 5_000


@dataclass(frozen=True, slots=True)
class Step:
    """One place where the record has been."""

    what: str
    place: str
    at: str
    attempt: str
    group: str
    reason: str
    error: str


@dataclass(frozen=True, slots=True)
class JourneyView:
    """A record and what became of it; without a topic, the form that asks for one."""

    topic: str
    partition: int
    offset: int
    found: bool
    note: str
    at: str
    key: Content | None
    value: Content | None
    headers: Sequence[HeaderRow]
    readers: Sequence[tuple[str, str]]
    steps: Sequence[Step]
    silent: Sequence[str]


def record(desk: Desk, request: PageRequest) -> Screen:
    """One record by its first place."""
    if not request.query.get("topic"):
        empty = JourneyView("", 0, 0, False, "", "", None, None, (), (), (), ())
        return Screen("record.html", "Find a record", "record", empty)
    topic = request.needed("topic")
    tp, offset = TopicPartition(topic, whole_of(request, "partition")), whole_of(request, "offset")
    described = desk.overview().snapshot.topics.get(topic)
    if described is None or tp.partition >= len(described.partitions):
        raise NotThereError(f"there is no partition {tp}; /topics lists those there are")
    one = record_at(desk.admin, desk.settings, tp, offset)
    exact = one is not None and one.offset == offset
    note = "" if exact else _note(one)
    steps, silent = _steps(desk, f"{topic}/{tp.partition}/{offset}", topic)
    view = JourneyView(
        topic,
        tp.partition,
        offset,
        exact,
        note,
        clock(one.timestamp if one else None),
        desk.masks.key(one.key) if one and exact else None,
        desk.masks.value(one.value) if one and exact else None,
        [HeaderRow(n, desk.masks.header(n, v), False) for n, v in (one.headers if one else ())],
        _readers(desk, tp, offset),
        steps,
        silent,
    )
    command = desk.command(
        "consume", topic, "--partition", str(tp.partition), "--offset", str(offset), "--max", "1"
    )
    return Screen("record.html", f"{tp} offset {offset:,}", "record", view, command)


def _note(one: Record | None) -> str:
    if one is None:
        return "there is no record there now: it is not written yet, or was deleted"
    return f"there is no record at this offset (any more); the next one is at {one.offset:,}"


def _readers(desk: Desk, tp: TopicPartition, offset: int) -> list[tuple[str, str]]:
    readers: list[tuple[str, str]] = []
    for name, view in desk.overview().groups.items():
        seen = view.look.partitions.get(tp)
        if seen is not None and seen.committed is not None:
            done = "has committed past it" if seen.committed > offset else "has not committed it"
            readers.append((name, done))
    return readers


def _steps(desk: Desk, origin: str, topic: str) -> tuple[list[Step], list[str]]:
    """Every copy of the record among the youngest of its retry topics and dead-letter topics, and
    the partitions of these that no leader answers for."""
    snapshot = desk.overview().snapshot
    steps: list[tuple[int, Step]] = []
    silent: list[str] = []
    for owner in owners_of(desk):
        if owner.topic != topic:
            continue
        for name in (*owner.retry_topics, owner.dead_letter):
            if name is None or name not in snapshot.topics:
                continue
            copies = latest_copies(desk.admin, desk.settings, snapshot.topics[name], LOOKED_AT)
            silent += [str(tp) for tp in copies.silent]
            steps += [
                (one.retry.last_failed_at_ms, _step(one, owner.group, name == owner.dead_letter))
                for one in copies.copies
                if one.retry.origin.retry_id == origin
            ]
    return [step for _, step in sorted(steps, key=lambda item: item[0])], silent


def _step(one: RetryCopy, group: str, dead: bool) -> Step:
    retry, record = one.retry, one.record
    redriven = f", redrive {retry.redrive_id}" if retry.redrive_id else ""
    return Step(
        ("dead letter" if dead else "waits for its next try") + redriven,
        f"{record.topic}-{record.partition} offset {record.offset:,}",
        clock(retry.last_failed_at_ms),
        str(retry.number),
        group,
        retry.reason,
        f"{retry.error_class.rpartition('.')[2]}: {retry.error_message}".strip(": "),
    )
