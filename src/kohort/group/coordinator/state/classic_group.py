"""A classic group as it lives in memory: the soft state, which dies with its node on purpose.

Rules:
- Kept here: who is joining and with what, parked requests, pending ids, who is leader while the
  members come and go. Generation, chosen protocol and assignments are not: they are read from the
  durable state.
- `move` is the only way to change `state`, by the table in `state.classic_table`.
- Members keep the order in which they joined; every choice among them follows it, so equal
  events give equal groups.
"""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.group.coordinator.state.classic_table import GroupEvent, GroupState, next_state
from kohort.group.coordinator.state.effects import RequestContext
from kohort.group.coordinator.state.timers import TimerKey

Protocols = tuple[tuple[str, bytes], ...]
SESSION, JOIN, SYNC, SWEEP = "session", "join", "sync", "sweep"
_MEMBER_OVERHEAD_BYTES = 32


class Member:
    """One member: who it is, what it can do, and which of its requests wait."""

    __slots__ = (
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "member_id",
        "parked_join",
        "parked_sync",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "timer_key",
    )

    def __init__(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.protocols = protocols
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.timer_key: TimerKey = (SESSION, group_id, member_id)
        self.is_new = False
        self.parked_join: RequestContext | None = None
        self.parked_sync: RequestContext | None = None

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata for a protocol; empty when it does not support it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def stored_bytes(self) -> int:
        """The most that the member takes in the stored group, its assignment apart."""
        return _stored_bytes(
            self.member_id, self.instance_id, self.client_id, self.client_host, self.protocols
        )


def _stored_bytes(
    member_id: str, instance_id: str | None, client_id: str, host: str, protocols: Protocols
) -> int:
    texts = len(member_id.encode()) + len((instance_id or "").encode())
    texts += len(client_id.encode()) + len(host.encode())
    return _MEMBER_OVERHEAD_BYTES + texts + max((len(m) for _, m in protocols), default=0)


class Group:
    """One classic group."""

    __slots__ = (
        "awaiting_join",
        "group_id",
        "initial_delay_ms",
        "initial_remaining_ms",
        "last_joined",
        "leader",
        "members",
        "members_bytes",
        "new_member_added",
        "pending_join",
        "pending_sync",
        "previous_state",
        "protocol_type",
        "state",
        "static_members",
        "subscribed_topics",
        "support",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.EMPTY
        self.protocol_type: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.members_bytes = 0
        self.static_members: dict[str, str] = {}  # instance id -> member id
        self.support: dict[str, int] = {}  # protocol name -> members that support it
        self.awaiting_join = 0
        self.last_joined = ""
        self.pending_join: dict[str, None] = {}  # ids given with MEMBER_ID_REQUIRED (KIP-394)
        self.pending_sync: dict[str, None] = {}  # members of the generation yet to sync
        self.new_member_added = False
        self.initial_delay_ms = 0
        self.initial_remaining_ms = 0
        self.subscribed_topics: frozenset[str] | None = frozenset()

    def move(self, event: GroupEvent) -> None:
        """Change state by the transition table."""
        target = next_state(self.state, event, self.group_id)
        self.previous_state, self.state = self.state, target

    # Members

    def add(self, member: Member) -> None:
        """Take in a member; the first one sets the protocol type's holder, the leader."""
        assert member.member_id not in self.members
        self.pending_join.pop(member.member_id, None)
        self.members[member.member_id] = member
        self._count(member.protocols, 1)
        self.members_bytes += member.stored_bytes()
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member:
        """Take out a member; a leader's place goes to the member that joined first."""
        member = self.members.pop(member_id)
        self._count(member.protocols, -1)
        self.members_bytes -= member.stored_bytes()
        self.pending_sync.pop(member_id, None)
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        assert member.parked_join is None, "answer what the member waits for first"
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def replace_static(self, old_id: str, new: Member) -> Member:
        """Put `new` in the place of the member that held its instance id until now (KIP-345)."""
        was_leader, was_pending_sync = self.leader == old_id, old_id in self.pending_sync
        old = self.remove(old_id)
        self.add(new)
        if was_leader:
            self.leader = new.member_id
        if was_pending_sync:
            self.pending_sync[new.member_id] = None
        return old

    def update(self, member: Member, protocols: Protocols, rebalance_ms: int, session_ms: int):
        """Take a member's newest word on what it supports and how long it may take."""
        self._count(member.protocols, -1)
        self.members_bytes -= member.stored_bytes()
        member.protocols = protocols
        member.rebalance_timeout_ms, member.session_timeout_ms = rebalance_ms, session_ms
        self._count(protocols, 1)
        self.members_bytes += member.stored_bytes()

    def _count(self, protocols: Protocols, change: int) -> None:
        for name in dict.fromkeys(name for name, _ in protocols):
            count = self.support.get(name, 0) + change
            if count:
                self.support[name] = count
            else:
                del self.support[name]

    # Parked requests

    def park_join(self, member: Member, context: RequestContext) -> RequestContext | None:
        """Let a JoinGroup wait; the one of this member that waited before comes back."""
        earlier = self.unpark_join(member)
        member.parked_join = context
        self.awaiting_join += 1
        self.last_joined = member.member_id
        return earlier

    def unpark_join(self, member: Member) -> RequestContext | None:
        """Take out the member's waiting JoinGroup, if there is one."""
        parked, member.parked_join = member.parked_join, None
        if parked is not None:
            self.awaiting_join -= 1
        return parked

    # Questions

    def all_joined(self) -> bool:
        """All members have joined, and no member with a reserved id is still expected."""
        return self.awaiting_join == len(self.members) and not self.pending_join

    def rebalance_timeout_ms(self) -> int:
        """The longest that any member asked for."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols may join (spec 2.4)."""
        if not protocols or not protocol_type:
            return False
        if self.state is GroupState.EMPTY:
            return True
        if protocol_type != self.protocol_type:
            return False
        everybody = len(self.members)
        return any(self.support.get(name, 0) == everybody for name, _ in protocols)

    def vote(self) -> str:
        """The protocol most members prefer among those all support; ties by the leader's order."""
        everybody = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            for name, _ in member.protocols:
                if self.support[name] == everybody:
                    votes[name] = votes.get(name, 0) + 1
                    break
        assert votes, f"members of group {self.group_id!r} share no protocol"
        assert self.leader is not None
        order = {name: i for i, (name, _) in enumerate(self.members[self.leader].protocols)}
        return max(votes, key=lambda name: (votes[name], -order[name]))

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader has joined; False when no member has."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.parked_join is not None:
            return True
        for member in self.members.values():
            if member.parked_join is not None:
                self.leader = member.member_id
                return True
        return False

    def fault_of(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """What is wrong with a member's identity; NONE when it is a member.

        A fenced instance id wins over an unknown member id (KIP-345).
        """
        if instance_id is not None:
            holder = self.static_members.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID
