"""Screen 11: what a change of a group would move. Nothing is changed."""

from __future__ import annotations

from functools import partial

from kohort.console.screens.desk import Desk, PageRequest, Screen
from kohort.console.views.plan import plan_view
from kohort.errors import ConfigError
from kohort.group.assignors import BUILT_IN, SERVER_SIDE, AssignorError
from kohort.observe.assignment_preview import live_scene, moves, planned
from kohort.sampling.topic_views import topic_views


def plan(desk: Desk, request: PageRequest) -> Screen:
    """The plan of a group for members that leave and join, and another assignor."""
    name = request.needed("name")
    desk.group(name)
    assignor = request.query.get("assignor", "")
    without, joining = _listed(request.query.get("without")), _listed(request.query.get("with"))
    known = sorted({*BUILT_IN, *SERVER_SIDE})
    words = ["group", "plan", "--group", name]
    for option, text in (
        ("--assignor", assignor),
        ("--without", ",".join(without)),
        ("--with", ",".join(joining)),
    ):
        words += [option, text] if text else []
    try:
        if (
            assignor and assignor.partition(":")[0] not in known
        ):  # never a class of the URL's choice
            raise ConfigError(
                f"there is no assignor {assignor!r}; choose one of {', '.join(known)}"
            )
        described = desk.admin.describe_groups([name])[name]
        topics = partial(topic_views, desk.admin)
        scene = live_scene(described, topics, assignor or None, joining)
        made = planned(scene, without, joining)
        view = plan_view(name, request.query, known, made, moves(made))
    except (ConfigError, AssignorError) as error:
        view = plan_view(name, request.query, known, None, note=str(error))
    return Screen("plan.html", name, "groups", view, desk.command(*words))


def _listed(text: str | None) -> list[str]:
    return [each.strip() for each in (text or "").split(",") if each.strip()]
