"""The consumer's requests on their way: sent through the cluster, answers brought to the core.

Rules:
- Lives on the network thread. Every request carries its token back, with the answer in the core's
  terms or with the error that came instead.
- Fetches of one node go over two connections, so that a long poll delays no other fetch (and
  a third one where both of them wait for partitions that were read to their end). The
  coordinator has a connection of its own (spec 1.3: a heartbeat never waits behind a fetch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from kohort.client.cluster.client import ClusterClient, ConnectionKind, Versioned
from kohort.client.common.config import ConsumerConfig
from kohort.client.common.types import TopicPartition
from kohort.client.consumer import requests
from kohort.client.consumer.local_reads import LocalDirectory, LocalReads
from kohort.client.consumer.plan.commit_queue import CommitSend, Identity
from kohort.client.consumer.plan.committed_offsets import Committed, CommittedSend
from kohort.client.consumer.plan.fetch_planner import FetchOrder, FetchResult
from kohort.client.consumer.plan.fetch_session import FetchSession
from kohort.client.consumer.plan.offset_fetcher import FindStart, LookUp, OffsetAnswer, Question
from kohort.client.consumer.plan.offset_lookups import QuerySend, TimeAnswer
from kohort.errors import BrokerError, DecodeError, ErrorCode, GroupError, KohortError
from kohort.metrics.events import FetchDone
from kohort.wire import ZERO_UUID, Message, local_files
from kohort.wire.messages.fetch_request import FetchRequest
from kohort.wire.messages.fetch_response import FetchResponse
from kohort.wire.messages.list_offsets_response import ListOffsetsResponse
from kohort.wire.messages.offset_commit_request import OffsetCommitRequest
from kohort.wire.messages.offset_commit_response import OffsetCommitResponse
from kohort.wire.messages.offset_fetch_request import OffsetFetchRequest
from kohort.wire.messages.offset_fetch_response import OffsetFetchResponse
from kohort.wire.messages.offset_for_leader_epoch_response import OffsetForLeaderEpochResponse

FETCH_KINDS: tuple[ConnectionKind, ConnectionKind, ConnectionKind] = ("fetch", "fetch-2", "fetch-3")
"""The last one is the planner's `SPARE`."""
LAST_FETCH_BY_NAME = 12
LOCAL_READS_FROM = 12  # tagged fields
LAST_OFFSETS_BY_NAME = 9
EARLY_MS = 10
"""A fetch that brings nothing and ends so much before its time was cut short by the broker."""
SESSIONS_END_MS = 250
"""A broker that does not answer the end of a session so soon may find out for itself."""
READ_COMMITTED = "read_committed"
EPOCH_CODES = frozenset({ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})


LookedUpAnswer = tuple[int, Mapping[TopicPartition, Committed]] | KohortError
LookedUp = Callable[[LookedUpAnswer], None]


class Answers(Protocol):
    """Where answers go."""

    def fetched(self, token: int, answer: list[FetchResult] | KohortError) -> None:
        """Of a Fetch."""
        ...

    def cut_short(self) -> None:
        """A Fetch was ended early for nothing: the broker has news for the group's members."""
        ...

    def resolved(
        self, token: int, answer: Mapping[TopicPartition, OffsetAnswer] | KohortError
    ) -> None:
        """Of a question where to read."""
        ...

    def listed(self, token: int, answer: Mapping[TopicPartition, TimeAnswer] | KohortError) -> None:
        """Of a query by time."""
        ...

    def looked_up(
        self, token: int, answer: tuple[int, Mapping[TopicPartition, Committed]] | KohortError
    ) -> None:
        """Of a query for committed offsets."""
        ...

    def stale_epoch(self) -> None:
        """An OffsetFetch was refused because of the member's epoch (KIP-848)."""
        ...

    def commit_answered(
        self, token: int, answer: Mapping[TopicPartition, int] | KohortError
    ) -> None:
        """Of an OffsetCommit."""
        ...


class Exchange:
    """Sends for one consumer. `coordinator` is set while it is known."""

    def __init__(self, config: ConsumerConfig, cluster: ClusterClient) -> None:
        self._config = config
        self._cluster = cluster
        self.answers: Answers
        """Gets every answer; set before the first request."""
        self._group = config.group_id or ""
        self._isolation = int(config.isolation_level == READ_COMMITTED)
        self._sessions: dict[tuple[int, int], FetchSession] = {}
        """By node and lane: one for each connection that fetches."""
        self._fetching: set[tuple[int, int]] = set()  # those with a Fetch under way
        self._ended = False
        self._local = LocalReads(config.receive_message_max_bytes)
        self._terms = requests.FetchTerms(
            config.fetch_min_bytes, self._isolation, config.client_rack
        )

    # -- reading ---------------------------------------------------------------------------------

    def fetch(self, order: FetchOrder) -> None:
        """Send a Fetch."""
        if self._ended:
            return
        self._fetching.add((order.node, order.lane))
        ids = self._ids(part.tp for part in order.parts)
        loop = self._cluster.loop
        sent_ms = loop.now_ms()
        until_ms = sent_ms + order.max_wait_ms - EARLY_MS
        session = self._sessions.setdefault((order.node, order.lane), FetchSession())

        directory: LocalDirectory | None = None

        def build(version: int) -> FetchRequest:
            nonlocal directory
            request = requests.fetch(
                order, session.ask(order.parts, ids.id, version), self._terms, ids.id
            )
            directory = self._directory(order, version)
            if directory is not None:
                request.unknown_tags = [(local_files.TAG, b"")]
            return request

        def done(answer: Message | KohortError) -> None:
            self._fetching.discard((order.node, order.lane))
            if isinstance(answer, KohortError):
                session.lost()
                self.answers.fetched(order.token, answer)
                return
            assert isinstance(answer, FetchResponse)
            named = requests.fetched(answer, ids.name, directory)
            try:
                results = session.answered(answer.error_code, answer.session_id, named)
            except DecodeError as error:
                session.lost()
                self.answers.fetched(order.token, error)
                return
            if results is None:
                self.fetch(order)
            elif answer.error_code:
                error = BrokerError(answer.error_code, f"fetching from node {order.node}")
                self.answers.fetched(order.token, error)
            else:
                if loop.now_ms() < until_ms and not any(r.error or len(r.records) for r in results):
                    self.answers.cut_short()
                self.answers.fetched(order.token, results)
                sizes = [size for result in results if (size := len(result.records))]
                took_ms = loop.now_ms() - sent_ms
                self._cluster.events.emit(FetchDone(order.node, took_ms, sum(sizes), len(sizes)))

        self._cluster.request(
            order.node,
            Versioned(FetchRequest, build, at_most=LAST_FETCH_BY_NAME if ids.lacking else None),
            done,
            timeout_ms=order.max_wait_ms + self._config.request_timeout_ms,
            kind=FETCH_KINDS[order.lane],
        )

    def _directory(self, order: FetchOrder, version: int) -> LocalDirectory | None:
        """Where this order's answer may leave its records (ADR 0015); asked when it is sent."""
        if not self._config.local_reads or version < LOCAL_READS_FROM:
            return None
        path = self._cluster.connections.local_directory(order.node, FETCH_KINDS[order.lane])
        return self._local.usable(path, self._cluster.loop.now_ms())

    def end_sessions(self, on_done: Callable[[KohortError | None], None]) -> None:
        """Stop fetching and close the fetch sessions; `on_done` is called at the end.

        A connection with a fetch under way would hold the word back: it goes over another then.
        """
        self._ended = True
        self._local.close()
        open_ids = {place: session.end() for place, session in self._sessions.items()}
        left = [
            at
            for at, known in open_ids.items()
            if known and self._cluster.connections.can_reach(at[0])
        ]
        if not left:
            on_done(None)
        for node, lane in list(left):

            def done(_: Message | KohortError, place: tuple[int, int] = (node, lane)) -> None:
                left.remove(place)
                if not left:
                    on_done(None)

            self._cluster.request(
                node,
                requests.end_of_fetches(open_ids[node, lane]),
                done,
                timeout_ms=SESSIONS_END_MS,
                kind="general" if (node, lane) in self._fetching else FETCH_KINDS[lane],
            )

    def ask(
        self, question: Question, coordinator: int | None, asker: Identity, kind: ConnectionKind
    ) -> None:
        """Send a question about where to read.

        Args:
            asker: a member of the consumer protocol.
            kind: the coordinator's connection that is free.
        """
        timeout_ms, token = self._config.request_timeout_ms, question.token
        if isinstance(question, LookUp):
            assert coordinator is not None, "look-ups are planned for a known coordinator"
            self._offset_fetch(
                coordinator,
                tuple(question.parts),
                asker,
                kind,
                lambda answer: self.answers.resolved(token, _for_offset_fetcher(question, answer)),
            )
            return
        if isinstance(question, FindStart):
            message: Message = requests.find_start(question, self._isolation, timeout_ms)
        else:
            message = requests.validate(question)

        def done(answer: Message | KohortError) -> None:
            if isinstance(answer, ListOffsetsResponse):
                self.answers.resolved(token, requests.starts(answer))
            elif isinstance(answer, OffsetForLeaderEpochResponse):
                self.answers.resolved(token, requests.validated(answer))
            else:
                assert isinstance(answer, KohortError)
                self.answers.resolved(token, answer)

        self._cluster.request(question.node, message, done)

    def ask_offsets(self, send: QuerySend) -> None:
        """Send a caller's query by time."""

        def done(answer: Message | KohortError) -> None:
            if isinstance(answer, ListOffsetsResponse):
                self.answers.listed(send.token, requests.listed(answer))
            else:
                assert isinstance(answer, KohortError)
                self.answers.listed(send.token, answer)

        message = requests.query(send, self._isolation, self._config.request_timeout_ms)
        self._cluster.request(send.node, message, done)

    # -- the group's offsets ---------------------------------------------------------------------

    def ask_committed(
        self,
        send: CommittedSend,
        coordinator: int,
        asker: Identity,
        kind: ConnectionKind,
    ) -> None:
        """Send a caller's query for committed offsets; `asker` and `kind` as for `ask`."""
        self._offset_fetch(
            coordinator,
            send.tps,
            asker,
            kind,
            lambda answer: self.answers.looked_up(send.token, answer),
        )

    def commit(self, send: CommitSend, coordinator: int, kind: ConnectionKind = "group") -> None:
        """Send an OffsetCommit; `kind` is the coordinator's connection that is free."""
        ids = self._ids(send.offsets)

        def done(answer: Message | KohortError) -> None:
            if isinstance(answer, OffsetCommitResponse):
                codes = requests.committed_codes(answer, ids.name)
                self.answers.commit_answered(send.token, codes)
            else:
                assert isinstance(answer, KohortError)
                self.answers.commit_answered(send.token, answer)

        self._cluster.request(
            coordinator,
            Versioned(
                OffsetCommitRequest,
                lambda _: requests.offset_commit(self._group, send, ids.id),
                at_most=LAST_OFFSETS_BY_NAME if ids.lacking else None,
            ),
            done,
            kind=kind,
        )

    def _offset_fetch(
        self,
        coordinator: int,
        tps: tuple[TopicPartition, ...],
        asker: Identity,
        kind: ConnectionKind,
        on_answer: LookedUp,
    ) -> None:
        ids = self._ids(tps)

        def done(answer: Message | KohortError) -> None:
            if isinstance(answer, OffsetFetchResponse):
                committed = requests.offsets_fetched(answer, ids.name)
                if committed[0] in EPOCH_CODES:
                    self.answers.stale_epoch()
                on_answer(committed)
            else:
                assert isinstance(answer, KohortError)
                on_answer(answer)

        self._cluster.request(
            coordinator,
            Versioned(
                OffsetFetchRequest,
                lambda version: requests.offset_fetch(self._group, asker, tps, ids.id, version),
                at_most=LAST_OFFSETS_BY_NAME if ids.lacking else None,
            ),
            done,
            kind=kind,
        )

    def _ids(self, tps: Iterable[TopicPartition]) -> _TopicIds:
        known = self._cluster.metadata.topics
        names = dict.fromkeys(tp.topic for tp in tps)
        return _TopicIds({n: t.topic_id if (t := known.get(n)) else ZERO_UUID for n in names})


class _TopicIds:
    """The ids of a request's topics as they were when it was made.

    It may be sent and answered when metadata no longer has them: a topic that is not subscribed to
    any more is dropped from there, and its last commit is still to be understood.
    """

    def __init__(self, ids: dict[str, bytes]) -> None:
        self._ids = ids
        self._names = {bytes(topic_id): name for name, topic_id in ids.items()}
        self.lacking = ZERO_UUID in ids.values()
        """Whether some topic's id is unknown, so that requests must use names."""

    def id(self, topic: str) -> bytes:
        """The id of a topic of the request."""
        return self._ids[topic]

    def name(self, topic_id: bytes) -> str | None:
        """The topic of the request that has this id."""
        return self._names.get(bytes(topic_id))


def _for_offset_fetcher(
    question: LookUp, answer: LookedUpAnswer
) -> Mapping[TopicPartition, OffsetAnswer] | KohortError:
    """A group's error becomes every partition's, unless it is for the caller to mend."""
    if isinstance(answer, KohortError):
        return answer
    code, parts = answer
    if code in EPOCH_CODES:  # asked again with the next epoch, if they are still owned then
        return {tp: OffsetAnswer(code, -1) for tp in question.parts}
    if code:
        return GroupError(code, "asking for committed offsets")
    return {
        tp: OffsetAnswer(part.error, part.offset, part.leader_epoch) for tp, part in parts.items()
    }
