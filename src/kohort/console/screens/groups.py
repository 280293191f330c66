"""Screens 1 and 2: all groups, one group."""

from __future__ import annotations

from kohort.console.screens.desk import Desk, PageRequest, Screen, now_ms
from kohort.console.views.group import group_page
from kohort.console.views.groups import groups_view


def groups(desk: Desk, request: PageRequest) -> Screen:
    """All groups, the worst first."""
    lines = desk.lines()
    series = desk.sampler.history.series

    view = groups_view(
        lines, lambda name: series[name].samples if name in series else (), request.query, now_ms()
    )
    command = desk.command("group", "lag", "--all", "--total")
    return Screen("groups.html", "Groups", "groups", view, command)


def group(desk: Desk, request: PageRequest) -> Screen:
    """One group: why it does or does not move."""
    name = request.needed("name")
    view = desk.group(name)
    series = desk.sampler.history.series.get(name)
    samples = tuple(series.samples) if series else ()
    page = group_page(view, samples, request.query, now_ms())
    return Screen("group.html", name, "groups", page, desk.command("group", "why", name))
