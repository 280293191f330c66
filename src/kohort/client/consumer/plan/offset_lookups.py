"""Offsets that the caller asks for: by time, the beginning, the end (ListOffsets).

Rules:
- One call may name any number of partitions; they are asked for together, one request a leader.
- What fails for now (leader moved, connection lost) is asked again after a back-off until the
  call's time is over; what time cannot mend ends the call with that error.
- A query touches no position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kohort.client.common.types import OffsetAndTimestamp, TopicPartition
from kohort.errors import BrokerError, ErrorCode, KafkaTimeoutError, KohortError
from kohort.lean import dataclass, field

FATAL_CODES = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_REQUEST,
    }
)


class TimeAnswer(NamedTuple):
    """One partition of a ListOffsets answer. Offset -1: no record at or after that time."""

    error: int
    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(eq=False)
class OffsetQuery:
    """One call. `targets` are milliseconds since 1970, or -1 latest, -2 earliest, -3 newest."""

    targets: Mapping[TopicPartition, int]
    deadline_ms: int
    found: dict[TopicPartition, OffsetAndTimestamp | None] = field(
        default_factory=dict[TopicPartition, OffsetAndTimestamp | None]
    )
    requested: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    retry_at_ms: int = 0
    last_code: int = 0
    error: KohortError | None = None
    done: bool = False


class QuerySend(NamedTuple):
    """Send this ListOffsets to a leader."""

    token: int
    node: int
    targets: dict[TopicPartition, int]


class QueryDone(NamedTuple):
    """A query is finished: see its `found` or its `error`."""

    query: OffsetQuery


@dataclass
class OffsetQueries:
    """All queries under way."""

    backoff_ms: int
    needs_metadata: bool = False
    _queries: list[OffsetQuery] = field(default_factory=list[OffsetQuery])
    _sent: dict[int, tuple[OffsetQuery, QuerySend]] = field(
        default_factory=dict[int, tuple[OffsetQuery, QuerySend]]
    )
    _tokens: int = 0

    def submit(self, query: OffsetQuery) -> None:
        """Take a query in."""
        self._queries.append(query)

    def next(
        self, leader_of: Callable[[TopicPartition], int | None], now_ms: int
    ) -> list[QuerySend | QueryDone]:
        """Requests that may go out now, and queries that are finished (or out of time)."""
        effects: list[QuerySend | QueryDone] = []
        for query in list(self._queries):
            if self._finished(query, now_ms):
                self._queries.remove(query)
                query.done = True
                effects.append(QueryDone(query))
            elif query.retry_at_ms <= now_ms:
                effects.extend(self._sends(query, leader_of))
        return effects

    def answered(
        self, token: int, answers: Mapping[TopicPartition, TimeAnswer] | KohortError, now_ms: int
    ) -> bool:
        """Settle one request; True when it says that metadata is out of date."""
        query, sent = self._sent.pop(token, (None, None))
        if query is None or sent is None or query.done:
            return False
        stale = False
        for tp in sent.targets:
            del query.requested[tp]
            answer = answers if isinstance(answers, KohortError) else answers.get(tp)
            if isinstance(answer, TimeAnswer) and not answer.error:
                nothing = answer.offset < 0
                stamped = OffsetAndTimestamp(
                    answer.offset, answer.timestamp_ms, answer.leader_epoch
                )
                query.found[tp] = None if nothing else stamped
                continue
            stale = True
            query.retry_at_ms = now_ms + self.backoff_ms
            self._note(query, tp, answer)
        return stale

    def next_deadline(self, now_ms: int) -> int | None:
        """When the next back-off or a query's time ends, or None."""
        times = [query.deadline_ms for query in self._queries]
        times += [query.retry_at_ms for query in self._queries]
        return min((at for at in times if at > now_ms), default=None)

    def abandon(self, error: KohortError) -> list[QueryDone]:
        """The consumer closes: every remaining lookup ends with `error`."""
        effects: list[QueryDone] = []
        for query in self._queries:
            query.error, query.done = query.error or error, True
            effects.append(QueryDone(query))
        self._queries.clear()
        return effects

    # -- inside --------------------------------------------------------------------------------

    def _sends(
        self, query: OffsetQuery, leader_of: Callable[[TopicPartition], int | None]
    ) -> list[QuerySend]:
        by_node: dict[int, dict[TopicPartition, int]] = {}
        for tp, target in query.targets.items():
            if tp in query.found or tp in query.requested:
                continue
            node = leader_of(tp)
            if node is None:
                self.needs_metadata = True
            else:
                by_node.setdefault(node, {})[tp] = target
        sends: list[QuerySend] = []
        for node, targets in by_node.items():
            self._tokens += 1
            send = QuerySend(self._tokens, node, targets)
            self._sent[send.token] = (query, send)
            query.requested.update(dict.fromkeys(targets, send.token))
            sends.append(send)
        return sends

    def _finished(self, query: OffsetQuery, now_ms: int) -> bool:
        if query.error is not None or len(query.found) == len(query.targets):
            return True
        if query.deadline_ms > now_ms:
            return False
        missing = [tp for tp in query.targets if tp not in query.found]
        names = ", ".join(f"{tp.topic}-{tp.partition}" for tp in missing[:5])
        why = (
            f"; the last answer was {ErrorCode.name_of(query.last_code)}" if query.last_code else ""
        )
        query.error = KafkaTimeoutError(
            f"no offsets for {names} ({len(missing)} of {len(query.targets)} partitions) in "
            f"time{why}; check that the topics exist and their leaders are up, then call again"
        )
        return True

    def _note(
        self, query: OffsetQuery, tp: TopicPartition, answer: TimeAnswer | KohortError | None
    ) -> None:
        if isinstance(answer, TimeAnswer):
            query.last_code = answer.error
            if answer.error in FATAL_CODES:
                text = f"asking for offsets of {tp.topic}-{tp.partition}"
                query.error = BrokerError(answer.error, text)
        elif isinstance(answer, KohortError) and not answer.retriable:
            query.error = answer
