"""GroupShard: the coordinator of the groups in one partition of `__consumer_offsets`.

Rules:
- Durable state changes in `replay` and `replay_marker` only. `handle`, `tick`, `topics_deleted`
  propose records; the shell appends them, replays them, and lets the replies go when they are
  durable. Nothing else may reach the shard in between.
- Soft state (parked requests, pending ids, timers) begins in `loaded` and dies with the shard.
- A generation found in the log without its assignment is rebalanced at once (spec 2.6, 2.12).
- Before `loaded` every request is asked to wait and every heartbeat succeeds; after `unload` all
  clients are sent to the new coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kohort.errors import ErrorCode
from kohort.group.coordinator import describe_list
from kohort.group.coordinator.handlers import classic_heartbeat_leave as membership
from kohort.group.coordinator.handlers import classic_join as joining
from kohort.group.coordinator.handlers import classic_rebalance as rebalance
from kohort.group.coordinator.handlers import classic_sync as syncing
from kohort.group.coordinator.handlers import (
    consumer_describe,
    consumer_heartbeat,
    delete_groups,
    offsets,
)
from kohort.group.coordinator.handlers.consumer_leave import time_over
from kohort.group.coordinator.handlers.error_responses import append_code, refusal_of, refused
from kohort.group.coordinator.handlers.offset_expiry import Sweep, forget_topics
from kohort.group.coordinator.state import consumer_timers
from kohort.group.coordinator.state.classic_group import JOIN, SESSION, SWEEP, SYNC, Group, Member
from kohort.group.coordinator.state.classic_records import StoredGroup, StoredMember
from kohort.group.coordinator.state.classic_table import GroupEvent, GroupState
from kohort.group.coordinator.state.config import GroupConfig, GroupTimeouts
from kohort.group.coordinator.state.consumer_group import ConsumerGroup
from kohort.group.coordinator.state.context import Workspace, refuse_parked
from kohort.group.coordinator.state.durable_state import NO_PRODUCER, DurableState
from kohort.group.coordinator.state.effects import Effects, GroupRecord, Reply, RequestContext
from kohort.group.coordinator.state.rebalance_history import Trigger
from kohort.group.coordinator.state.topics_image import TopicsImage
from kohort.wire import Message
from kohort.wire.messages.consumer_group_describe_request import ConsumerGroupDescribeRequest
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from kohort.wire.messages.delete_groups_request import DeleteGroupsRequest
from kohort.wire.messages.describe_groups_request import DescribeGroupsRequest
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.join_group_request import JoinGroupRequest
from kohort.wire.messages.leave_group_request import LeaveGroupRequest
from kohort.wire.messages.list_groups_request import ListGroupsRequest
from kohort.wire.messages.offset_commit_request import OffsetCommitRequest
from kohort.wire.messages.offset_delete_request import OffsetDeleteRequest
from kohort.wire.messages.offset_fetch_request import OffsetFetchRequest
from kohort.wire.messages.sync_group_request import SyncGroupRequest
from kohort.wire.messages.txn_offset_commit_request import TxnOffsetCommitRequest

_Handler = Callable[[Workspace, Any, RequestContext, int, Effects], None]


def _handlers() -> Mapping[type[Message], _Handler]:
    return {
        HeartbeatRequest: membership.heartbeat,
        ConsumerGroupHeartbeatRequest: consumer_heartbeat.heartbeat,
        ConsumerGroupDescribeRequest: consumer_describe.describe,
        JoinGroupRequest: joining.join,
        SyncGroupRequest: syncing.sync,
        LeaveGroupRequest: membership.leave,
        OffsetCommitRequest: offsets.commit,
        OffsetFetchRequest: offsets.fetch,
        TxnOffsetCommitRequest: offsets.txn_commit,
        OffsetDeleteRequest: offsets.delete_offsets,
        DescribeGroupsRequest: describe_list.describe,
        ListGroupsRequest: describe_list.list_groups,
        DeleteGroupsRequest: delete_groups.delete_groups,
    }


_HANDLERS: Final = _handlers()
REQUESTS: Final = frozenset(_HANDLERS)
"""The requests that a shard answers."""


class GroupShard:
    """The group coordinator of one `__consumer_offsets` partition, for one leader epoch.

    `new_id` gives a fresh unique text (a UUID) for each member id. `wall_offset_ms` is what has to
    be added to `now_ms` to get wall-clock time for records; it may be set again at any time.
    """

    def __init__(
        self,
        partition: int,
        config: GroupConfig,
        new_id: Callable[[], str],
        wall_offset_ms: int = 0,
    ) -> None:
        self.partition = partition
        self._ws = Workspace(config, new_id, wall_offset_ms)
        self._sweep = Sweep()
        self._first_image: TopicsImage | None = None
        """The topics when the load began: what is committed for others is of deleted ones."""
        self._deleted: set[str] = set()
        """Topics that were deleted since then."""
        self._state = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    @property
    def durable(self) -> DurableState:
        """What replaying the log has given; compares with `==`."""
        return self._ws.durable

    @property
    def groups(self) -> Mapping[str, Group]:
        """The classic groups in memory, for tests and inspection; not to be changed."""
        return self._ws.groups

    @property
    def consumer_groups(self) -> Mapping[str, ConsumerGroup]:
        """The groups of KIP-848, as the log has them; not to be changed."""
        return self._ws.durable.consumer_groups

    @property
    def wall_offset_ms(self) -> int:
        """Wall-clock time minus `now_ms`."""
        return self._ws.wall_offset_ms

    @wall_offset_ms.setter
    def wall_offset_ms(self, offset_ms: int) -> None:
        self._ws.wall_offset_ms = offset_ms

    # The log

    def replay(self, record: GroupRecord, offset: int, producer_id: int = NO_PRODUCER) -> None:
        """Apply a record at `offset` of the log.

        `producer_id` is that of a transactional batch, else -1. Never raises for what Kafka or
        this class wrote, compacted or not; DecodeError for bytes that are no such record, and
        then the shard must not be used.
        """
        self._ws.durable.apply(record, offset, producer_id)
        if record.value is None:
            self._forget_dead()

    def replay_marker(self, producer_id: int, committed: bool) -> None:
        """Take in the end of a producer's transaction, from a control batch of the log."""
        self._ws.durable.apply_marker(producer_id, committed)

    def _forget_dead(self) -> None:
        ws = self._ws
        for group_id in ws.dead:
            if group_id not in ws.durable.groups and not ws.durable.holds_offsets(group_id):
                ws.groups.pop(group_id, None)
        ws.dead = [group_id for group_id in ws.dead if group_id in ws.groups]

    def loaded(self, now_ms: int) -> Effects:
        """The log has been replayed to its end: from now on requests are answered."""
        ws, out = self._ws, Effects()
        ws.durable.settle()
        consumers = ws.durable.consumer_groups
        for group_id, stored in ws.durable.groups.items():
            if group_id not in consumers:
                _revive(ws, group_id, stored, now_ms)
        for group_id in (*ws.durable.offsets, *ws.durable.open_producers):
            if group_id not in consumers:
                ws.groups.setdefault(group_id, Group(group_id))
        for consumer in consumers.values():
            consumer_timers.revive(ws, consumer, now_ms)
        self._state = ErrorCode.NONE
        self._sweep.arm(ws, now_ms)
        for group in list(ws.groups.values()):
            too_large = len(group.members) > ws.config.group_max_size
            if too_large or ws.stored(group).lacks_assignment():
                ws.caused(group, Trigger.TOO_LARGE if too_large else Trigger.UNFINISHED, now_ms)
                rebalance.start_rebalance(ws, group, now_ms, out)
        if self._first_image is not None:
            known = self._first_image.by_name.keys() - self._deleted
            forget_topics(ws, lambda topic: topic not in known, out)
        return out

    def unload(self) -> Effects:
        """This node no longer leads the partition: waiting clients are sent to the new
        coordinator."""
        ws, out = self._ws, Effects()
        self._state = ErrorCode.NOT_COORDINATOR
        for group in ws.groups.values():
            for member in group.members.values():
                refuse_parked(group, member, ErrorCode.NOT_COORDINATOR, out)
            group.move(GroupEvent.REMOVED)
        ws.timers.clear()
        return out

    # Events

    def handle(self, request: Message, context: RequestContext, now_ms: int) -> Effects:
        """Answer one request, or park it.

        Raises TypeError for a request of a type that is not in `REQUESTS`.
        """
        out = Effects()
        if self._state:
            out.replies.append(Reply(context.token, self._turned_away(request, context)))
            return out
        handler = _HANDLERS.get(type(request))
        if handler is None:
            raise TypeError(f"{type(request).__name__} is not a group coordinator's request")
        handler(self._ws, request, context, now_ms, out)
        return out

    def beat(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
    ) -> int | None:
        """The answer to a Heartbeat, without a request or effects; None: use `handle`."""
        ws = self._ws
        if self._state or group_id in ws.durable.consumer_groups:
            return None
        return membership.beat(ws, group_id, member_id, instance_id, generation, now_ms)

    def unchanged(
        self, group_id: str, member_id: str, epoch: int, client: tuple[str, str], now_ms: int
    ) -> int | None:
        """When a member of KIP-848 that says nothing new is to heartbeat again, where nothing is
        new for it either; None: only `handle` can say. `client`: its client's id and host."""
        if self._state:
            return None
        return consumer_heartbeat.unchanged(self._ws, group_id, member_id, epoch, client, now_ms)

    def commit(
        self, request: offsets.Committing, now_ms: int, records: list[GroupRecord]
    ) -> list[int] | None:
        """The code of each offset of an OffsetCommit, and in `records` what is to be appended, as
        by `handle`; None: only that can say."""
        return None if self._state else offsets.store(self._ws, request, now_ms, records)

    def _turned_away(self, request: Message, context: RequestContext) -> Message:
        code = self._state
        if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and isinstance(request, HeartbeatRequest):
            code = ErrorCode.NONE  # a member must not lose its place because its group is loading
        return refusal_of(request, context, int(code))

    def next_deadline(self) -> int | None:
        """When `tick` has something to do, in the terms of `now_ms`; None for never."""
        return self._ws.timers.next_deadline()

    def earliest(self) -> int | None:
        """A time that `next_deadline` is not before; costs nothing, and may be too early."""
        return self._ws.timers.earliest()

    def tick(self, now_ms: int) -> Effects:
        """Do what is due, up to the first effects with records (the next decision needs them
        replayed); `next_deadline` says whether more is due.
        """
        out = Effects()
        if self._state:
            return out
        while not out.records and (key := self._ws.timers.pop_due(now_ms)) is not None:
            self._fire(key, now_ms, out)
        return out

    def _fire(self, key: tuple[str, str, str], now_ms: int, out: Effects) -> None:
        kind, group_id, member_id = key
        group = self._ws.groups.get(group_id)
        if kind == SESSION and group is not None:
            rebalance.session_ended(self._ws, group, member_id, now_ms, out)
        elif kind == JOIN and group is not None:
            rebalance.join_time_over(self._ws, group, now_ms, out)
        elif kind == SYNC and group is not None:
            rebalance.sync_time_over(self._ws, group, now_ms, out)
        elif kind in consumer_timers.KINDS:
            consumer = self._ws.durable.consumer_groups.get(group_id)
            if consumer is not None:
                time_over(self._ws, consumer, kind, member_id, now_ms, out)
        elif kind == SWEEP:
            self._sweep.step(self._ws, now_ms, out)

    def topics_deleted(self, names: Iterable[str], now_ms: int) -> Effects:
        """Topics were deleted: their offsets go, in every group."""
        del now_ms
        out = Effects()
        if not self._state:
            forget_topics(self._ws, set(names).__contains__, out)
        else:  # it is loading, or will never be asked again
            self._deleted.update(names)
        return out

    def topics_changed(self, image: TopicsImage, now_ms: int) -> Effects:
        """The cluster's current topics. Call it before `loaded` and at every change.

        What follows from it is decided at the next heartbeats of the groups that are concerned.
        """
        del now_ms
        if self._first_image is None:
            self._first_image = image
        self._ws.topics = image
        return Effects()

    def access_changed(self) -> None:
        """Who may see which topics has changed.

        Each regular expression is resolved again when a member that reads by it heartbeats next.
        """
        self._ws.checked_regexes.clear()

    def groups_configured(self, timeouts: Mapping[str, GroupTimeouts]) -> None:
        """What holds for the groups that have a configuration of their own, all of them.

        Call it before `loaded` and at every change; each member's next heartbeat uses it.
        """
        self._ws.timeouts = timeouts

    def append_failed(self, effects: Effects, error_code: int) -> list[Reply]:
        """The replies of effects whose records could not be written (and any others that waited for
        them), with the error that clients are to see. The shard must then be unloaded, and a new
        one loaded from the log.
        """
        code = int(append_code(error_code))
        return [refused(reply, code) for reply in effects.replies]


def _revive(ws: Workspace, group_id: str, stored: StoredGroup, now_ms: int) -> None:
    """A group out of the log: Stable with the members it has, or Empty."""
    group = ws.groups[group_id] = Group(group_id)
    group.protocol_type = stored.protocol_type
    for kept in stored.members.values():
        member = _revive_member(group_id, kept, stored.protocol or "")
        group.add(member)
        ws.arm_session(member, now_ms)
    if group.members:
        group.state = GroupState.STABLE
        if stored.leader in group.members:
            group.leader = stored.leader
        group.subscribed_topics = rebalance.topics_of(stored)


def _revive_member(group_id: str, kept: StoredMember, protocol: str) -> Member:
    """A member out of the log. Of its protocols only the chosen one was stored."""
    return Member(
        group_id=group_id,
        member_id=kept.member_id,
        instance_id=kept.instance_id,
        client_id=kept.client_id,
        client_host=kept.client_host,
        protocols=((protocol, kept.subscription),),
        rebalance_timeout_ms=kept.rebalance_timeout_ms,
        session_timeout_ms=kept.session_timeout_ms,
    )
