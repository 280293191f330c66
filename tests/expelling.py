"""Having a member expelled: its coordinator is told in its name that it leaves."""

from __future__ import annotations

from kohort import Admin
from kohort.client.common.types import GroupMetadata
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from kohort.wire.messages.leave_group_request import LeaveGroupRequest, MemberIdentity
from kohort.wire.messages.leave_group_response import LeaveGroupResponse


def expel(admin: Admin, who: GroupMetadata, protocol: str = "classic") -> None:
    """Afterwards the group does not know this member any more."""
    if protocol == "consumer":
        leave = ConsumerGroupHeartbeatRequest(
            group_id=who.group_id, member_id=who.member_id, member_epoch=-1
        )
        kind: type = ConsumerGroupHeartbeatResponse
    else:
        gone = MemberIdentity(member_id=who.member_id, group_instance_id=who.group_instance_id)
        leave, kind = LeaveGroupRequest(group_id=who.group_id, members=[gone]), LeaveGroupResponse

    def check(answer) -> None:
        assert answer.error_code == 0

    admin._on_coordinator(kind, who.group_id, leave, admin._deadline(30), check)
