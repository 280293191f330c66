"""One transaction that several processes write: one of them begins and ends it, all may write.

Shell: threads (waiting).

    transaction = SharedTransaction("query-1", 60_000, config)
    identity = transaction.init()                        # in the process that decides
    transaction.add(identity, [("t", 0), ("t", 1)])
    SharedWriter(config).write(identity, batches)        # in any process, each partition in one
    transaction.end(identity, commit=True)

Rules:
- Every transaction begins with InitProducerId, so that it has an epoch of its own: sequences begin
  at 0 in each partition, and a producer with an older epoch is refused.
- Partitions are added once, by the process that decides, before anything is written: Apache Kafka
  answers concurrent adds with CONCURRENT_TRANSACTIONS.
- Versions of before KIP-890 part 2 are asked for (ADR 0019): with `transaction.version` 2 an end
  gives the next epoch, and partitions add themselves, which writers in other processes cannot see.
- A partition of one epoch is written by one writer, once: sequences say nothing about content.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from kohort.client.admin.calls import AdminCalls
from kohort.client.cluster.client import ANY, Versioned
from kohort.client.cluster.find_coordinator import (
    GROUP,
    TRANSACTION,
    coordinator_in,
    find_coordinator,
)
from kohort.client.common.backoff import Backoff
from kohort.client.common.config import AdminConfig, known_to
from kohort.client.common.future import Future
from kohort.client.common.jitter import uniform
from kohort.client.common.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from kohort.client.producer.plan import transaction_requests as requests
from kohort.client.producer.plan.transaction_requests import Identity, Kind, Verdict
from kohort.errors import (
    AbortableTransactionError,
    BrokerError,
    ConnectionFailedError,
    ErrorCode,
    KafkaTimeoutError,
    KohortError,
)
from kohort.records.compression import Readable
from kohort.wire import Message
from kohort.wire.messages.find_coordinator_response import FindCoordinatorResponse
from kohort.wire.messages.init_producer_id_response import InitProducerIdResponse
from kohort.wire.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from kohort.wire.messages.offset_fetch_response import OffsetFetchResponse

M = TypeVar("M", bound=Message)
T = TypeVar("T")
_NAMES_UNTIL: Final = 9
_GROUPS_FROM: Final = 8
_FIRST_WAIT_MS, _LONGEST_WAIT_MS = 5, 500
"""The coordinator writes the markers of the transaction before: that takes a few milliseconds."""
_OVER: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)


class EncodedBatch(NamedTuple):
    """A record batch as a log will store it, without its identity yet."""

    topic: str
    partition: int
    records: int
    payload: Readable


class TransactionLostError(KohortError):
    """The transaction is over, and not ended by this process.

    `expired` tells that its time-out has passed; otherwise another process took the id over.
    """

    def __init__(self, message: str, *, expired: bool) -> None:
        super().__init__(message)
        self.expired = expired
        self.retriable = expired


class SharedTransaction(AdminCalls):
    """The transactions of one transactional id, one after the other, from the deciding process.

    Args:
        transactional_id: another `init` with the same id ends this producer.
        timeout_ms: the coordinator aborts a transaction that is open for longer. At most the
            broker's `transaction.max.timeout.ms`.
        config: the client's configuration in Kafka's names.

    Every call raises, besides its own errors: TransactionLostError, KafkaTimeoutError, BrokerError.
    """

    def __init__(self, transactional_id: str, timeout_ms: int, config: Mapping[str, Any]) -> None:
        super().__init__(AdminConfig.from_mapping(known_to(AdminConfig, config)))
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self._latest: Identity | None = None
        self._begun_ms = 0
        self._coordinators: dict[tuple[str, int], int] = {}

    def init(self) -> Identity:
        """Begin: a new epoch, once everything older is aborted or completed.

        The first call takes the id over; later ones find out when another process has done so.
        """
        mine = self._latest
        if mine is None or self._expired:
            mine = Identity(self.transactional_id, -1, -1)
        request = requests.init(mine, self.timeout_ms)
        answer = self._coordinated(Kind.INIT, request, InitProducerIdResponse)
        self._latest = Identity(self.transactional_id, answer.producer_id, answer.producer_epoch)
        self._begun_ms = self._now_ms()
        return self._latest

    def add(self, identity: Identity, partitions: Iterable[tuple[str, int]]) -> None:
        """Name the partitions that will be written."""
        self._coordinated(Kind.ADD_PARTITIONS, requests.add_partitions(identity, partitions))

    def set_offset(
        self, identity: Identity, group: str, partition: TopicPartition, value: OffsetAndMetadata
    ) -> None:
        """Let the transaction commit one offset of a group that has no members."""
        self._coordinated(Kind.ADD_OFFSETS, requests.add_offsets(identity, group))
        member = GroupMetadata(group, -1, "", None)
        message = requests.offsets(identity, member, {partition: value}, kip_890=False)
        self._coordinated(Kind.OFFSETS, message, group=group)

    def end(self, identity: Identity, *, commit: bool) -> None:
        """Commit or abort. A commit that was done before, under the same identity, is done."""
        self._coordinated(Kind.END, requests.end(identity, commit=commit, kip_890=False))

    def offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Everything that a group has committed, once no transaction is about to change it."""

        def build(version: int) -> Message:
            request = OffsetFetchRequest(require_stable=True)
            if version >= _GROUPS_FROM:
                request.groups = [OffsetFetchRequestGroup(group_id=group, topics=None)]
            else:
                request.group_id, request.topics = group, None
            return request

        message = Versioned(OffsetFetchRequest, build, at_most=_NAMES_UNTIL)

        def attempt() -> OffsetFetchResponse:
            node = self._find(group, GROUP)
            answer = self._ask(OffsetFetchResponse, node, message, self._deadline(None))
            part = answer.groups[0] if answer.groups else answer
            codes = [part.error_code, *(p.error_code for t in part.topics for p in t.partitions)]
            if code := next(filter(None, codes), 0):
                self._coordinators.clear()
                raise BrokerError(code, f"reading the offsets of group {group!r}")
            return answer

        answer = self._again(attempt)
        part = answer.groups[0] if answer.groups else answer
        return {
            TopicPartition(topic.name, p.partition_index): OffsetAndMetadata(
                p.committed_offset, p.metadata or ""
            )
            for topic in part.topics
            for p in topic.partitions
            if p.committed_offset >= 0
        }

    def partition_counts(self, topics: Collection[str]) -> dict[str, int]:
        """How many partitions each topic has. Raises BrokerError where there is no such topic."""

        def attempt() -> dict[str, int]:
            self._thread.call(self._cluster.watch_topics, set(topics)).result()
            metadata = self._refresh(self._deadline(None))
            for topic in topics:
                if topic in metadata.errors or not metadata.partitions_of(topic):
                    code = metadata.errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    error = BrokerError(code, f"topic {topic!r}; create it before the query starts")
                    known = code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    error.retriable = error.retriable and known
                    raise error
            return {topic: len(metadata.partitions_of(topic)) for topic in topics}

        return self._again(attempt)

    # Asking

    @property
    def _expired(self) -> bool:
        return self._latest is not None and self._now_ms() - self._begun_ms >= self.timeout_ms

    def _coordinated(
        self,
        kind: Kind,
        message: Message | Versioned,
        answer_kind: type[M] = Message,
        *,
        group: str | None = None,
    ) -> M:
        key = (self.transactional_id, TRANSACTION) if group is None else (group, GROUP)

        def attempt() -> M:
            node = self._find(*key)
            answer = self._ask(answer_kind, node, message, self._deadline(None))
            if codes := requests.codes_in(answer):
                self._coordinators.pop(key, None)
                raise self._error(kind, codes[0])
            return answer

        return self._again(attempt)

    def _find(self, key: str, kind: int) -> int:
        node_id = self._coordinators.get((key, kind))
        if node_id is None:
            request = find_coordinator(key, kind)
            answer = self._ask(FindCoordinatorResponse, ANY, request, self._deadline(None))
            coordinator = coordinator_in(answer, key)
            if isinstance(coordinator, BrokerError):
                raise coordinator
            self._thread.call(self._cluster.connections.learn, coordinator).result()
            node_id = self._coordinators[key, kind] = coordinator.node_id
        return node_id

    def _again(self, attempt: Callable[[], T]) -> T:
        """Until it succeeds or fails permanently: every request here may be repeated."""
        deadline_ms = self._deadline(None)
        backoff = Backoff(_FIRST_WAIT_MS, _LONGEST_WAIT_MS, uniform)
        while True:
            try:
                return attempt()
            except KohortError as error:
                if isinstance(error, ConnectionFailedError | KafkaTimeoutError):
                    self._coordinators.clear()
                wait_ms = backoff.failed()
                final = not error.retriable or isinstance(error, TransactionLostError)
                if final or self._now_ms() + wait_ms >= deadline_ms:
                    raise
                Future[None]().wait(wait_ms / 1000)

    def _error(self, kind: Kind, code: int) -> KohortError:
        name = f"{kind.value} of transactional id {self.transactional_id!r}"
        if code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            return BrokerError(
                code,
                f"{name}: a transaction timeout of {self.timeout_ms} ms is more than the broker's "
                "transaction.max.timeout.ms allows; lower the one or raise the other",
            )
        if code in _OVER:
            return lost(self.transactional_id, name, code, self.timeout_ms, expired=self._expired)
        if requests.verdict(kind, code) is Verdict.BROKEN:
            return AbortableTransactionError(f"{name}: {ErrorCode.name_of(code)}")
        return BrokerError(code, name)


def lost(
    transactional_id: str, what: str, code: int, timeout_ms: int, *, expired: bool
) -> TransactionLostError:
    """The error for a transaction that is over."""
    if expired:
        why = (
            f"it took longer than its timeout of {timeout_ms} ms, and the coordinator aborted it; "
            "raise transaction_timeout, or make the batch smaller"
        )
    else:
        why = (
            f"another process has taken over the transactional id {transactional_id!r}; run one "
            "driver of a query at a time"
        )
    return TransactionLostError(f"{what}: {ErrorCode.name_of(code)}: {why}", expired=expired)
