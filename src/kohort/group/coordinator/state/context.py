"""What the handlers of one shard share: its state, its timers, and small helpers.

Rules:
- Handlers read `durable` and never write it; they put records into `Effects` instead.
- At most one group-metadata record of a group goes into one `Effects`: the next decision about the
  group is taken when that record has been replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kohort.errors import BrokerError, ErrorCode
from kohort.group.coordinator.state.classic_group import Group, Member
from kohort.group.coordinator.state.classic_records import StoredGroup, StoredMember, group_record
from kohort.group.coordinator.state.config import GroupConfig, GroupTimeouts
from kohort.group.coordinator.state.consumer_heartbeat_interval import Waits
from kohort.group.coordinator.state.durable_state import DurableState
from kohort.group.coordinator.state.effects import Effects, Reply, RequestContext
from kohort.group.coordinator.state.rebalance_history import Cause, History, Trigger, cause_of
from kohort.group.coordinator.state.timers import Timers
from kohort.group.coordinator.state.topics_image import NO_TOPICS, TopicsImage
from kohort.wire.messages.join_group_response import JoinGroupResponse
from kohort.wire.messages.sync_group_response import SyncGroupResponse

MAX_ID_BYTES = 8_192
"""Bytes of a group id, instance id, protocol type or protocol name; a stored string has 32767."""
MAX_CLIENT_ID_CHARS = 255
"""Of the client id, in a member id and in what is stored."""

NEVER_STORED = StoredGroup(None, 0, None, None, -1)


class Workspace:
    """The state of one shard, as its handlers see it."""

    __slots__ = (
        "checked_regexes",
        "checked_topics",
        "config",
        "dead",
        "durable",
        "groups",
        "history",
        "new_id",
        "pending_join_bytes",
        "timeouts",
        "timers",
        "topics",
        "waits",
        "wall_offset_ms",
    )

    def __init__(self, config: GroupConfig, new_id: Callable[[], str], wall_offset_ms: int) -> None:
        self.config = config
        self.new_id = new_id
        self.wall_offset_ms = wall_offset_ms
        self.durable = DurableState()
        self.groups: dict[str, Group] = {}
        self.timers = Timers()
        self.history = History()
        self.timeouts: Mapping[str, GroupTimeouts] = {}  # where a group was configured for itself
        self.topics: TopicsImage = NO_TOPICS
        self.waits = Waits()
        self.pending_join_bytes = 0
        self.checked_topics: dict[str, TopicsImage] = {}  # consumer groups: last looked at
        self.checked_regexes: dict[str, dict[str, TopicsImage]] = {}  # by group, what by
        self.dead: list[str] = []  # groups whose tombstones are yet to be replayed

    def stored(self, group: Group) -> StoredGroup:
        """The group as the log has it."""
        return self.durable.groups.get(group.group_id, NEVER_STORED)

    def generation(self, group: Group) -> int:
        """The group's current generation; 0 before the first."""
        stored = self.durable.groups.get(group.group_id)
        return 0 if stored is None else stored.generation

    def wall_ms(self, now_ms: int) -> int:
        """Wall-clock time of `now_ms`, for what is written into records."""
        return now_ms + self.wall_offset_ms

    def create_group(self, group_id: str) -> Group | None:
        """A new group without members; None when the shard holds as many as it may."""
        if self.is_full():
            return None
        group = self.groups[group_id] = Group(group_id)
        return group

    def timeouts_of(self, group_id: str) -> GroupTimeouts:
        """A consumer group's session timeout and heartbeat interval."""
        return self.timeouts.get(group_id) or self.config.consumer_timeouts

    def is_full(self) -> bool:
        """Whether the shard holds as many groups as it may."""
        count = len(self.groups) + len(self.durable.consumer_groups)
        return count >= self.config.shard_max_groups

    def check_room_for_group(self) -> None:
        """Raises BrokerError when the shard holds as many groups as it may."""
        if self.is_full():
            raise BrokerError(
                ErrorCode.POLICY_VIOLATION,
                f"This partition of __consumer_offsets holds {self.config.shard_max_groups} "
                "groups, the most that it may (shard_max_groups).",
            )

    def snapshot(
        self,
        group: Group,
        generation: int,
        protocol: str | None,
        assignments: dict[str, bytes],
        state_timestamp_ms: int,
    ) -> StoredGroup:
        """The group as it is to be stored: members and leader as now, with these assignments."""
        return StoredGroup(
            protocol_type=group.protocol_type,
            generation=generation,
            protocol=protocol,
            leader=group.leader,
            state_timestamp_ms=state_timestamp_ms,
            members={
                m.member_id: stored_member(m, protocol, assignments.get(m.member_id, b""))
                for m in group.members.values()
            },
        )

    def store_again(self, group: Group, assignments: dict[str, bytes], out: Effects) -> None:
        """Store the present generation once more, with members' ids and timeouts as they are."""
        stored = self.stored(group)
        again = self.snapshot(
            group, stored.generation, stored.protocol, assignments, stored.state_timestamp_ms
        )
        out.records.append(group_record(group.group_id, again))

    def assignments(self, group: Group) -> dict[str, bytes]:
        """The stored assignments by member id."""
        return {m.member_id: m.assignment for m in self.stored(group).members.values()}

    def caused(
        self, group: Group, trigger: Trigger, now_ms: int, member_id: str = "", reason: str = ""
    ) -> None:
        """Remember why the group rebalances, and which of its members that is about."""
        member, at_ms = group.members.get(member_id), self.wall_ms(now_ms)
        if member is None:
            cause = Cause(trigger, at_ms, reason=reason)
        else:
            cause = cause_of(trigger, member, member_id, at_ms, reason)
        self.history.cause(group.group_id, cause)

    def arm_session(self, member: Member, now_ms: int) -> None:
        """Restart the member's session (spec 2.3)."""
        self.timers.arm(member.timer_key, now_ms + member.session_timeout_ms)


def stored_member(member: Member, protocol: str | None, assignment: bytes) -> StoredMember:
    """A member as a generation stores it."""
    return StoredMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=assignment,
    )


def refuse_join(out: Effects, context: RequestContext, member_id: str, code: ErrorCode) -> None:
    """Answer a JoinGroup with an error; `protocol_name` may be null from v7 on only."""
    response = JoinGroupResponse(
        error_code=int(code),
        member_id=member_id,
        protocol_name=None if context.api_version >= 7 else "",
    )
    out.replies.append(Reply(context.token, response))


def refuse_sync(out: Effects, context: RequestContext, code: ErrorCode) -> None:
    """Answer a SyncGroup with an error."""
    out.replies.append(Reply(context.token, SyncGroupResponse(error_code=int(code))))


def refuse_parked(group: Group, member: Member, code: ErrorCode, out: Effects) -> None:
    """Answer the join and the sync of a member that wait, if any do, with an error."""
    parked = group.unpark_join(member)
    if parked is not None:
        refuse_join(out, parked, member.member_id, code)
    if member.parked_sync is not None:
        refuse_sync(out, member.parked_sync, code)
        member.parked_sync = None
