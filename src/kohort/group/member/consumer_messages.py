"""The one request of a member under the consumer protocol (KIP-848), and what its answer assigns.

Rules:
- A full request says everything: subscription, rack, instance, timeout, assignor, and what is owned
  (an empty list, never null). It is answered with the whole assignment.
- An incremental one leaves out (null) what the coordinator is known to have. Names and expression
  go together: the unused one is empty, which clears its previous value.
- The owned partitions are those the caller may be reading at this moment, with those it is still
  giving up: anything less would free a partition that is still being read (B2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kohort.errors import ProtocolError
from kohort.group.member.config import MemberConfig
from kohort.wire.messages import consumer_group_heartbeat_request as request
from kohort.wire.messages import consumer_group_heartbeat_response as response

Owned = Mapping[bytes, tuple[int, ...]]
"""Partitions by topic id, the numbers ascending. Topics without partitions are left out."""

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
"""A static member that comes back: its partitions wait for it for a session timeout (KIP-848)."""


class Report(NamedTuple):
    """What a heartbeat tells the coordinator, and what it then knows; `pattern` may be empty."""

    topics: frozenset[str]
    pattern: str
    owned: Owned


def heartbeat_request(
    config: MemberConfig, member_id: str, epoch: int, now: Report, known: Report | None
) -> request.ConsumerGroupHeartbeatRequest:
    """A heartbeat: full when nothing is `known` to the coordinator, else what has changed.

    The instance id is always there, so that a member whose instance was taken over gets its error.
    """
    message = request.ConsumerGroupHeartbeatRequest(
        group_id=config.group_id,
        member_id=member_id,
        member_epoch=epoch,
        instance_id=config.group_instance_id,
    )
    if known is None:
        message.rack_id = config.client_rack
        message.rebalance_timeout_ms = config.max_poll_interval_ms
        message.server_assignor = config.group_remote_assignor
    if known is None or (now.topics, now.pattern) != (known.topics, known.pattern):
        message.subscribed_topic_names = sorted(now.topics)
        message.subscribed_topic_regex = now.pattern
    if known is None or now.owned != known.owned:
        message.topic_partitions = [
            request.TopicPartitions(topic_id=topic_id, partitions=list(numbers))
            for topic_id, numbers in sorted(now.owned.items())
        ]
    return message


def leave_request(config: MemberConfig, member_id: str) -> request.ConsumerGroupHeartbeatRequest:
    """A leave; a static member only says that it is away for a while."""
    static = config.group_instance_id is not None
    return request.ConsumerGroupHeartbeatRequest(
        group_id=config.group_id,
        member_id=member_id,
        member_epoch=STATIC_LEAVE_EPOCH if static else LEAVE_EPOCH,
        instance_id=config.group_instance_id,
    )


def assigned(
    answer: response.ConsumerGroupHeartbeatResponse,
) -> dict[bytes, tuple[int, ...]] | None:
    """What an answer assigns, each partition once; None: as before. Empty is not None (B4).

    Raises ProtocolError for an epoch that no member can have, or a negative partition (B9).
    """
    if answer.member_epoch <= JOIN_EPOCH:
        raise ProtocolError(
            f"a heartbeat was answered with member epoch {answer.member_epoch} and no error; the "
            "epoch of a member is above 0. The broker breaks the protocol"
        )
    if answer.assignment is None:
        return None
    partitions: dict[bytes, set[int]] = {}
    for topic in answer.assignment.topic_partitions:
        partitions.setdefault(bytes(topic.topic_id), set()).update(topic.partitions)
    if any(number < 0 for numbers in partitions.values() for number in numbers):
        raise ProtocolError(
            "a heartbeat was answered with a negative partition number. The broker breaks the "
            "protocol"
        )
    return {topic: tuple(sorted(numbers)) for topic, numbers in partitions.items() if numbers}


def without(left: Owned, right: Owned) -> dict[bytes, tuple[int, ...]]:
    """What is in `left` and not in `right`."""
    rest: dict[bytes, tuple[int, ...]] = {}
    for topic_id, numbers in left.items():
        gone = right.get(topic_id)
        if gone == numbers:
            continue
        kept = tuple(sorted(set(numbers).difference(gone))) if gone else numbers
        if kept:
            rest[topic_id] = kept
    return rest


def union(left: Owned, right: Owned) -> dict[bytes, tuple[int, ...]]:
    """What is in either."""
    both = dict(left)
    for topic_id, numbers in right.items():
        both[topic_id] = tuple(sorted({*both.get(topic_id, ()), *numbers}))
    return both
