"""Issue C, "sync and async": what a thread can call, a task can await, by the same signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import kohort
from kohort import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, Producer

PAIRS = [(Consumer, AsyncConsumer), (Producer, AsyncProducer), (Admin, AsyncAdmin)]
NEVER_WAIT = {
    "assignment",
    "begin_transaction",
    "commit_async",
    "current_lag",
    "group_metadata",
    "health",
    "limit",
    "metrics",
    "nudge",
    "pause",
    "paused",
    "positions",
    "resets",
    "resume",
    "seek",
    "seek_to_beginning",
    "seek_to_end",
    "subscription",
    "transaction",
    "wakeup",
}
"""What is no coroutine on either face, because it waits for nobody (`transaction` is entered)."""
OWN = {AsyncAdmin: {"run"}}


def public(face: type) -> dict[str, Any]:
    return {name: getattr(face, name) for name in dir(face) if not name.startswith("_")}


def taken(call: Callable[..., object]) -> list[tuple[str, object, object]]:
    """Name, kind and default of each parameter (what is compiled has no annotations)."""
    of = inspect.signature(call).parameters.values()
    return [(each.name, each.kind, each.default) for each in of]


@pytest.mark.parametrize(("sync", "tasks"), PAIRS)
def test_every_call_has_its_twin(sync: type, tasks: type) -> None:
    ours, theirs = public(sync), public(tasks)
    assert set(theirs) - OWN.get(tasks, set()) == set(ours)
    for name, call in ours.items():
        if not callable(call):
            continue
        twin = theirs[name]
        assert callable(twin)
        assert taken(twin) == taken(call), name
        assert inspect.iscoroutinefunction(twin) == (name not in NEVER_WAIT), name


@pytest.mark.parametrize("face", [face for pair in PAIRS for face in pair])
def test_every_public_call_is_documented(face: type) -> None:
    for name, call in public(face).items():
        assert inspect.getdoc(call), f"{face.__name__}.{name}"
    assert inspect.getdoc(face)


def test_both_hot_paths_say_the_same_of_themselves() -> None:
    from kohort.client.producer.plan.fast_send import Front

    assert inspect.getdoc(Producer.send) == inspect.getdoc(Front.send)
    assert taken(Producer.send) == taken(Front.send)


def test_every_public_name_is_documented() -> None:
    for name in kohort._HOMES:
        assert inspect.getdoc(getattr(kohort, name)), name
