"""Screen 13, the embedded broker: its nodes, the faults that are set, its last requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kohort.console.views.figures import DASH, clock, count
from kohort.observe.faults import DISK, counted, disk_row, fault_row, request_row

REQUESTS_SHOWN: Final = 100
MATCHES_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node."""

    id: int
    address: str
    rack: str
    running: bool


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One fault that is set; one of the disk has no number."""

    id: int | None
    words: str
    about: str
    hits: str
    left: str
    spent: bool


@dataclass(frozen=True, slots=True)
class BrokerView:
    """The broker at a control port; `note` says why there is none."""

    control: str
    note: str
    nodes: Sequence[NodeRow]
    faults: Sequence[FaultRow]
    kinds: Sequence[str]
    apis: Sequence[str]
    errors: Sequence[str]


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One request."""

    number: str
    at: str
    client: str
    api: str
    about: str
    outcome: str
    fault: str
    tone: str


@dataclass(frozen=True, slots=True)
class FaultPlanView:
    """What a fault would do; `note` says what is wrong with it.

    Attributes:
        body: its description as JSON, empty while something is wrong.
    """

    control: str
    note: str
    words: str
    body: str
    seen: int
    met: int
    matches: Sequence[RequestLine]


@dataclass(frozen=True, slots=True)
class RequestsView:
    """The last requests of a broker, the newest first."""

    control: str
    note: str
    api: str
    client: str
    count: int
    apis: Sequence[str]
    rows: Sequence[RequestLine]


def broker_view(
    control: str,
    nodes: Sequence[Mapping[str, Any]],
    faults: Sequence[Mapping[str, Any]],
    disk: Sequence[Mapping[str, Any]],
    kinds: Sequence[str],
    apis: Sequence[str],
    errors: Sequence[str],
    note: str = "",
) -> BrokerView:
    """The broker's page.

    Args:
        control: the control port as it was given; "" where there is none.
        nodes: of GET /nodes.
        faults: of GET /faults.
        disk: the disk's, of GET /disk.
        kinds: what a fault can do.
        apis: names of APIs to choose from.
        errors: names of errors to choose from.
        note: why nothing is shown.
    """
    return BrokerView(
        control,
        note,
        [
            NodeRow(one["id"], f"{one['host']}:{one['port']}", one["rack"] or DASH, one["running"])
            for one in nodes
        ],
        [*map(_fault, faults), *map(_disk_fault, disk)],
        kinds,
        apis,
        errors,
    )


def _fault(fault: Mapping[str, Any]) -> FaultRow:
    left = fault["left"]
    return FaultRow(
        fault["id"],
        fault_words(fault),
        str(fault_row(fault)["about"] or "every request of it"),
        count(fault["hits"]),
        "no end" if left is None else count(left),
        left == 0,
    )


def _disk_fault(fault: Mapping[str, Any]) -> FaultRow:
    row = disk_row(fault)
    left: int | None = row["left"]
    return FaultRow(
        None,
        disk_words(fault),
        str(row["about"]),
        count(fault["hits"]),
        "no end" if left is None else count(left),
        left == 0,
    )


def disk_words(fault: Mapping[str, Any]) -> str:
    """A fault of the disk as a sentence.

    Args:
        fault: as GET /disk answers it, or as POST /disk takes it.
    """
    times: int | None = fault["times"]
    which = {None: "Every", 1: "The next"}.get(times, f"Each of the next {times}")
    after = f", after {count(fault['after'])} that succeed" if fault["after"] else ""
    return f"{which} {fault['operation']} of {fault['path']} fails with {fault['error']}{after}."


def fault_words(fault: Mapping[str, Any]) -> str:
    """A fault as a sentence: which requests, and what happens to them.

    Args:
        fault: as GET /faults answers it, or as POST /faults takes it; or one of the disk.
    """
    if fault["then"] == DISK:
        return disk_words(fault)
    apis: Sequence[str] = fault.get("api") or ()
    whose = " and ".join(apis) if apis else "Every API"
    handled = " after the request is carried out" if fault.get("handled") else ""
    does = {
        "fail": f"answered with {counted(fault.get('errors') or ())}{handled}",
        "delay": f"answered {count(fault.get('delay_ms'))} ms late",
        "hold": "carried out, and answered when the fault is removed",
        "silence": "carried out and never answered",
        "cut": f"cut off: the connection is closed{handled}",
    }[str(fault["then"])]
    return f"{whose}: {does}."


def fault_plan_view(
    control: str,
    words: str,
    body: str,
    requests: Sequence[Mapping[str, Any]],
    met: Sequence[Mapping[str, Any]],
    note: str = "",
) -> FaultPlanView:
    """The preview of a fault.

    Args:
        control: the control port.
        words: the fault as a sentence.
        body: its description as JSON.
        requests: the broker's last ones.
        met: those of them that the fault would have met.
        note: what is wrong with it.
    """
    lines = [_request(one) for one in list(met)[: -MATCHES_SHOWN - 1 : -1]]
    return FaultPlanView(control, note, words, body, len(requests), len(met), lines)


def requests_view(
    control: str,
    requests: Sequence[Mapping[str, Any]],
    total: int,
    query: Mapping[str, str],
    note: str = "",
) -> RequestsView:
    """The last requests.

    Args:
        control: the control port.
        requests: of GET /requests, the oldest first.
        total: how many have come since the broker began.
        query: `api` and `client` to choose by.
        note: why nothing is shown.
    """
    api, client = query.get("api", ""), query.get("client", "")
    chosen = [
        one
        for one in requests
        if api in ("", one["api"]) and client.lower() in str(one["client_id"]).lower()
    ]
    apis = sorted({str(one["api"]) for one in requests})
    lines = [_request(one) for one in chosen[: -REQUESTS_SHOWN - 1 : -1]]
    return RequestsView(control, note, api, client, total, apis, lines)


def _request(request: Mapping[str, Any]) -> RequestLine:
    about: list[str] = [*request["groups"], *request_row(request)["about"][:4]]
    more = " …" if len(request["partitions"]) > 4 else ""
    answered: int | None = request["answered_ms"]
    outcome = ", ".join(request["errors"])
    if not outcome:
        took = DASH if answered is None else f"{answered - request['time_ms']:,} ms"
        outcome = "no answer yet" if answered is None else f"in {took}"
    return RequestLine(
        count(request["number"]),
        clock(request["time_ms"]),
        str(request["client_id"]) or DASH,
        f"{request['api']} v{request['version']}",
        " ".join(about) + more or DASH,
        outcome,
        DASH if request["fault"] is None else f"fault {request['fault']}",
        "failed" if request["errors"] or request["fault"] is not None else "",
    )
