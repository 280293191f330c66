"""The configuration of a group member. Kafka's names, units and defaults."""

from __future__ import annotations

from kohort.config import Config
from kohort.errors import ConfigError
from kohort.lean import dataclass

MAX_REASON = 255
"""A JoinGroup's or LeaveGroup's reason may have at most this many characters (KIP-800)."""


@dataclass(frozen=True)
class MemberConfig(Config):
    """The member's part of a consumer's configuration. All times in milliseconds.

    `group_instance_id` makes the member static (KIP-345): closing does not leave the group.
    `max_poll_interval_ms` is also the time the coordinator grants it to rejoin, or to give up
    partitions. Under the consumer protocol (KIP-848) the broker decides the two times of the
    session, and `group_remote_assignor` names the assignor to ask it for (None: its default).
    Under it, and with cooperative assignors (KIP-429), a member that has just joined waits for what
    others give up, so it heartbeats after `join_heartbeat_ms`, then twice that, and so on up to its
    interval; 0: not so. A member that owns nothing has no fetch waiting at a broker that could end
    it when there is news, and a rebalance of the classic protocol waits for all; so it heartbeats
    at least every `idle_heartbeat_ms`; 0: not so.
    """

    group_id: str = ""
    group_instance_id: str | None = None
    client_rack: str | None = None
    group_remote_assignor: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    join_heartbeat_ms: int = 100
    idle_heartbeat_ms: int = 400
    max_poll_interval_ms: int = 300_000
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000

    def __post_init__(self) -> None:
        if not self.group_id:
            raise ConfigError("group_id is empty: a consumer that subscribes needs a group")
        for name in ("session_timeout_ms", "heartbeat_interval_ms", "max_poll_interval_ms"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be above 0")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigError(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be below "
                f"session_timeout_ms ({self.session_timeout_ms}); a third of it is usual"
            )
