"""What the answers to a consumer's requests change; on the network thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from kohort.client.cluster.client import ClusterClient
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.commits import Commits
from kohort.client.consumer.fetch_reader import FetchReader
from kohort.client.consumer.group_session import GroupSession
from kohort.client.consumer.plan.committed_offsets import Committed, CommittedQueries
from kohort.client.consumer.plan.fetch_planner import FetchPlanner, FetchResult
from kohort.client.consumer.plan.offset_fetcher import OffsetAnswer, OffsetFetcher
from kohort.client.consumer.plan.offset_lookups import OffsetQueries, TimeAnswer
from kohort.client.consumer.plan.positions import Phase, Positions
from kohort.client.consumer.setup import log_reset
from kohort.client.consumer.topic_watch import TopicWatch
from kohort.errors import KohortError


class AnswerOwner(Protocol):
    """The parts of a consumer that answers change."""

    cluster: ClusterClient
    notify: Callable[[], None]
    positions: Positions
    planner: FetchPlanner
    offset_fetcher: OffsetFetcher
    reader: FetchReader
    queries: OffsetQueries
    committed: CommittedQueries
    commits: Commits
    topics: TopicWatch
    session: GroupSession | None

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Guards positions and plans."""
        ...

    def pump(self) -> None:
        """Send everything that may go out now."""
        ...


class AnswerHandlers:
    """The receiver of an `Exchange`: updates the plans, then lets the consumer plan again."""

    def __init__(self, owner: AnswerOwner) -> None:
        self._owner = owner
        self._loop = owner.cluster.loop

    def fetched(self, token: int, answer: list[FetchResult] | KohortError) -> None:
        """Of a Fetch: records become readable, or the fetch is planned again."""
        owner, now_ms = self._owner, self._loop.now_ms()
        with owner.lock:
            if isinstance(answer, KohortError):
                owner.planner.failed(token, now_ms)
                ready, stale = False, False
            else:
                arrival = owner.planner.arrived(token, answer, now_ms)
                for position in arrival.ready:
                    owner.reader.queue(position)
                ready, stale = bool(arrival.ready), arrival.stale_metadata
        if ready:
            owner.notify()
        if stale:
            owner.cluster.refresh_soon()
        owner.pump()

    def resolved(
        self, token: int, answer: Mapping[TopicPartition, OffsetAnswer] | KohortError
    ) -> None:
        """Of a question where to read."""
        owner = self._owner
        with owner.lock:
            settled = owner.offset_fetcher.answered(token, answer, self._loop.now_ms())
            for position in owner.positions:
                if position.phase is Phase.FETCHING:
                    owner.reader.queue(position)
        for event in settled.resets:
            log_reset(event)
        if settled.coordinator_lost and owner.session is not None:
            owner.session.coordinator_lost()
        if settled.stale_metadata:
            owner.cluster.refresh_soon()
        owner.notify()
        owner.pump()

    def listed(self, token: int, answer: Mapping[TopicPartition, TimeAnswer] | KohortError) -> None:
        """Of a query by time."""
        owner = self._owner
        with owner.lock:
            stale = owner.queries.answered(token, answer, self._loop.now_ms())
        if stale:
            owner.cluster.refresh_soon()
        owner.pump()

    def looked_up(
        self, token: int, answer: tuple[int, Mapping[TopicPartition, Committed]] | KohortError
    ) -> None:
        """Of a query for committed offsets."""
        owner = self._owner
        with owner.lock:
            lost = owner.committed.answered(token, answer, self._loop.now_ms())
        if not isinstance(answer, KohortError):
            owner.topics.look_at_codes(part.error for part in answer[1].values())
        if lost and owner.session is not None:
            owner.session.coordinator_lost()
        owner.pump()

    def commit_answered(
        self, token: int, answer: Mapping[TopicPartition, int] | KohortError
    ) -> None:
        """Of an OffsetCommit."""
        owner = self._owner
        if owner.session is not None and not isinstance(answer, KohortError):
            owner.session.coordinator_answered(*answer.values())
            owner.topics.look_at_codes(answer.values())
        owner.commits.answered(token, answer)
        owner.pump()

    def cut_short(self) -> None:
        """A fetch ended early without records: there may be news for the member."""
        if self._owner.session is not None:
            self._owner.session.hint()

    def stale_epoch(self) -> None:
        """A look-up used a member epoch that is no longer the present one."""
        if self._owner.session is not None:
            self._owner.session.hurry()
