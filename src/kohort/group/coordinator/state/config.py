"""The configuration of a group coordinator, with Kafka's names, units and defaults.

Those after `consumer_assignors` are ours: limits on what Kafka lets grow. A broker for development
overrides `group_initial_rebalance_delay_ms` with 0.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from kohort.config import Config
from kohort.errors import ConfigError
from kohort.group.assignors.base import Assignor
from kohort.group.assignors.range import ServerRangeAssignor
from kohort.group.assignors.uniform import UniformAssignor
from kohort.lean import dataclass

INT32_MAX = (1 << 31) - 1
MIGRATION_POLICIES = ("disabled", "upgrade", "downgrade", "bidirectional")


class GroupTimeouts(NamedTuple):
    """What a consumer group may be configured with for itself."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


@dataclass(frozen=True)
class GroupConfig(Config):
    """The coordinator's configuration (GroupCoordinatorConfig in Apache Kafka)."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    """How long the first rebalance of an empty group waits for more members."""
    group_max_size: int = INT32_MAX
    group_new_member_join_timeout_ms: int = 300_000
    """A new member whose JoinGroup still waits after this is dropped (a constant in Kafka)."""
    offset_metadata_max_bytes: int = 4_096
    """Characters of metadata that one committed offset may carry (Kafka counts characters too)."""
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000

    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_min_heartbeat_interval_ms: int = 5_000
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_max_size: int = INT32_MAX
    group_consumer_migration_policy: str = "bidirectional"
    """Whether live groups change their protocol: disabled, upgrade, downgrade, bidirectional."""
    consumer_assignors: tuple[Assignor, ...] = (UniformAssignor(), ServerRangeAssignor())
    """What members of consumer groups may name; the first is taken where they name none."""

    group_record_max_bytes: int = 1_000_000
    """The stored form of one group: a member that would make it larger is refused."""
    group_pending_members_max_bytes: int = 1 << 20
    """The ids handed out with MEMBER_ID_REQUIRED and not used yet, all groups of a shard."""
    shard_max_groups: int = 100_000
    """Groups in one partition of `__consumer_offsets`; a further one is refused."""
    offsets_sweep_max_records: int = 1_000
    """Tombstones that one step of the expiry sweep writes at most."""

    def __post_init__(self) -> None:
        for name in self.field_names():
            value = getattr(self, name)
            if isinstance(value, int) and value < 0:
                raise ConfigError(f"{name}={value} is negative")
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ConfigError(
                f"group_min_session_timeout_ms={self.group_min_session_timeout_ms} is greater "
                f"than group_max_session_timeout_ms={self.group_max_session_timeout_ms}"
            )
        if self.offset_metadata_max_bytes > 8_191:
            raise ConfigError(
                f"offset_metadata_max_bytes={self.offset_metadata_max_bytes} is greater than "
                "8191, the most characters that always fit Kafka's string of 32767 bytes"
            )
        if self.group_max_size < 1 or self.offsets_sweep_max_records < 1:
            raise ConfigError("group_max_size and offsets_sweep_max_records must be at least 1")
        if self.offsets_retention_check_interval_ms < 1:
            raise ConfigError("offsets_retention_check_interval_ms must be at least 1")
        self._check_consumer_groups()

    def _check_consumer_groups(self) -> None:
        for what in ("session_timeout", "heartbeat_interval"):
            low, value, high = (
                getattr(self, f"group_consumer_{which}{what}_ms") for which in ("min_", "", "max_")
            )
            if not low <= value <= high:
                raise ConfigError(
                    f"group_consumer_{what}_ms={value} is not from group_consumer_min_{what}_ms="
                    f"{low} to group_consumer_max_{what}_ms={high}"
                )
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            raise ConfigError(
                "group_consumer_heartbeat_interval_ms="
                f"{self.group_consumer_heartbeat_interval_ms} must be less than "
                f"group_consumer_session_timeout_ms={self.group_consumer_session_timeout_ms}"
            )
        if self.group_consumer_migration_policy not in MIGRATION_POLICIES:
            raise ConfigError(
                f"group_consumer_migration_policy={self.group_consumer_migration_policy!r}; it is "
                f"one of {', '.join(MIGRATION_POLICIES)}"
            )
        names = [assignor.name for assignor in self.consumer_assignors]
        if not names or len(set(names)) < len(names):
            raise ConfigError(
                f"consumer_assignors must name at least one assignor, and none twice: {names}"
            )

    @cached_property
    def consumer_timeouts(self) -> GroupTimeouts:
        """What holds for a consumer group that has no configuration of its own."""
        return GroupTimeouts(
            self.group_consumer_session_timeout_ms, self.group_consumer_heartbeat_interval_ms
        )

    @property
    def upgrade_enabled(self) -> bool:
        """Whether a classic group with members may become a consumer group."""
        return self.group_consumer_migration_policy in ("upgrade", "bidirectional")

    @property
    def downgrade_enabled(self) -> bool:
        """Whether a consumer group whose last members are classic ones may become a classic one."""
        return self.group_consumer_migration_policy in ("downgrade", "bidirectional")

    @property
    def offsets_retention_ms(self) -> int:
        """`offsets_retention_minutes` in milliseconds."""
        return self.offsets_retention_minutes * 60_000
