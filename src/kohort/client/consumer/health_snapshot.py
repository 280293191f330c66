"""Looks at one consumer's core for `health`: everything at one instant, under its lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.client.cluster.metadata import NO_LEADER
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.core import ConsumerCore
from kohort.client.consumer.health import ConsumerHealth, Surroundings, examine, raise_stalled

if TYPE_CHECKING:
    from kohort.client.consumer.setup import GroupMember


def health_of(core: ConsumerCore) -> ConsumerHealth:
    """What is known of every partition at this instant. Any thread."""
    session, now_ms = core.session, core.loop.now_ms()
    member = None if session is None else session.member
    with core.lock:
        around = _surroundings(core, now_ms)
        partitions = tuple(examine(position, around) for position in core.positions)
        concerns = _concerns(core, now_ms)
    return ConsumerHealth(
        group="" if member is None else member.state.value,
        group_since_ms=0 if member is None else now_ms - member.since_ms,
        last_rebalance="" if member is None else _last_rebalance(member),
        coordinator=around.coordinator,
        polled_ms=around.polled_ms,
        buffered_bytes=around.buffered_bytes,
        budget_bytes=around.budget_bytes,
        partitions=partitions,
        concerns=concerns,
    )


def _last_rebalance(member: GroupMember) -> str:
    """A member's first join has no reason but itself."""
    if member.last_reason or member.generation < 0:
        return member.last_reason
    return f"joined, generation {member.generation}"


def _concerns(core: ConsumerCore, now_ms: int) -> tuple[str, ...]:
    cluster, concerns, session = core.cluster, list(core.topics.missing.concerns()), core.session
    member = None if session is None else session.member
    refusal = None if session is None else core.positions.refusals.get(session.name)
    if session is not None and refusal is not None:
        concerns.append(f"{session.name}: refused with {refusal.text(now_ms)}, retrying")
    hopeless = cluster.damaged.worst(now_ms) or core.topics.nowhere.overdue(now_ms)
    if hopeless is not None:
        concerns.append(str(hopeless))
    if member is not None and (waiting := member.waits_for_others(now_ms)):
        concerns.append(waiting)
    never = not cluster.metadata.version and cluster.metadata_error is not None
    if never or cluster.connections.is_cut_off:
        concerns.append(str(cluster.unreachable()))
    return tuple(concerns)


def check_watchdog(core: ConsumerCore) -> None:
    """Raise for a partition that is alive and silent for longer than `watchdog_ms`."""
    if core.config.watchdog_ms:
        with core.lock:
            around = _surroundings(core, core.loop.now_ms())
            raise_stalled(core.positions, around, core.config.watchdog_ms)


def _surroundings(core: ConsumerCore, now_ms: int) -> Surroundings:
    metadata = core.cluster.metadata

    def leader_of(tp: TopicPartition) -> int | None:
        node = metadata.leader(tp.topic, tp.partition)
        return None if node == NO_LEADER else node

    return Surroundings(
        now_ms=now_ms,
        wall_ms=core.loop.wall_ms(),
        polled_ms=0 if core.in_poll else now_ms - core.last_poll_ms,
        committed_only=core.config.isolation_level == "read_committed",
        budget_bytes=core.config.fetch_buffer_bytes,
        buffered_bytes=core.positions.buffered_bytes,
        coordinator=None if core.session is None else core.session.coordinator,
        has_group=core.session is not None,
        leader_of=leader_of,
        reachable=core.cluster.connections.can_reach,
        refusals=core.positions.refusals,
    )
