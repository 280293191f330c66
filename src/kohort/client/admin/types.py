"""What `Admin` takes and gives: frozen dataclasses in Kafka's words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from kohort.client.cluster.metadata import Node
from kohort.client.common.types import OffsetAndMetadata, TopicPartition
from kohort.lean import dataclass, field

OffsetSpec = int | Literal["earliest", "latest", "max_timestamp", "earliest_local", "latest_tiered"]
"""Milliseconds since 1970 (the first record at or after), or one of the names."""

QuotaEntity = frozenset[tuple[str, str | None]]
"""Whom quotas are for: kinds (`user`, `client-id`, `ip`) and names, None for a kind's default."""

BROKER_DEFAULT: Final = -1
_NO_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 takes the broker's default."""

    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str] = field(default_factory=lambda: _NO_CONFIGS)


@dataclass(frozen=True, slots=True)
class TopicListing:
    """A topic, in short."""

    name: str
    topic_id: bytes
    is_internal: bool
    partition_count: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition; `leader` is -1 while there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    """Replicas that may lead without loss though they are not in sync (KIP-966)."""
    last_known_elr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic with its partitions in order."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One configuration value of a topic or broker.

    `source` is `topic`, `broker`, `default broker`, `static broker`, `default` or `other`.
    `value` is None for secrets.
    """

    name: str
    value: str | None
    source: str
    is_read_only: bool
    is_sensitive: bool

    @property
    def is_default(self) -> bool:
        """True when it was never set."""
        return self.source == "default"


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group, in short. `state` and `group_type` are empty from old brokers."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str

    @property
    def describable(self) -> bool:
        """Whether `Admin` describes groups of this type: not share groups nor streams groups."""
        return self.group_type.lower() in ("", "classic", "consumer")


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group: who it is, what it subscribes to, what it owns.

    In a group of the consumer protocol (KIP-848) also its `pattern`, its rack, its epoch, and the
    `target` that it is on its way to; `member_type` is then `classic` for a member that still
    speaks the classic protocol. `user_data` is what a classic member's assignor tells the leader.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    topics: tuple[str, ...]
    assignment: tuple[TopicPartition, ...]
    member_type: str = "classic"
    pattern: str | None = None
    rack: str | None = None
    epoch: int | None = None
    target: tuple[TopicPartition, ...] | None = None
    user_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group. `protocol` is the assignor in use; `state` is `Dead` when there is no such group.

    `group_type` is `classic` or `consumer` (KIP-848; empty for a dead group). The epochs are of the
    latter: that of the group, and that of the assignment its members are on their way to.
    """

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: Node
    members: tuple[MemberDescription, ...]
    group_type: str = ""
    epoch: int | None = None
    assignment_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class SurveyedGroup:
    """A group as `Admin.survey_groups` finds it.

    `description` is None where its coordinator refuses to describe it, and of a share group or a
    streams group; `error` says why, or why there are no `offsets`.
    """

    listing: GroupListing
    description: GroupDescription | None
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    error: str = ""


@dataclass(frozen=True, slots=True)
class GroupsSurvey:
    """All groups by id, and the brokers that did not answer, with the reason."""

    groups: Mapping[str, SurveyedGroup]
    unreachable: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster: its id, its controller (-1: unknown), its brokers by id."""

    cluster_id: str | None
    controller_id: int
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class BrokerFeatures:
    """What a broker understands.

    Attributes:
        apis: the oldest and the newest version of each API, by its key.
        features: levels that the cluster has agreed on, such as `metadata.version`.
    """

    apis: Mapping[int, tuple[int, int]]
    features: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    """A replica on a disk: its bytes, how far it lags, whether it is still on its way there."""

    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory of a broker. Sizes of the volume are -1 from brokers that do not tell.

    `error` is 0, or the code of the fault that has taken it offline.
    """

    path: str
    error: int
    replicas: Mapping[TopicPartition, ReplicaSize]
    total_bytes: int
    usable_bytes: int


@dataclass(frozen=True, slots=True)
class LogDirsSurvey:
    """Log directories by broker, and the brokers that did not answer, with the reason."""

    log_dirs: Mapping[int, tuple[LogDirDescription, ...]]
    unreachable: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """A producer with an id, as a partition knows it.

    `coordinator_epoch` and `transaction_start_offset` are -1 without an open transaction.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id, in short."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id; `started_ms` is -1 and `partitions` empty without an open transaction."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    partitions: tuple[TopicPartition, ...]
    coordinator: Node
