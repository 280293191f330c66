"""Committed offsets that the caller asks for (OffsetFetch), apart from where reading begins.

Rules:
- A moved or loading coordinator and offsets of an open transaction are waited for until the call's
  time is over; what time cannot mend ends the call with that error.
- A query touches no position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kohort.client.common.types import OffsetAndMetadata, TopicPartition
from kohort.client.consumer.plan.offset_fetcher import COORDINATOR_CODES, FATAL_CODES
from kohort.errors import BrokerError, ErrorCode, GroupError, KafkaTimeoutError, KohortError
from kohort.lean import dataclass, field


class Committed(NamedTuple):
    """One partition of an OffsetFetch answer; offset -1: nothing committed."""

    error: int
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(eq=False)
class CommittedQuery:
    """One call."""

    tps: tuple[TopicPartition, ...]
    deadline_ms: int
    found: dict[TopicPartition, OffsetAndMetadata | None] = field(
        default_factory=dict[TopicPartition, OffsetAndMetadata | None]
    )
    sent: int | None = None
    retry_at_ms: int = 0
    last_code: int = 0
    error: KohortError | None = None
    done: bool = False


class CommittedSend(NamedTuple):
    """Send this OffsetFetch to the coordinator."""

    token: int
    tps: tuple[TopicPartition, ...]


class CommittedDone(NamedTuple):
    """A query is finished: see its `found` or its `error`."""

    query: CommittedQuery


@dataclass
class CommittedQueries:
    """All queries under way. `group` is named in errors."""

    group: str
    backoff_ms: int
    _queries: list[CommittedQuery] = field(default_factory=list[CommittedQuery])
    _tokens: int = 0

    @property
    def waiting(self) -> bool:
        """True while something is not answered (a coordinator is wanted)."""
        return bool(self._queries)

    def submit(self, query: CommittedQuery) -> None:
        """Take a query in."""
        self._queries.append(query)

    def next(self, now_ms: int, *, coordinator_known: bool) -> list[CommittedSend | CommittedDone]:
        """Requests that may go out now, and queries that are finished (or out of time)."""
        effects: list[CommittedSend | CommittedDone] = []
        for query in list(self._queries):
            if self._finished(query, now_ms):
                self._queries.remove(query)
                query.done = True
                effects.append(CommittedDone(query))
            elif query.sent is None and coordinator_known and query.retry_at_ms <= now_ms:
                self._tokens += 1
                query.sent = self._tokens
                missing = tuple(tp for tp in query.tps if tp not in query.found)
                effects.append(CommittedSend(query.sent, missing))
        return effects

    def answered(
        self,
        token: int,
        answer: tuple[int, Mapping[TopicPartition, Committed]] | KohortError,
        now_ms: int,
    ) -> bool:
        """Settle one request; True when the coordinator is not the right one any more."""
        query = next((query for query in self._queries if query.sent == token), None)
        if query is None:
            return False
        query.sent, query.retry_at_ms = None, now_ms + self.backoff_ms
        if isinstance(answer, KohortError):
            if not answer.retriable:
                query.error = answer
            return answer.retriable
        code, parts = answer
        if code:
            return self._refused(query, code)
        for tp, part in parts.items():
            if part.error:
                self._refused(query, part.error)
            elif part.offset >= 0:
                query.found[tp] = OffsetAndMetadata(part.offset, part.metadata, part.leader_epoch)
            else:
                query.found[tp] = None
        return False

    def next_deadline(self, now_ms: int) -> int | None:
        """When the next back-off or a query's time ends, or None."""
        times = [query.deadline_ms for query in self._queries]
        times += [query.retry_at_ms for query in self._queries if query.sent is None]
        return min((at for at in times if at > now_ms), default=None)

    def abandon(self, error: KohortError) -> list[CommittedDone]:
        """The consumer closes: every remaining lookup ends with `error`."""
        effects: list[CommittedDone] = []
        for query in self._queries:
            query.error, query.done = query.error or error, True
            effects.append(CommittedDone(query))
        self._queries.clear()
        return effects

    # -- inside --------------------------------------------------------------------------------

    def _refused(self, query: CommittedQuery, code: int) -> bool:
        query.last_code = code
        if code in FATAL_CODES:
            text = f"asking for the committed offsets of group {self.group!r}"
            query.error = GroupError(code, text)
        elif code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            query.error = BrokerError(code, "asking for committed offsets")
        return code in COORDINATOR_CODES

    def _finished(self, query: CommittedQuery, now_ms: int) -> bool:
        if query.error is not None or all(tp in query.found for tp in query.tps):
            return True
        if query.deadline_ms > now_ms:
            return False
        why = (
            f"; the last answer was {ErrorCode.name_of(query.last_code)}" if query.last_code else ""
        )
        query.error = KafkaTimeoutError(
            f"group {self.group!r}: the coordinator did not name the committed offsets in "
            f"time{why}; call again"
        )
        return True
