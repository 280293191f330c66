"""Checks of the coordinator: G1-G13, on logs, answers and the memory of the shard in charge.

Rules:
- Each log has a shadow: its records replayed one by one, apart from the shard. Full replays of the
  log, whole and compacted, are made now and then and at the end (G9).
- Answers to clients are remembered, because nothing that happens later may contradict them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kohort.group.coordinator.state.classic_group import Group
from kohort.group.coordinator.state.classic_records import GroupEntry, StoredGroup, decode_record
from kohort.group.coordinator.state.classic_table import GroupState
from kohort.group.coordinator.state.consumer_records import (
    ConsumerEntry,
    Current,
    Field,
    GroupMetadata,
)
from kohort.group.coordinator.state.durable_state import DurableState
from kohort.simulator.checks import consumer_group
from kohort.simulator.checks.plans import (
    g2_plan_is_legal,
    g14_classic_plan_is_level,
    g14_owner_gives_up_first,
)
from kohort.simulator.checks.violation import demand
from kohort.simulator.schedule import Random
from kohort.simulator.views import GroupLook, MemberLook, look_at
from kohort.wire import Message
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.join_group_request import JoinGroupRequest
from kohort.wire.messages.join_group_response import JoinGroupResponse
from kohort.wire.messages.offset_commit_request import OffsetCommitRequest
from kohort.wire.messages.offset_commit_response import OffsetCommitResponse
from kohort.wire.messages.sync_group_request import SyncGroupRequest
from kohort.wire.messages.sync_group_response import SyncGroupResponse

if TYPE_CHECKING:
    from kohort.simulator.group_host import WatchedHost
    from kohort.simulator.group_log import Entry, GroupLog
    from kohort.simulator.network import Asked
    from kohort.simulator.world import World

FULL_REPLAY_EVERY = 24
"""Appends between two replays of the whole log."""


def replayed(entries: Iterable[Entry]) -> DurableState:
    """The durable state that a log gives."""
    state = DurableState()
    for entry in entries:
        if entry.record is None:
            state.apply_marker(entry.producer_id, entry.committed)
        else:
            state.apply(entry.record, entry.offset, entry.producer_id)
    state.settle()
    return state


def compacted(entries: list[Entry], bound: int, chance: Random) -> list[Entry]:
    """A log as a cleaner may leave it: below `bound` the last of each key, tombstones or not.

    It cleans up to the first transaction that is open there, and drops aborted records.
    """
    staged: dict[int, list[int]] = {}
    aborted: set[int] = set()
    for entry in entries:
        if entry.offset >= bound:
            break
        if entry.record is None:
            ended = staged.pop(entry.producer_id, [])
            aborted.update(() if entry.committed else ended)
        elif entry.producer_id >= 0:
            staged.setdefault(entry.producer_id, []).append(entry.offset)
    bound = min([bound, *(offsets[0] for offsets in staged.values())])
    last: dict[bytes, int] = {}
    for entry in entries:
        if entry.record is not None and entry.offset < bound and entry.offset not in aborted:
            last[entry.record.key] = entry.offset
    return [
        entry
        for entry in entries
        if entry.record is None
        or entry.offset >= bound
        or (
            last.get(entry.record.key) == entry.offset
            and (entry.record.value is not None or chance.random() < 0.5)
        )
    ]


# -- one function a promise ----------------------------------------------------------------------


def g3_generation_rises(group_id: str, before: StoredGroup | None, now: StoredGroup) -> None:
    """G3: the generation in the log never falls."""
    if before is not None:
        demand(
            now.generation >= before.generation,
            "G3",
            f"group {group_id}: generation {now.generation} was written after {before.generation}",
        )


def g5_memory_agrees(group: Group, stored: StoredGroup | None) -> None:
    """G5: the group in memory is the group in the log, and its own books are right."""
    name, members = f"group {group.group_id}", group.members
    waiting = sum(member.parked_join is not None for member in members.values())
    demand(group.awaiting_join == waiting, "G5", f"{name}: miscounts its waiting joins")
    demand((group.leader is None) == (not members), "G5", f"{name}: leader {group.leader}")
    if group.leader is not None:
        demand(group.leader in members, "G5", f"{name}: its leader {group.leader} is no member")
    if group.state in (GroupState.COMPLETING, GroupState.STABLE):
        demand(stored is not None, "G5", f"{name}: {group.state.value} without a record")
        assert stored is not None
        demand(
            stored.members.keys() == members.keys(),
            "G5",
            f"{name}: {sorted(members)} in memory, {sorted(stored.members)} in the log",
        )
        demand(stored.leader == group.leader, "G5", f"{name}: two leaders, memory and log")
    if group.state is GroupState.STABLE and stored is not None:
        demand(not stored.lacks_assignment(), "G5", f"{name}: Stable without an assignment")
    if group.state is GroupState.EMPTY:
        demand(not members, "G5", f"{name}: Empty with members {sorted(members)}")


def g8_one_per_instance(group: Group) -> None:
    """G8: at most one member has an instance id."""
    held = {m.instance_id: m.member_id for m in group.members.values() if m.instance_id is not None}
    named = [m.instance_id for m in group.members.values() if m.instance_id is not None]
    demand(
        len(held) == len(named) and held == group.static_members,
        "G8",
        f"group {group.group_id}: static members {group.static_members}, members {held}",
    )


def g9_replay_is_the_state(live: DurableState, log: GroupLog, chance: Random) -> None:
    """G9: live state == replay(log) == replay(compacted log)."""
    demand(replayed(log.entries) == live, "G9", f"partition {log.index}: replay differs from live")
    shorter = compacted(log.entries, chance.randint(0, log.end), chance)
    demand(
        replayed(shorter) == live,
        "G9",
        f"partition {log.index}: the compacted log replays to something else",
    )


def g12_group_is_bounded(group: Group, most: int) -> None:
    """G12: a group never has more members than it may, and remembers few ids not yet used."""
    demand(
        len(group.members) <= most, "G12", f"group {group.group_id}: {len(group.members)} members"
    )
    pending = len(group.pending_join)
    demand(pending <= 100, "G12", f"group {group.group_id}: {pending} pending ids")


class CoordinatorChecks:
    """The coordinators' records and answers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.schedule.split("checks")
        self._shadows: dict[int, DurableState] = {}
        self._appends = 0
        self._leaders: dict[tuple[int, int], int] = {}
        self._joined: dict[tuple[str, int], tuple[str, str | None]] = {}
        self._plans: dict[tuple[str, int, str], bytes] = {}
        self._last_request_ms: dict[tuple[int, str, str], int] = {}
        self._instances: dict[tuple[str, str], str] = {}
        self._replaced: set[str] = set()
        self._touched: dict[int, WatchedHost] = {}
        self._moved = False
        self._written: dict[tuple[str, str, int], int] = {}
        """The offset of (group, member, epoch) in the log; member "" for a generation."""
        self._asked_too_late: set[int] = set()
        self._asker: dict[int, tuple[GroupLook | None, MemberLook | None]] = {}
        """By request: its group and its member as the coordinator had them when it came."""

    def take_moved(self) -> bool:
        """Whether a group may have changed since the last time this was asked."""
        moved, self._moved = self._moved, False
        return moved

    # -- logs ------------------------------------------------------------------------------------

    def loaded(self, host: WatchedHost) -> None:
        """G9, G11 at the beginning of a leadership."""
        self._g11_one_leader(host)
        g9_replay_is_the_state(host.shard.durable, host.log, self._chance)
        self._shadows[host.log.index] = replayed(host.log.entries)
        self._touch(host)
        self._world.journal.tell(
            f"node {host.node.number} is the coordinator (partition {host.log.index} of "
            f"__consumer_offsets, epoch {host.epoch}, {host.log.end} records replayed)"
        )

    def lost(self, log: GroupLog) -> None:
        """The shadow begins again; who was replaced in a record that is gone is a member again."""
        shadow = self._shadows[log.index] = replayed(log.entries)
        for group_id, stored in shadow.groups.items():
            self._note_instances(group_id, stored)

    def _g11_one_leader(self, host: WatchedHost) -> None:
        """G11: in one epoch of a partition one node accepts."""
        key = host.log.index, host.epoch
        leader = self._leaders.setdefault(key, host.node.number)
        demand(
            leader == host.node.number,
            "G11",
            f"partition {key[0]}, epoch {key[1]}: node {leader} and node {host.node.number} accept",
        )

    def appended(self, host: WatchedHost, first: int) -> None:
        """G2, G3, G9 on what was written."""
        self._g11_one_leader(host)
        log = host.log
        shadow = self._shadows.setdefault(log.index, DurableState())
        at = first - log.end
        for entry in log.entries[at:]:
            if entry.record is None:
                shadow.apply_marker(entry.producer_id, entry.committed)
                continue
            decoded = decode_record(entry.record, entry.offset)
            if isinstance(decoded, GroupEntry) and decoded.value is not None:
                before = shadow.groups.get(decoded.group_id)
                g3_generation_rises(decoded.group_id, before, decoded.value)
                if decoded.value.protocol_type == "consumer":
                    g2_plan_is_legal(decoded.group_id, decoded.value)
                    g14_owner_gives_up_first(decoded.group_id, decoded.value)
                    g14_classic_plan_is_level(decoded.group_id, decoded.value)
                self._tell(decoded.group_id, before, decoded.value)
                key = decoded.group_id, "", decoded.value.generation
                self._written.setdefault(key, entry.offset)
                self._note_instances(decoded.group_id, decoded.value)
            if isinstance(decoded, ConsumerEntry):
                consumer_group.g3_epochs_rise(decoded, shadow.consumer_groups.get(decoded.group_id))
                self._note_current(decoded, entry.offset)
            shadow.apply(entry.record, entry.offset, entry.producer_id)
            self._world.journal.note("append", log.index, entry.offset, entry.record.key)
        demand(
            shadow == host.shard.durable,
            "G9",
            f"partition {log.index}: the replayed records differ from the shard's state",
        )
        self._appends += 1
        if self._appends % FULL_REPLAY_EVERY == 0:
            g9_replay_is_the_state(host.shard.durable, log, self._chance)
        self._touch(host)

    def _note_current(self, entry: ConsumerEntry, offset: int) -> None:
        """The offset of a member's epoch in the log, and its meaning as text."""
        if entry.field is Field.GROUP and isinstance(entry.value, GroupMetadata):
            self._world.journal.tell(f"group {entry.group_id}: epoch {entry.value.epoch}")
        if entry.field is Field.CURRENT and isinstance(entry.value, Current):
            # More of one epoch may follow while the answer to its first record waits for the disk.
            key = entry.group_id, entry.key, entry.value.epoch
            self._written[key] = min(offset, self._written.get(key, offset))

    def _note_instances(self, group_id: str, stored: StoredGroup) -> None:
        for member in stored.members.values():
            if member.instance_id is None:
                continue
            key = group_id, member.instance_id
            old = self._instances.get(key)
            if old is not None and old != member.member_id:
                self._replaced.add(old)
            self._instances[key] = member.member_id

    def _tell(self, group_id: str, before: StoredGroup | None, now: StoredGroup) -> None:
        if before is None or before.generation != now.generation:
            names = ", ".join(sorted(m.client_id for m in now.members.values())) or "nobody"
            self._world.journal.tell(f"group {group_id}: generation {now.generation}: {names}")
        elif before.lacks_assignment() and not now.lacks_assignment():
            self._world.journal.tell(f"group {group_id}: generation {now.generation} has its plan")

    # -- requests and answers --------------------------------------------------------------------

    def arrived(self, host: WatchedHost, asked: Asked) -> None:
        """Remember when each member's last request came, by its coordinator's clock."""
        request: Any = asked.request
        group_id = getattr(request, "group_id", "")
        group = look_at(host.shard, group_id)
        known = None if group is None else group.members.get(getattr(request, "member_id", ""))
        renews = isinstance(request, JoinGroupRequest | SyncGroupRequest)
        if isinstance(request, HeartbeatRequest | ConsumerGroupHeartbeatRequest):
            self._asker[asked.number] = group, known
            if self._was_replaced(request.member_id):
                self._asked_too_late.add(asked.number)
            epoch = (
                request.generation_id
                if isinstance(request, HeartbeatRequest)
                else request.member_epoch
            )
            renews = known is not None and epoch in known.epochs
        elif isinstance(request, OffsetCommitRequest):
            self._asker[asked.number] = group, known
        if renews:
            key = host.node.number, group_id, request.member_id
            self._last_request_ms[key] = host.node.machine.now_ms()
        if not isinstance(request, HeartbeatRequest | OffsetCommitRequest):
            self._touch(host)

    def takes(self, host: WatchedHost, request: OffsetCommitRequest) -> bool:
        """Whether a commit comes from the present generation, so that it will be taken."""
        group = look_at(host.shard, request.group_id)
        known = None if group is None else group.members.get(request.member_id)
        return known is not None and request.generation_id_or_member_epoch == known.epochs[0]

    def answered(self, host: WatchedHost, asked: Asked, response: Message) -> None:
        """G6, G7, G8, G10 on what leaves the node."""
        request: Any = asked.request
        if isinstance(response, JoinGroupResponse) and not response.error_code:
            self._join_answered(host, request, response)
        elif isinstance(response, SyncGroupResponse) and not response.error_code:
            self._sync_answered(host, request, response)
        elif isinstance(response, ConsumerGroupHeartbeatResponse):
            self._heartbeat_answered(host, asked, request, response)
        elif isinstance(response, HeartbeatResponse) and not response.error_code:
            self._g6_is_current(asked, request, request.generation_id)
            self._g8_not_replaced(asked, request.group_id, request.member_id)
        elif isinstance(response, OffsetCommitResponse):
            accepted = any(not p.error_code for t in response.topics for p in t.partitions)
            epoch = request.generation_id_or_member_epoch
            if accepted and epoch >= 0:
                self._g6_is_current(asked, request, epoch)
        self._asker.pop(asked.number, None)
        self._asked_too_late.discard(asked.number)

    def _heartbeat_answered(
        self,
        host: WatchedHost,
        asked: Asked,
        request: ConsumerGroupHeartbeatRequest,
        response: ConsumerGroupHeartbeatResponse,
    ) -> None:
        """G6, G10 of KIP-848."""
        _, known = self._asker.get(asked.number, (None, None))
        epoch = consumer_group.answered_epoch(response)
        if epoch is None:
            return
        consumer_group.g6_epoch_is_current(request.group_id, request, known)
        member_id = response.member_id or request.member_id
        self._g10_was_durable(host, request.group_id, member_id, epoch, member_id)

    def _join_answered(
        self, host: WatchedHost, request: JoinGroupRequest, response: JoinGroupResponse
    ) -> None:
        """G3: a generation is handed out once. G10: it was durable before."""
        group_id, generation = request.group_id, response.generation_id
        if (group_id, response.member_id, generation) in self._written:
            # A member of a consumer group that speaks the classic protocol: its own epoch, its own
            # leader (KIP-848, migration).
            self._g10_was_durable(host, group_id, response.member_id, generation, "a member")
            return
        first = response.leader, response.protocol_name
        known = self._joined.setdefault((group_id, generation), first)
        rejoined = self._stored(host, group_id)
        if rejoined is not None and request.group_instance_id is None:
            demand(
                known == first,
                "G3",
                f"group {group_id}: generation {generation} was handed out twice: "
                f"leader and protocol {known} and {first}",
            )
        self._g10_was_durable(host, group_id, "", generation, response.member_id)

    def _g10_was_durable(
        self, host: WatchedHost, group_id: str, written_as: str, epoch: int, who: str
    ) -> None:
        """G10: an epoch is sent when its record is on disk."""
        places = [self._written.get((group_id, who, epoch)) for who in (written_as, "")]
        demand(
            any(at is not None and at < host.log.flushed for at in places),
            "G10",
            f"group {group_id}: {who} got epoch {epoch} before it was durable",
        )

    def _sync_answered(
        self, host: WatchedHost, request: SyncGroupRequest, response: SyncGroupResponse
    ) -> None:
        """G7: one plan a generation. G8: not for a member that was replaced."""
        key = request.group_id, request.generation_id, request.member_id
        if (request.group_id, request.member_id, request.generation_id) in self._written:
            return  # a member of a consumer group: more may come to it in one epoch
        plan = bytes(response.assignment)
        known = self._plans.setdefault(key, plan)
        demand(
            known == plan,
            "G7",
            f"group {key[0]}: {key[2]} was given two assignments in generation {key[1]}",
        )
        stored = self._stored(host, request.group_id)
        if stored is not None and stored.generation == request.generation_id:
            kept = stored.members.get(request.member_id)
            demand(  # one that was replaced meanwhile is answered as it was decided
                kept is None or kept.assignment == plan,
                "G7",
                f"group {key[0]}: {key[2]} was given another assignment than the log has",
            )

    def _g6_is_current(self, asked: Asked, request: Any, epoch: int) -> None:
        """G6: heartbeats and commits are accepted from members, in no epoch but the present one.

        (Under KIP-848 a commit may name an older one, see B11.)
        """
        if asked.number not in self._asker:
            return  # it came while the shard was loading
        group, known = self._asker[asked.number]
        who = f"group {request.group_id}: {type(request).__name__} of {request.member_id}"
        demand(
            group is not None and known is not None,
            "G6",
            f"{who}, generation {epoch}, was accepted from a stranger",
        )
        assert group is not None
        right = epoch <= group.epoch if group.consumer else epoch == group.epoch
        demand(right, "G6", f"{who}, generation {epoch}, was accepted; the group has {group.epoch}")

    def _was_replaced(self, member_id: str) -> bool:
        return member_id in self._replaced and member_id not in self._instances.values()

    def _g8_not_replaced(self, asked: Asked, group_id: str, member_id: str) -> None:
        """G8: an id that gave way to another of the same instance is answered no more.

        Who was still a member when it asked is answered as it was decided, however slow the disk.
        """
        demand(
            asked.number not in self._asked_too_late,
            "G8",
            f"group {group_id}: {member_id} was replaced and is still answered",
        )

    # -- time ------------------------------------------------------------------------------------

    def ticked(self, host: WatchedHost, before: dict[str, GroupLook]) -> None:
        """G13: a stable group keeps each member for a session timeout after its last request."""
        self._touch(host)
        now_ms, session_ms = host.node.machine.now_ms(), self._world.settings.session_ms
        for group_id, group in before.items():
            after = look_at(host.shard, group_id)
            left = frozenset[str]() if after is None else frozenset(after.members)
            for member_id in [name for name in group.members if name not in left]:
                self._world.journal.tell(f"group {group_id}: {member_id} is expelled")
                last_request_ms = self._last_request_ms.get((host.node.number, group_id, member_id))
                if group.state != "stable" or last_request_ms is None or member_id in group.late:
                    continue
                demand(
                    now_ms - last_request_ms >= session_ms,
                    "G13",
                    f"group {group_id}: {member_id} was expelled {now_ms - last_request_ms} ms "
                    f"after its last request; its session timeout is {session_ms} ms",
                )

    def after_event(self) -> None:
        """G5, G8, G12 on the groups of shards that were at work."""
        if not self._touched:
            return
        touched, self._touched = self._touched, {}
        for host in touched.values():
            shard = host.shard
            if not host.loaded:
                continue
            for consumers in shard.consumer_groups.values():
                consumer_group.check_group(consumers, self._world.cluster.names)
            for group in shard.groups.values():
                g5_memory_agrees(group, shard.durable.groups.get(group.group_id))
                g8_one_per_instance(group)
                g12_group_is_bounded(group, self._world.settings.max_size)

    def at_the_end(self) -> None:
        """G9 once more, on every log."""
        for partition, log in enumerate(self._world.cluster.group_logs):
            node = self._world.cluster.nodes.get(self._world.cluster.group_leaders[partition])
            host = None if node is None else node.groups.watched(partition)
            if host is not None and host.loaded and not host.unwritten:
                g9_replay_is_the_state(host.shard.durable, log, self._chance)

    def _touch(self, host: WatchedHost) -> None:
        self._moved = True
        self._touched[host.node.number * 1_000 + host.log.index] = host

    @staticmethod
    def _stored(host: WatchedHost, group_id: str) -> StoredGroup | None:
        return host.shard.durable.groups.get(group_id)
