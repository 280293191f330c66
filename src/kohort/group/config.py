"""What a group coordinator can be told, with Kafka's names, units and defaults.

The last four are ours: limits on what Kafka lets grow. A broker for development overrides
`group_initial_rebalance_delay_ms` with 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from kohort.config import Config
from kohort.errors import ConfigError

INT32_MAX = (1 << 31) - 1


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
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)} is negative")
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

    @property
    def offsets_retention_ms(self) -> int:
        """`offsets_retention_minutes` in milliseconds."""
        return self.offsets_retention_minutes * 60_000
