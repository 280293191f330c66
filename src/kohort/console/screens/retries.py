"""Screen 4: what waits for its next try, and what is done with one of these records by hand.

Rules: the process that owns the retry topic's partition tries a record now, or dead-letters it, so
that it is handled once; the console asks for it (`App(..., remote=)`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from kohort.client.common.types import TopicPartition
from kohort.console.screens.dead_letters import owners_of, sizes_of
from kohort.console.screens.desk import Desk, NotThereError, PageRequest, Redirect, Screen, now_ms
from kohort.console.screens.fleet import as_text
from kohort.console.views.retries import (
    LISTED,
    retries_view,
    retry_topics_view,
    waiting_record_view,
)
from kohort.errors import UsageError
from kohort.remote.messages import Action
from kohort.retry.headers import HeaderFault, parse
from kohort.sampling.retry_records import RetryCopy, WaitingCopy, record_at, waiting_copies

if TYPE_CHECKING:
    from kohort.observe.retry_owners import RetryOwner

OF_RECORD: Final = {one.value: one for one in Action if one.of_record}


def all_retries(desk: Desk, _: PageRequest) -> Screen:
    """All groups that retry."""
    owners = owners_of(desk)
    view = retry_topics_view(owners, sizes_of(desk, owners), desk.overview())
    return Screen("retries.html", "Retries", "retries", view, desk.command("topic", "list"))


def retries(desk: Desk, request: PageRequest) -> Screen:
    """What waits in the retry topics of one (topic, group)."""
    topic, group = request.needed("topic"), request.needed("group")
    owner, snapshot = _owner(desk, topic, group), desk.overview().snapshot
    described = [snapshot.topics[name] for name in owner.retry_topics if name in snapshot.topics]
    waiting = waiting_copies(desk.admin, desk.settings, owner.group, described, LISTED * 5)
    view = retries_view(owner, waiting, now_ms())
    command = desk.command("retry", "list", "--topic", topic, "--group", group)
    return Screen("retry_list.html", f"{topic} in {group}", "retries", view, command)


def _owner(desk: Desk, topic: str, group: str) -> RetryOwner:
    for owner in owners_of(desk):
        if (owner.topic, owner.group) == (topic, group):
            return owner
    raise NotThereError(f"group {group!r} has no retry topics of {topic!r}; /retries lists all")


def record(desk: Desk, request: PageRequest) -> Screen:
    """One record that waits, and what can be done with it; nothing is changed."""
    owner, waiting = _waiting(desk, request)
    able, why_not = _able(desk, owner.group)
    view = waiting_record_view(owner, waiting, able, why_not, desk.masks, now_ms())
    command = desk.command(
        "app", "retry-record", owner.group, view.at, "--remote", desk.fleet.prefix
    )
    return Screen("retry_record.html", view.row.origin, "retries", view, command)


def act(desk: Desk, request: PageRequest) -> Redirect:
    """Have a record tried now, or dead-lettered now."""
    desk.actions_allowed()
    owner, waiting = _waiting(desk, request)
    word = request.needed("action")
    if word not in OF_RECORD:
        raise UsageError(f"{word!r} is no action; there are {', '.join(OF_RECORD)}")
    if request.form.get("confirm") != "yes":
        raise UsageError("confirm it on the page that shows the record")
    copy, who = waiting.copy.record, request.form["who"]
    at = f"{copy.topic}/{copy.partition}/{copy.offset}"
    details = {"origin": waiting.copy.retry.origin.retry_id}
    with desk.audit.doing(who, word, at, details) as it:
        answers = desk.fleet.send(owner.group, OF_RECORD[word], at=at, by=who)
        done = [one for one in answers if one.result is not None and one.result.ok]
        it.outcome = as_text(done or answers)
    if not done:
        raise UsageError(f"no process has done it: {it.outcome}")
    return Redirect(f"/retries/group?{urlencode({'topic': owner.topic, 'group': owner.group})}")


def _waiting(desk: Desk, request: PageRequest) -> tuple[RetryOwner, WaitingCopy]:
    """The record `at` a place of a retry topic of (topic, group). Raises NotThereError."""
    owner = _owner(desk, request.needed("topic"), request.needed("group"))
    retry_topic, _, place = request.needed("at").partition("/")
    number, _, offset = place.partition("/")
    known = retry_topic in owner.retry_topics and number.isdecimal() and offset.isdecimal()
    if not known or len(number) > 9 or len(offset) > 18:
        raise NotThereError(f"at={request.needed('at')!r} is no RETRY-TOPIC/PARTITION/OFFSET here")
    tp = TopicPartition(retry_topic, int(number))
    found = record_at(desk.admin, desk.settings, tp, int(offset))
    if found is None or found.offset != int(offset):
        raise NotThereError(f"{tp} has no record at offset {offset} (any more)")
    try:
        retry = parse(found.headers)
    except HeaderFault as error:
        raise NotThereError(f"{tp} offset {offset} was not written by Kohort: {error}") from error
    due_ms = max(retry.not_before_ms, found.timestamp + retry.delay_ms)
    return owner, WaitingCopy(RetryCopy(found, retry), due_ms)


def _able(desk: Desk, group: str) -> tuple[list[str], str]:
    """The processes of a group that can be asked, or why there are none."""
    try:
        there = [one for one in desk.fleet.processes() if one.status.group == group]
    except UsageError as error:
        return [], str(error)
    able = [
        one.status.process
        for one in there
        if not one.gone and Action.RETRY_RECORD in one.status.actions
    ]
    if able:
        return able, ""
    return [], (
        f"no process of group {group!r} that runs now can be asked: start the App with "
        f'App(..., remote="{desk.fleet.prefix}")'
    )
