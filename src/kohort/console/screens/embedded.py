"""Screen 13, the embedded broker through its control port: faults, nodes, requests."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from kohort.console.screens.desk import Desk, PageRequest, Redirect, Screen
from kohort.console.views.embedded import (
    broker_view,
    fault_plan_view,
    fault_words,
    requests_view,
)
from kohort.errors import ErrorCode, UsageError
from kohort.observe.faults import DISK, KINDS, NARROWED, disk_body, fault_body
from kohort.sampling.control_port import ControlPort
from kohort.wire import API_NAMES

if TYPE_CHECKING:
    from kohort.broker.faults.rules import Fault

TIMEOUT_S: Final = 10.0
NO_CONTROL: Final = (
    "This console knows no control port. Start the broker with `kohort broker run --control 9690`, "
    "and the console with `kohort console --control 9690`."
)
_NUMBERS: Final = ("node", "partition", "times", "skip", "delay_ms", "after")


def _port(desk: Desk) -> ControlPort:
    if not desk.control:
        raise UsageError(NO_CONTROL)
    return ControlPort.parse(desk.control, TIMEOUT_S)


def broker(desk: Desk, request: PageRequest) -> Screen:
    """Nodes and faults, and the form of a further fault."""
    del request
    nodes, faults, disk, note = list[Any](), list[Any](), list[Any](), NO_CONTROL
    if desk.control:
        port = _port(desk)
        nodes, note = port.ask("GET", "/nodes")["nodes"], ""
        faults, disk = port.ask("GET", "/faults")["faults"], port.ask("GET", "/disk")["faults"]
    errors = [code.name for code in ErrorCode]
    apis = sorted(API_NAMES.values())
    view = broker_view(desk.control, nodes, faults, disk, KINDS, apis, errors, note)
    return Screen("broker.html", "Embedded broker", "broker", view, _command(desk, "list"))


def requests(desk: Desk, request: PageRequest) -> Screen:
    """The last requests of the broker's clients."""
    rows, total, note = list[Any](), 0, NO_CONTROL
    if desk.control:
        answer = _port(desk).ask("GET", "/requests")
        rows, total, note = answer["requests"], answer["count"], ""
    view = requests_view(desk.control, rows, total, request.query, note)
    api = request.query.get("api", "")
    words = ("requests", "--api", api) if api else ("requests",)
    return Screen("requests.html", "Requests", "broker", view, _command(desk, *words))


def fault(desk: Desk, request: PageRequest) -> Screen:
    """What a fault would do, and which of the last requests it would have met."""
    port = _port(desk)
    try:
        body = _body(request.query)
        rule = None if body["then"] == DISK else _rule(body)
    except UsageError as error:
        view = fault_plan_view(desk.control, "", "", (), (), str(error))
        return Screen("fault.html", "A fault", "broker", view)
    seen: list[Any] = [] if rule is None else port.ask("GET", "/requests")["requests"]
    met = [one for one in seen if rule is not None and _meets(rule, one)]
    view = fault_plan_view(desk.control, fault_words(body), json.dumps(body), seen, met)
    return Screen("fault.html", "A fault", "broker", view, _command(desk, *_words(body)))


def add_fault(desk: Desk, request: PageRequest) -> Redirect:
    """Set the fault that was previewed."""
    desk.actions_allowed()
    if request.form.get("confirm") != "yes":
        raise UsageError("confirm it on the page that shows what the fault does")
    try:
        body: Any = json.loads(request.needed("fault"))
    except ValueError as error:
        raise UsageError("the form has no fault; begin at /broker") from error
    if not isinstance(body, dict):
        raise UsageError("the form has no fault; begin at /broker")
    described = cast("dict[str, Any]", body)
    port, who = _port(desk), request.form["who"]
    if described.get("then") == DISK:
        fields = {key: value for key, value in described.items() if key != "then"}
        with desk.audit.doing(who, "add fault", "fault of the disk", described):
            port.ask("POST", "/disk", fields)
        return Redirect("/broker")
    _rule(described)
    with desk.audit.doing(who, "add fault", "fault", described) as it:
        it.target = f"fault {port.ask('POST', '/faults', described)['id']}"
    return Redirect("/broker")


def remove_fault(desk: Desk, request: PageRequest) -> Redirect:
    """Remove one fault, or all of them; answers that are held leave."""
    desk.actions_allowed()
    number = request.needed("id")
    if number == "all" and request.form.get("confirm") != "yes":
        raise UsageError("confirm on /broker that every fault is removed")
    if number != "all" and not (number.isdecimal() and len(number) < 10):
        raise UsageError(f"{number!r} is not the number of a fault")
    target = "all faults" if number == "all" else f"fault {number}"
    port = _port(desk)
    with desk.audit.doing(request.form["who"], "remove fault", target):
        port.ask("DELETE", "/faults" if number == "all" else f"/faults/{number}")
    return Redirect("/broker")


def change_node(desk: Desk, request: PageRequest) -> Redirect:
    """Bring a node down, or up again."""
    desk.actions_allowed()
    node, action = request.needed("node"), request.needed("action")
    if not (node.isdecimal() and len(node) < 10) or action not in ("down", "up"):
        raise UsageError("a node is brought down or up, by its number")
    port = _port(desk)
    if action == "down":
        if request.form.get("confirm") != "yes":
            raise UsageError(f"confirm on /broker that node {node} is brought down")
        others = [
            one
            for one in port.ask("GET", "/nodes")["nodes"]
            if one["running"] and one["id"] != int(node)
        ]
        if not others:
            raise UsageError(
                f"node {node} is the last one that runs: the console could not reach the broker"
            )
    with desk.audit.doing(request.form["who"], f"node {action}", f"node {node}"):
        port.ask("POST", f"/nodes/{node}/{action}")
    return Redirect("/broker")


def _body(query: Mapping[str, str]) -> dict[str, Any]:
    """The description of the fault that a query asks for. Raises UsageError."""
    kind = query.get("then", "")
    if kind not in (*KINDS, DISK):
        raise UsageError(f"then={kind!r}; it is one of {', '.join((*KINDS, DISK))}")
    numbers = {name: _number(query, name) for name in _NUMBERS if query.get(name)}
    if kind == DISK:
        fault = disk_body(
            query.get("operation", ""),
            query.get("error", "EIO"),
            path=query.get("path") or "*",
            after=numbers.get("after", 0),
            times=numbers.get("times"),
        )
        return {"then": DISK, **fault}
    texts = {name: query[name] for name in NARROWED if query.get(name) and name not in _NUMBERS}
    narrowed = {name: n for name, n in numbers.items() if name in (*NARROWED, "skip")}
    return fault_body(
        kind,
        _listed(query.get("api", "")),
        errors=_listed(query.get("errors", "")),
        delay_ms=numbers.get("delay_ms"),
        times=numbers.get("times"),
        handled=query.get("handled") == "yes",
        narrowed={**narrowed, **texts},
    )


def _number(query: Mapping[str, str], name: str) -> int:
    text = query[name]
    if not text.isdecimal() or len(text) > 9:
        raise UsageError(f"{name}={text!r} is not a whole number")
    return int(text)


def _listed(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _rule(body: Mapping[str, Any]) -> Fault:
    """The rule as the broker would make it. Raises UsageError."""
    from kohort.broker.faults.rules import fault_from

    return fault_from(body)


def _meets(rule: Fault, request: Mapping[str, Any]) -> bool:
    from kohort.broker.faults.rules import Seen

    partitions: Sequence[tuple[str, int]] = [(t, p) for t, p in request["partitions"]]
    seen = Seen(
        request["node"],
        request["client_id"],
        request["api"],
        request["version"],
        tuple(request["groups"]),
        request["transactional_id"],
        tuple(partitions),
    )
    return rule.meets(seen)


def _words(body: Mapping[str, Any]) -> list[str]:
    """The words of `kohort faults` that set this fault."""
    if body["then"] == DISK:
        words = [DISK, str(body["operation"]), "--error", str(body["error"])]
        for name in ("path", "after", "times"):
            if body[name] not in ("*", 0, None):
                words += [f"--{name}", str(body[name])]
        return words
    words = ["add", str(body["then"]), *body["api"]]
    errors: Sequence[str] = body.get("errors") or ()
    for error in errors:
        words += ["--error", error]
    times: int | None = body.get("times")
    options = {
        "ms": body.get("delay_ms"),
        "times": times // len(errors) if times and errors else times,
        **{name.replace("_", "-"): body.get(name) for name in ("skip", *NARROWED)},
    }
    for name, value in options.items():
        words += [] if value is None else [f"--{name}", str(value)]
    return [*words, "--handled"] if body.get("handled") else words


def _command(desk: Desk, *words: str) -> str:
    if not desk.control:
        return ""
    return shlex.join(["kohort", "faults", *words, "--control", desk.control])
