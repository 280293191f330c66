"""The configuration of a broker and of a topic, with Kafka's names, units and defaults.

Rules:
- Where our default is not Kafka's, the field's note says why: the embedded broker is for
  development, tests and one machine.
- A topic's own configuration overrides the broker's; names and values are checked when set.
"""

from __future__ import annotations

from enum import StrEnum

from kohort.broker.base.security_config import BrokerSecurity
from kohort.broker.log.topic_config import INT64_MAX, TopicConfig
from kohort.config import Config
from kohort.errors import ConfigError
from kohort.group.assignors import Assignor, make_server_assignors
from kohort.group.coordinator.state.config import GroupConfig
from kohort.lean import dataclass, fields
from kohort.transactions.config import TransactionConfig

MIB = 1 << 20
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
MAX_NODES = 64
RACK_AWARE_SELECTOR = "RackAwareReplicaSelector"


class Durability(StrEnum):
    """When an append counts as safe."""

    FSYNC = "fsync"
    """When it is on the disk: survives a power cut. One flush serves all who wait."""
    OS = "os"
    """When the operating system has it: survives kill -9, not a power cut (as Kafka does it)."""
    MEMORY = "memory"
    """At once; nothing survives the process."""


@dataclass(frozen=True)
class BrokerConfig(BrokerSecurity, Config):
    """A broker. Nothing is opened before everything here has been checked."""

    data_dir: str | None = None
    """Where the log lives. Needed unless `durability` is `memory`."""
    durability: str = "fsync"
    port: int = 0
    """0: any free port; see `Broker.bootstrap`."""
    advertised_host: str | None = None
    """The address that clients connect to; default: `host`."""
    acls: bool = False
    """Ask of every request whether its principal may do that (see `kohort acl`). Kafka's
    `authorizer.class.name`."""
    super_users: tuple[str, ...] = ()
    """Principals that may do everything, for example `User:admin`."""
    allow_everyone_if_no_acl_found: bool = False
    """What no entry applies to is open, instead of closed."""
    node_id: int = 1
    """The id of the first node; further ones count on from it."""
    nodes: int = 1
    """Nodes in this process, over one set of logs; with a `port` they take it and those after."""
    broker_rack: tuple[str, ...] = ()
    """The rack of each node."""
    replica_selector_class: str | None = None
    """`RackAwareReplicaSelector` (its full name too): a consumer is sent to a replica of its rack
    (KIP-392), and every replica answers fetches."""
    broker_session_timeout_ms: int = 200
    """Kafka: 9000. How long a killed node is still believed to lead what it led."""
    auto_create_topics_enable: bool = True
    num_partitions: int = 1
    log_segment_bytes: int = 128 * MIB
    """Kafka: 1 GiB. A smaller active segment makes the start after a crash faster."""
    log_roll_ms: int = 7 * 86_400_000
    log_retention_ms: int = 7 * 86_400_000
    log_retention_bytes: int = -1
    log_retention_check_interval_ms: int = 300_000
    log_index_interval_bytes: int = 4_096
    log_indexes_in_memory: int = 64
    """Sealed segments whose index is kept; each takes up to 0.6 MB at the default sizes."""
    log_message_timestamp_type: str = "CreateTime"
    log_message_timestamp_before_max_ms: int = INT64_MAX
    log_message_timestamp_after_max_ms: int = 3_600_000
    log_cleaner_backoff_ms: int = 15_000
    """How often it is looked whether a compacted log is worth cleaning."""
    log_cleaner_delete_retention_ms: int = 86_400_000
    log_flush_checkpoint_interval_ms: int = 60_000
    message_max_bytes: int = 1_048_588
    offsets_topic_num_partitions: int = 3
    """Kafka: 50. One thread serves them all, and what commits come together need one flush each;
    the number is kept for the life of a data directory."""
    offsets_topic_segment_bytes: int = 16 * MIB
    """Kafka: 100 MiB. A small one is compacted, and loaded, sooner."""
    group_initial_rebalance_delay_ms: int = 0
    """Kafka: 3000. One machine starts its members together; a test should not wait."""
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 1_000
    """Kafka: no limit."""
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_min_heartbeat_interval_ms: int = 5_000
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_max_size: int = 1_000
    """Kafka: no limit."""
    group_consumer_migration_policy: str = "bidirectional"
    """Live groups may change their protocol: disabled, upgrade, downgrade, bidirectional."""
    group_consumer_assignors: tuple[str | Assignor, ...] = ("uniform", "range")
    """Server-side assignors by name, or objects of your own; the first is the default."""
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 10_080
    producer_id_expiration_ms: int = 86_400_000
    transaction_state_log_num_partitions: int = 8
    """Kafka: 50. Kept for the life of a data directory."""
    transaction_state_log_segment_bytes: int = 16 * MIB
    """Kafka: 100 MiB. A small one is compacted, and loaded, sooner."""
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    fetch_max_bytes: int = 55 * MIB
    """The largest answer to a fetch, also where it asks for more."""
    max_incremental_fetch_session_cache_slots: int = 1_000
    """Fetch sessions (KIP-227) that a node keeps."""
    min_incremental_fetch_session_eviction_ms: int = 120_000
    socket_request_max_bytes: int = 100 * MIB
    request_max_bytes: int = 16 * MIB
    """The largest request that is not Produce."""
    queued_max_request_bytes: int = 512 * MIB
    """Kafka: no limit. What requests of over a megabyte may take that have begun and are not whole
    yet; for a further one the connection is closed that began first."""
    max_connections: int = 1_000
    max_connections_per_ip: int = (1 << 31) - 1
    connections_max_idle_ms: int = 600_000
    max_requests_in_flight: int = 256
    """Requests of one connection that may wait for the disk; further ones are not read."""
    connection_max_unsent_bytes: int = 32 * MIB
    """Answers that may wait for a client to read them before its requests are no longer read."""
    max_topics: int = 10_000
    max_partitions: int = 100_000
    max_open_files: int = 512
    local_reads: bool = True
    """Kohort's own. Consumers of ours on this machine, of the same user, may read the log's files
    themselves (ADR 0015). Not at durability `memory`, and not where faults can come in."""

    def __post_init__(self) -> None:
        try:
            durability = Durability(self.durability)
        except ValueError as error:
            known = ", ".join(d.value for d in Durability)
            raise ConfigError(f"durability={self.durability!r}; it is one of {known}") from error
        if durability is not Durability.MEMORY and not self.data_dir:
            raise ConfigError(
                f"durability={self.durability} needs data_dir (--data-dir); give one, or "
                "durability=memory"
            )
        if not 1 <= self.nodes <= MAX_NODES:
            raise ConfigError(f"nodes={self.nodes}; one process has 1 to {MAX_NODES}")
        if self.broker_rack and len(self.broker_rack) != self.nodes:
            raise ConfigError(
                f"broker_rack names {len(self.broker_rack)} racks, there are {self.nodes} nodes; "
                "name one for each node, or none"
            )
        selector = self.replica_selector_class
        if selector and selector.rpartition(".")[2] != RACK_AWARE_SELECTOR:
            raise ConfigError(
                f"replica_selector_class={selector!r}; only {RACK_AWARE_SELECTOR} exists"
            )
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"port={self.port} is no port; use 1 to 65535, or 0 for any free one")
        if self.port and self.port + self.nodes - 1 > 65_535:
            raise ConfigError(
                f"port={self.port} leaves no room for {self.nodes} nodes, which take a port each "
                f"from there on; use at most {65_536 - self.nodes}, or 0 for any free ones"
            )
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"port={self.port} is not a port; 0 to 65535 are (0: any free one)")
        self.check_security()
        for name in (
            "num_partitions",
            "offsets_topic_num_partitions",
            "transaction_state_log_num_partitions",
            "queued_max_request_bytes",
            "max_connections",
            "max_connections_per_ip",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        TopicConfig.of(self, {})
        self.group_config()
        self.transaction_config()

    def transaction_config(self) -> TransactionConfig:
        """The transaction coordinator's part of the configuration."""
        return TransactionConfig(
            transaction_max_timeout_ms=self.transaction_max_timeout_ms,
            transactional_id_expiration_ms=self.transactional_id_expiration_ms,
        )

    def node_ids(self) -> list[int]:
        """The ids of the nodes."""
        return list(range(self.node_id, self.node_id + self.nodes))

    def racks(self) -> dict[int, str]:
        """The rack of each node; empty when none was named."""
        return dict(zip(self.node_ids(), self.broker_rack, strict=False))

    def group_config(self) -> GroupConfig:
        """The group coordinator's part of the configuration."""
        mine = set(self.field_names())
        shared = {f.name: getattr(self, f.name) for f in fields(GroupConfig) if f.name in mine}
        assignors = tuple(make_server_assignors(self.group_consumer_assignors))
        return GroupConfig(**shared, consumer_assignors=assignors)
