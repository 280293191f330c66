"""What the control port can be asked: nodes, leaders, coordinators, faults, requests, as JSON.

Rules:
- Every call is one function of the node's state; it runs on the broker's thread, and has taken
  effect when it is answered.
- An invalid request is a UsageError, a refusal by the broker a BrokerError; the server answers 400
  and 409. Unknown names are reported as not found, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kohort.broker.faults.faulty_files import DiskFault
from kohort.broker.faults.rules import fault_from
from kohort.broker.server.server import Broker
from kohort.errors import BrokerError, ErrorCode, UsageError
from kohort.lean import dataclass, fields
from kohort.wire import API_NAMES

if TYPE_CHECKING:
    from kohort.broker.faults.gate import FaultInjector

MAX_REQUESTS: Final = 1_000


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """One request of the control port."""

    method: str
    parts: tuple[str, ...]
    """The path, without slashes."""
    query: Mapping[str, str]
    body: Mapping[str, Any]


Answer = dict[str, Any]
Route = Callable[[Broker, ControlRequest], Answer]


def route_of(request: ControlRequest) -> Route | None:
    """The function that answers; None: there is none."""
    head = request.parts[0] if request.parts else ""
    return _ROUTES.get((request.method, head, len(request.parts)))


def _whole(request: ControlRequest, name: str, default: int | None = None) -> int | None:
    value = request.body.get(name, request.query.get(name, default))
    if isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise UsageError(f"{name}={value!r} is not a whole number")
    return value


def _text(request: ControlRequest, name: str) -> str:
    value = request.body.get(name)
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name} is missing; send it as a text in the JSON object")
    return value


def _number(text: str, what: str) -> int:
    if not text.isdigit():
        raise UsageError(f"{text!r} is not the number of a {what}")
    return int(text)


def _about(broker: Broker, request: ControlRequest) -> Answer:
    routes = sorted(
        f"{method} /{head}{'/…' * (count - 1)}" for method, head, count in _ROUTES if head
    )
    return {"cluster_id": broker.state.cluster_id, "routes": routes}


# -- nodes


def _nodes(broker: Broker, request: ControlRequest) -> Answer:
    nodes = broker.nodes
    running = {node.node_id for node in nodes}
    rows = [nodes.address(node_id) for node_id in broker.state.leadership.nodes]
    return {
        "nodes": [
            {"id": node_id, "host": host, "port": port, "rack": rack, "running": node_id in running}
            for node_id, host, port, rack in rows
        ]
    }


def _change_node(broker: Broker, request: ControlRequest) -> Answer:
    node, what, nodes = _number(request.parts[1], "node"), request.parts[2], broker.nodes
    if what == "down":
        if request.body.get("orderly"):
            nodes.stop(node)
        else:
            nodes.kill(node)
    elif what in ("up", "restart"):
        if what == "restart":
            nodes.stop(node)
        nodes.restart(node)
    else:
        raise UsageError(f"a node is brought down, up or restart, not {what!r}")
    return _nodes(broker, request)


# -- leaders and coordinators


def _leaders(broker: Broker, request: ControlRequest) -> Answer:
    topic_name = request.query.get("topic")
    return {
        "leaders": [
            {
                "topic": topic.name,
                "partition": partition.index,
                "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
            }
            for topic in broker.state.topics
            for partition in topic.partitions
            if topic_name in (None, topic.name)
        ]
    }


def _move_leader(broker: Broker, request: ControlRequest) -> Answer:
    partition = _whole(request, "partition")
    if partition is None:
        raise UsageError("partition is missing")
    topic = _text(request, "topic")
    return {"leader": broker.nodes.leaders.move(topic, partition, _whole(request, "to"))}


def _prefer(broker: Broker, request: ControlRequest) -> Answer:
    if request.parts[1] != "preferred":
        raise UsageError(
            "POST /leaders moves one leader, POST /leaders/preferred restores all of them"
        )
    return {"moved": len(broker.nodes.leaders.elect_preferred())}


def _coordinator(broker: Broker, request: ControlRequest) -> Answer:
    return {"node": broker.nodes.coordinators.partition_of(request.parts[1]).leader}


def _move_coordinator(broker: Broker, request: ControlRequest) -> Answer:
    return {
        "node": broker.nodes.leaders.move_coordinator(
            _text(request, "group"), _whole(request, "to")
        )
    }


def _loading(broker: Broker, request: ControlRequest) -> Answer:
    hold, gate = request.body.get("hold"), broker.nodes.loading
    if not isinstance(hold, bool):
        raise UsageError("hold is true or false")
    if hold != gate.held:
        (gate.hold if hold else gate.release)()
    return {"held": gate.held}


# -- faults and requests


def _gate(broker: Broker) -> FaultInjector:
    assert broker.gate is not None, "a control port is made with its gate"
    return broker.gate


def _faults(broker: Broker, request: ControlRequest) -> Answer:
    return {"faults": [armed.as_json() for armed in _gate(broker).faults.list()]}


def _add_fault(broker: Broker, request: ControlRequest) -> Answer:
    return _gate(broker).faults.add(fault_from(request.body)).as_json()


def _clear_faults(broker: Broker, request: ControlRequest) -> Answer:
    return {"removed": _gate(broker).clear()}


def _remove_fault(broker: Broker, request: ControlRequest) -> Answer:
    number = _number(request.parts[1], "fault")
    if not _gate(broker).faults.remove(number):
        raise BrokerError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no fault {number}")
    return {"removed": 1}


def _disk(broker: Broker, request: ControlRequest) -> Answer:
    names = [entry.name for entry in fields(DiskFault)]
    faults = _gate(broker).disk.list()
    return {"faults": [{name: getattr(fault, name) for name in names} for fault in faults]}


def _fail_disk(broker: Broker, request: ControlRequest) -> Answer:
    known = {entry.name for entry in fields(DiskFault)} - {"hits"}
    unknown = sorted(set(request.body) - known)
    if unknown:
        raise UsageError(f"a fault of the disk has no {unknown[0]!r}; it has {sorted(known)}")
    for name in ("after", "times"):
        _whole(request, name)
    for name in {"operation", "error", "path"} & {"operation", *request.body}:
        _text(request, name)
    fault = _gate(broker).disk.add(DiskFault(**request.body))
    return {name: getattr(fault, name) for name in sorted(known)}


def _limit(broker: Broker, request: ControlRequest) -> Answer:
    version = _whole(request, "max_version")
    if version is None:
        raise UsageError("max_version is missing; -1 offers none")
    _gate(broker).limit(_text(request, "api"), version)
    return {"limits": {API_NAMES[key]: top for key, top in _gate(broker).limits.items()}}


def _requests(broker: Broker, request: ControlRequest) -> Answer:
    log = _gate(broker).requests
    since, api = _whole(request, "since", 0) or 0, request.query.get("api")
    entries = [entry for entry in log.since(since) if api in (None, entry.api)]
    return {"requests": [e.as_json() for e in entries[:MAX_REQUESTS]], "count": log.count}


def _forget_requests(broker: Broker, request: ControlRequest) -> Answer:
    _gate(broker).requests.clear()
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
    ("GET", "disk", 1): _disk,
    ("POST", "disk", 1): _fail_disk,
    ("POST", "limits", 1): _limit,
    ("GET", "requests", 1): _requests,
    ("DELETE", "requests", 1): _forget_requests,
}
