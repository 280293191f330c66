"""One consumer's membership in a group, consumer protocol (KIP-848), as a pure machine.

Rules:
- Everything that happens comes in as a call with the time; what is to be done comes back as a list
  of effects (`member_effects`). No clock, socket or randomness here: the shell gives `new_id` (a
  fresh member id, KIP-1082) and `jitter` (a number in [0, 1) when a back-off is computed).
- The states stand in `consumer_member_table`. It has the same face as `ClassicMember`; `generation`
  is the member epoch, -1 while it is not in the group.
- At most one heartbeat is under way. It is full when the member joins and after any error or answer
  that did not come, for then nobody knows what the coordinator has heard (B5); else it carries what
  has changed. What is owned is told when the caller has confirmed it (B8), and never less (B2).
- An assignment is reached step by step on the caller's thread: give up, tell the coordinator, take,
  tell the coordinator. The next step is computed when the last one is confirmed, against the latest
  assignment (B3). An empty assignment is one, a missing one means no change (B4).
- A topic whose name is not known yet is waited for, and neither owned nor acknowledged (B7).
- `FENCED_MEMBER_EPOCH`, `UNKNOWN_MEMBER_ID`: ownership is gone already, *lost*; it joins again with
  epoch 0 and the same id when the caller has given up what it held (B6).
- The broker decides the interval of heartbeats and the session; a member that is overdue with its
  poll leaves, is told *lost*, and joins again at the next poll (B10).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kohort.errors import ErrorCode, KohortError, ProtocolError
from kohort.group.assignors.base import Partitions, TopicView
from kohort.group.consumer_member_core import LOST_CODES, MOVED_CODES, Call, ConsumerMemberCore
from kohort.group.consumer_member_messages import without
from kohort.group.consumer_member_table import POLL_WATCHED, SEEKING, Event, State
from kohort.group.member_effects import Effect
from kohort.group.member_errors import fatal_error
from kohort.wire import Message
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse

_GONE_CODES = LOST_CODES | {ErrorCode.ILLEGAL_GENERATION}


class ConsumerMember(ConsumerMemberCore):
    """A member of one group. Every method returns the effects to be carried out, in order.

    All times are milliseconds of one monotonic clock of the shell's. A caller that is blocked
    inside `poll` is polling: the shell may call `polled` on its behalf as often as it likes.
    """

    # -- what it shows -----------------------------------------------------------------------

    @property
    def group_instance_id(self) -> str | None:
        """`group.instance.id` of a static member (KIP-345), else None."""
        return self.config.group_instance_id

    @property
    def protocol(self) -> str | None:
        """The assignor that this member asks for; None: the broker's default."""
        return self.config.group_remote_assignor

    @property
    def assignment(self) -> Partitions:
        """What the caller owns once it has run all its steps."""
        return self._named(self._owned)

    @property
    def overdue(self) -> bool:
        """True when the member has left because nobody polled; the next poll brings it back."""
        return self.state is State.OVERDUE

    @property
    def is_out(self) -> bool:
        """True when there is nothing left to leave: not subscribed, left, or stopped for good."""
        return self.state in {State.DOWN, State.LEFT, State.FATAL}

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

    def unsubscribe(self, now_ms: int) -> list[Effect]:
        """Give up everything, leave the group, stay ready for another `subscribe`."""
        self._now_ms = now_ms
        self._subscribed = False
        self._give_up(Event.UNSUBSCRIBE, "the consumer unsubscribed")
        return self._flush()

    def close(self, now_ms: int) -> list[Effect]:
        """Give up everything and leave for good; done in state LEFT.

        A static member says that it may be back (epoch -2): its partitions wait for it.
        """
        self._now_ms = now_ms
        self._give_up(Event.CLOSE, "the consumer is being closed")
        return self._flush()

    def polled(self, at_ms: int) -> list[Effect]:
        """The caller polled, or was inside `poll`, at `at_ms`; what is known already is no news."""
        self._now_ms = max(self._now_ms, at_ms)
        if at_ms > self._polled_ms:
            self._polled_ms = at_ms
            if self._move(Event.POLLED):
                self._join_at_ms = self._now_ms
                self._advance()
        return self._flush()

    def revoked(self, token: int, now_ms: int) -> list[Effect]:
        """The caller has run the step `Revoke(token)`."""
        return self._step_done(token, now_ms)

    def assigned(self, token: int, now_ms: int) -> list[Effect]:
        """The caller has run the step `Assign(token)`."""
        return self._step_done(token, now_ms)

    def _step_done(self, token: int, now_ms: int) -> list[Effect]:
        self._now_ms = now_ms
        if any(step.token == token for step in self._steps):
            while True:
                step = self._steps.popleft()
                if step.token == token:
                    break
            self._unsay(without(self._held, step.held))
            self._held = step.held
            self._advance()
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

    def coordinator_found(self, node_id: int, now_ms: int) -> list[Effect]:
        """The lookup that `FindCoordinator` asked for, or another one, named the coordinator."""
        self._now_ms = now_ms
        self._finding = False
        if self.coordinator == node_id:
            return self._flush()
        if self.coordinator is not None:
            self._coordinator_gone("another node is the coordinator now")
        self.coordinator = node_id
        self._heartbeat_at_ms = now_ms
        if self.state is State.DISCOVERING:
            self._enter()
        else:
            self._move(Event.COORDINATOR_FOUND)
        self._timers()
        return self._flush()

    def coordinator_not_found(self, error: KohortError, now_ms: int) -> list[Effect]:
        """The lookup failed; it is tried again after a back-off unless `error` is for a person."""
        self._now_ms = now_ms
        self._finding = False
        if not error.retriable and self.state in SEEKING:
            self._fail(error)
        self._find_at_ms = now_ms + self._backoff_ms(self._finds)
        self._finds += 1
        return self._flush()

    def coordinator_lost(self, now_ms: int) -> list[Effect]:
        """The connection to the coordinator broke, or somebody was told NOT_COORDINATOR."""
        self._now_ms = now_ms
        self._coordinator_gone("the connection was lost")
        return self._flush()

    def answered(self, token: int, answer: Message | KohortError, now_ms: int) -> list[Effect]:
        """The response to `Send(token, …)`, or the error that came instead of one."""
        self._now_ms = now_ms
        call = next((call for call, sent in self._calls.items() if sent == token), None)
        if call is None:
            return self._flush()
        del self._calls[call]
        if call is Call.LEAVE:
            self._move(Event.GONE)
        elif isinstance(answer, KohortError):
            self._unanswered(call, answer)
        elif isinstance(answer, ConsumerGroupHeartbeatResponse):
            self._heartbeat_answered(call, answer)
        else:
            self._fail(ProtocolError(f"{call.value}: answered with a {type(answer).__name__}"))
        return self._flush()

    # -- time ----------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When `tick` is due at the latest, None while nothing but an event can change anything."""
        due: list[int] = []
        if self._may_heartbeat():
            due.append(self._heartbeat_at_ms)
        if self.state in POLL_WATCHED:
            due.append(self._polled_ms + self.config.max_poll_interval_ms)
        if self.state is State.JOINING and Call.JOIN not in self._calls:
            due.append(self._join_at_ms)
        if self._may_seek():
            due.append(self._find_at_ms)
        return min(due, default=None)

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what has fallen due. Call `polled` with the caller's latest poll first.

        Only here is the caller found to be overdue: other events come without its latest poll.
        """
        self._now_ms = now_ms
        limit_ms = self._polled_ms + self.config.max_poll_interval_ms
        if self.state in POLL_WATCHED and now_ms >= limit_ms:
            self._overdue()
        self._timers()
        return self._flush()
