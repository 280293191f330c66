"""A bench for consumer groups (KIP-848): topics, heartbeats, and what a test wants to ask.

On top of G9, which the bench checks after every event, `check_group` proves G1, G4 and G5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kohort.errors import ErrorCode
from kohort.group.coordinator.state.classic_records import GroupEntry, OffsetEntry, decode_record
from kohort.group.coordinator.state.consumer_group import ConsumerGroup
from kohort.group.coordinator.state.consumer_records import (
    ConsumerEntry,
    Current,
    Field,
    MemberMetadata,
)
from kohort.group.coordinator.state.consumer_table import ConsumerState, MemberState
from kohort.group.coordinator.state.effects import Effects, GroupRecord
from kohort.group.coordinator.state.topics_image import TopicImage, TopicsImage
from kohort.wire import Message
from kohort.wire.messages.consumer_group_describe_request import ConsumerGroupDescribeRequest
from kohort.wire.messages.consumer_group_heartbeat_request import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from kohort.wire.messages.join_group_response import JoinGroupResponse
from tests.group.harness import GROUP, Bench

REBALANCE_MS, SESSION_MS, INTERVAL_MS = 60_000, 45_000, 5_000
Held = dict[str, list[int]]
"""Partitions by name of topic."""


def topic_id(name: str) -> bytes:
    """The id of a topic in these tests: the end of its name, filled up."""
    return name.encode()[-16:].ljust(16, b"-")


class ConsumerBench(Bench):
    """A shard with topics `t` (6 partitions) and `u` (3), unless others are given."""

    def __init__(self, *, topics: Mapping[str, int] | None = None, **options: Any) -> None:
        self.image = TopicsImage.of(())
        super().__init__(**options)
        for name, partitions in (topics or {"t": 6, "u": 3}).items():
            self.make(name, partitions)

    def new_shard(self) -> Any:
        shard = super().new_shard()
        shard.topics_changed(self.image, self.now_ms)
        return shard

    def make(self, name: str, partitions: int, racks: Sequence[frozenset[str]] = ()) -> None:
        """Make a topic, or let it grow."""
        self.image = self.image.with_topic(
            TopicImage(topic_id(name), name, partitions, tuple(racks))
        )
        self.took(self.shard.topics_changed(self.image, self.now_ms))

    def drop(self, name: str) -> None:
        """Delete a topic."""
        self.image = self.image.without([name])
        self.took(self.shard.topics_changed(self.image, self.now_ms))

    # Requests

    def beat(
        self,
        member_id: str,
        epoch: int = 0,
        *,
        topics: Iterable[str] | None = None,
        owned: Held | None = None,
        regex: str | None = None,
        instance: str | None = None,
        rack: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int = -1,
        group: str = GROUP,
        version: int = 1,
        client: str = "c",
    ) -> ConsumerGroupHeartbeatResponse:
        """Any heartbeat; null where nothing is given."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=instance,
            rack_id=rack,
            rebalance_timeout_ms=rebalance_ms,
            subscribed_topic_names=None if topics is None else list(topics),
            server_assignor=assignor,
            topic_partitions=None
            if owned is None
            else [TopicPartitions(topic_id=topic_id(t), partitions=n) for t, n in owned.items()],
        )
        if regex is not None:
            request.subscribed_topic_regex = regex
        return self.ask(request, version, client)

    def enter(
        self, member_id: str, topics: Iterable[str] | None = ("t",), **options: Any
    ) -> ConsumerGroupHeartbeatResponse:
        """A join: epoch 0, everything said."""
        options.setdefault("rebalance_ms", REBALANCE_MS)
        return self.beat(member_id, 0, topics=topics, owned={}, **options)

    def keep(self, member_id: str, **options: Any) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat in the member's present epoch that says nothing."""
        return self.beat(member_id, self.current(member_id).epoch, **options)

    def follow(self, member_id: str, **options: Any) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat that owns exactly what the member was assigned: it has revoked the rest."""
        return self.keep(member_id, owned=self.assigned(member_id), **options)

    def settle_all(self, rounds: int = 10) -> None:
        """Heartbeats of everybody until the group is Stable."""
        for _ in range(rounds):
            for member_id in list(self.consumers.members):
                self.follow(member_id)
            if self.consumers.state() is ConsumerState.STABLE:
                return
        raise AssertionError(f"not stable after {rounds} rounds: {self.consumers}")

    def describe(self, group: str = GROUP, version: int = 1) -> Any:
        """ConsumerGroupDescribe of one group."""
        return self.ask(ConsumerGroupDescribeRequest(group_ids=[group]), version).groups[0]

    # Asking

    @property
    def consumers(self) -> ConsumerGroup:
        return self.shard.consumer_groups[GROUP]

    def current(self, member_id: str) -> Current:
        return self.consumers.current(member_id)

    def metadata(self, member_id: str) -> MemberMetadata:
        return self.consumers.members[member_id]

    def assigned(self, member_id: str) -> Held:
        return named(self.current(member_id).assigned)

    def pending(self, member_id: str) -> Held:
        return named(self.current(member_id).pending)

    def target(self, member_id: str) -> Held:
        return named(self.consumers.target(member_id))

    def _check_answer(self, answer: Message) -> None:
        """Spec 2.6 for classic members of consumer groups: their generation is in the log."""
        if not self.shard.consumer_groups:
            super()._check_answer(answer)
        elif isinstance(answer, JoinGroupResponse) and not answer.error_code:
            epochs = {
                group.current(answer.member_id).epoch
                for group in self.shard.consumer_groups.values()
                if answer.member_id in group.members
            }
            assert epochs == {answer.generation_id}

    def took(self, effects: Effects) -> Effects:
        super().took(effects)
        if effects.records:
            for group in self.shard.consumer_groups.values():
                check_consumer_group(group)
        return effects

    def wrote(self) -> list[tuple[Any, ...]]:
        """The records of the last event, in short."""
        return record_summaries(self.last.records)

    def meta(self, *topics: str, **changes: Any) -> MemberMetadata:
        """What a member's record says, as `enter` makes it."""
        member = MemberMetadata(
            None, None, "c", "/127.0.0.1", tuple(topics or ("t",)), "", REBALANCE_MS, None
        )
        return member._replace(**changes)


def record_summaries(records: Iterable[GroupRecord]) -> list[tuple[Any, ...]]:
    """Records in short: (type, key, value); topics by name, current assignments as
    (epoch, previous epoch, state, assigned with their epochs, pending)."""
    shown: list[tuple[Any, ...]] = []
    for record in records:
        entry = decode_record(record, 0)
        if isinstance(entry, ConsumerEntry):
            shown.append((entry.field.value, entry.key, _short(entry.field, entry.value)))
        elif isinstance(entry, GroupEntry):
            shown.append((2, entry.group_id, entry.value))
        elif isinstance(entry, OffsetEntry):
            shown.append((1, entry.partition, entry.value))
    return shown


def _short(field: Field, value: Any) -> Any:
    if value is None or field in (Field.MEMBER, Field.TARGET_EPOCH):
        return value
    if field is Field.GROUP:
        return value.epoch
    if field is Field.TARGET:
        return named(value)
    if field is Field.REGEX:
        return list(value.topics)
    held = [
        {t.rstrip(b"-").decode(): dict(n) for t, n in part.items()}
        for part in (value.assigned, value.pending)
    ]
    return (value.epoch, value.previous_epoch, value.state.name, *held)


def named(held: Mapping[bytes, Iterable[int]]) -> Held:
    """Partitions by name of topic."""
    return {i.rstrip(b"-").decode(): sorted(numbers) for i, numbers in held.items()}


def assignment_of(response: ConsumerGroupHeartbeatResponse) -> Held | None:
    """The assignment in an answer; None where there is none."""
    if response.assignment is None:
        return None
    return {
        t.topic_id.rstrip(b"-").decode(): t.partitions for t in response.assignment.topic_partitions
    }


def code(response: Any) -> ErrorCode:
    return ErrorCode(response.error_code)


def check_consumer_group(group: ConsumerGroup) -> None:
    """G1, G4: one owner, and the index says who. G5: Stable means that all have arrived."""
    owners: dict[tuple[bytes, int], str] = {}
    for member_id, current in group.currents.items():
        assert member_id in group.members
        for held in (current.assigned, current.pending):
            for topic, numbers in held.items():
                for number, since in held[topic].items():
                    assert (topic, number) not in owners, f"G1: {topic!r}-{number} has two owners"
                    owners[topic, number] = member_id
                    assert since <= max(current.epoch, current.previous_epoch)
                assert numbers
        if current.state is MemberState.UNREVOKED and current.epoch != -2:
            assert current.pending
        else:
            assert not current.pending
    indexed = {(t, n): m for t, numbers in group.owners.items() for n, m in numbers.items()}
    assert indexed == owners, "G4"
    assert group.static_members == {
        m.instance_id: i for i, m in group.members.items() if m.instance_id is not None
    }
    assert group.classic_members == sum(m.classic is not None for m in group.members.values())
    if group.state() is ConsumerState.STABLE:
        assert group.epoch == group.target_epoch
        for member_id in group.members:
            current = group.current(member_id)
            held = {t: tuple(sorted(n)) for t, n in current.assigned.items()}
            assert held == group.target(member_id), "G5"
