"""Screen 5: a group's rebalances."""

from __future__ import annotations

from kohort.client.admin.group_timeline import read_rebalances
from kohort.client.common.config import ConsumerConfig, known_to
from kohort.console.screens.desk import Desk, PageRequest, Screen, now_ms
from kohort.console.views.figures import whole
from kohort.console.views.timeline import timeline_view
from kohort.errors import KohortError
from kohort.group.explain.timeline import Rebalance, merged, needs_log

LAST = 30
MOST = 500


def timeline(desk: Desk, request: PageRequest) -> Screen:
    """What the coordinator remembers, and before that what the log says."""
    name = request.needed("name")
    desk.group(name)
    last = min(MOST, max(1, whole(request.query.get("last", ""), LAST)))
    view = timeline_view(name, _rebalances(desk, name, last), now_ms())
    command = desk.command("group", "timeline", name, "--last", str(last))
    return Screen("timeline.html", name, "groups", view, command)


def _rebalances(desk: Desk, name: str, last: int) -> list[Rebalance]:
    exact = desk.admin.group_timeline(name, last=last)
    read: list[Rebalance] = []
    if needs_log(exact, last):
        try:
            read = read_rebalances(desk.admin, name, known_to(ConsumerConfig, desk.settings))
        except KohortError:
            if not exact:
                raise
    return merged(exact or (), read)[-last:]
