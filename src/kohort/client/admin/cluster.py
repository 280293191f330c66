"""The admin client's calls about brokers: their disks, who produces, transactions, quotas, leaders.

Rules: as `admin`. What only a broker itself knows (its disks, its transactions) is asked of each,
and what of a partition, of its leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, Literal

from kohort import __version__
from kohort.acl import Operation
from kohort.client.admin.calls import AdminCalls, each_of, raise_failed
from kohort.client.admin.types import (
    BrokerFeatures,
    LogDirDescription,
    LogDirsSurvey,
    PartitionDescription,
    ProducerDescription,
    QuotaEntity,
    ReplicaSize,
    TopicDescription,
    TransactionDescription,
    TransactionListing,
)
from kohort.client.cluster.client import ANY, Versioned
from kohort.client.cluster.find_coordinator import TRANSACTION, coordinator_in, find_coordinator
from kohort.client.common import arguments as arguments
from kohort.client.common.types import TopicPartition
from kohort.errors import (
    BrokerError,
    ConnectionFailedError,
    ErrorCode,
    KafkaTimeoutError,
    UnsupportedVersionError,
    UsageError,
)
from kohort.wire import Message
from kohort.wire.messages import alter_client_quotas_request as altered
from kohort.wire.messages import elect_leaders_request as elected
from kohort.wire.messages.alter_client_quotas_response import AlterClientQuotasResponse
from kohort.wire.messages.api_versions_request import ApiVersionsRequest
from kohort.wire.messages.api_versions_response import ApiVersionsResponse
from kohort.wire.messages.describe_client_quotas_request import (
    ComponentData,
    DescribeClientQuotasRequest,
)
from kohort.wire.messages.describe_client_quotas_response import DescribeClientQuotasResponse
from kohort.wire.messages.describe_cluster_request import DescribeClusterRequest
from kohort.wire.messages.describe_cluster_response import DescribeClusterResponse
from kohort.wire.messages.describe_log_dirs_request import DescribeLogDirsRequest
from kohort.wire.messages.describe_log_dirs_response import (
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from kohort.wire.messages.describe_producers_request import DescribeProducersRequest, TopicRequest
from kohort.wire.messages.describe_producers_response import DescribeProducersResponse
from kohort.wire.messages.describe_topic_partitions_request import (
    Cursor,
    DescribeTopicPartitionsRequest,
)
from kohort.wire.messages.describe_topic_partitions_request import TopicRequest as WantedTopic
from kohort.wire.messages.describe_topic_partitions_response import (
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
)
from kohort.wire.messages.describe_transactions_request import DescribeTransactionsRequest
from kohort.wire.messages.describe_transactions_response import DescribeTransactionsResponse
from kohort.wire.messages.elect_leaders_response import ElectLeadersResponse
from kohort.wire.messages.find_coordinator_response import FindCoordinatorResponse
from kohort.wire.messages.list_transactions_request import ListTransactionsRequest
from kohort.wire.messages.list_transactions_response import ListTransactionsResponse
from kohort.wire.messages.write_txn_markers_request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kohort.wire.messages.write_txn_markers_response import WriteTxnMarkersResponse

_EXACT, _DEFAULT = 0, 1
_PREFERRED, _UNCLEAN = 0, 1
_DURATION_FROM, _PATTERN_FROM = 1, 2
_CODES_FROM: Final = 1
_SURVEY_ROUNDS: Final = 2


class AdminCluster(AdminCalls):
    """`Admin`'s calls about brokers and their state."""

    # -- what a broker can, what this user may

    def broker_features(
        self, brokers: Iterable[int] | None = None, *, timeout_s: float | None = None
    ) -> dict[int, BrokerFeatures]:
        """What each broker (None: of all) understands. Raises ConnectionFailedError."""
        if brokers is not None:
            brokers = arguments.several(brokers, "broker_features")
            brokers = [arguments.whole_number(each, "the id of a broker") for each in brokers]
        deadline_ms = self._deadline(timeout_s)
        request = ApiVersionsRequest(
            client_software_name="kohort", client_software_version=__version__
        )

        def attempt() -> dict[int, BrokerFeatures]:
            node_ids = self._brokers(brokers, deadline_ms)
            answers = self._ask_all(
                ApiVersionsResponse, dict.fromkeys(node_ids, request), deadline_ms
            )
            raise_failed(
                "asking for the features of broker",
                {str(node_id): (a.error_code, None) for node_id, a in answers.items()},
            )
            return {
                node_id: BrokerFeatures(
                    {api.api_key: (api.min_version, api.max_version) for api in a.api_keys},
                    {f.name: f.max_version_level for f in a.finalized_features},
                )
                for node_id, a in answers.items()
            }

        return self._until(deadline_ms, attempt)

    def allowed_operations(self, *, timeout_s: float | None = None) -> frozenset[str]:
        """What this user may do with the cluster: `create`, `alter`, ... (KIP-430).

        Raises UnsupportedVersionError from a broker before Kafka 2.8.
        """
        deadline_ms = self._deadline(timeout_s)
        request = DescribeClusterRequest(include_cluster_authorized_operations=True)

        def attempt() -> frozenset[str]:
            answer = self._ask(DescribeClusterResponse, ANY, request, deadline_ms)
            raise_failed("describing", {"the cluster": (answer.error_code, answer.error_message)})
            bits = answer.cluster_authorized_operations
            if bits < 0:  # the broker did not report them
                return frozenset()
            return frozenset(one.name.lower() for one in Operation if bits >> one & 1)

        return self._until(deadline_ms, attempt)

    # -- disks

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, *, timeout_s: float | None = None
    ) -> dict[int, list[LogDirDescription]]:
        """The log directories of brokers (None: of all), with the size of each replica in bytes.

        Raises BrokerError when a broker refuses, UsageError for one that is not there.
        """
        if brokers is not None:
            brokers = arguments.several(brokers, "describe_log_dirs")
            brokers = [arguments.whole_number(each, "the id of a broker") for each in brokers]
        deadline_ms = self._deadline(timeout_s)
        node_ids = self._brokers(brokers, deadline_ms)
        request = DescribeLogDirsRequest(topics=None)

        def attempt() -> dict[int, list[LogDirDescription]]:
            answers = self._ask_all(
                DescribeLogDirsResponse, dict.fromkeys(node_ids, request), deadline_ms
            )
            raise_failed(
                "describing the log directories of broker",
                {str(node_id): (a.error_code, None) for node_id, a in answers.items()},
            )
            return {n: [_log_dir(result) for result in a.results] for n, a in answers.items()}

        return self._until(deadline_ms, attempt)

    def survey_log_dirs(self, *, timeout_s: float | None = None) -> LogDirsSurvey:
        """The log directories of all brokers that answer; a broker that is down costs no other.

        All brokers are asked at once, and one that cannot be reached once more.

        Args:
            timeout_s: for the whole call, in seconds; `default_api_timeout_ms` by default.

        Returns:
            Log directories by broker, and the brokers that did not answer with the reason. A
            broker that refuses to describe its log directories to this user is in neither.

        Raises:
            ConnectionFailedError: no broker answers at all.
        """
        deadline_ms = self._deadline(timeout_s)
        log_dirs: dict[int, tuple[LogDirDescription, ...]] = {}
        unreachable = dict.fromkeys(sorted(self._refresh(deadline_ms).nodes), "")
        request = DescribeLogDirsRequest(topics=None)
        for _ in range(_SURVEY_ROUNDS):
            started = {n: self._start(n, request, deadline_ms) for n in unreachable}
            unreachable = {}
            for node_id, future in started.items():
                try:
                    answer = future.result()
                except (ConnectionFailedError, KafkaTimeoutError) as error:
                    unreachable[node_id] = str(error)
                    continue
                assert isinstance(answer, DescribeLogDirsResponse)
                if not answer.error_code:
                    log_dirs[node_id] = tuple(_log_dir(result) for result in answer.results)
        return LogDirsSurvey(log_dirs, unreachable)

    # -- producers and transactions

    def describe_producers(
        self, partitions: Iterable[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """The producers of partitions that have a producer id, and whose transaction is open."""
        deadline_ms = self._deadline(timeout_s)
        requested = arguments.partitions(partitions, "describe_producers")
        producers: dict[TopicPartition, list[ProducerDescription]] = {}

        def attempt() -> None:
            left = [tp for tp in requested if tp not in producers]
            requests: dict[int, Message | Versioned] = {}
            for node_id, tps in self._leaders(left, deadline_ms).items():
                topics: dict[str, TopicRequest] = {}
                for tp in tps:
                    topic = topics.setdefault(tp.topic, TopicRequest(name=tp.topic))
                    topic.partition_indexes.append(tp.partition)
                requests[node_id] = DescribeProducersRequest(topics=list(topics.values()))
            failed: dict[str, tuple[int, str | None]] = {}
            for _, answer in self._answers(DescribeProducersResponse, requests, deadline_ms):
                for topic in answer.topics:
                    for part in topic.partitions:
                        tp = TopicPartition(topic.name, part.partition_index)
                        failed[str(tp)] = (part.error_code, part.error_message)
                        if not part.error_code:
                            producers[tp] = [
                                ProducerDescription(
                                    p.producer_id,
                                    p.producer_epoch,
                                    p.last_sequence,
                                    p.last_timestamp,
                                    p.coordinator_epoch,
                                    p.current_txn_start_offset,
                                )
                                for p in part.active_producers
                            ]
            raise_failed("describing the producers of", failed)

        self._check_partitions(requested, deadline_ms)
        self._until(deadline_ms, attempt)
        return producers

    def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int = -1,
        pattern: str = "",
        timeout_s: float | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids that all brokers know and every filter lets pass, by name.

        `states`: Kafka's names (`Ongoing`, `Empty`, ...). `pattern`: a regular expression for the
        whole id (KIP-1152). Raises UnsupportedVersionError where a broker cannot filter so.
        """
        call, deadline_ms = "list_transactions", self._deadline(timeout_s)
        state_filters, producers = (
            arguments.names(states, call),
            arguments.several(producer_ids, call),
        )
        producer_filters = [
            arguments.whole_number(each, "a producer id", -(1 << 63)) for each in producers
        ]
        arguments.whole_number(longer_than_ms, f"{call}(): longer_than_ms", -1)
        if pattern != "":
            arguments.name(pattern, f"{call}(): the pattern")

        def build(version: int) -> Message:
            needed = _PATTERN_FROM if pattern else _DURATION_FROM if longer_than_ms >= 0 else 0
            if version < needed:
                raise UnsupportedVersionError(
                    f"the broker serves ListTransactions up to version {version}; filtering so "
                    f"needs {needed}"
                )
            request = ListTransactionsRequest(
                state_filters=state_filters, producer_id_filters=producer_filters
            )
            if longer_than_ms >= 0:
                request.duration_filter = longer_than_ms
            if pattern:
                request.transactional_id_pattern = pattern
            return request

        def attempt() -> list[TransactionListing]:
            brokers = self._brokers(None, deadline_ms)
            requests = dict.fromkeys(brokers, Versioned(ListTransactionsRequest, build))
            answers = self._ask_all(ListTransactionsResponse, requests, deadline_ms)
            raise_failed(
                "listing the transactions of broker",
                {str(node_id): (a.error_code, None) for node_id, a in answers.items()},
            )
            transactions = [
                TransactionListing(s.transactional_id, s.producer_id, s.transaction_state)
                for answer in answers.values()
                for s in answer.transaction_states
            ]
            return sorted(transactions, key=lambda listing: listing.transactional_id)

        return self._until(deadline_ms, attempt)

    def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout_s: float | None = None
    ) -> dict[str, TransactionDescription]:
        """The state of transactional ids, each from its coordinator.

        Raises BrokerError (TRANSACTIONAL_ID_NOT_FOUND, ...) when one is not known.
        """
        deadline_ms = self._deadline(timeout_s)

        def describe(name: str) -> TransactionDescription:
            return self._until(deadline_ms, lambda: self._transaction(name, deadline_ms))

        names = arguments.names(transactional_ids, "describe_transactions")
        return each_of("describing transaction", names, describe)

    def _transaction(self, name: str, deadline_ms: int) -> TransactionDescription:
        request = find_coordinator(name, TRANSACTION)
        coordinator = coordinator_in(
            self._ask(FindCoordinatorResponse, ANY, request, deadline_ms), name
        )
        if isinstance(coordinator, BrokerError):
            raise coordinator
        self._thread.call(self._cluster.connections.learn, coordinator).result()
        answer = self._ask(
            DescribeTransactionsResponse,
            coordinator.node_id,
            DescribeTransactionsRequest(transactional_ids=[name]),
            deadline_ms,
        )
        [state] = answer.transaction_states
        raise_failed("describing transaction", {name: (state.error_code, None)})
        return TransactionDescription(
            name,
            state.transaction_state,
            state.producer_id,
            state.producer_epoch,
            state.transaction_timeout_ms,
            state.transaction_start_time_ms,
            tuple(TopicPartition(t.topic, p) for t in state.topics for p in t.partitions),
            coordinator,
        )

    def abort_transaction(
        self,
        partition: TopicPartition,
        producer: ProducerDescription,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """End an open transaction in one partition, which its coordinator knows no more (KIP-664).

        `producer` as `describe_producers` shows it, with the transaction's start offset. A
        transaction that its coordinator still knows ends by itself, at its timeout; to end it
        sooner call `init_transactions` with its transactional id. Raises UsageError where
        `producer` has no open transaction, BrokerError (INVALID_PRODUCER_EPOCH, ...).
        """
        tp = arguments.partition(partition, "abort_transaction")
        arguments.one_of(producer, ProducerDescription, "abort_transaction()")
        if producer.transaction_start_offset < 0:
            raise UsageError(
                f"producer {producer.producer_id} has no open transaction in {partition}"
            )
        deadline_ms = self._deadline(timeout_s)
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
            coordinator_epoch=max(0, producer.coordinator_epoch),  # before its first marker: none
        )
        request = WriteTxnMarkersRequest(markers=[marker])

        def attempt() -> None:
            [node_id] = self._leaders([tp], deadline_ms)
            answer = self._ask(WriteTxnMarkersResponse, node_id, request, deadline_ms)
            [result] = [p for m in answer.markers for t in m.topics for p in t.partitions]
            raise_failed("aborting the transaction in", {str(tp): (result.error_code, None)})

        self._check_partitions([tp], deadline_ms)
        self._until(deadline_ms, attempt)

    # -- quotas

    def describe_quotas(
        self,
        filters: Mapping[str, str | None] | None = None,
        *,
        strict: bool = False,
        timeout_s: float | None = None,
    ) -> dict[QuotaEntity, dict[str, float]]:
        """The quotas of all who match: `{("user", "ann"), ...}` -> `{"producer_byte_rate": ...}`.

        `filters`: kinds (`user`, `client-id`, `ip`) and names, None for the default of a kind;
        `strict` leaves out who is of further kinds, too.
        """
        arguments.texts({} if filters is None else filters, "describe_quotas(): the filters")
        deadline_ms = self._deadline(timeout_s)
        request = DescribeClientQuotasRequest(
            components=[
                ComponentData(
                    entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name
                )
                for kind, name in (filters or {}).items()
            ],
            strict=strict,
        )

        def attempt() -> dict[QuotaEntity, dict[str, float]]:
            answer = self._ask(DescribeClientQuotasResponse, ANY, request, deadline_ms)
            raise_failed("describing", {"quotas": (answer.error_code, answer.error_message)})
            return {
                frozenset((part.entity_type, part.entity_name) for part in entry.entity): {
                    value.key: value.value for value in entry.values
                }
                for entry in answer.entries or ()
            }

        return self._until(deadline_ms, attempt)

    def alter_quotas(
        self,
        entity: Mapping[str, str | None],
        changes: Mapping[str, float | None],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Set quotas of one entity (`{"user": "ann"}`; a name of None: the default of its kind).

        None takes a quota away. Raises BrokerError (INVALID_REQUEST, ...).
        """
        arguments.texts(entity, "alter_quotas(): the entity")
        arguments.numbers(changes, "alter_quotas(): the changes")
        deadline_ms = self._deadline(timeout_s)
        entry = altered.EntryData(
            entity=[
                altered.EntityData(entity_type=kind, entity_name=name)
                for kind, name in entity.items()
            ],
            ops=[
                altered.OpData(key=key, value=value or 0.0, remove=value is None)
                for key, value in changes.items()
            ],
        )
        request = altered.AlterClientQuotasRequest(entries=[entry], validate_only=validate_only)

        def attempt() -> None:
            answer = self._on_controller(AlterClientQuotasResponse, request, deadline_ms)
            raise_failed(
                "changing the quotas of",
                {str(dict(entity)): (e.error_code, e.error_message) for e in answer.entries},
            )

        self._until(deadline_ms, attempt)

    # -- leaders

    def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        kind: Literal["preferred", "unclean"] = "preferred",
        timeout_s: float | None = None,
    ) -> list[TopicPartition]:
        """Let partitions (None: all) be led as they should be; those whose leader changed.

        A partition that is led so already is no fault. `unclean` may lose records.
        """
        arguments.choice(kind, ("preferred", "unclean"), "elect_leaders(): kind")
        deadline_ms = self._deadline(timeout_s)
        chosen = None if partitions is None else arguments.partitions(partitions, "elect_leaders")
        changed: dict[TopicPartition, bool] = {}
        """Whether the leader of a partition changed; asked for again, it would not."""

        def build(version: int) -> Message:
            left = None if chosen is None else [tp for tp in chosen if tp not in changed]
            request = elected.ElectLeadersRequest(
                topic_partitions=_elections(left), timeout_ms=self._broker_wait_ms(deadline_ms)
            )
            if version >= _CODES_FROM:
                request.election_type = _UNCLEAN if kind == "unclean" else _PREFERRED
            elif kind == "unclean":
                raise UnsupportedVersionError("this broker cannot elect an unclean leader")
            return request

        def attempt() -> list[TopicPartition]:
            answer = self._on_controller(
                ElectLeadersResponse, Versioned(elected.ElectLeadersRequest, build), deadline_ms
            )
            raise_failed("electing", {"leaders": (answer.error_code, None)})
            results = {
                TopicPartition(topic.topic, part.partition_id): part
                for topic in answer.replica_election_results
                for part in topic.partition_result
            }
            failed: dict[str, tuple[int, str | None]] = {}
            for tp, part in results.items():
                if part.error_code in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED):
                    changed[tp] = not part.error_code or changed.get(tp, False)
                else:
                    failed[str(tp)] = (part.error_code, part.error_message)
            raise_failed("electing a leader of", failed)
            return [tp for tp, is_new in changed.items() if is_new]

        self._check_partitions(chosen or (), deadline_ms)
        return self._until(deadline_ms, attempt, mutates=True)

    # -- inside

    def _brokers(self, brokers: Iterable[int] | None, deadline_ms: int) -> list[int]:
        nodes = self._refresh(deadline_ms).nodes
        if brokers is None:
            return sorted(nodes)
        requested = list(brokers)
        unknown = sorted(set(requested) - set(nodes))
        if unknown:
            raise UsageError(f"there are no brokers {unknown}; brokers by id: {sorted(nodes)}")
        return requested

    def _page(
        self, request: DescribeTopicPartitionsRequest, deadline_ms: int
    ) -> DescribeTopicPartitionsResponse:
        return self._ask(DescribeTopicPartitionsResponse, ANY, request, deadline_ms)

    def _topic_pages(self, names: list[str], deadline_ms: int) -> dict[str, TopicDescription]:
        """Topics in pages (KIP-966), so that no answer is too large.

        Raises UnsupportedVersionError where the broker cannot, BrokerError when one does not exist.
        """
        topics: dict[str, TopicDescription] = {}
        failed: dict[str, tuple[int, str | None]] = {}
        cursor: Cursor | None = None
        while True:
            request = DescribeTopicPartitionsRequest(
                topics=[WantedTopic(name=name) for name in sorted(names)], cursor=cursor
            )
            answer = self._until(deadline_ms, partial(self._page, request, deadline_ms))
            for topic in answer.topics:
                name = topic.name or ""
                failed[name] = (topic.error_code, None)
                before = topics[name].partitions if name in topics else ()
                topics[name] = _described(topic, before)
            after = answer.next_cursor
            if after is None:
                break
            cursor = Cursor(topic_name=after.topic_name, partition_index=after.partition_index)
        raise_failed("topic", failed)
        return topics


def _elections(
    partitions: Iterable[TopicPartition] | None,
) -> list[elected.TopicPartitions] | None:
    if partitions is None:
        return None
    topics: dict[str, elected.TopicPartitions] = {}
    for name, number in partitions:
        topic = topics.setdefault(name, elected.TopicPartitions(topic=name))
        topic.partitions.append(number)
    return list(topics.values())


def _described(
    topic: DescribeTopicPartitionsResponseTopic, before: tuple[PartitionDescription, ...]
) -> TopicDescription:
    partitions = tuple(
        PartitionDescription(
            p.partition_index,
            p.leader_id,
            p.leader_epoch,
            tuple(p.replica_nodes),
            tuple(p.isr_nodes),
            tuple(p.eligible_leader_replicas or ()),
            tuple(p.last_known_elr or ()),
        )
        for p in topic.partitions
    )
    every = tuple(sorted((*before, *partitions), key=lambda p: p.partition))
    return TopicDescription(topic.name or "", topic.topic_id, topic.is_internal, every)


def _log_dir(result: DescribeLogDirsResult) -> LogDirDescription:
    sizes = {
        TopicPartition(topic.name, part.partition_index): ReplicaSize(
            part.partition_size, part.offset_lag, part.is_future_key
        )
        for topic in result.topics
        for part in topic.partitions
    }
    return LogDirDescription(
        result.log_dir, result.error_code, sizes, result.total_bytes, result.usable_bytes
    )
