"""Which members a world of today's protocols has, and what is a keep-alive among their messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol as Interface

from kohort.group.assignors import GroupView, MemberView, TopicView, make_assignors
from kohort.group.assignors.uniform import UniformAssignor
from kohort.group.coordinator.shard import GroupShard
from kohort.group.coordinator.state.config import GroupConfig
from kohort.group.coordinator.state.consumer_records import (
    Current,
    MemberMetadata,
    current_record,
    epoch_record,
    member_record,
    target_epoch_record,
    target_record,
)
from kohort.group.coordinator.state.consumer_table import MemberState
from kohort.group.coordinator.state.effects import GroupRecord
from kohort.group.coordinator.state.topics_image import TopicsImage, metadata_hash
from kohort.group.member.classic import ClassicMember
from kohort.group.member.config import MemberConfig
from kohort.group.member.consumer import ConsumerMember
from kohort.group.member.effects import Effect
from kohort.simulator.history.ledger import KEEP_ALIVE
from kohort.simulator.history.plan import Timing
from kohort.wire import Message
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from kohort.wire.messages.heartbeat_response import HeartbeatResponse

GROUP, HOST = "g", "/127.0.0.1"
MOST_JOINING = 2_000
"""A larger group of the consumer protocol starts out of the log, its members coming back with ids
that it knows. To join, each would have the whole target created again: hours of assigning, of which
nothing is learned that a smaller group does not show."""
Machine = ClassicMember | ConsumerMember
Chance = Callable[[], float]
NewId = Callable[[], str]


class Protocol(Interface):
    """One of today's protocols with one assignor."""

    def config(self, timing: Timing, record_max_bytes: int) -> GroupConfig:
        """The coordinator's configuration."""
        ...

    def member(self, timing: Timing, new_id: NewId, jitter: Chance) -> Machine:
        """A new consumer's machine."""
        ...

    def known_before(self, members: Mapping[str, str], image: TopicsImage) -> list[GroupRecord]:
        """The records in the log before any member starts; `members` maps ids to clients' names."""
        ...

    def look(self, machine: Machine, topics: Mapping[str, int], now_ms: int) -> list[Effect]:
        """Tell the member what topics there are."""
        ...

    def accepts(self, shard: GroupShard, machine: Machine) -> bool:
        """Whether the coordinator would take a commit of the member."""
        ...

    def kind_of(self, request: Message) -> str:
        """What a request is counted as."""
        ...

    def kind_of_answer(self, asked: str, response: Message) -> str:
        """What the answer to a request of the kind `asked` is counted as."""
        ...


class Classic:
    """The classic protocol: the leading client assigns with `assignor`."""

    def __init__(self, assignor: str) -> None:
        self._assignor = assignor

    def config(self, timing: Timing, record_max_bytes: int) -> GroupConfig:
        """Kafka's defaults, but for the size of a record."""
        del timing
        return GroupConfig(group_record_max_bytes=record_max_bytes)

    def member(self, timing: Timing, new_id: NewId, jitter: Chance) -> Machine:
        """A member with Kafka's defaults, but for session and heartbeat."""
        del new_id
        config = MemberConfig(
            group_id=GROUP,
            session_timeout_ms=timing.session_ms,
            heartbeat_interval_ms=timing.heartbeat_ms,
        )
        return ClassicMember(config, make_assignors(self._assignor), jitter)

    def known_before(self, members: Mapping[str, str], image: TopicsImage) -> list[GroupRecord]:
        """Nothing: ten thousand members join in one rebalance."""
        del members, image
        return []

    def look(self, machine: Machine, topics: Mapping[str, int], now_ms: int) -> list[Effect]:
        """Only a leader acts on it."""
        seen = {topic: TopicView(partitions) for topic, partitions in topics.items()}
        return machine.topics_changed(seen, now_ms)

    def accepts(self, shard: GroupShard, machine: Machine) -> bool:
        """A commit needs the group's generation and a member's id."""
        group = shard.groups.get(GROUP)
        return (
            group is not None
            and machine.member_id in group.members
            and shard.durable.groups[GROUP].generation == machine.generation
        )

    def kind_of(self, request: Message) -> str:
        """Heartbeats keep alive."""
        name = type(request).__name__.removesuffix("Request")
        return KEEP_ALIVE if name == "Heartbeat" else name

    def kind_of_answer(self, asked: str, response: Message) -> str:
        """An error in a heartbeat's answer is news: so members hear of a rebalance."""
        if isinstance(response, HeartbeatResponse) and response.error_code:
            return "Heartbeat"
        return asked


_MEMBER = MemberConfig(group_id=GROUP)


class Consumer:
    """The consumer protocol (KIP-848): the coordinator assigns, uniform."""

    def config(self, timing: Timing, record_max_bytes: int) -> GroupConfig:
        """Kafka's defaults, but for session and heartbeat, which here the coordinator decides."""
        return GroupConfig(
            group_record_max_bytes=record_max_bytes,
            group_consumer_session_timeout_ms=timing.session_ms,
            group_consumer_min_session_timeout_ms=timing.session_ms,
            group_consumer_heartbeat_interval_ms=timing.heartbeat_ms,
            group_consumer_min_heartbeat_interval_ms=timing.heartbeat_ms,
        )

    def member(self, timing: Timing, new_id: NewId, jitter: Chance) -> Machine:
        """A member with Kafka's defaults."""
        del timing
        return ConsumerMember(_MEMBER, new_id, jitter)

    def known_before(self, members: Mapping[str, str], image: TopicsImage) -> list[GroupRecord]:
        """A large group, settled in epoch 1 (`MOST_JOINING`); nothing for a smaller one."""
        if len(members) <= MOST_JOINING:
            return []
        names = tuple(sorted(image.by_name))
        view = GroupView(
            {member: MemberView(member, frozenset(names)) for member in members},
            {name: TopicView(topic.partitions) for name, topic in image.by_name.items()},
        )
        plan = UniformAssignor().assign(view).assignments
        records = [epoch_record(GROUP, 1, metadata_hash(image, names))]
        for member, client in members.items():
            parts = {topic_id(t): tuple(numbers) for t, numbers in plan[member].items() if numbers}
            epochs = {t: dict.fromkeys(numbers, 1) for t, numbers in parts.items()}
            itself = MemberMetadata(
                None, None, client, HOST, names, "", _MEMBER.max_poll_interval_ms, None
            )
            held = Current(1, 0, MemberState.STABLE, epochs, {})
            records.append(member_record(GROUP, member, itself))
            records.append(target_record(GROUP, member, parts))
            records.append(current_record(GROUP, member, held))
        return [*records, target_epoch_record(GROUP, 1)]

    def look(self, machine: Machine, topics: Mapping[str, int], now_ms: int) -> list[Effect]:
        """A member needs the topics' ids."""
        seen = {
            topic: TopicView(partitions, topic_id=topic_id(topic))
            for topic, partitions in topics.items()
        }
        return machine.topics_changed(seen, now_ms)

    def accepts(self, shard: GroupShard, machine: Machine) -> bool:
        """A commit needs the member's present epoch."""
        group = shard.consumer_groups.get(GROUP)
        return (
            group is not None
            and machine.member_id in group.members
            and group.current(machine.member_id).epoch == machine.generation
        )

    def kind_of(self, request: Message) -> str:
        """A heartbeat that says nothing new keeps alive."""
        if not isinstance(request, ConsumerGroupHeartbeatRequest):
            return type(request).__name__.removesuffix("Request")
        quiet = request.member_epoch > 0 and request.topic_partitions is None
        return KEEP_ALIVE if quiet else "ConsumerGroupHeartbeat"

    def kind_of_answer(self, asked: str, response: Message) -> str:
        """An answer with an assignment or an error is news."""
        if isinstance(response, ConsumerGroupHeartbeatResponse) and (
            response.error_code or response.assignment is not None
        ):
            return "ConsumerGroupHeartbeat"
        return asked


def topic_id(name: str) -> bytes:
    """The id of a topic: its name, filled up."""
    return name.encode().rjust(16, b"\1")
