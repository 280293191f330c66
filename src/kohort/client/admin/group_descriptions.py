"""What a coordinator says of a group, in `Admin`'s terms: one shape for both protocols. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kohort.client.admin.types import GroupDescription, MemberDescription
from kohort.client.cluster.metadata import Node
from kohort.client.common.types import TopicPartition
from kohort.errors import DecodeError
from kohort.group.assignors import MemberView, Partitions
from kohort.group.assignors.protocol import decode_assignment, decode_subscription
from kohort.wire.messages import consumer_group_describe_response as described
from kohort.wire.messages.describe_groups_response import DescribedGroup, DescribedGroupMember

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
DEAD: Final = "Dead"
_CLASSIC_MEMBER: Final = 0  # ConsumerGroupDescribe v1: a classic member of a group that migrates


def dead_group(group_id: str, coordinator: Node) -> GroupDescription:
    """There is no group of that name."""
    return GroupDescription(group_id, DEAD, "", "", coordinator, ())


def classic_group(group: DescribedGroup, coordinator: Node) -> GroupDescription:
    """A group whose members assign (DescribeGroups)."""
    return GroupDescription(
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        coordinator,
        tuple(_classic_member(m, group.protocol_type) for m in group.members),
        CLASSIC,
    )


def consumer_group(group: described.DescribedGroup, coordinator: Node) -> GroupDescription:
    """A group whose coordinator assigns (ConsumerGroupDescribe, KIP-848)."""
    return GroupDescription(
        group.group_id,
        group.group_state,
        CONSUMER,
        group.assignor_name,
        coordinator,
        tuple(_consumer_member(member) for member in group.members),
        CONSUMER,
        group.group_epoch,
        group.assignment_epoch,
    )


def _consumer_member(member: described.Member) -> MemberDescription:
    return MemberDescription(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        tuple(member.subscribed_topic_names),
        _flat(member.assignment.topic_partitions),
        CLASSIC if member.member_type == _CLASSIC_MEMBER else CONSUMER,
        member.subscribed_topic_regex or None,
        member.rack_id,
        member.member_epoch,
        _flat(member.target_assignment.topic_partitions),
    )


def _flat(topics: Iterable[described.TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(t.topic_name, number) for t in topics for number in t.partitions)


def _classic_member(member: DescribedGroupMember, protocol_type: str) -> MemberDescription:
    view = MemberView(member.member_id, frozenset())
    owned: Partitions = {}
    if protocol_type == CONSUMER:  # other kinds of group have contents of their own
        try:
            view = decode_subscription(member.member_id, bytes(member.member_metadata))
            owned = decode_assignment(bytes(member.member_assignment))[0]
        except DecodeError:
            owned = {}  # some client's own format; the rest is still worth showing
    return MemberDescription(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        tuple(sorted(view.topics)),
        tuple(TopicPartition(topic, number) for topic in owned for number in owned[topic]),
        rack=view.rack,
        user_data=view.user_data,
    )
