"""The configuration of a transaction coordinator, with Kafka's names, units and defaults.

The last three are ours: limits on what Kafka lets grow.
"""

from __future__ import annotations

from kohort.config import Config
from kohort.errors import ConfigError
from kohort.lean import dataclass


@dataclass(frozen=True)
class TransactionConfig(Config):
    """The coordinator's configuration (TransactionStateManagerConfig in Apache Kafka)."""

    transaction_max_timeout_ms: int = 900_000
    """The longest timeout that a producer may ask for."""
    transactional_id_expiration_ms: int = 604_800_000
    """A transactional id that is unused for this long is removed."""
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000

    transaction_end_wait_ms: int = 1_000
    """How long the answer to EndTxn waits for the markers. Kafka answers once the decision is
    durable; an answer after the markers spares the next transaction CONCURRENT_TRANSACTIONS."""
    transaction_shard_max_ids: int = 100_000
    """Transactional ids in one partition of `__transaction_state`; a further one is refused."""
    transaction_sweep_max_records: int = 1_000
    """Tombstones that one step of the expiry sweep writes at most."""

    def __post_init__(self) -> None:
        for name in self.field_names():
            least = 0 if name == "transaction_end_wait_ms" else 1
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least {least}")
