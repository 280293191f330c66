"""Faults and requests of an embedded broker: what its control port takes, its answers as rows.

Command line and console send the same descriptions and show the same rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kohort.errors import UsageError

KINDS: Final = ("fail", "delay", "hold", "silence", "cut")
ONCE: Final = ("silence", "cut")
"""Without a number of times they meet one request."""
NARROWED: Final = ("node", "topic", "partition", "group", "transactional_id", "client_id")
"""What a fault can be limited to."""
DISK: Final = "disk"
"""A fault of the disk, which meets files and no requests."""
DISK_OPERATIONS: Final = ("append", "sync", "read")
DISK_ERRORS: Final = ("EIO", "ENOSPC", "EROFS")
_COLUMNS: Final = ("id", "then", "api", "errors", "hits", "left", "times")


def fault_body(
    kind: str,
    apis: Sequence[str],
    *,
    errors: Sequence[str] = (),
    delay_ms: int | None = None,
    times: int | None = None,
    handled: bool = False,
    narrowed: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The description of a fault, as POST /faults takes it.

    Args:
        kind: one of `KINDS`.
        apis: Kafka's names of APIs; none for all.
        errors: of `fail`, an error for each request in order; NONE lets one pass.
        delay_ms: of `delay`, how late answers leave, in milliseconds.
        times: requests it meets; of `fail`, how often each error is answered.
        handled: of `fail` and `cut`, whether the request is carried out first.
        narrowed: what it is limited to, by the names of `NARROWED`, and `skip`.

    Raises:
        UsageError: errors for another kind than `fail`.
    """
    if errors and kind != "fail":
        raise UsageError("errors are for fail; the other kinds answer none")
    body: dict[str, Any] = {"then": kind, "api": [*apis]}
    body |= {key: value for key, value in (narrowed or {}).items() if value is not None}
    if kind == "fail":
        body["errors"], body["times"] = [*errors], times and times * len(errors)
    else:
        body["times"] = times or (1 if kind in ONCE else None)
    if kind == "delay" or delay_ms is not None:
        body["delay_ms"] = delay_ms or 0
    if handled:
        body["handled"] = True
    return body


def disk_body(
    operation: str,
    error: str = "EIO",
    *,
    path: str = "*",
    after: int = 0,
    times: int | None = None,
) -> dict[str, Any]:
    """The description of a fault of the disk, as POST /disk takes it.

    Args:
        operation: one of `DISK_OPERATIONS`.
        error: the operating system's, one of `DISK_ERRORS`.
        path: of files, `TOPIC-PARTITION/*`, with `*` and `?`.
        after: so many calls succeed first.
        times: calls that fail; None for all.

    Raises:
        UsageError: there is no such operation or error.
    """
    for name, value, known in (
        ("operation", operation, DISK_OPERATIONS),
        ("error", error, DISK_ERRORS),
    ):
        if value not in known:
            raise UsageError(f"{name}={value!r}; it is one of {', '.join(known)}")
    return {"operation": operation, "error": error, "path": path, "after": after, "times": times}


def disk_row(fault: Mapping[str, Any]) -> dict[str, Any]:
    """A fault of GET /disk, in the columns of `fault_row`; it has no number."""
    after = f" after={fault['after']}" if fault["after"] else ""
    return {
        "id": None,
        "then": f"{DISK} {fault['operation']}",
        "api": [],
        "errors": [fault["error"]],
        "hits": fault["hits"],
        "left": None if fault["times"] is None else fault["times"] - fault["hits"],
        "about": f"path={fault['path']}{after}",
    }


def fault_row(fault: Mapping[str, Any]) -> dict[str, Any]:
    """A fault of GET /faults, with `about`: what it is limited to."""
    about = [f"{key}={value}" for key, value in fault.items() if key not in _COLUMNS]
    return {**fault, "about": " ".join(about) or None}


def request_row(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request of GET /requests, with `about`: the topics and partitions that it names."""
    about = [f"{topic}-{index}" if index >= 0 else topic for topic, index in request["partitions"]]
    return {**request, "about": about}


def counted(errors: Iterable[str]) -> str:
    """`NOT_COORDINATOR x3, NONE`: an error that occurs several times in a row is named once."""
    runs = [(name, sum(1 for _ in run)) for name, run in itertools.groupby(errors)]
    return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in runs)
