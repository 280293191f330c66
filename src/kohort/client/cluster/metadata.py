"""What is known of a cluster: brokers, topics, leaders. Pure.

Rules:
- A snapshot never changes; every answer makes a new one with the next `version`.
- Leader epochs never go back: an answer with an older epoch for the same topic id comes from a
  broker that lags, and what was known stays (KIP-320), until `MAX_DOUBTS` answers in a row say so.
- Partitions are numbered from 0 without gaps. A number beyond as many as an answer tells is damage:
  it is dropped, and the topic is asked for again.
- A topic with another id is another topic; its epochs start over.
- `MetadataSchedule` says when to ask: at once for names that are new, after a back-off when an
  error hints at a change, and in any case after `metadata.max.age.ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from kohort.client.common.backoff import Backoff
from kohort.client.common.types import TopicPartition
from kohort.errors import ErrorCode
from kohort.lean import dataclass, field, replace
from kohort.wire import ZERO_UUID
from kohort.wire.messages.metadata_response import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

NO_LEADER: Final = -1
CALM_MS: Final = 5_000
"""A hint that comes this long after the last one is about something else."""
MAX_DOUBTS: Final = 5
"""So many answers in a row with an older leader epoch: the newer one was damaged on its way."""
TOPIC_IDLE_MS: Final = 300_000
"""A client no longer asks for a topic that it has not used for this time (KIP-526)."""
MAX_ASKED_TOPICS: Final = 1_000
"""How many topics are watched because of requests for their offsets."""
_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Node:
    """A broker: its address and rack."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"broker {self.node_id} ({self.host}:{self.port})"


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """A partition: its leader (-1: none now), the leader's epoch (-1: unknown), its replicas."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()
    doubts: int = 0
    """How many answers in a row have named an older epoch than this one."""


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic: its id (16 zero bytes from brokers before 2.8) and its partitions by number."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: Mapping[int, PartitionMetadata]
    damaged: bool = False
    """True when the answer numbered partitions as no topic's are: some are missing here."""


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """An immutable picture of the cluster; `version` counts the answers that made it."""

    version: int = 0
    cluster_id: str | None = None
    controller_id: int = -1
    nodes: Mapping[int, Node] = field(default_factory=lambda: _NOTHING)
    topics: Mapping[str, TopicMetadata] = field(default_factory=lambda: _NOTHING)
    errors: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    """Topics that were asked for and have no metadata, with the broker's error code."""
    names_by_id: Mapping[bytes, str] = field(default_factory=lambda: _NOTHING)

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        """What is known of a partition."""
        known = self.topics.get(topic)
        return None if known is None else known.partitions.get(partition)

    def leader(self, topic: str, partition: int) -> int:
        """The node id of a partition's leader, -1 when there is none or it is not known."""
        known = self.partition(topic, partition)
        return NO_LEADER if known is None or known.leader not in self.nodes else known.leader

    def leader_epoch(self, topic: str, partition: int) -> int:
        """The epoch of a partition's leader, -1 when it is not known."""
        known = self.partition(topic, partition)
        return -1 if known is None else known.leader_epoch

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic in order; empty when it is not known."""
        known = self.topics.get(topic)
        return [TopicPartition(topic, p) for p in sorted(known.partitions)] if known else []


def merge(old: ClusterMetadata, answer: MetadataResponse) -> ClusterMetadata:
    """The snapshot after an answer that covers everything that was asked for."""
    nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in answer.brokers}
    topics: dict[str, TopicMetadata] = {}
    errors: dict[str, int] = {}
    for topic in answer.topics:
        name = topic.name
        if name is None:
            continue
        if topic.error_code:
            errors[name] = topic.error_code
        else:
            topics[name] = _merge_topic(old.topics.get(name), topic, name)
    return ClusterMetadata(
        version=old.version + 1,
        cluster_id=answer.cluster_id if answer.cluster_id is not None else old.cluster_id,
        controller_id=answer.controller_id,
        nodes=MappingProxyType(nodes),
        topics=MappingProxyType(topics),
        errors=MappingProxyType(errors),
        names_by_id=MappingProxyType(
            {t.topic_id: t.name for t in topics.values() if t.topic_id != ZERO_UUID}
        ),
    )


def _merge_topic(
    old: TopicMetadata | None, topic: MetadataResponseTopic, name: str
) -> TopicMetadata:
    known = old.partitions if old is not None and old.topic_id == topic.topic_id else _NOTHING
    count = len(topic.partitions)
    partitions = {
        p.partition_index: _merge_partition(known.get(p.partition_index), p)
        for p in topic.partitions
        if 0 <= p.partition_index < count
    }
    frozen = MappingProxyType(partitions)
    return TopicMetadata(
        name, topic.topic_id, topic.is_internal, frozen, damaged=len(partitions) < count
    )


def _merge_partition(
    old: PartitionMetadata | None, new: MetadataResponsePartition
) -> PartitionMetadata:
    if old is not None and 0 <= new.leader_epoch < old.leader_epoch:
        doubts = old.doubts + 1
        if doubts < MAX_DOUBTS:
            return replace(old, doubts=doubts)
    return PartitionMetadata(
        partition=new.partition_index,
        leader=new.leader_id,
        leader_epoch=new.leader_epoch,
        replicas=tuple(new.replica_nodes),
        isr=tuple(new.isr_nodes),
        offline_replicas=tuple(new.offline_replicas),
    )


def with_leader(
    old: ClusterMetadata, topic: str, partition: int, leader: int, epoch: int, nodes: Iterable[Node]
) -> ClusterMetadata:
    """The snapshot after a broker named a newer leader in a Fetch or Produce answer (KIP-951).

    The same object when the hint is not newer than what is known.
    """
    known = old.partition(topic, partition)
    if known is None or epoch <= known.leader_epoch:
        return old
    moved = replace(known, leader=leader, leader_epoch=epoch)
    of_topic = old.topics[topic]
    partitions = MappingProxyType({**of_topic.partitions, partition: moved})
    return replace(
        old,
        version=old.version + 1,
        nodes=MappingProxyType({**old.nodes, **{n.node_id: n for n in nodes}}),
        topics=MappingProxyType({**old.topics, topic: replace(of_topic, partitions=partitions)}),
    )


class AllTopics:
    """The type of `ALL`."""

    def __repr__(self) -> str:
        return "ALL"


ALL: Final = AllTopics()
"""Watch every topic of the cluster (for patterns and listings)."""

Watched = frozenset[str] | AllTopics


class MetadataSchedule:
    """Decides when to ask for metadata. One request is under way at a time."""

    def __init__(self, max_age_ms: int, backoff: Backoff) -> None:
        self._max_age_ms = max_age_ms
        self._backoff = backoff
        self._hints = backoff.another()
        self._hinted_ms = 0
        self.watched: Watched = frozenset()
        self.sent = 0
        """Requests sent so far; the answer to number n serves every caller that asked before it was
        sent."""
        self._in_flight = False
        self._due_ms: int | None = None
        self._again_at_once = False
        self._hinted = False
        """A hint came while a request was under way."""

    def watch(self, topics: Watched, now_ms: int) -> bool:
        """Replace the watched topics; True when one is new, which is asked for at once."""
        before, self.watched = self.watched, topics
        if isinstance(before, AllTopics) or before == topics:
            return False
        if isinstance(topics, AllTopics) or not topics <= before:
            self.ask(now_ms)
            return True
        return False

    def ask(self, now_ms: int) -> int:
        """Ask at once, or right after the answer that is under way; the number to wait for."""
        if self._in_flight:
            self._again_at_once = True
        else:
            self._due_ms = now_ms
        return self.sent + 1

    def ask_soon(self, now_ms: int) -> None:
        """Ask after a back-off, because an error hints that something has changed."""
        if not self._in_flight and (self._backoff.failures == 0 or self._due_ms is None):
            self._backoff.failed()
            if now_ms - self._hinted_ms >= CALM_MS:
                self._hints.succeeded()
            self._hinted_ms = now_ms
            due_ms = now_ms + self._hints.failed()
            self._due_ms = due_ms if self._due_ms is None else min(self._due_ms, due_ms)
        elif self._in_flight:
            self._hinted = True

    def next_deadline(self) -> int | None:
        """When to call `tick` next."""
        return None if self._in_flight else self._due_ms

    def tick(self, now_ms: int) -> bool:
        """True when a request is to be sent now; it counts as under way from here on."""
        if self._in_flight or self._due_ms is None or now_ms < self._due_ms:
            return False
        self._in_flight, self._again_at_once, self._due_ms = True, False, None
        self._hinted = False
        self.sent += 1
        return True

    def answered(self, complete: bool, now_ms: int, *, news: bool = True) -> None:
        """An answer came; `complete` is False when a leader or a topic is missing for now.

        Without `news` the next hint waits longer: what it hints at is not in the metadata.
        """
        self._in_flight = False
        if news:
            self._hints.succeeded()
        if self._again_at_once:
            self._due_ms = now_ms
        elif complete:
            self._backoff.succeeded()
            self._due_ms = now_ms + self._max_age_ms
        else:
            self._due_ms = now_ms + self._backoff.failed()
        if self._hinted:  # its answer may be older than what the hint is about
            self._hinted = False
            self.ask_soon(now_ms)

    def failed(self, now_ms: int) -> None:
        """No answer came."""
        self._in_flight = False
        self._due_ms = now_ms + self._backoff.failed()


def is_complete(metadata: ClusterMetadata) -> bool:
    """False when a leader or a partition is missing or an error may pass: ask again soon."""
    if any(code in _PASSING for code in metadata.errors.values()):
        return False
    return all(
        not topic.damaged
        and all(each.leader in metadata.nodes for each in topic.partitions.values())
        for topic in metadata.topics.values()
    )


_PASSING: Final = frozenset(
    {
        int(ErrorCode.LEADER_NOT_AVAILABLE),
        int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        int(ErrorCode.REPLICA_NOT_AVAILABLE),
    }
)

MetadataListener = Callable[[ClusterMetadata], object]
"""Called on the network thread with every new snapshot."""
