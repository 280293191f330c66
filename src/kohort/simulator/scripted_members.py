"""Members driven by hand: single requests that no client of ours would send in that order.

Rules:
- A hand is a name that no consumer of the plan has. It remembers the member id, the generation and
  the codes from its answers, and sends only the requests of its steps.
- It speaks to the shard in charge directly, through no network; its requests are encoded and
  decoded all the same. The checks of coordinators hold for it as for everybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

from kohort.errors import ErrorCode
from kohort.simulator.cluster import SimCluster
from kohort.simulator.event_log import Journal
from kohort.simulator.machine import Clock, Machine
from kohort.simulator.network import Asked, Channel
from kohort.simulator.observed_group import ObservedGroup
from kohort.simulator.plan import Plan, Settings
from kohort.simulator.schedule import Schedule
from kohort.wire import Message, decode, encode, encode_versioned
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from kohort.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from kohort.wire.messages.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
)
from kohort.wire.messages.consumer_protocol_subscription import (
    TopicPartition as OwnedPartition,
)
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from kohort.wire.messages.join_group_response import JoinGroupResponse
from kohort.wire.messages.leave_group_request import LeaveGroupRequest, MemberIdentity
from kohort.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kohort.wire.messages.offset_commit_response import OffsetCommitResponse
from kohort.wire.messages.sync_group_request import SyncGroupRequest, SyncGroupRequestAssignment
from kohort.wire.messages.txn_offset_commit_request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kohort.wire.messages.txn_offset_commit_response import TxnOffsetCommitResponse

if TYPE_CHECKING:
    from kohort.client.common.types import TopicPartition

_COMMIT_BY_NAME = 9
_LEAVES = -1
"""The member epoch that says so (KIP-848)."""


class MemberWorld(Protocol):
    """The world, as far as a scripted member uses it."""

    @property
    def group(self) -> str: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def cluster(self) -> SimCluster: ...
    @property
    def healed_ms(self) -> int | None: ...
    @property
    def observed(self) -> ObservedGroup:
        """The group as its coordinator has it."""
        ...


class Hand(Channel):
    """One such member."""

    def __init__(self, world: MemberWorld, name: str) -> None:
        self.world = world
        self.client = name
        self.number = -1
        self.sender = Machine(world.schedule, name, Clock())
        self.producer_id = crc32(name.encode())
        self.member_id = ""
        self.generation = -1
        self.others: list[str] = []
        """The members of the generation, when this one leads it."""
        self.last_errors: dict[str, int] = {}
        """The last error code by API."""
        self.beats_ms: int | None = None
        self._count = 0

    # -- asking ----------------------------------------------------------------------------------

    def join(self, *, anew: bool, owned: tuple[TopicPartition, ...] = (), since: int = -1) -> None:
        """JoinGroup with the id it has, or as somebody new, saying what it owns since when."""
        if anew:
            self.member_id, self.generation = "", -1
        plan = self.world.plan
        topics = sorted(plan.topics)
        subscription = ConsumerProtocolSubscription(topics=topics, generation_id=since)
        subscription.owned_partitions = [
            OwnedPartition(topic=tp.topic, partitions=[tp.partition]) for tp in owned
        ]
        metadata = encode_versioned(subscription, 2)
        names = plan.consumers[0].assignor.split(",") if plan.consumers else ["range"]
        self._send(
            JoinGroupRequest(
                group_id=self.world.group,
                session_timeout_ms=self.world.settings.session_ms,
                rebalance_timeout_ms=self.world.settings.max_poll_ms,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name=n, metadata=metadata) for n in names],
            )
        )

    def sync(self) -> None:
        """SyncGroup; a leader's plan gives nothing to anybody."""
        nothing = encode_versioned(ConsumerProtocolAssignment(), 1)
        self._send(
            SyncGroupRequest(
                group_id=self.world.group,
                generation_id=self.generation,
                member_id=self.member_id,
                protocol_type="consumer",
                protocol_name=self.world.plan.consumers[0].assignor.split(",")[0],
                assignments=[
                    SyncGroupRequestAssignment(member_id=other, assignment=nothing)
                    for other in self.others
                ],
            )
        )

    def heartbeat(self) -> None:
        """Heartbeat."""
        self._send(
            HeartbeatRequest(
                group_id=self.world.group,
                generation_id=self.generation,
                member_id=self.member_id,
            )
        )

    def heartbeat_every(self, ms: int | None) -> None:
        """Heartbeat from now on, every so often; None: no more."""
        self.beats_ms = ms
        if ms is not None:
            self._beat(ms)

    def _beat(self, ms: int) -> None:
        if self.beats_ms == ms and self.world.healed_ms is None:
            self.heartbeat()
            self.world.schedule.after(ms, self._beat, ms)

    def leave(self, member_id: str = "") -> None:
        """It leaves, or sees to it that another member does (as administrators do)."""
        who, group = member_id or self.member_id, self.world.observed.look()
        if member_id and group is not None and group.consumer:
            gone = ConsumerGroupHeartbeatRequest(group_id=self.world.group, member_id=who)
            gone.member_epoch = _LEAVES
            self._send(gone)
            return
        members = [MemberIdentity(member_id=who)]
        self._send(LeaveGroupRequest(group_id=self.world.group, members=members))

    def commit(self, tp: TopicPartition, offset: int, instance_id: str | None = None) -> None:
        """OffsetCommit."""
        part = OffsetCommitRequestPartition(partition_index=tp.partition, committed_offset=offset)
        self._send(
            OffsetCommitRequest(
                group_id=self.world.group,
                generation_id_or_member_epoch=self.generation,
                member_id=self.member_id,
                group_instance_id=instance_id,
                topics=[OffsetCommitRequestTopic(name=tp.topic, partitions=[part])],
            ),
            most=_COMMIT_BY_NAME,
        )

    def stage(self, tp: TopicPartition, offset: int) -> None:
        """TxnOffsetCommit, as a producer of its own."""
        part = TxnOffsetCommitRequestPartition(
            partition_index=tp.partition, committed_offset=offset
        )
        self._send(
            TxnOffsetCommitRequest(
                transactional_id=self.client,
                group_id=self.world.group,
                producer_id=self.producer_id,
                generation_id=self.generation,
                member_id=self.member_id,
                topics=[TxnOffsetCommitRequestTopic(name=tp.topic, partitions=[part])],
            )
        )

    def end_transaction(self, *, committed: bool) -> None:
        """What the transaction coordinator does then: a marker in the group's log."""
        host = self.world.cluster.coordinator(self.world.group)
        if host is not None:
            host.node.groups.end_transaction(host.log.index, self.producer_id, committed=committed)

    def _send(self, request: Message, *, most: int = 99) -> None:
        host = self.world.cluster.coordinator(self.world.group)
        if host is None:
            return
        cls = type(request)
        newest = self.world.settings.newest.get(cls.NAME, cls.STABLE_VERSION)
        version = min(newest, cls.STABLE_VERSION, most)
        self._count += 1
        wired = decode(cls, version, encode(request, version))
        asked = Asked(-self._count, self, version, 0, wired, False)
        self.world.journal.tell(f"{self.client} sends {cls.NAME.removesuffix('Request')} by hand")
        host.node.machine.soon(host.node.coordinate, asked, self.client)

    # -- hearing ---------------------------------------------------------------------------------

    def receive(self, asked: Asked, response: Message) -> bool:
        """An answer, at once."""
        answer: Any = response
        api = type(asked.request).NAME.removesuffix("Request")
        if isinstance(response, OffsetCommitResponse | TxnOffsetCommitResponse):
            code = response.topics[0].partitions[0].error_code
        else:
            code = answer.error_code
        self.last_errors[api] = code
        if isinstance(response, JoinGroupResponse):
            if code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                self.member_id = response.member_id
            if not code:
                self.generation = response.generation_id
                self.others = [member.member_id for member in response.members]
        self.world.journal.tell(f"{self.client} gets {ErrorCode.name_of(code)} from {api}")
        return True
