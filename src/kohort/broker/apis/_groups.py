"""Requests that name several groups: each is asked of its own shard, the answers put together.

A group that is named twice is asked once. The parts may be answered in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kohort.broker.base.request import Call, FanIn, SubRequest
from kohort.wire import Message

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def ask_each(
    node: NodeServices,
    call: Call,
    group_ids: Iterable[str],
    one: Callable[[str], Message],
    merge: Callable[[list[Any]], Message],
) -> None:
    """Ask the shard of each group for `one(group_id)`; answer with what `merge` makes of it all."""
    requested = dict.fromkeys(group_ids)
    fan_in = FanIn(len(requested), lambda answers: call.answer(merge(answers)))
    for group_id in requested:
        node.groups.handle(group_id, one(group_id), SubRequest(fan_in, call))
