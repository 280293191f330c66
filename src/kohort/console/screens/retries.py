"""Screen 4: what waits for its next try."""

from __future__ import annotations

from kohort.console.screens.dead_letters import owners_of, sizes_of
from kohort.console.screens.desk import Asked, Desk, NotThereError, Screen, now_ms
from kohort.console.views.retries import LISTED, retries_view, retry_topics_view
from kohort.sampling.retry_records import waiting_copies


def all_retries(desk: Desk, _: Asked) -> Screen:
    """All groups that retry."""
    owners = owners_of(desk)
    view = retry_topics_view(owners, sizes_of(desk, owners), desk.overview())
    return Screen("retries.html", "Retries", "retries", view, desk.command("topic", "list"))


def retries(desk: Desk, asked: Asked) -> Screen:
    """What waits in the retry topics of one (topic, group)."""
    topic, group = asked.needed("topic"), asked.needed("group")
    owners = [o for o in owners_of(desk) if (o.topic, o.group) == (topic, group)]
    if not owners:
        raise NotThereError(f"group {group!r} has no retry topics of {topic!r}; /retries lists all")
    owner, snapshot = owners[0], desk.overview().snapshot
    counts = {
        name: len(snapshot.topics[name].partitions)
        for name in owner.retry_topics
        if name in snapshot.topics
    }
    total, waiting = waiting_copies(desk.settings, owner.group, counts, LISTED * 5)
    view = retries_view(owner, total, waiting, now_ms())
    command = desk.command("retry", "list", "--topic", topic, "--group", group)
    return Screen("retry_list.html", f"{topic} in {group}", "retries", view, command)
