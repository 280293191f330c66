"""What the control port can be asked: nodes, leaders, coordinators, faults, requests, as JSON.

Rules:
- Every call is one function of the node's state; it runs on the broker's thread, and has taken
  effect when it is answered.
- What is wrong with a request is a UsageError, what the broker refuses a BrokerError; the server
  makes 400 and 409 of them. What is not known is not found, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kohort.broker.commons import Commons
from kohort.broker.fault_files import DiskFault
from kohort.broker.faults import fault_from
from kohort.errors import BrokerError, ErrorCode, UsageError
from kohort.lean import dataclass, fields
from kohort.wire import API_NAMES

if TYPE_CHECKING:
    from kohort.broker.fault_gate import FaultGate

MAX_REQUESTS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of the control port."""

    method: str
    parts: tuple[str, ...]
    """The path, without slashes."""
    query: Mapping[str, str]
    body: Mapping[str, Any]


Answer = dict[str, Any]
Route = Callable[[Commons, Asked], Answer]


def route_of(asked: Asked) -> Route | None:
    """Who answers; None: nobody."""
    head = asked.parts[0] if asked.parts else ""
    return _ROUTES.get((asked.method, head, len(asked.parts)))


def _whole(asked: Asked, name: str, default: int | None = None) -> int | None:
    value = asked.body.get(name, asked.query.get(name, default))
    if isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise UsageError(f"{name}={value!r} is not a whole number")
    return value


def _text(asked: Asked, name: str) -> str:
    value = asked.body.get(name)
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name} is missing; send it as a text in the JSON object")
    return value


def _number(text: str, what: str) -> int:
    if not text.isdigit():
        raise UsageError(f"{text!r} is not the number of a {what}")
    return int(text)


def _about(commons: Commons, asked: Asked) -> Answer:
    routes = sorted(
        f"{method} /{head}{'/…' * (count - 1)}" for method, head, count in _ROUTES if head
    )
    return {"cluster_id": commons.cluster_id, "routes": routes}


# -- nodes


def _nodes(commons: Commons, asked: Asked) -> Answer:
    nodes = commons.nodes
    running = {node.node_id for node in nodes}
    rows = [nodes.address(node_id) for node_id in commons.leadership.nodes]
    return {
        "nodes": [
            {"id": node_id, "host": host, "port": port, "rack": rack, "running": node_id in running}
            for node_id, host, port, rack in rows
        ]
    }


def _change_node(commons: Commons, asked: Asked) -> Answer:
    node, what, nodes = _number(asked.parts[1], "node"), asked.parts[2], commons.nodes
    if what == "down":
        if asked.body.get("orderly"):
            nodes.stop(node)
        else:
            nodes.kill(node)
    elif what in ("up", "restart"):
        if what == "restart":
            nodes.stop(node)
        nodes.restart(node)
    else:
        raise UsageError(f"a node is brought down, up or restart, not {what!r}")
    return _nodes(commons, asked)


# -- leaders and coordinators


def _leaders(commons: Commons, asked: Asked) -> Answer:
    wanted = asked.query.get("topic")
    return {
        "leaders": [
            {
                "topic": topic.name, "partition": partition.index, "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
            }
            for topic in commons.topics
            for partition in topic.partitions
            if wanted in (None, topic.name)
        ]
    }  # fmt: skip


def _move_leader(commons: Commons, asked: Asked) -> Answer:
    partition = _whole(asked, "partition")
    if partition is None:
        raise UsageError("partition is missing")
    topic = _text(asked, "topic")
    return {"leader": commons.nodes.move_leader(topic, partition, _whole(asked, "to"))}


def _prefer(commons: Commons, asked: Asked) -> Answer:
    if asked.parts[1] != "preferred":
        raise UsageError("POST /leaders moves one, POST /leaders/preferred brings all home")
    return {"moved": len(commons.nodes.elect_preferred())}


def _coordinator(commons: Commons, asked: Asked) -> Answer:
    return {"node": commons.nodes.coordinating(asked.parts[1]).leader}


def _move_coordinator(commons: Commons, asked: Asked) -> Answer:
    return {"node": commons.nodes.move_coordinator(_text(asked, "group"), _whole(asked, "to"))}


def _loading(commons: Commons, asked: Asked) -> Answer:
    hold, gate = asked.body.get("hold"), commons.nodes.loading
    if not isinstance(hold, bool):
        raise UsageError("hold is true or false")
    if hold != gate.held:
        (gate.hold if hold else gate.release)()
    return {"held": gate.held}


# -- faults and requests


def _gate(commons: Commons) -> FaultGate:
    assert commons.gate is not None, "a control port is made with its gate"
    return commons.gate


def _faults(commons: Commons, asked: Asked) -> Answer:
    return {"faults": [armed.as_json() for armed in _gate(commons).faults.list()]}


def _add_fault(commons: Commons, asked: Asked) -> Answer:
    return _gate(commons).faults.add(fault_from(asked.body)).as_json()


def _clear_faults(commons: Commons, asked: Asked) -> Answer:
    return {"removed": _gate(commons).clear()}


def _remove_fault(commons: Commons, asked: Asked) -> Answer:
    number = _number(asked.parts[1], "fault")
    if not _gate(commons).faults.remove(number):
        raise BrokerError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no fault {number}")
    return {"removed": 1}


def _fail_disk(commons: Commons, asked: Asked) -> Answer:
    known = {entry.name for entry in fields(DiskFault)} - {"hits"}
    unknown = sorted(set(asked.body) - known)
    if unknown:
        raise UsageError(f"a fault of the disk has no {unknown[0]!r}; it has {sorted(known)}")
    for name in ("after", "times"):
        _whole(asked, name)
    fault = _gate(commons).disk.add(DiskFault(**asked.body))
    return {name: getattr(fault, name) for name in sorted(known)}


def _limit(commons: Commons, asked: Asked) -> Answer:
    version = _whole(asked, "max_version")
    if version is None:
        raise UsageError("max_version is missing; -1 offers none")
    _gate(commons).limit(_text(asked, "api"), version)
    return {"limits": {API_NAMES[key]: top for key, top in _gate(commons).limits.items()}}


def _requests(commons: Commons, asked: Asked) -> Answer:
    log = _gate(commons).requests
    since, api = _whole(asked, "since", 0) or 0, asked.query.get("api")
    found = [entry for entry in log.since(since) if api in (None, entry.api)]
    return {"requests": [e.as_json() for e in found[:MAX_REQUESTS]], "count": log.count}


def _forget_requests(commons: Commons, asked: Asked) -> Answer:
    _gate(commons).requests.clear()
    return {}


_ROUTES: Final[dict[tuple[str, str, int], Route]] = {
    ("GET", "", 0): _about,
    ("GET", "nodes", 1): _nodes,
    ("POST", "nodes", 3): _change_node,
    ("GET", "leaders", 1): _leaders,
    ("POST", "leaders", 1): _move_leader,
    ("POST", "leaders", 2): _prefer,
    ("GET", "coordinators", 2): _coordinator,
    ("POST", "coordinators", 1): _move_coordinator,
    ("POST", "loading", 1): _loading,
    ("GET", "faults", 1): _faults,
    ("POST", "faults", 1): _add_fault,
    ("DELETE", "faults", 1): _clear_faults,
    ("DELETE", "faults", 2): _remove_fault,
    ("POST", "disk", 1): _fail_disk,
    ("POST", "limits", 1): _limit,
    ("GET", "requests", 1): _requests,
    ("DELETE", "requests", 1): _forget_requests,
}
