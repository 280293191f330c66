"""Screen 7, the offset editor: what a group would read again or skip, the change, and its undo.

Rules: only a group without members can be set; each change is kept as an undo, which is a plan like
any other, for as long as the console runs.

Shell: the clock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from kohort.client.common.types import TopicPartition
from kohort.console.screens.desk import Desk, PageRequest, Redirect, Screen
from kohort.console.views.figures import DASH, count
from kohort.errors import UsageError
from kohort.observe.resets import Place, again_and_skipped, parse_place, targets
from kohort.sampling.log_offsets import Spans, spans, topics_there
from kohort.sampling.log_offsets import offsets as offsets_of

if TYPE_CHECKING:
    from kohort.client.admin.types import TopicDescription

EVERY_TOPIC: Final = ""


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """One partition: where it is, where it would be."""

    topic: str
    partition: int
    first: str
    end: str
    current: str
    new: str
    again: int
    skipped: int


@dataclass(frozen=True, slots=True)
class UndoRow:
    """A change that can be taken back."""

    key: str
    when: str
    partitions: int


@dataclass(frozen=True, slots=True)
class OffsetsView:
    """The offset editor of a group."""

    group: str
    members: int
    topics: Sequence[str]
    topic: str
    to: str
    rows: Sequence[OffsetRow]
    again: int
    skipped: int
    changes: int
    plan: str
    was: str
    undo: str
    undos: Sequence[UndoRow]
    note: str
    silent: Sequence[str]


def offsets(desk: Desk, request: PageRequest) -> Screen:
    """Where a group is, and with `to` where it would be; nothing is changed."""
    name = request.needed("name")
    desk.group(name)
    undo, to = request.query.get("undo", ""), request.query.get("to", "").strip()
    topic = request.query.get("topic", EVERY_TOPIC)
    held = desk.admin.list_group_offsets(name)
    listed = sorted({tp.topic for tp in held})
    chosen = [tp for tp in sorted(held) if topic in (EVERY_TOPIC, tp.topic)]
    described = list(topics_there(desk.admin, {tp.topic for tp in chosen}).values())
    logs = spans(desk.admin, described)
    silent = set(logs.silent)
    if undo:
        kept = desk.undos.get(name, undo)
        new = {tp: at for tp, at in kept.items() if tp in held and tp in logs.ends}
    elif to:
        current = {tp: held[tp].offset for tp in chosen}
        place = parse_place(to, _now_ms())
        new, untimed = _targets(desk, place, described, current, logs)
        silent |= untimed
    else:
        new = {}
    members = len(desk.admin.describe_groups([name])[name].members)
    rows = [_row(tp, logs, held[tp].offset, new.get(tp, held[tp].offset)) for tp in chosen]
    changed = {tp: at for tp, at in new.items() if held[tp].offset != at}
    view = OffsetsView(
        name,
        members,
        listed,
        topic,
        to,
        rows,
        sum(r.again for r in rows),
        sum(r.skipped for r in rows),
        len(changed),
        _as_text(changed),
        _as_text({tp: held[tp].offset for tp in changed}),
        undo,
        [
            UndoRow(key, time.strftime("%H:%M:%S", time.gmtime(at / 1000)) + " UTC", len(o))
            for key, at, o in desk.undos.of(name)
        ],
        "the members would commit over it; stop them first" if members else "",
        [str(tp) for tp in chosen if tp in silent],
    )
    words = ["group", "reset", name, "--to", to or "latest"]
    words += ["--topic", topic] if topic else []
    return Screen("offsets.html", name, "groups", view, desk.command(*words))


def set_offsets(desk: Desk, request: PageRequest) -> Redirect:
    """Set what the preview has shown. Raises UsageError when offsets have moved since."""
    desk.actions_allowed()
    name = request.needed("name")
    if request.form.get("confirm") != name:
        raise UsageError(f"type the group's name, {name}, to confirm")
    offsets = _from_text(request.needed("plan"))
    was = _from_text(request.needed("was"))
    if was.keys() != offsets.keys():
        raise UsageError("the plan of this form cannot be read; look again")
    before = {tp: at.offset for tp, at in desk.admin.list_group_offsets(name, offsets).items()}
    moved = [tp for tp in sorted(was) if before.get(tp) != was[tp]]
    if moved:
        raise UsageError(f"the group has moved since the preview ({moved[0]}); look again")
    changes = {"before": json.loads(_as_text(before)), "after": json.loads(_as_text(offsets))}
    with desk.audit.doing(request.form["who"], "set offsets", name, changes):
        key = desk.undos.add(name, before)  # first: where the answer is lost, they may be set
        desk.admin.alter_group_offsets(name, offsets)
    desk.sampler.sample_soon()
    return Redirect(f"/group/offsets?{urlencode({'name': name, 'set': key})}")


def _targets(
    desk: Desk,
    place: Place,
    described: Sequence[TopicDescription],
    current: Mapping[TopicPartition, int],
    logs: Spans,
) -> tuple[dict[TopicPartition, int], set[TopicPartition]]:
    """Where partitions would be, and those of which no leader tells what a time means there."""
    times: dict[TopicPartition, int] = {}
    untimed = set[TopicPartition]()
    if place.time_ms is not None:
        hits = offsets_of(desk.admin, described, place.time_ms)
        times = {tp: at for tp, at in hits.items() if at >= 0}
        untimed = current.keys() & logs.ends.keys() - hits.keys()
    answered = {tp: at for tp, at in current.items() if tp not in untimed}
    return targets(place, answered, logs.firsts, logs.ends, times), untimed


def _row(tp: TopicPartition, logs: Spans, current: int, new: int) -> OffsetRow:
    first, end = logs.firsts.get(tp), logs.ends.get(tp)
    again, skipped = 0, 0
    if first is not None and end is not None:
        again, skipped = again_and_skipped(current, new, first, end)
    return OffsetRow(
        tp.topic,
        tp.partition,
        count(first),
        count(end),
        count(current),
        DASH if new == current else count(new),
        again,
        skipped,
    )


def _as_text(offsets: Mapping[TopicPartition, int]) -> str:
    return json.dumps({f"{tp.topic}:{tp.partition}": at for tp, at in sorted(offsets.items())})


def _from_text(text: str) -> dict[TopicPartition, int]:
    try:
        offsets: dict[str, int] = json.loads(text)
        places = {
            TopicPartition(k.rpartition(":")[0], int(k.rpartition(":")[2])): int(v)
            for k, v in offsets.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError("the plan of this form cannot be read; look again") from error
    if not all(at >= 0 for at in places.values()):
        raise UsageError("the plan has a negative offset")
    return places


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
