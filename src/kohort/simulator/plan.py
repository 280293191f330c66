"""A simulated run as data: the world, who takes part, and what happens, in sentences.

Rules:
- A plan says everything but the small chances (how long a frame takes), which its seed decides.
- `steps` are sentences of the `grammar` (docs/simulator.md), so that a plan can be read,
  written as a scenario file, and made smaller piece by piece.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from kohort.group.coordinator.state.config import GroupConfig


@dataclass(frozen=True)
class Settings:
    """Times in milliseconds; pairs are the least and the most of something random."""

    session_ms: int = 6_000
    heartbeat_ms: int = 1_500
    max_poll_ms: int = 12_000
    request_ms: int = 4_000
    call_ms: int = 8_000
    auto_commit_ms: int = 1_000
    fetch_wait_ms: int = 1_000
    fetch_slots: int = 1_000
    """How many fetch sessions a node has (`max.incremental.fetch.session.cache.slots`)."""
    fetch_eviction_ms: int = 120_000
    """One that is unused for this long gives way to another."""
    metadata_age_ms: int = 5_000
    load_ms: tuple[int, int] = (0, 500)
    flush_ms: tuple[int, int] = (1, 10)
    news_ms: int = 500
    """A node learns of a new leader within this."""
    election_ms: tuple[int, int] = (100, 1_500)
    newest: dict[str, int] = field(default_factory=dict[str, int])
    """The newest version that nodes serve, of APIs that they serve less than we know of."""
    initial_delay_ms: int = 0
    max_size: int = 1_000
    retention_minutes: int = 10_080
    """How long offsets are kept that nobody reads on from."""
    sweep_ms: int = 600_000
    """How often it is looked for offsets whose time is over."""

    @property
    def group_config(self) -> GroupConfig:
        """The coordinator's configuration."""
        return GroupConfig(
            group_min_session_timeout_ms=100,
            group_initial_rebalance_delay_ms=self.initial_delay_ms,
            group_new_member_join_timeout_ms=4 * self.max_poll_ms,
            group_max_size=self.max_size,
            offsets_retention_minutes=self.retention_minutes,
            offsets_retention_check_interval_ms=self.sweep_ms,
            group_consumer_session_timeout_ms=self.session_ms,
            group_consumer_min_session_timeout_ms=1,
            group_consumer_heartbeat_interval_ms=self.heartbeat_ms,
            group_consumer_min_heartbeat_interval_ms=1,
            group_consumer_max_size=self.max_size,
        )


@dataclass(frozen=True)
class ConsumerPlan:
    """One consumer: how it is configured and what its application does."""

    name: str
    topics: tuple[str, ...]
    pattern: str = ""
    """It reads what matches this instead; in the consumer protocol the broker says what that is."""
    group: str = "g"
    protocol: str = "classic"
    assignor: str = "range"
    instance: str | None = None
    commit: str = "auto"
    """auto, sync, async, or none: what the application does after it has dealt with a poll."""
    poll_ms: int = 1_000
    work_ms: int = 20
    """The most that dealing with a poll's records takes."""
    records: int = 50
    permille: int = 1_000
    """The speed of its clock."""
    reset: str = "earliest"
    """Where it begins without a committed offset, or when the log has lost its own."""
    fence: bool = False
    """Commits inside the listener, too, before partitions are given up."""


@dataclass(frozen=True)
class Plan:
    """A whole run."""

    seed: int
    nodes: int
    topics: dict[str, int]
    consumers: tuple[ConsumerPlan, ...]
    steps: tuple[str, ...]
    group_partitions: int = 2
    settings: Settings = Settings()
    node_permille: tuple[int, ...] = ()
    name: str = ""
    about: str = ""
    proves: tuple[str, ...] = ()
    expect: tuple[str, ...] = ()
    peace_ms: int | None = None
    """How long the world is left in peace at the end, so that liveness can be judged."""

    def but(self, **changes: Any) -> Plan:
        """The same with some parts replaced."""
        return replace(self, **changes)
