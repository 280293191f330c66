"""The admin client: topics, configurations, records, the cluster.

Groups are in `groups`, users in `users`, access control in `acls`, brokers in `cluster`.

Rules:
- Calls block until they are done or `timeout_s` (default `default_api_timeout_ms`) is over, and may
  be made from any thread.
- A call that names several objects tries all of them, then raises one BrokerError that names those
  that failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from kohort.client.admin.acls import AdminAcls
from kohort.client.admin.calls import looking_up, raise_failed
from kohort.client.admin.cluster import AdminCluster
from kohort.client.admin.groups import AdminGroups
from kohort.client.admin.survey import AdminSurvey
from kohort.client.admin.types import (
    ClusterDescription,
    ConfigEntry,
    NewTopic,
    OffsetSpec,
    PartitionDescription,
    TopicDescription,
    TopicListing,
)
from kohort.client.admin.users import AdminUsers
from kohort.client.cluster.client import ANY, Versioned
from kohort.client.common import arguments as arguments
from kohort.client.common.offset_reset import require_version
from kohort.client.common.types import ByPartition, OffsetAndTimestamp, TopicPartition
from kohort.errors import (
    BrokerError,
    ConnectionFailedError,
    KafkaTimeoutError,
    UnsupportedVersionError,
    UsageError,
)
from kohort.wire import Message
from kohort.wire.messages.create_partitions_request import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from kohort.wire.messages.create_partitions_response import CreatePartitionsResponse
from kohort.wire.messages.create_topics_request import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kohort.wire.messages.create_topics_response import CreateTopicsResponse
from kohort.wire.messages.delete_records_request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kohort.wire.messages.delete_records_response import DeleteRecordsResponse
from kohort.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from kohort.wire.messages.delete_topics_response import DeleteTopicsResponse
from kohort.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from kohort.wire.messages.describe_configs_response import DescribeConfigsResponse
from kohort.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kohort.wire.messages.incremental_alter_configs_response import IncrementalAlterConfigsResponse
from kohort.wire.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kohort.wire.messages.list_offsets_response import ListOffsetsResponse
from kohort.wire.messages.metadata_response import MetadataResponseTopic

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
_SET, _DELETE = 0, 1
_SOURCES: Final = {
    1: "topic",
    2: "broker",
    3: "default broker",
    4: "static broker",
    5: "default",
}
_TIMESTAMPS: Final = {
    "latest": -1,
    "earliest": -2,
    "max_timestamp": -3,
    "earliest_local": -4,
    "latest_tiered": -5,
}


class Admin(AdminGroups, AdminSurvey, AdminCluster, AdminAcls, AdminUsers):
    """Manages topics, configurations and groups. Close it, or use it in a `with` block.

    Takes `AdminConfig`'s keys as keyword arguments, or a ready `AdminConfig`.
    """

    # -- topics

    def create_topics(
        self,
        topics: Iterable[NewTopic | str],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> dict[str, TopicListing]:
        """Create topics; a bare name takes the broker's defaults.

        Raises BrokerError (TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, ...) when one was refused.
        """
        new_topics = [_new_topic(topic) for topic in arguments.several(topics, "create_topics")]
        deadline_ms = self._deadline(timeout_s)
        created: dict[str, TopicListing] = {}

        def attempt() -> dict[str, TopicListing]:
            request = CreateTopicsRequest(
                topics=[_creatable(topic) for topic in new_topics if topic.name not in created],
                timeout_ms=self._broker_wait_ms(deadline_ms),
                validate_only=validate_only,
            )
            answer = self._on_controller(CreateTopicsResponse, request, deadline_ms)
            created.update(
                (t.name, TopicListing(t.name, t.topic_id, False, t.num_partitions))
                for t in answer.topics
                if not t.error_code
            )
            raise_failed(
                "creating topic", {t.name: (t.error_code, t.error_message) for t in answer.topics}
            )
            return created

        return self._until(deadline_ms, attempt, mutates=True)

    def delete_topics(self, names: Iterable[str], *, timeout_s: float | None = None) -> None:
        """Delete topics with their records. Raises BrokerError when one was refused."""
        topics, deadline_ms = arguments.names(names, "delete_topics"), self._deadline(timeout_s)
        deleted: set[str] = set()

        def build(version: int) -> Message:
            left = [name for name in topics if name not in deleted]
            wait_ms = self._broker_wait_ms(deadline_ms)
            if version >= 6:  # KIP-516
                states = [DeleteTopicState(name=name) for name in left]
                return DeleteTopicsRequest(topics=states, timeout_ms=wait_ms)
            return DeleteTopicsRequest(topic_names=left, timeout_ms=wait_ms)

        def attempt() -> None:
            request = Versioned(DeleteTopicsRequest, build)
            answer = self._on_controller(DeleteTopicsResponse, request, deadline_ms)
            deleted.update(t.name or "" for t in answer.responses if not t.error_code)
            raise_failed(
                "deleting topic",
                {t.name or "": (t.error_code, t.error_message) for t in answer.responses},
            )

        # An unknown topic is retriable in Kafka's table, but waiting does not make it exist.
        self._checked(topics, deadline_ms)
        self._until(deadline_ms, attempt, mutates=True)

    def create_partitions(
        self, counts: Mapping[str, int], *, timeout_s: float | None = None
    ) -> None:
        """Raise the number of partitions of topics to the given counts.

        Records with keys go elsewhere afterwards: the partition depends on the count.
        """
        arguments.mapping(counts, "create_partitions", '{"TOPIC": 6}')
        for name, count in counts.items():
            arguments.whole_number(count, f"create_partitions(): the partitions of {name!r}", 1)
            arguments.name(name, "create_partitions(): the topic")
        deadline_ms = self._deadline(timeout_s)
        grown: set[str] = set()

        def attempt() -> None:
            request = CreatePartitionsRequest(
                topics=[
                    CreatePartitionsTopic(name=name, count=count, assignments=None)
                    for name, count in counts.items()
                    if name not in grown
                ],
                timeout_ms=self._broker_wait_ms(deadline_ms),
            )
            answer = self._on_controller(CreatePartitionsResponse, request, deadline_ms)
            grown.update(t.name for t in answer.results if not t.error_code)
            raise_failed(
                "adding partitions to topic",
                {t.name: (t.error_code, t.error_message) for t in answer.results},
            )

        self._checked(counts, deadline_ms)
        self._until(deadline_ms, attempt, mutates=True)

    def list_topics(
        self, *, include_internal: bool = False, timeout_s: float | None = None
    ) -> list[TopicListing]:
        """All topics, by name."""
        topics = self._topics(None, self._deadline(timeout_s))
        return [
            TopicListing(name, t.topic_id, t.is_internal, len(t.partitions))
            for name, t in sorted(topics.items())
            if include_internal or not t.is_internal
        ]

    def describe_topics(
        self, names: Iterable[str], *, timeout_s: float | None = None
    ) -> dict[str, TopicDescription]:
        """Topics with their partitions. Raises BrokerError when one does not exist."""
        topic_names, deadline_ms = (
            arguments.names(names, "describe_topics"),
            self._deadline(timeout_s),
        )
        if not topic_names:
            return {}
        try:
            pages = self._topic_pages(topic_names, deadline_ms)
        except UnsupportedVersionError:  # before Kafka 3.8
            topics = self._checked(topic_names, deadline_ms)
            return {name: _description(name, topics[name]) for name in topic_names}
        return {name: pages[name] for name in topic_names}

    # -- configurations

    def describe_configs(
        self, name: str, *, broker: bool = False, timeout_s: float | None = None
    ) -> dict[str, ConfigEntry]:
        """The configuration of a topic, or with `broker=True` of the broker with that id."""
        arguments.name(name, "describe_configs(): the name")
        deadline_ms = self._deadline(timeout_s)
        resource = DescribeConfigsResource(
            resource_type=BROKER_RESOURCE if broker else TOPIC_RESOURCE,
            resource_name=name,
            configuration_keys=None,
        )
        request = DescribeConfigsRequest(resources=[resource])
        if not broker:
            self._checked([name], deadline_ms)

        def attempt() -> dict[str, ConfigEntry]:
            target = self._config_target(name, broker, deadline_ms)
            answer = self._ask(DescribeConfigsResponse, target, request, deadline_ms)
            raise_failed(
                "describing the configuration of",
                {r.resource_name: (r.error_code, r.error_message) for r in answer.results},
            )
            return {
                c.name: ConfigEntry(
                    c.name,
                    c.value,
                    _SOURCES.get(c.config_source, "other"),
                    c.read_only,
                    c.is_sensitive,
                )
                for result in answer.results
                for c in result.configs
            }

        return self._until(deadline_ms, attempt)

    def alter_configs(
        self,
        name: str,
        changes: Mapping[str, str | None],
        *,
        broker: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Set some configuration values (None: back to the default); the others stay (KIP-339)."""
        arguments.name(name, "alter_configs(): the name")
        arguments.texts(changes, "alter_configs(): the changes")
        deadline_ms = self._deadline(timeout_s)
        configs = [
            AlterableConfig(
                name=key, config_operation=_DELETE if value is None else _SET, value=value
            )
            for key, value in changes.items()
        ]
        resource = AlterConfigsResource(
            resource_type=BROKER_RESOURCE if broker else TOPIC_RESOURCE,
            resource_name=name,
            configs=configs,
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        if not broker:
            self._checked([name], deadline_ms)

        def attempt() -> None:
            target = self._config_target(name, broker, deadline_ms)
            answer = self._ask(IncrementalAlterConfigsResponse, target, request, deadline_ms)
            raise_failed(
                "changing the configuration of",
                {r.resource_name: (r.error_code, r.error_message) for r in answer.responses},
            )

        self._until(deadline_ms, attempt, mutates=True)

    def _config_target(self, name: str, broker: bool, deadline_ms: int) -> int:
        """Only a broker itself knows its configuration."""
        if not broker:
            return ANY
        with looking_up():
            nodes = self._refresh(deadline_ms).nodes
        if not name.isdigit() or int(name) not in nodes:
            raise UsageError(f"there is no broker {name!r}; brokers by id: {sorted(nodes)}")
        return int(name)

    # -- records and offsets

    def delete_records(
        self, before: ByPartition[int], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records before the given offsets (-1: all); the new first offsets."""
        deadline_ms = self._deadline(timeout_s)
        low: dict[TopicPartition, int] = {}
        call = "delete_records"
        firsts = {
            tp: arguments.whole_number(offset, f"{call}(): the offset of {tp}", -1)
            for tp, offset in arguments.by_partition(before, call, "offsets")
        }

        def attempt() -> None:
            left = [tp for tp in firsts if tp not in low]
            requests: dict[int, Message | Versioned] = {}
            for node_id, tps in self._leaders(left, deadline_ms).items():
                topics: dict[str, DeleteRecordsTopic] = {}
                for tp in tps:
                    topic = topics.setdefault(tp.topic, DeleteRecordsTopic(name=tp.topic))
                    topic.partitions.append(
                        DeleteRecordsPartition(partition_index=tp.partition, offset=firsts[tp])
                    )
                requests[node_id] = DeleteRecordsRequest(
                    topics=list(topics.values()), timeout_ms=self._broker_wait_ms(deadline_ms)
                )
            failed: dict[str, tuple[int, str | None]] = {}
            for _, answer in self._answers(DeleteRecordsResponse, requests, deadline_ms):
                for topic in answer.topics:
                    for p in topic.partitions:
                        tp = TopicPartition(topic.name, p.partition_index)
                        if not p.error_code:
                            low[tp] = p.low_watermark
                        failed[str(tp)] = (p.error_code, None)
            raise_failed("deleting records of", failed)

        self._check_partitions(firsts, deadline_ms)
        self._until(deadline_ms, attempt)
        return low

    def list_offsets(
        self,
        wanted: ByPartition[OffsetSpec],
        *,
        isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
        partial: bool = False,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets by time or by name, one request a leader.

        A partition without a record at or after the time has offset -1. With `read_committed`,
        `latest` is the end of what such consumers may read. With `partial`, what no leader tells
        within `timeout_s`, and what is not there, is left out instead of raised. Raises
        UnsupportedVersionError where a broker does not know the name.
        """
        levels = ("read_uncommitted", "read_committed")
        arguments.choice(isolation_level, levels, "list_offsets(): isolation_level")
        isolation = int(isolation_level == "read_committed")
        deadline_ms = self._deadline(timeout_s)
        places = arguments.by_partition(wanted, "list_offsets", "places")
        times = {tp: _timestamp(spec) for tp, spec in places}
        offsets: dict[TopicPartition, OffsetAndTimestamp] = {}

        def attempt() -> None:
            left = [tp for tp in times if tp not in offsets]
            requests: dict[int, Message | Versioned] = {
                node_id: _list_offsets(tps, times, isolation, self._broker_wait_ms(deadline_ms))
                for node_id, tps in self._leaders(left, deadline_ms, partial=partial).items()
            }
            failed: dict[str, tuple[int, str | None]] = {}
            for _, answer in self._answers(ListOffsetsResponse, requests, deadline_ms):
                for topic in answer.topics:
                    for p in topic.partitions:
                        tp = TopicPartition(topic.name, p.partition_index)
                        failed[str(tp)] = (p.error_code, None)
                        if not p.error_code:
                            offsets[tp] = OffsetAndTimestamp(p.offset, p.timestamp, p.leader_epoch)
            raise_failed("listing offsets of", failed)

        try:
            if not partial:
                self._check_partitions(times, deadline_ms)
            self._until(deadline_ms, attempt)
        except (BrokerError, ConnectionFailedError, KafkaTimeoutError):
            if not partial:
                raise
        return offsets

    def reset_group_offsets(
        self,
        group_id: str,
        to: OffsetSpec,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, int]:
        """Move a group to `to`; returns the offsets that are committed now.

        Of these partitions (None: all with a committed offset). Where no record is as young as a
        time, the group continues at the end. Raises GroupError while the group has members.
        """
        deadline_ms = self._deadline(timeout_s)
        arguments.name(group_id, "reset_group_offsets(): the group")
        _timestamp(to)

        def left_s() -> float:
            return max(0, deadline_ms - self._now_ms()) / 1000

        if partitions is None:
            chosen = list(self.list_group_offsets(group_id, timeout_s=left_s()))
        else:
            chosen = arguments.partitions(partitions, "reset_group_offsets")
        by_spec = self.list_offsets(dict.fromkeys(chosen, to), timeout_s=left_s())
        none = [tp for tp, at in by_spec.items() if at.offset < 0]
        ends = self.list_offsets(dict.fromkeys(none, "latest"), timeout_s=left_s())
        targets = {tp: (ends.get(tp) or at).offset for tp, at in by_spec.items()}
        if targets:
            self.alter_group_offsets(group_id, targets, timeout_s=left_s())
        return targets

    # -- the cluster

    def describe_cluster(self, *, timeout_s: float | None = None) -> ClusterDescription:
        """The cluster's id, controller and brokers."""
        metadata = self._refresh(self._deadline(timeout_s))
        nodes = tuple(sorted(metadata.nodes.values(), key=lambda node: node.node_id))
        return ClusterDescription(metadata.cluster_id, metadata.controller_id, nodes)


def _timestamp(spec: OffsetSpec) -> int:
    """A time, or the number that a name represents. Raises UsageError for another name."""
    if isinstance(spec, int) and not isinstance(spec, bool) and spec < 1 << 63:
        return spec
    if not isinstance(spec, str) or spec not in _TIMESTAMPS:
        raise UsageError(f"offset {spec!r}: a time in milliseconds, or {', '.join(_TIMESTAMPS)}")
    return _TIMESTAMPS[spec]


def _new_topic(topic: NewTopic | str) -> NewTopic:
    if not isinstance(topic, NewTopic):
        return NewTopic(
            arguments.name(topic, "create_topics() takes names or NewTopics; one of them")
        )
    arguments.name(topic.name, "create_topics(): the name of a topic")
    arguments.whole_number(topic.partitions, f"topic {topic.name!r}: its partitions", -1)
    arguments.whole_number(topic.replication_factor, f"topic {topic.name!r}: its replicas", -1)
    arguments.texts(topic.configs, f"the configs of topic {topic.name!r}")
    return topic


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[CreatableTopicConfig(name=k, value=v) for k, v in topic.configs.items()],
    )


def _description(name: str, topic: MetadataResponseTopic) -> TopicDescription:
    partitions = tuple(
        PartitionDescription(
            p.partition_index,
            p.leader_id,
            p.leader_epoch,
            tuple(p.replica_nodes),
            tuple(p.isr_nodes),
        )
        for p in sorted(topic.partitions, key=lambda p: p.partition_index)
    )
    return TopicDescription(name, topic.topic_id, topic.is_internal, partitions)


def _list_offsets(
    tps: Iterable[TopicPartition],
    times: Mapping[TopicPartition, int],
    isolation_level: int,
    timeout_ms: int,
) -> Versioned:
    topics: dict[str, ListOffsetsTopic] = {}
    for tp in tps:
        topic = topics.setdefault(tp.topic, ListOffsetsTopic(name=tp.topic))
        topic.partitions.append(
            ListOffsetsPartition(partition_index=tp.partition, timestamp=times[tp])
        )

    def build(version: int) -> Message:
        require_version(version, times.values())
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=isolation_level, topics=list(topics.values())
        )
        if version >= 10:
            request.timeout_ms = timeout_ms
        return request

    return Versioned(ListOffsetsRequest, build)
