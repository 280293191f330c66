"""What a group id refers to: nothing, a classic group or a consumer group."""

from __future__ import annotations

from kohort.errors import BrokerError, ErrorCode
from kohort.group.coordinator.state.classic_table import GroupState
from kohort.group.coordinator.state.consumer_table import Holder
from kohort.group.coordinator.state.context import Workspace


def holder_of(ws: Workspace, group_id: str) -> Holder:
    """The column of the answer table that holds for requests that name this id."""
    group = ws.durable.consumer_groups.get(group_id)
    if group is not None:
        return Holder.MEMBERS if group.members else Holder.EMPTY
    classic = ws.groups.get(group_id)
    if classic is None or classic.state is GroupState.DEAD:
        return Holder.MISSING
    return Holder.CLASSIC if classic.members else Holder.CLASSIC_EMPTY


def group_not_found(group_id: str) -> BrokerError:
    """The error for an id that no consumer group has."""
    return BrokerError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not found, or is no consumer group."
    )
