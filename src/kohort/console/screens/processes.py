"""Screen 8: what apps, consumers and pipelines elsewhere are doing, and commands for them."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from kohort.console.screens.desk import Desk, NotThereError, PageRequest, Redirect, Screen
from kohort.console.screens.fleet import as_text
from kohort.console.views.processes import process_view, processes_view
from kohort.errors import UsageError
from kohort.remote.messages import Action

COMMANDS: Final = {one.value: one for one in Action if one.commands_process}


def processes(desk: Desk, request: PageRequest) -> Screen:
    """Every process that tells of itself."""
    fleet = desk.fleet
    try:
        view = processes_view(fleet.processes(), fleet.prefix, request.query)
    except UsageError as error:  # no status is published yet
        view = processes_view((), fleet.prefix, request.query, str(error))
    command = desk.command("app", "status", "--remote", fleet.prefix)
    return Screen("processes.html", "Processes", "processes", view, command)


def process(desk: Desk, request: PageRequest) -> Screen:
    """One process."""
    name = request.needed("name")
    processes = [one for one in desk.fleet.processes() if one.status.process == name]
    if not processes:
        raise NotThereError(f"process {name!r} publishes no status (any more); see /processes")
    group = processes[0].status.group
    command = desk.command("app", "status", group, "--remote", desk.fleet.prefix)
    return Screen("process.html", name, "processes", process_view(processes[0]), command)


def command(desk: Desk, request: PageRequest) -> Redirect:
    """Tell a process, or all of its group, to do something."""
    desk.actions_allowed()
    group, word = request.needed("group"), request.needed("action")
    name = request.form.get("process", "")
    if word not in COMMANDS:
        raise UsageError(f"{word!r} is no action; there are {', '.join(COMMANDS)}")
    action = COMMANDS[word]
    if action is Action.DRAIN and request.form.get("confirm") != group:
        raise UsageError(f"type {group!r} to confirm: its process ends when it has drained")
    with desk.audit.doing(request.form["who"], word, name or group) as it:
        it.outcome = as_text(desk.fleet.send(group, action, name))
    if action is Action.DRAIN or not name:
        return Redirect(f"/processes?{urlencode({'group': group})}")
    return Redirect(f"/process?{urlencode({'name': name})}")
