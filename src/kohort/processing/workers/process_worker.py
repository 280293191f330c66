"""The far side of a process pool: what goes through the pipe, and the loop that runs there.

Rules:
- The handlers are found again by module and name, as pickle does it: define them at the top of a
  module. Nothing else of the program is there: no consumer, no producer, no connection.
- What goes through the pipe is between this program and its own children only.
- The first word of a child is that it is ready; before that nothing is its record's fault.
- A handler's limit applies to each of its calls: the child announces when one begins and ends.

Shell: signals.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

from kohort.errors import UsageError
from kohort.processing.engine.engine import NOT_BEGUN, Done, Outcome
from kohort.processing.engine.output import Output
from kohort.processing.engine.partition_state import Item
from kohort.processing.workers.handlers import HandlerSpec, Invoker
from kohort.processing.workers.store_lookups import ThreadLookups
from kohort.records import Record
from kohort.retry.classify import Failure
from kohort.retry.copies import Attempt

READY = "ready"


class _Route(NamedTuple):
    """As much of a route as the boundary to the user's code looks at."""

    topic: str
    handler: str
    stops_lane: bool


class _Place(NamedTuple):
    route: _Route


class Parcel(NamedTuple):
    """One record on its way to a process."""

    record: Record
    attempt: Attempt | None
    lane: Any
    topic: str
    stops_lane: bool
    handler: str


class Call(NamedTuple):
    """A call begins that may take `timeout_s` seconds; 0: it has ended."""

    timeout_s: float


Task = tuple[str, Any]
"""One outcome on its way back: its kind and what belongs to it."""


def pack(item: Item) -> Parcel:
    """A record for the pipe."""
    route = item.partition.route
    lane, stops_lane = item.lane, route.stops_lane
    return Parcel(item.record, item.attempt, lane, route.topic, stops_lane, route.handler)


def child_main(pipe: Any, specs: Mapping[str, HandlerSpec], store_url: str | None) -> None:
    """What the child runs, until the pipe is closed."""
    # Ctrl-C reaches every process of a terminal; the parent ends its children in its own time, and
    # one that dies of it would be taken for the victim of its record.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with nullcontext() if store_url is None else ThreadLookups(store_url) as lookups:
        _serve(pipe, Invoker(_announced(pipe, specs), lookups))


def _announced(pipe: Any, specs: Mapping[str, HandlerSpec]) -> Mapping[str, HandlerSpec]:
    """The handlers; those with a limit tell the parent when a call begins and ends."""

    def announced(function: Callable[..., Any], timeout_ms: int) -> Callable[..., Any]:
        def call(received: Any) -> Any:
            pipe.send(Call(timeout_ms / 1_000))
            try:
                return function(received)
            finally:
                pipe.send(Call(0))

        return call

    return {
        name: replace(spec, function=announced(spec.function, spec.timeout_ms))
        if spec.timeout_ms
        else spec
        for name, spec in specs.items()
    }


def _serve(pipe: Any, invoker: Invoker) -> None:
    pipe.send(READY)
    while True:
        try:
            parcels: list[Parcel] = pipe.recv()
        except (EOFError, OSError):
            return
        items: list[Any] = [_item(parcel) for parcel in parcels]
        try:
            outcomes = invoker.run(items)
        except UsageError as error:  # the program's fault, not the records'
            pipe.send(error)
            return
        pipe.send(None if outcomes is None else [_packed(outcome) for outcome in outcomes])


def _item(parcel: Parcel) -> Item:
    place: Any = _Place(_Route(parcel.topic, parcel.handler, parcel.stops_lane))
    return Item(parcel.record, place, parcel.lane, parcel.attempt)


def _packed(outcome: Outcome) -> Task:
    if outcome is None:
        return ("done", None)
    if isinstance(outcome, Failure):
        return ("failed", outcome)
    if isinstance(outcome, Done):
        return ("done with", ([tuple(output) for output in outcome.outputs], outcome.effects))
    return ("not begun", None)


def unpack(tasks: list[Task] | UsageError | None) -> list[Outcome] | None:
    """What came back, as the engine wants it. Raises what the program is to end with."""
    if isinstance(tasks, UsageError):
        raise tasks
    return None if tasks is None else [_unpacked(kind, value) for kind, value in tasks]


def _unpacked(kind: str, value: Any) -> Outcome:
    if kind == "failed":
        failure: Failure = value
        return failure
    if kind == "done with":
        outputs, effects = value
        return Done([Output(*fields) for fields in outputs], effects)
    return NOT_BEGUN if kind == "not begun" else None
