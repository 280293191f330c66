"""Finding where to read: the committed offset, the reset policy's offset, a new leader's verdict.

Java's class of this name does the last two.

Rules:
- Every partition that is not fetching has exactly one question open, or waits for its back-off.
  Questions are grouped: one OffsetFetch to the coordinator, one ListOffsets and one
  OffsetForLeaderEpoch a leader.
- An answer counts only for the partitions whose stamp has not changed since the question, and only
  for partitions that it names: an answer about P0 says nothing about P1 (C7, B54).
- A timeout, a lost connection or an undefined end offset never leads to a reset; the question is
  asked again (C8, B53).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kohort.client.common.types import TopicPartition
from kohort.client.consumer.plan.missing_topics import TOPIC_ID_CODES
from kohort.client.consumer.plan.positions import (
    UNKNOWN,
    OffsetReset,
    Phase,
    Position,
    Positions,
    Stamp,
)
from kohort.errors import BrokerError, ErrorCode, KohortError, UnsupportedVersionError
from kohort.lean import dataclass, field

LeaderOf = Callable[[TopicPartition], int | None]

# The coordinator has moved or is loading: find it again.
COORDINATOR_CODES = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
# A right is missing: the caller gets the error, and the lookup is retried until it is granted.
DENIED_CODES = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED}
)
# Codes after which asking again is of no use.
FATAL_CODES = frozenset(
    {
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_GROUP_ID,
    }
)


class LookupPart(NamedTuple):
    """One partition in a question. `value`: a timestamp, or an epoch."""

    stamp: Stamp
    value: int
    leader_epoch: int


class LookUp(NamedTuple):
    """Ask the coordinator for committed offsets (OffsetFetch)."""

    token: int
    parts: Mapping[TopicPartition, LookupPart]


class FindStart(NamedTuple):
    """Ask a leader for the offset at a timestamp or sentinel (ListOffsets)."""

    token: int
    node: int
    parts: Mapping[TopicPartition, LookupPart]


class Validate(NamedTuple):
    """Ask a leader where an epoch ended in its log (OffsetForLeaderEpoch, KIP-320)."""

    token: int
    node: int
    parts: Mapping[TopicPartition, LookupPart]


Question = LookUp | FindStart | Validate


class OffsetAnswer(NamedTuple):
    """One partition of an answer: its error, the offset (-1: none) and its leader epoch."""

    error: int
    offset: int
    leader_epoch: int = -1


class Settled(NamedTuple):
    """What an answer led to, beyond the positions."""

    resets: list[OffsetReset]
    stale_metadata: bool = False
    coordinator_lost: bool = False


@dataclass
class OffsetFetcher:
    """Asks for all partitions that have no position to fetch from."""

    positions: Positions
    backoff_ms: int
    has_group: bool
    needs_metadata: bool = False
    _open: dict[int, Question] = field(default_factory=dict[int, Question])
    _tokens: int = 0

    def plan(
        self, leader_of: LeaderOf, now_ms: int, wall_ms: int, *, coordinator_known: bool
    ) -> list[Question]:
        """Every question that may go out now."""
        if self.positions.settled:
            return []
        questions: list[Question] = []
        look_up: dict[TopicPartition, LookupPart] = {}
        starts: dict[int, dict[TopicPartition, LookupPart]] = {}
        checks: dict[int, dict[TopicPartition, LookupPart]] = {}
        for position in self.positions:
            if (
                position.phase in (Phase.FETCHING, Phase.FAILED)
                or position.lookup_token is not None
            ):
                continue
            if position.retry_at_ms > now_ms:
                continue
            if position.phase is Phase.AWAITING_OFFSET:
                if not self.has_group:
                    self.positions.nothing_committed(position.tp, position.stamp, now_ms)
                elif coordinator_known:
                    look_up[position.tp] = LookupPart(position.stamp, 0, UNKNOWN)
            if position.phase in (Phase.AWAITING_RESET, Phase.AWAITING_VALIDATION):
                self._ask_leader(position, leader_of, starts, checks, wall_ms)
        if look_up:
            questions.append(LookUp(self._token(), look_up))
        for node, parts in starts.items():
            questions.append(FindStart(self._token(), node, parts))
        for node, parts in checks.items():
            questions.append(Validate(self._token(), node, parts))
        for question in questions:
            self._open[question.token] = question
            for tp in question.parts:
                self.positions.get(tp).lookup_token = question.token
        return questions

    def answered(
        self,
        token: int,
        answers: Mapping[TopicPartition, OffsetAnswer] | KohortError,
        now_ms: int,
    ) -> Settled:
        """Settle a question. Partitions that the answer does not name are asked for again."""
        question = self._open.pop(token, None)
        settled = Settled([])
        if question is None:
            return settled
        for tp, part in question.parts.items():
            position = self.positions.current(tp, part.stamp)
            if position is None or position.lookup_token != token:
                continue
            position.lookup_token = None
            if isinstance(answers, KohortError):
                settled = self._failed(question, position, answers, settled, now_ms)
            elif (answer := answers.get(tp)) is None:
                position.retry_at_ms = now_ms + self.backoff_ms
            elif answer.error:
                settled = self._refused(question, position, answer.error, settled, now_ms)
            else:
                self._found(question, position, part, answer, settled.resets, now_ms)
        return settled

    def next_deadline(self, now_ms: int) -> int | None:
        """When the next back-off ends, or None. One that has ended waits for something else."""
        if self.positions.settled:
            return None
        waiting = [
            p.retry_at_ms
            for p in self.positions
            if p.retry_at_ms > now_ms
            and p.lookup_token is None
            and p.phase not in (Phase.FETCHING, Phase.FAILED)
        ]
        return min(waiting, default=None)

    # -- inside --------------------------------------------------------------------------------

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _ask_leader(
        self,
        position: Position,
        leader_of: LeaderOf,
        starts: dict[int, dict[TopicPartition, LookupPart]],
        checks: dict[int, dict[TopicPartition, LookupPart]],
        wall_ms: int,
    ) -> None:
        node = leader_of(position.tp)
        if node is None:
            self.needs_metadata = True
            return
        if position.phase is Phase.AWAITING_RESET:
            assert position.reset_to is not None, "a partition awaits a reset without a target"
            timestamp = self.positions.policy.timestamp(position.reset_to, wall_ms)
            part = LookupPart(position.stamp, timestamp, position.leader_epoch)
            starts.setdefault(node, {})[position.tp] = part
        else:
            part = LookupPart(position.stamp, position.offset_epoch, position.leader_epoch)
            checks.setdefault(node, {})[position.tp] = part

    def _found(
        self,
        question: Question,
        position: Position,
        part: LookupPart,
        answer: OffsetAnswer,
        resets: list[OffsetReset],
        now_ms: int,
    ) -> None:
        tp, stamp, positions = position.tp, part.stamp, self.positions
        positions.refusals.served(tp)
        positions.denials.served(position)
        if isinstance(question, LookUp):
            if answer.offset >= 0:
                epoch = answer.leader_epoch
                positions.committed_found(tp, stamp, answer.offset, epoch, now_ms)
            else:
                positions.nothing_committed(tp, stamp, now_ms)
            return
        if answer.offset < 0:
            self._undefined(question, position, part, now_ms)
            return
        if isinstance(question, FindStart):
            event = positions.reset_found(tp, stamp, answer.offset, answer.leader_epoch, now_ms)
        else:
            event = positions.truncated(tp, stamp, answer.offset, answer.leader_epoch, now_ms)
        if event is not None:
            resets.append(event)

    def _undefined(
        self, question: Question, position: Position, part: LookupPart, now_ms: int
    ) -> None:
        """-1 is not an offset: no record at that time yet, or no such epoch in the log (B53)."""
        if isinstance(question, FindStart):
            position.reset_to = -1  # by duration, and nothing is that young: the end (KIP-1106)
        else:
            self.positions.validated(position.tp, part.stamp, now_ms)

    def _refused(
        self, question: Question, position: Position, error: int, settled: Settled, now_ms: int
    ) -> Settled:
        if error in FATAL_CODES or error in DENIED_CODES:
            what = "the committed offset of " if isinstance(question, LookUp) else ""
            text = f"asking for {what}{position.tp.topic}-{position.tp.partition}"
            if error in DENIED_CODES:
                self.positions.denials.note(position, BrokerError(error, text), now_ms)
            else:
                self.positions.fail(position.tp, position.stamp, BrokerError(error, text), now_ms)
            return settled
        position.retry_at_ms = now_ms + self.backoff_ms
        self.positions.refused(position, error, now_ms)
        if isinstance(question, LookUp):
            lost = settled.coordinator_lost or error in COORDINATOR_CODES
            stale = settled.stale_metadata or error in TOPIC_ID_CODES
            return settled._replace(coordinator_lost=lost, stale_metadata=stale)
        return settled._replace(stale_metadata=True)

    def _failed(
        self,
        question: Question,
        position: Position,
        error: KohortError,
        settled: Settled,
        now_ms: int,
    ) -> Settled:
        if isinstance(question, Validate) and isinstance(error, UnsupportedVersionError):
            self.positions.validated(position.tp, position.stamp, now_ms)  # an old broker
            return settled
        if isinstance(error, BrokerError) and error.code in DENIED_CODES:
            self.positions.denials.note(position, error, now_ms)
            return settled
        if not error.retriable:
            self.positions.fail(position.tp, position.stamp, error, now_ms)
            return settled
        position.retry_at_ms = now_ms + self.backoff_ms
        if isinstance(error, BrokerError):
            self.positions.refusals.note(position.tp, error.code, now_ms)
        if isinstance(question, LookUp):
            gone = not isinstance(error, BrokerError) or error.code in COORDINATOR_CODES
            return settled._replace(coordinator_lost=settled.coordinator_lost or gone)
        return settled._replace(stale_metadata=True)
