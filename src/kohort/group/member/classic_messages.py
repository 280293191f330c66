"""The four requests of a member, at their newest shape; the cluster picks the version."""

from __future__ import annotations

from collections.abc import Iterable

from kohort.group.assignors.base import Assignor, Partitions, user_data_of
from kohort.group.assignors.protocol import PROTOCOL_TYPE, encode_subscription
from kohort.group.member.config import MAX_REASON, MemberConfig
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from kohort.wire.messages.leave_group_request import LeaveGroupRequest, MemberIdentity
from kohort.wire.messages.sync_group_request import SyncGroupRequest, SyncGroupRequestAssignment


def join_request(
    config: MemberConfig,
    member_id: str,
    protocols: list[JoinGroupRequestProtocol],
    reason: str,
) -> JoinGroupRequest:
    """The rebalance timeout is `max.poll.interval.ms`, as the Java client has it (KIP-62)."""
    return JoinGroupRequest(
        group_id=config.group_id,
        session_timeout_ms=config.session_timeout_ms,
        rebalance_timeout_ms=config.max_poll_interval_ms,
        member_id=member_id,
        group_instance_id=config.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=protocols,
        reason=reason[:MAX_REASON],
    )


def join_protocols(
    assignors: Iterable[Assignor],
    topics: frozenset[str],
    owned: Partitions,
    generation: int,
    rack: str | None,
) -> list[JoinGroupRequestProtocol]:
    """One entry an assignor, in order of preference, each with its own user data.

    Raises AssignorError when an assignor has no usable user data.
    """
    return [
        JoinGroupRequestProtocol(
            name=each.name,
            metadata=encode_subscription(
                topics, user_data_of(each, topics), owned, generation, rack
            ),
        )
        for each in assignors
    ]


def sync_request(
    config: MemberConfig,
    member_id: str,
    generation: int,
    protocol: str | None,
    assignments: list[SyncGroupRequestAssignment],
) -> SyncGroupRequest:
    """With everybody's assignment from the leader, with none from a follower (spec 2.5)."""
    return SyncGroupRequest(
        group_id=config.group_id,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=config.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=protocol,
        assignments=assignments,
    )


def heartbeat_request(config: MemberConfig, member_id: str, generation: int) -> HeartbeatRequest:
    """Carries the instance id, so that a fenced twin gets its error (KIP-345)."""
    return HeartbeatRequest(
        group_id=config.group_id,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=config.group_instance_id,
    )


def leave_request(config: MemberConfig, member_id: str, reason: str) -> LeaveGroupRequest:
    """One member's leave, with its reason (KIP-800)."""
    me = MemberIdentity(member_id=member_id, reason=reason[:MAX_REASON])
    return LeaveGroupRequest(group_id=config.group_id, members=[me])
