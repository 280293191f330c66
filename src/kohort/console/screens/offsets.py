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
from kohort.console.screens.desk import Asked, Desk, Redirect, Screen
from kohort.console.views.figures import DASH, count
from kohort.errors import UsageError
from kohort.observe.resets import Place, parse_place, targets

if TYPE_CHECKING:
    from kohort.client.common.types import OffsetAndMetadata

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


def offsets(desk: Desk, asked: Asked) -> Screen:
    """Where a group is, and with `to` where it would be; nothing is changed."""
    name = asked.needed("name")
    desk.group(name)
    undo, to = asked.query.get("undo", ""), asked.query.get("to", "").strip()
    topic = asked.query.get("topic", EVERY_TOPIC)
    held = desk.admin.list_group_offsets(name)
    listed = sorted({tp.topic for tp in held})
    chosen = [tp for tp in sorted(held) if topic in (EVERY_TOPIC, tp.topic)]
    firsts, ends = _spans(desk, chosen)
    if undo:
        new = {tp: at for tp, at in desk.undos.get(name, undo).items() if tp in ends}
    else:
        new = _targets(desk, parse_place(to, _now_ms()), chosen, held, firsts, ends) if to else {}
    members = len(desk.admin.describe_groups([name])[name].members)
    rows = [
        _row(tp, firsts.get(tp), ends.get(tp), held[tp].offset, new.get(tp, held[tp].offset))
        for tp in chosen
    ]
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
    )
    words = ["group", "reset", name, "--to", to or "latest"]
    words += ["--topic", topic] if topic else []
    return Screen("offsets.html", name, "groups", view, desk.command(*words))


def set_offsets(desk: Desk, asked: Asked) -> Redirect:
    """Set what the preview has shown. Raises UsageError when offsets have moved since."""
    desk.actions_allowed()
    name = asked.needed("name")
    if asked.form.get("confirm") != name:
        raise UsageError(f"type the group's name, {name}, to confirm")
    offsets = _from_text(asked.needed("plan"))
    was = _from_text(asked.needed("was"))
    if was.keys() != offsets.keys():
        raise UsageError("the plan of this form cannot be read; look again")
    before = {tp: at.offset for tp, at in desk.admin.list_group_offsets(name, offsets).items()}
    moved = [tp for tp in sorted(was) if before.get(tp) != was[tp]]
    if moved:
        raise UsageError(f"the group has moved since the preview ({moved[0]}); look again")
    changes = {"before": json.loads(_as_text(before)), "after": json.loads(_as_text(offsets))}
    with desk.audit.doing(asked.form["who"], "set offsets", name, changes):
        key = desk.undos.add(name, before)  # first: where the answer is lost, they may be set
        desk.admin.alter_group_offsets(name, offsets)
    desk.sampler.sample_soon()
    return Redirect(f"/group/offsets?{urlencode({'name': name, 'set': key})}")


def _spans(
    desk: Desk, chosen: Sequence[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    ask = desk.admin.list_offsets
    firsts = ask(dict.fromkeys(chosen, "earliest"), partial=True) if chosen else {}
    ends = ask(dict.fromkeys(chosen, "latest"), partial=True) if chosen else {}
    return {t: a.offset for t, a in firsts.items()}, {t: a.offset for t, a in ends.items()}


def _targets(
    desk: Desk,
    place: Place,
    chosen: Sequence[TopicPartition],
    held: Mapping[TopicPartition, OffsetAndMetadata],
    firsts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    times: dict[TopicPartition, int] = {}
    if place.time_ms is not None and chosen:
        hits = desk.admin.list_offsets(dict.fromkeys(chosen, place.time_ms))
        times = {tp: hit.offset for tp, hit in hits.items() if hit.offset >= 0}
    current = {tp: held[tp].offset for tp in chosen}
    return targets(place, current, firsts, ends, times)


def _row(
    tp: TopicPartition, first: int | None, end: int | None, current: int, new: int
) -> OffsetRow:
    return OffsetRow(
        tp.topic,
        tp.partition,
        count(first),
        count(end),
        count(current),
        DASH if new == current else count(new),
        max(0, current - new),
        max(0, new - current),
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
