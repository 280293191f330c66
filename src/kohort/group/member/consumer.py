"""One consumer's membership in a group, consumer protocol (KIP-848), as a pure machine.

Rules:
- Everything that happens comes in as a call with the time; what is to be done comes back as a list
  of effects (`effects`). No clock, socket or randomness here: the shell gives `new_id` (a
  fresh member id, KIP-1082) and `jitter` (a number in [0, 1) when a back-off is computed).
- `consumer_table` holds the states. It has the same interface as `ClassicMember`;
  `generation`
  is the member epoch, -1 while it is not in the group.
- At most one heartbeat is under way. It is full when the member joins and after any error or answer
  that did not come, because then the coordinator's knowledge is unclear (B5); else it carries the
  changes. Owned partitions are reported when the caller has confirmed them (B8), and never fewer
  (B2).
- An assignment is reached step by step on the caller's thread: give up, tell the coordinator, take,
  tell the coordinator. The next step is computed when the last one is confirmed, against the latest
  assignment (B3). An empty assignment is one, a missing one means no change (B4).
- A topic whose name is not known yet is waited for, and neither owned nor acknowledged (B7).
- `FENCED_MEMBER_EPOCH`, `UNKNOWN_MEMBER_ID`: ownership is gone already, *lost*; it joins again with
  epoch 0 and the same id when the caller has given up what it held (B6).
- The broker decides the interval of heartbeats and the session; a member that is overdue with its
  poll leaves, gets *lost*, and joins again at the next poll (B10).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kohort.errors import ErrorCode, KohortError, ProtocolError
from kohort.group.assignors.base import Partitions, TopicView
from kohort.group.member.base import MOVED_CODES, Call
from kohort.group.member.consumer_messages import without
from kohort.group.member.consumer_steps import LOST_CODES, ConsumerMemberCore
from kohort.group.member.consumer_table import State
from kohort.group.member.effects import Effect
from kohort.group.member.errors import fatal_error
from kohort.wire import Message
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse

_GONE_CODES = LOST_CODES | {ErrorCode.ILLEGAL_GENERATION}


class ConsumerMember(ConsumerMemberCore):
    """A member of one group; the shell gives `new_id`, a fresh member id (KIP-1082)."""

    # -- what it shows -----------------------------------------------------------------------

    @property
    def protocol(self) -> str | None:
        """The assignor that this member asks for; None: the broker's default."""
        return self.config.group_remote_assignor

    @property
    def assignment(self) -> Partitions:
        """What the caller owns once it has run all its steps."""
        return self._named(self._owned)

    @property
    def subscription(self) -> frozenset[str] | None:
        """The topics subscribed to by name (none with a pattern); None without a subscription."""
        return self._topics if self._subscribed else None

    @property
    def pattern(self) -> str | None:
        """The expression that the broker matches against topics, if that is the subscription."""
        return self._pattern or None

    @property
    def may_commit(self) -> bool:
        """Whether a commit with the present epoch and member id can succeed now."""
        return self.generation > 0

    # -- the caller ----------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], now_ms: int) -> list[Effect]:
        """Be a member reading `topics` (may be empty). Replaces the last subscription."""
        return self._subscribe(frozenset(topics), "", now_ms)

    def subscribe_pattern(self, pattern: str, now_ms: int) -> list[Effect]:
        """Be a member reading the topics that `pattern` (RE2) matches at the broker, as a whole."""
        return self._subscribe(frozenset(), pattern, now_ms)

    def _subscribe(self, topics: frozenset[str], pattern: str, now_ms: int) -> list[Effect]:
        self._now_ms = now_ms
        if self._subscribed and (topics, pattern) == (self._topics, self._pattern):
            return self._flush()
        self._subscribed, self._topics, self._pattern = True, topics, pattern
        if self.state is State.DOWN:
            self._start()
        elif self.generation > 0:
            self.last_reason = "the subscription changed"
            self._heartbeat_soon()
        return self._flush()

    def commit_refused(self, code: int, generation: int, now_ms: int) -> list[Effect]:
        """A commit sent in epoch `generation` was answered with `code` (B40, B11).

        A member that was expelled stops at once, not at its next heartbeat. An epoch that is not
        the member's any more is learned by a heartbeat at once. Other codes change nothing.
        """
        self._now_ms = now_ms
        if code in MOVED_CODES:
            self._coordinator_gone(f"it answered a commit with {ErrorCode.name_of(code)}")
        elif self.generation > 0 and generation == self.generation:
            if code == ErrorCode.FENCED_INSTANCE_ID:
                self._fail(fatal_error(code, "committing", self.config, []))
            elif code in _GONE_CODES:
                self._lose(code, "a commit")
            elif code == ErrorCode.STALE_MEMBER_EPOCH:
                self._hurry()
        return self._flush()

    def doubt_assignment(self, now_ms: int) -> list[Effect]:
        """Partitions were assigned that do not exist: have the whole assignment sent again."""
        self._now_ms = now_ms
        self._known = None
        self._heartbeat_soon()
        return self._flush()

    def hurry(self, now_ms: int) -> list[Effect]:
        """Heartbeat at once, or when the one under way is answered: the coordinator has news."""
        self._now_ms = now_ms
        self._hurry()
        return self._flush()

    def _hurry(self) -> None:
        self._heartbeat_at_ms = self._now_ms
        self._timers()

    # -- the cluster ---------------------------------------------------------------------------

    def topics_changed(self, topics: Mapping[str, TopicView | None], now_ms: int) -> list[Effect]:
        """All that is known of the watched topics now; it is their ids that matter here."""
        self._now_ms = now_ms
        self._seen = {
            view.topic_id: name
            for name, view in topics.items()
            if view is not None and any(view.topic_id)
        }
        self._settle()
        return self._flush()

    # -- what `MemberBase` leaves open ---------------------------------------------------------

    def _unsubscribed(self) -> None:
        self._subscribed = False

    def _step_done(self, token: int) -> None:
        if any(step.token == token for step in self._steps):
            while True:
                step = self._steps.popleft()
                if step.token == token:
                    break
            self._report_revoked(without(self._held, step.held))
            self._held = step.held
            self._advance()

    def _take_answer(self, call: Call, answer: Message | KohortError) -> None:
        if isinstance(answer, KohortError):
            self._unanswered(call, answer)
        elif isinstance(answer, ConsumerGroupHeartbeatResponse):
            self._heartbeat_answered(call, answer)
        else:
            self._fail(ProtocolError(f"{call.value}: answered with a {type(answer).__name__}"))
