"""Screen 13, the player: scenarios of the simulator and random worlds. Nothing is changed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from kohort.console.screens.desk import Desk, NotThereError, PageRequest, Screen
from kohort.console.views.stories import stories_view, story_view
from kohort.errors import ConfigError, UsageError
from kohort.setting_keys import nearest

if TYPE_CHECKING:
    from kohort.simulator.plan import Plan

MOST: Final = 1 << 53
PROTOCOLS: Final = ("classic", "consumer", "mixed")


def stories(desk: Desk, request: PageRequest) -> Screen:
    """The scenarios of the package, and the form of a random world."""
    from kohort.simulator.generate import FAULTS
    from kohort.simulator.scenario import examples

    view = stories_view(list(examples()), request.query, sorted(FAULTS), desk.control)
    return Screen("stories.html", "Stories", "broker", view, "kohort simulate examples")


def story(desk: Desk, request: PageRequest) -> Screen:
    """One story at one of its lines: a scenario by `name`, or a random world by `seed`."""
    name = request.query.get("name", "")
    plan, runs, run, command = _scenario(request, name) if name else _random(request)
    played = desk.player.story(plan)
    view = story_view(plan, played.moments, _whole(request, "at", 1), runs, run)
    return Screen("story.html", name or plan.name, "broker", view, shlex.join(command))


def _scenario(request: PageRequest, name: str) -> tuple[Plan, list[str], int, list[str]]:
    from kohort.simulator.scenario import examples

    known = {one.name: one for one in examples()}  # never a file of the URL's choice
    if name not in known:
        near = nearest(name, known)
        hint = f" Did you mean {near!r}?" if near else ""
        raise NotThereError(f"there is no story {name!r}.{hint} /stories lists all")
    plans = list(known[name].plans())
    run = _whole(request, "run", 0)
    if run >= len(plans):
        raise NotThereError(f"story {name!r} has {len(plans)} runs; there is no run {run}")
    plan = plans[run]
    command = ["kohort", "simulate", "scenario", name, "--story"]
    return plan, [one.name for one in plans], run, command


def _random(request: PageRequest) -> tuple[Plan, list[str], int, list[str]]:
    from kohort.simulator.generate import MAX_MEMBERS
    from kohort.simulator.runs.running import Options

    seed, members = _whole(request, "seed", -1), _whole(request, "members", 0)
    protocol, faults = request.query.get("protocol", ""), request.query.get("faults", "")
    if seed < 0:
        raise UsageError("/story needs name=... or seed=...; begin at /stories")
    if members > MAX_MEMBERS or protocol not in ("", *PROTOCOLS):
        raise UsageError(
            f"a world has 1 to {MAX_MEMBERS} members and speaks {', '.join(PROTOCOLS)}"
        )
    names = tuple(n for n in faults.replace("\n", ",").split(",") if n and n != "none")
    limited = names if faults else None
    options = Options(protocol or None, members or None, limited)
    try:
        plan = options.plan(seed)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    return plan, [], 0, shlex.split(options.command(seed))


def _whole(request: PageRequest, name: str, default: int) -> int:
    text = request.query.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text[:20]) > MOST:
        raise UsageError(f"{name}={text!r} is not a whole number up to {MOST}")
    return int(text)
