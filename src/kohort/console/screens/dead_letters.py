"""Screen 3: dead-letter topics, their kinds and records, and redrives.

Rules: a redrive is previewed first; its id carries a fingerprint of what was chosen, so that going
on with another choice under the same id is refused.

Shell: the clock.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from kohort.console.screens.audit import AuditError
from kohort.console.screens.desk import Desk, NotThereError, PageRequest, Redirect, Screen, now_ms
from kohort.console.screens.jobs import Job
from kohort.console.views.dead_letters import (
    READ_AT_MOST,
    RedriveRow,
    dead_letter_topic,
    dead_letter_topics,
    failed_record,
)
from kohort.errors import UsageError
from kohort.observe.retry_owners import RetryOwner, retry_owners
from kohort.retry.redrive import GROUP_PREFIX, Choice, Redrive
from kohort.sampling.log_offsets import spans
from kohort.sampling.retry_records import RetryCopy, latest_copies, record_at

if TYPE_CHECKING:
    from kohort.retry.redrive import Edit, Report

log = logging.getLogger("kohort.console")
PROGRESS: Final = re.compile(r"redrive end=(\d+)")
CHOSEN: Final = ("reason", "error_class", "fingerprint", "offsets", "target", "edit")


def owners_of(desk: Desk) -> list[RetryOwner]:
    """Whose retry topics the cluster has."""
    snapshot = desk.overview().snapshot
    return retry_owners(list(snapshot.topics), [*snapshot.groups, *snapshot.not_described])


def sizes_of(desk: Desk, owners: list[RetryOwner]) -> dict[str, int]:
    """How many offsets each dead-letter and retry topic holds, as far as leaders answer."""
    topics = desk.overview().snapshot.topics
    names = [name for o in owners for name in (o.dead_letter, *o.retry_topics)]
    described = [topics[name] for name in names if name and name in topics]
    logs = spans(desk.admin, described)
    sizes: dict[str, int] = {}
    for tp, end in logs.ends.items():
        sizes[tp.topic] = sizes.get(tp.topic, 0) + end - logs.firsts[tp]
    return sizes


def _owner(desk: Desk, name: str) -> RetryOwner:
    for owner in owners_of(desk):
        if owner.dead_letter == name:
            return owner
    raise NotThereError(
        f"there is no dead-letter topic {name!r}; /dlq lists all dead-letter topics"
    )


def topics(desk: Desk, _: PageRequest) -> Screen:
    """All dead-letter topics."""
    owners = owners_of(desk)
    view = dead_letter_topics(owners, sizes_of(desk, owners), desk.overview().snapshot)
    return Screen("dlq.html", "Dead letters", "dlq", view, desk.command("topic", "list"))


def topic(desk: Desk, request: PageRequest) -> Screen:
    """One dead-letter topic: its kinds and records."""
    owner = _owner(desk, request.needed("name"))
    name = owner.dead_letter or ""
    described = desk.overview().snapshot.topics[name]
    copies = latest_copies(desk.admin, desk.settings, described, READ_AT_MOST)
    view = dead_letter_topic(
        owner, copies, _redrives(desk, name), request.query, desk.masks, now_ms()
    )
    command = desk.command("dlq", "list", "--topic", owner.topic, "--group", owner.group)
    return Screen("dlq_topic.html", name, "dlq", view, command)


def record(desk: Desk, request: PageRequest) -> Screen:
    """One failed record."""
    from kohort.client.common.types import TopicPartition
    from kohort.retry.headers import HeaderFault, parse

    owner = _owner(desk, request.needed("name"))
    tp = TopicPartition(owner.dead_letter or "", whole_of(request, "partition"))
    offset = whole_of(request, "offset")
    found = record_at(desk.admin, desk.settings, tp, offset)
    if found is None or found.offset != offset:
        raise NotThereError(f"{tp} has no record at offset {offset:,} (any more)")
    try:
        copy = RetryCopy(found, parse(found.headers))
    except HeaderFault as error:
        raise NotThereError(f"{tp} offset {offset:,} was not written by Kohort: {error}") from error
    view = failed_record(owner, copy, desk.masks, now_ms())
    command = desk.command(
        "dlq", "show", view.row.origin, "--topic", owner.topic, "--group", owner.group
    )
    return Screen("dlq_record.html", f"{tp} offset {offset}", "dlq", view, command)


def whole_of(request: PageRequest, name: str) -> int:
    """A number of the query. Raises UsageError for anything else."""
    text = request.needed(name)
    if not text.isdecimal() or len(text) > 18:
        raise UsageError(f"{name}={text!r} is not a whole number")
    return int(text)


def _redrives(desk: Desk, topic: str) -> list[RedriveRow]:
    """The redrives that have gone through a dead-letter topic, by their committed offsets."""
    rows: list[RedriveRow] = []
    for name, view in desk.overview().groups.items():
        places = {tp: s for tp, s in view.look.partitions.items() if tp.topic == topic}
        if not name.startswith(GROUP_PREFIX) or not places:
            continue
        done = total = 0
        for seen in places.values():
            match = PROGRESS.match(seen.metadata)
            end = int(match[1]) if match else seen.end or 0
            done += min(seen.committed or 0, end) - (seen.first or 0)
            total += end - (seen.first or 0)
        rows.append(RedriveRow(name.removeprefix(GROUP_PREFIX), max(0, done), total, done >= total))
    return rows


# -- redrives


@dataclass(frozen=True)
class RedrivePlan:
    """A redrive before it is sent: what would go back, and what would not."""

    name: str
    topic: str
    group: str
    redrive_id: str
    chosen: Mapping[str, str]
    sent: int
    kinds: list[tuple[str, str, int]]
    left: Mapping[str, int]
    target: str
    rate: str
    edits: bool
    original: str


def _chosen(fields: Mapping[str, str]) -> dict[str, str]:
    """What a preview and its confirmation have in common.

    A browser sends each line of a field with an end of its own (CR LF), not as the page had it.
    """
    chosen = {name: fields.get(name, "").replace("\r\n", "\n") for name in CHOSEN}
    return chosen | {"offsets": " ".join(chosen["offsets"].split())}


def plan(desk: Desk, request: PageRequest) -> Screen:
    """What a redrive would send; nothing is changed."""
    owner = _owner(desk, request.needed("name"))
    chosen = _chosen(request.query)
    redrive_id = request.query.get("id") or _new_id(owner, chosen)
    report = _redrive(desk, owner, redrive_id, chosen).preview()
    view = RedrivePlan(
        owner.dead_letter or "",
        owner.topic,
        owner.group,
        redrive_id,
        chosen,
        report.sent,
        [(reason, kind, n) for (reason, kind), n in report.kinds.most_common(20)],
        _left(report),
        chosen["target"] or "entry",
        request.query.get("rate", ""),
        _single(chosen["offsets"]) is not None,
        _original(desk, owner, chosen),
    )
    words = ["dlq", "redrive", "--topic", owner.topic, "--group", owner.group, "--id", redrive_id]
    for name in ("reason", "error_class", "fingerprint"):
        words += [f"--{name.replace('_', '-')}", chosen[name]] if chosen[name] else []
    for part in chosen["offsets"].split():
        words += ["--offsets", part]
    return Screen("redrive.html", "Redrive: a look first", "dlq", view, desk.command(*words))


def _original(desk: Desk, owner: RetryOwner, chosen: Mapping[str, str]) -> str:
    """The value of a single chosen record, to be edited; empty where a form cannot hold it."""
    from kohort.client.common.types import TopicPartition

    one = _single(chosen["offsets"])
    if one is None:
        return ""
    tp = TopicPartition(owner.dead_letter or "", one[0])
    original = record_at(desk.admin, desk.settings, tp, one[1])
    return desk.masks.editable(original.value if original else None)


def _single(texts: str) -> tuple[int, int] | None:
    words = texts.split()
    match = re.fullmatch(r"(\d+):(\d+)", words[0]) if len(words) == 1 else None
    return (int(match[1]), int(match[2])) if match else None


def start(desk: Desk, request: PageRequest) -> Redirect:
    """Begin a redrive, or continue one."""
    desk.actions_allowed()
    owner = _owner(desk, request.needed("name"))
    chosen = _chosen(request.form)
    redrive_id = request.needed("id")
    if not redrive_id.endswith(_mark(owner, chosen)):
        raise UsageError(
            f"redrive {redrive_id} was begun with another choice of records; begin a new one"
        )
    if request.form.get("confirm") != "yes":
        raise UsageError("confirm the redrive on the page that shows what it sends")
    rate_per_s = _rate(request.form.get("rate", "").strip())
    job = Job(redrive_id, "redrive", owner.dead_letter or "", _link(owner, redrive_id, chosen))
    redrive = _redrive(desk, owner, redrive_id, chosen)
    job.stop = redrive.stop

    def run() -> str:
        report = redrive.run(rate_per_s=rate_per_s, on_progress=lambda r: job.progress(r.sent))
        job.progress(report.sent)
        left = ", ".join(f"{n:,} {what}" for what, n in _left(report).items() if n)
        ended = "done" if report.finished else "paused; the same id continues"
        return f"{ended}: {report.sent:,} sent" + (f" ({left})" if left else "")

    desk.audit.begin(
        request.form["who"], "redrive", owner.dead_letter or "", {"id": redrive_id, **chosen}
    )
    desk.jobs.start(job, run, lambda outcome: _ended(desk, request, job, outcome))
    return Redirect(f"/job?{urlencode({'id': redrive_id})}")


def _rate(text: str) -> float | None:
    """Records a second; None for no limit. Raises UsageError."""
    try:
        rate = float(text) if text else None
    except ValueError:
        rate = 0.0
    if rate is not None and not 0 < rate < 1e9:
        raise UsageError(f"rate={text!r}: records a second, more than 0, such as 100 or 0.5")
    return rate


def _ended(desk: Desk, request: PageRequest, job: Job, outcome: str) -> None:
    try:
        desk.audit.add(request.form["who"], job.kind, job.target, outcome, {"id": job.id})
    except AuditError as error:  # nobody waits for an answer here
        log.error("%s", error)
    desk.sampler.sample_soon()


def _link(owner: RetryOwner, redrive_id: str, chosen: Mapping[str, str]) -> str:
    query = {"name": owner.dead_letter, "id": redrive_id, **chosen}
    return f"/dlq/redrive?{urlencode({k: v for k, v in query.items() if v})}"


def _new_id(owner: RetryOwner, chosen: Mapping[str, str]) -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{_mark(owner, chosen)}"


def _mark(owner: RetryOwner, chosen: Mapping[str, str]) -> str:
    text = repr((owner.dead_letter, sorted(chosen.items())))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _redrive(desk: Desk, owner: RetryOwner, redrive_id: str, chosen: Mapping[str, str]) -> Redrive:
    choice = Choice(
        chosen["reason"] or None,
        chosen["error_class"] or None,
        chosen["fingerprint"] or None,
        None,
        _ranges(chosen["offsets"]),
    )
    edit = _edit(chosen["edit"].encode()) if chosen["edit"] else None
    if edit is not None and _single(chosen["offsets"]) is None:
        raise UsageError("a value can be edited of a single record; choose one")
    return Redrive(
        redrive_id,
        owner.names,
        desk.settings,
        choice,
        target=chosen["target"] or "entry",
        edit=edit,
    )


def _edit(value: bytes) -> Edit:
    """Send this value instead."""
    return lambda key, _, headers: (key, value, headers)


def _ranges(text: str) -> dict[int, list[tuple[int, int]]]:
    """`3:10 3:12-20` as ranges by partition. Raises UsageError."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for part in text.split():
        match = re.fullmatch(r"(\d{1,9}):(\d{1,18})(?:-(\d{1,18}))?", part)
        if match is None:
            raise UsageError(f"{part!r}: write P:OFFSET or P:FROM-TO")
        first, last = int(match[2]), int(match[3] or match[2])
        if last < first:
            raise UsageError(f"{part!r}: from {first} to {last} is no range; the first is smaller")
        ranges.setdefault(int(match[1]), []).append((first, last + 1))
    return ranges


def _left(report: Report) -> dict[str, int]:
    """Why records are not sent, as text."""
    return {
        "not chosen": report.not_chosen,
        "not written by Kohort, or not the copy that counts": report.inert,
        "sent by this redrive before, and failed again": report.again,
        "left out by the edit": report.left_by_edit,
        "too large to copy, and gone at their origin": report.value_gone,
        "too large for the topic that they would go to (its max.message.bytes)": report.too_large,
        "batches that cannot be read": report.unreadable,
    }
