"""Making the parts of a consumer of its configuration, and its lines in the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kohort.client.common.config import CONSUMER_PROTOCOL, ConsumerConfig
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.plan.fetch_planner import FetchLimits
from kohort.client.consumer.plan.positions import OffsetReset

if TYPE_CHECKING:  # the machines are imported when a member is made
    from kohort.group.assignors.base import Partitions
    from kohort.group.member.classic import ClassicMember
    from kohort.group.member.consumer import ConsumerMember

    GroupMember = ClassicMember | ConsumerMember


def new_member(config: ConsumerConfig, uniform: Callable[[], float]) -> GroupMember:
    """A member of the configured group, by the configured protocol; `uniform` is its chance."""
    from kohort.group.member.config import MemberConfig

    member = MemberConfig(
        group_id=config.group_id or "",
        group_instance_id=config.group_instance_id,
        client_rack=config.client_rack or None,
        group_remote_assignor=config.group_remote_assignor,
        session_timeout_ms=config.session_timeout_ms,
        heartbeat_interval_ms=config.heartbeat_interval_ms,
        max_poll_interval_ms=config.max_poll_interval_ms,
        request_timeout_ms=config.request_timeout_ms,
        retry_backoff_ms=config.retry_backoff_ms,
        retry_backoff_max_ms=config.retry_backoff_max_ms,
    )
    if config.group_protocol == CONSUMER_PROTOCOL:
        from kohort.group.member.consumer import ConsumerMember

        return ConsumerMember(member, lambda: member_id(uniform), uniform)
    from kohort.group.assignors import make_assignors
    from kohort.group.member.classic import ClassicMember

    assignors = make_assignors(config.partition_assignment_strategy)
    return ClassicMember(member, assignors, uniform)


def member_id(uniform: Callable[[], float]) -> str:
    """A unique member id, as members make it themselves (KIP-1082): 128 random bits."""
    text = "".join(f"{int(uniform() * (1 << 32)):08x}" for _ in range(4))
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


PARTITION_BYTES = 4 << 20
"""Kafka's default is a quarter of it; but a partition in an answer costs the same however much."""
ORDER_LEAST_BYTES = 4 << 20
"""What one answer may bring at least, where few partitions are read and leave it in files."""


def fetch_limits(config: ConsumerConfig) -> FetchLimits:
    """What bounds this consumer's fetches."""
    return FetchLimits(
        fetch_max_bytes=config.fetch_max_bytes,
        partition_max_bytes=config.max_partition_fetch_bytes or PARTITION_BYTES,
        order_least_bytes=0 if config.max_partition_fetch_bytes else ORDER_LEAST_BYTES,
        min_bytes=config.fetch_min_bytes,
        max_wait_ms=config.fetch_max_wait_ms,
        buffer_bytes=config.fetch_buffer_bytes,
        backoff_ms=config.retry_backoff_ms,
        replica_ms=config.metadata_max_age_ms,
        committed_only=config.isolation_level == "read_committed",
    )


def flat(partitions: Partitions) -> tuple[TopicPartition, ...]:
    """Partitions by topic, as single partitions."""
    return tuple(TopicPartition(topic, n) for topic, ns in partitions.items() for n in ns)


def log(level: str, text: str) -> None:
    """One line in the log `kohort.client.consumer.consumer`."""
    import logging  # here, because making a client must not pay for it

    logging.getLogger("kohort.client.consumer").log(getattr(logging, level), "%s", text)


def warn(text: str) -> None:
    """One warning in that log."""
    log("WARNING", text)


def log_reset(event: OffsetReset) -> None:
    """A reset is always visible, with its cause (spec 4.7)."""
    first = event.from_offset < 0
    log(
        "INFO" if first else "WARNING",
        f"{event.partition}: reading continues at offset {event.to_offset} ({event.policy}) "
        f"instead of {'none' if first else event.from_offset}: {event.cause}",
    )
