"""The bytes of Kafka's "consumer" protocol: what members send the leader and the leader sends back.

Rules:
- Written as the Java client writes them: subscription and assignment v3, partitions by topic.
- Read at any version: an older one lacks fields, a newer one is read as the newest known and what
  follows is ignored, as Java does. So members of any age share a group.
- Damaged bytes raise `ProtocolError`; the leader then treats that one member as subscribed to
  nothing instead of failing the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kohort.group.assignors.base import NO_GENERATION, MemberView, Partitions, freeze
from kohort.wire import decode_versioned, encode_versioned
from kohort.wire.messages import consumer_protocol_assignment as assignment_message
from kohort.wire.messages import consumer_protocol_subscription as subscription_message

PROTOCOL_TYPE = "consumer"
VERSION = 3


def encode_subscription(
    topics: Iterable[str],
    user_data: bytes | None,
    owned: Partitions,
    generation: int,
    rack: str | None,
    version: int = VERSION,
) -> bytes:
    """The metadata that a member joins with. Topics are sorted, as Java sorts them."""
    message = subscription_message.ConsumerProtocolSubscription(
        topics=sorted(topics), user_data=user_data
    )
    if version >= 1:
        message.owned_partitions = [
            subscription_message.TopicPartition(topic=topic, partitions=list(numbers))
            for topic, numbers in owned.items()
        ]
    if version >= 2:
        message.generation_id = generation
    if version >= 3:
        message.rack_id = rack
    return encode_versioned(message, version)


def decode_subscription(member_id: str, data: bytes, instance_id: str | None = None) -> MemberView:
    """A member as its metadata describes it. Raises ProtocolError."""
    if not data:
        # A client that has nothing to say (an old or foreign one) subscribes to nothing.
        return MemberView(member_id, frozenset(), instance_id)
    version, message = decode_versioned(
        subscription_message.ConsumerProtocolSubscription, data, newer=True
    )
    owned = {each.topic: each.partitions for each in message.owned_partitions}
    return MemberView(
        member_id=member_id,
        topics=frozenset(message.topics),
        instance_id=instance_id,
        owned=freeze(owned),
        generation=message.generation_id if version >= 2 else NO_GENERATION,
        rack=message.rack_id,
        user_data=message.user_data,
    )


def encode_assignment(
    partitions: Mapping[str, Sequence[int]], user_data: bytes | None = None, version: int = VERSION
) -> bytes:
    """What one member gets, as bytes for `SyncGroup`."""
    message = assignment_message.ConsumerProtocolAssignment(
        assigned_partitions=[
            assignment_message.TopicPartition(topic=topic, partitions=list(numbers))
            for topic, numbers in sorted(partitions.items())
            if numbers
        ],
        user_data=user_data,
    )
    return encode_versioned(message, version)


def decode_assignment(data: bytes) -> tuple[dict[str, tuple[int, ...]], bytes | None]:
    """Partitions and user data; empty bytes are an empty assignment. Raises ProtocolError."""
    if not data:
        return {}, None
    _, message = decode_versioned(assignment_message.ConsumerProtocolAssignment, data, newer=True)
    parts: dict[str, list[int]] = {}
    for each in message.assigned_partitions:
        parts.setdefault(each.topic, []).extend(each.partitions)
    return freeze(parts), message.user_data
