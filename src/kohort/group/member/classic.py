"""One consumer's membership in a group, classic protocol (KIP-62 and later), as a pure machine.

Rules:
- Everything that happens comes in as a call with the time; what is to be done comes back as a list
  of effects (`effects`). No clock, socket or randomness here: the shell's `jitter` is asked
  for a number in [0, 1) when a back-off is computed.
- `classic_table` holds the states. Between a join or sync and its answer nothing else is sent.
- At most one join, one sync and one heartbeat are under way. Each has a token; an answer whose
  token has been overtaken is dropped (C7, B30). A new join, a lost coordinator and a lost
  generation overtake all.
- `REBALANCE_IN_PROGRESS`: the caller's listener gets *revoked* and may commit; then it rejoins.
  `ILLEGAL_GENERATION`, `UNKNOWN_MEMBER_ID`: ownership is gone already, *lost*, nothing to commit.
- The member id is kept over rebalances, over a lost generation and over a coordinator that dies in
  the middle of a join (B31); it is forgotten on `UNKNOWN_MEMBER_ID` and after leaving.
- The claimed partitions are always those the caller really owns when the join is sent, with the
  generation it was assigned in (B32, B34, B36), never a copy kept from an earlier step.
- Eager unless every configured assignor is cooperative (as Java decides, KIP-429).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kohort.errors import ErrorCode, KohortError, ProtocolError
from kohort.group.assignors.base import Partitions, TopicView
from kohort.group.member.base import MOVED_CODES, Call
from kohort.group.member.classic_steps import UNKNOWN_CODES, MemberCore
from kohort.group.member.classic_table import HEARTBEATING, State
from kohort.group.member.effects import Effect
from kohort.group.member.errors import fatal_error
from kohort.wire import Message
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.join_group_response import JoinGroupResponse
from kohort.wire.messages.sync_group_response import SyncGroupResponse


class ClassicMember(MemberCore):
    """A member of one group; `assignors` are in order of preference, the most preferred first."""

    # -- what it shows -----------------------------------------------------------------------

    @property
    def assignment(self) -> Partitions:
        """What the caller owns once it has run all its steps."""
        return self._owned

    @property
    def subscription(self) -> frozenset[str] | None:
        """The subscribed topics, None while there is no subscription."""
        return self._topics

    @property
    def may_commit(self) -> bool:
        """Whether a commit with the present generation and member id can succeed now."""
        return self.generation >= 0 and self.state in HEARTBEATING | {State.REDISCOVERING}

    # -- the caller ----------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], now_ms: int) -> list[Effect]:
        """Be a member reading `topics` (a pattern's matches; may be empty). Replaces the last."""
        self._now_ms = now_ms
        chosen = frozenset(topics)
        if chosen == self._topics:
            return self._flush()
        self._topics = chosen
        if self.state is State.DOWN:
            self._start()
        elif self.state in {State.STABLE, State.ASSIGNING, State.PLANNING, State.DISCOVERING}:
            self._rejoin("the subscription changed")
        return self._flush()

    def commit_refused(self, code: int, generation: int, now_ms: int) -> list[Effect]:
        """A commit sent in `generation` was answered with `code`; more is at stake than the commit.

        So a member that was expelled stops at once, not at its next heartbeat (B40). Codes that say
        nothing about membership, and commits of another generation, change nothing.
        """
        self._now_ms = now_ms
        if code in MOVED_CODES:
            self._coordinator_gone(f"it answered a commit with {ErrorCode.name_of(code)}")
        elif generation == self.generation and generation >= 0:
            asleep = {State.JOINING, State.SYNCING, State.PLANNING}
            if code == ErrorCode.FENCED_INSTANCE_ID:
                self._fail(fatal_error(code, "committing", self.config, list(self.assignors)))
            elif code in UNKNOWN_CODES and self.state not in asleep:
                self._lose(code, "a commit")
            elif code == ErrorCode.REBALANCE_IN_PROGRESS and self.state is State.STABLE:
                self._rejoin("a commit was answered REBALANCE_IN_PROGRESS")
        return self._flush()

    def hurry(self, now_ms: int) -> list[Effect]:
        """Heartbeat at once, or when the one under way is answered: the coordinator has news."""
        self._now_ms = now_ms
        if self._keeps_session():
            self._heartbeat_at_ms = now_ms
            self._timers()
        else:
            self._hurried = True
        return self._flush()

    def doubt_assignment(self, now_ms: int) -> list[Effect]:
        """Partitions were assigned that do not exist: the plan, or its answer, was damaged."""
        self._now_ms = now_ms
        if self.state is State.STABLE:
            self._rejoin("partitions were assigned that do not exist")
        return self._flush()

    # -- the cluster ---------------------------------------------------------------------------

    def topics_changed(self, topics: Mapping[str, TopicView | None], now_ms: int) -> list[Effect]:
        """All that is known of the watched topics now; None: there is no such topic.

        A topic that is left out is not known yet. Only a leader acts on it (spec 1.9).
        """
        self._now_ms = now_ms
        self._seen = dict(topics)
        if self.state is State.PLANNING:
            self._plan()
        elif self.state is State.STABLE:
            self._settle()
        return self._flush()

    # -- what `MemberBase` leaves open ---------------------------------------------------------

    def _unsubscribed(self) -> None:
        self._topics = None

    def _step_done(self, token: int) -> None:
        if token == self._step:
            self._step, self._gives_up = None, False
            self._advance()

    def _coordinator_known(self) -> None:
        self._last_answer_ms = self._now_ms

    def _member_again(self) -> None:
        self._settle()

    def _take_answer(self, call: Call, answer: Message | KohortError) -> None:
        if call is Call.LOOK:
            self._inherit(answer)
        elif isinstance(answer, KohortError):
            self._unanswered(call, answer)
        elif isinstance(answer, JoinGroupResponse) and call is Call.JOIN:
            self._join_answered(answer)
        elif isinstance(answer, SyncGroupResponse) and call is Call.SYNC:
            self._sync_answered(answer)
        elif isinstance(answer, HeartbeatResponse) and call is Call.HEARTBEAT:
            self._heartbeat_answered(answer)
        else:
            self._fail(ProtocolError(f"{call.value}: answered with a {type(answer).__name__}"))
