"""How a member moves through its table: the steps behind `ClassicMember`'s inputs.

Rules:
- Nothing here is called from outside; `member` has the inputs, and the rules of the whole.
- A step changes the state only by an event of `classic_table`, and appends effects in the order in
  which they must be carried out.
- Passing through a state without waiting there (DISCOVERING with a known coordinator, REVOKING with
  nothing to give up) is done by the step that leads into it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kohort.errors import RETRIABLE_CODES, ConfigError, ErrorCode, KohortError, ProtocolError
from kohort.group.assignors.base import (
    NO_GENERATION,
    Assignor,
    AssignorError,
    GroupView,
    Partitions,
    TopicView,
    broken_callback,
    count,
    freeze,
    subtract,
)
from kohort.group.assignors.protocol import decode_assignment
from kohort.group.member.base import LONG_REBALANCE_MS, MOVED_CODES, Call, MemberBase
from kohort.group.member.classic_messages import (
    heartbeat_request,
    join_protocols,
    join_request,
    leave_request,
    sync_request,
)
from kohort.group.member.classic_table import HEARTBEATING, MACHINE, Event, State
from kohort.group.member.config import MemberConfig
from kohort.group.member.effects import (
    Assign,
    Revoke,
    Send,
    Warn,
    WatchTopics,
)
from kohort.group.member.errors import fatal_error
from kohort.group.member.leader_plan import (
    Reading,
    changed_topics,
    encode_plan,
    make_plan,
    planned_topics,
    read_members,
)
from kohort.wire import Message
from kohort.wire.messages.describe_groups_request import DescribeGroupsRequest
from kohort.wire.messages.describe_groups_response import DescribeGroupsResponse
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.join_group_response import JoinGroupResponse
from kohort.wire.messages.sync_group_request import SyncGroupRequestAssignment
from kohort.wire.messages.sync_group_response import SyncGroupResponse

JOIN_SLACK_MS = 5_000
"""A join or sync may be parked for the whole rebalance timeout; its answer may take this longer."""
MISREAD_MAX = 3
"""So many answers in a row that make no sense are the broker's or the leader's fault."""

UNKNOWN_CODES = frozenset({ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID})


class MemberCore(MemberBase[State, Event]):
    """The state of a member and its steps; see `ClassicMember` for the inputs."""

    def __init__(
        self, config: MemberConfig, assignors: Sequence[Assignor], jitter: Callable[[], float]
    ) -> None:
        if not assignors:
            raise ConfigError("partition_assignment_strategy is empty: name at least one assignor")
        super().__init__(config, MACHINE, jitter)
        self.assignors = {assignor.name: assignor for assignor in assignors}
        if len(self.assignors) != len(assignors):
            names = ", ".join(assignor.name for assignor in assignors)
            raise ConfigError(f"partition_assignment_strategy names one assignor twice: {names}")
        self.cooperative = all(assignor.cooperative for assignor in assignors)
        self.protocol: str | None = None
        self.is_leader = False
        self._step: int | None = None
        self._gives_up = False  # a step that is open does, and does not know of a loss
        # What the caller owns once it has run every step that was emitted, and since when.
        self._owned: Partitions = {}
        self._owned_generation = NO_GENERATION
        self._topics: frozenset[str] | None = None
        self._joined_topics: frozenset[str] | None = None
        self._seen: dict[str, TopicView | None] = {}
        self._watched: frozenset[str] = frozenset()
        self._group = Reading({}, frozenset(), ())
        self._planned_for: dict[str, TopicView | None] = {}
        self._inherits = False
        self._again = ""
        self._plan_at_ms = 0
        self._hurried = False  # a hint came when no heartbeat could go
        self._last_answer_ms = 0
        self._misreads = 0
        self._own_plan: Partitions | None = None

    # -- moving --------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Continue from a state that waits for the caller, once its last step is confirmed."""
        if self._step is not None:
            return
        if self.state is State.ASSIGNING:
            self._move(Event.ASSIGNED)
            if self.coordinator is None:
                self._move(Event.COORDINATOR_LOST)
            else:
                self._settle()
        elif self.state is State.REVOKING:
            self._move(Event.REVOKED)
            self._enter()
        elif self.state is State.UNSUBSCRIBING:
            self._send_leave("the consumer unsubscribed")
            self._move(Event.REVOKED)
            if self._topics is not None:
                self._start()
        elif self.state is State.CLOSING:
            self._move(Event.REVOKED)
            token = self._send_leave("the consumer is being closed")
            if token is None:
                self._move(Event.GONE)
            else:
                self._calls[Call.LEAVE] = token

    def _settle(self) -> None:
        """A stable member looks whether anything has changed since it joined."""
        if self._topics != self._joined_topics:
            self._rejoin("the subscription changed")
        elif self._again:
            self._rejoin(self._again)
        elif self.is_leader and (changes := changed_topics(self._planned_for, self._seen)):
            self._rejoin("; ".join(changes))
        elif self._inherits and Call.LOOK not in self._calls:
            request = DescribeGroupsRequest(groups=[self.config.group_id])
            self._send(Call.LOOK, request, self.config.request_timeout_ms)

    # -- giving up -----------------------------------------------------------------------------

    def _revoke(self, partitions: Partitions, lost: bool, reason: str) -> None:
        """With `lost`, also when only an open step gives something up: it must know that (C6)."""
        if not partitions and not (lost and self._gives_up):
            return
        self._owned = subtract(self._owned, partitions)
        self._serial += 1
        self._step, self._gives_up = self._serial, not lost
        self._out.append(Revoke(self._serial, partitions, lost, reason))

    def _rejoin(self, reason: str) -> None:
        """A rebalance: give up everything (eager) or what is not subscribed to (cooperative)."""
        if not self._move(Event.REJOIN):
            return
        self._again, self.last_reason = "", reason
        topics = self._topics or frozenset()
        unsubscribed = {t: numbers for t, numbers in self._owned.items() if t not in topics}
        self._revoke(unsubscribed if self.cooperative else self._owned, self.generation < 0, reason)
        self._advance()

    def _lose(self, code: int, request_name: str) -> None:
        """The generation is gone: lost, nothing may be committed, join afresh (spec 1.5, 1.6)."""
        reason = (
            f"{request_name} was answered {ErrorCode.name_of(code)} in generation {self.generation}"
        )
        self._forget(member_id=code == ErrorCode.UNKNOWN_MEMBER_ID)
        if self._move(Event.LOST):
            self.last_reason = reason
            self._revoke(self._owned, True, reason)
            self._advance()

    def _give_all_up(self, reason: str, *, lost: bool) -> None:
        self._revoke(self._owned, lost, reason)

    def _leaving(self) -> None:
        self._calls.clear()

    def _drop_out(self) -> None:
        self._forget(member_id=True)

    def _forget(self, *, member_id: bool) -> None:
        self._calls.clear()
        self._inherits = False
        self.generation, self.is_leader = NO_GENERATION, False
        self._owned_generation = NO_GENERATION
        self._again = ""
        if member_id:
            self.member_id = ""

    def _send_leave(self, reason: str) -> int | None:
        """Static members stay (KIP-345)."""
        member_id, node_id = self.member_id, self.coordinator
        self._forget(member_id=True)
        self._watch(frozenset())
        if not member_id or node_id is None or self.config.group_instance_id:
            return None
        message = leave_request(self.config, member_id, reason)
        self._serial += 1
        self._out.append(Send(self._serial, message, node_id, self.config.request_timeout_ms))
        return self._serial

    # -- the coordinator -----------------------------------------------------------------------

    def _send(self, call: Call, message: Message, timeout_ms: int) -> None:
        assert self.coordinator is not None, "a request needs a coordinator"
        self._serial += 1
        self._calls[call] = self._serial
        self._out.append(Send(self._serial, message, self.coordinator, timeout_ms))

    def _coordinator_answered(self) -> None:
        """The coordinator answered as one that serves this group."""
        self._last_answer_ms, self._finds = self._now_ms, 0

    def _unanswered(self, call: Call, error: KohortError) -> None:
        if error.retriable:
            self._coordinator_gone(f"{call.value} failed: {error}")
        else:
            self._fail(error)

    def _refused(self, call: Call, code: int) -> None:
        """An error code that a member cannot mend, unless Kafka says that trying again may help."""
        if code in RETRIABLE_CODES:
            self._coordinator_gone(f"{call.value} was answered {ErrorCode.name_of(code)}")
        else:
            self._fail(fatal_error(code, call.value, self.config, list(self.assignors)))

    # -- join ----------------------------------------------------------------------------------

    def _join(self) -> None:
        if self._now_ms < self._join_at_ms:
            return
        topics = self._topics or frozenset()
        self._calls.clear()
        self._hurried = False
        self._joined_topics = topics
        generation, rack = self._owned_generation, self.config.client_rack
        try:
            assignors = self.assignors.values()
            protocols = join_protocols(assignors, topics, self._owned, generation, rack)
        except AssignorError as error:
            self._fail(error, leave=True)
            return
        message = join_request(self.config, self.member_id, protocols, self.last_reason)
        self._joining_since_ms, self._warned = self._now_ms, False
        self._send(Call.JOIN, message, self.config.max_poll_interval_ms + JOIN_SLACK_MS)

    def _join_again(self, *, at_once: bool) -> None:
        """Back off, except that the first refusal may be answered at once."""
        first, self._failures = self._failures == 0, self._failures + 1
        wait = 0 if first and at_once else self._backoff_ms(self._failures - 1)
        self._join_at_ms = self._now_ms + wait
        self._move(Event.JOIN_AGAIN)

    def _join_answered(self, answer: JoinGroupResponse) -> None:
        code = answer.error_code
        if code == ErrorCode.NONE:
            self._joined(answer)
        elif code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self._join_again(at_once=True)
            self._join()
        elif code in UNKNOWN_CODES:
            self._join_again(at_once=True)
            self._lose(code, "the join")
        elif code in {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS}:
            self._join_again(at_once=False)
        elif code in MOVED_CODES:
            self._coordinator_gone(f"it answered the join with {ErrorCode.name_of(code)}")
        else:
            self._refused(Call.JOIN, code)

    def _misread(self, call: Call, error: ProtocolError) -> None:
        """An answer makes no sense: join again, and give up when that happens `MISREAD_MAX` times.

        One that was damaged on its way may still be decoded, and must not end the membership.
        """
        self._misreads += 1
        if self._misreads >= MISREAD_MAX:
            self._fail(error)
            return
        self._out.append(Warn(f"{error}; joining again"))
        self._join_at_ms = self._now_ms + self._backoff_ms(self._failures)
        self._failures += 1
        if call is Call.JOIN:
            self._move(Event.JOIN_AGAIN)
        else:
            self._rejoin(f"{call.value} was answered with something that makes no sense")

    def _joined(self, answer: JoinGroupResponse) -> None:
        protocol = answer.protocol_name or ""
        if not self._makes_sense(answer):
            error = ProtocolError(
                f"group {self.config.group_id!r} answered a join with generation "
                f"{answer.generation_id}, assignor {protocol!r}, member {answer.member_id!r}, "
                f"leader {answer.leader!r} and {len(answer.members)} members; this is member "
                f"{self.member_id!r} with {', '.join(self.assignors)}. The broker breaks the "
                "protocol, or the answer was damaged"
            )
            self._misread(Call.JOIN, error)
            return
        self.generation, self.member_id = answer.generation_id, answer.member_id
        self.protocol = protocol
        self._coordinator_answered()
        self.is_leader = answer.leader == answer.member_id
        self._heartbeat_at_ms = self._now_ms + self.config.heartbeat_interval_ms
        if self._topics != self._joined_topics:
            # B38: the answer is for a subscription that has changed, so its outcome is not needed.
            self._rejoin("the subscription changed during the join")
        elif self.is_leader:
            self._elected(answer)
        else:
            self._watch(frozenset())
            self._move(Event.JOINED)
            self._sync([])

    def _makes_sense(self, answer: JoinGroupResponse) -> bool:
        """Whether a join's answer can be one to this member.

        Of the leader's input only its own part can be checked, and without that part no assignor
        would give this member anything.
        """
        named = answer.generation_id >= 0 and (answer.protocol_name or "") in self.assignors
        if not named or not answer.member_id or self.member_id not in ("", answer.member_id):
            return False
        if answer.leader != answer.member_id:
            return not answer.members
        if answer.skip_assignment:
            return self.config.group_instance_id is not None
        me = read_members(answer.members).members.get(answer.member_id)
        return me is not None and me.topics == self._joined_topics

    def _elected(self, answer: JoinGroupResponse) -> None:
        self._inherits = False
        self._group = read_members(answer.members)
        self._out.extend(Warn(text) for text in self._group.warnings)
        self._watch(self._group.topics - (self._topics or frozenset()))
        if answer.skip_assignment:
            # KIP-814: a static leader that came back: the group keeps its plan. What topics that
            # plan was made for, it has to look up (`_inherit`), or it would miss what has changed.
            self._planned_for, self._inherits = {}, True
            self._move(Event.JOINED)
            self._sync([])
            return
        self._move(Event.ELECTED)
        config = self.config
        self._plan_at_ms = self._now_ms + min(
            config.request_timeout_ms, config.max_poll_interval_ms // 2
        )
        self._plan()

    def _plan(self) -> None:
        """Run the assignor once all topics are known, or with those that are when time is up."""
        topics = self._group.topics
        if not self._seen.keys() >= topics and self._now_ms < self._plan_at_ms:
            return
        self._planned_for = {topic: self._seen.get(topic) for topic in topics}
        known = {t: view for t, view in self._planned_for.items() if view and view.partitions}
        members = self._group.members
        try:
            plan = make_plan(self.assignors[self.protocol or ""], GroupView(members, known))
        except AssignorError as error:
            self._fail(error, leave=True)
            return
        self._move(Event.PLANNED)
        self._sync(encode_plan(plan, members))
        self._own_plan = freeze(plan.assignments.get(self.member_id, {}))

    def _watch(self, topics: frozenset[str]) -> None:
        if topics != self._watched:
            self._watched = topics
            self._out.append(WatchTopics(topics))

    # -- sync ----------------------------------------------------------------------------------

    def _sync(self, assignments: list[SyncGroupRequestAssignment]) -> None:
        self._calls.clear()
        self._own_plan = None
        message = sync_request(
            self.config, self.member_id, self.generation, self.protocol, assignments
        )
        self._joining_since_ms = self._now_ms
        self._send(Call.SYNC, message, self.config.max_poll_interval_ms + JOIN_SLACK_MS)

    def _sync_answered(self, answer: SyncGroupResponse) -> None:
        code = answer.error_code
        if code == ErrorCode.NONE:
            self._synced(answer)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._rejoin("the next rebalance began before this one ended")
        elif code in UNKNOWN_CODES:
            self._lose(code, "the sync")
        elif code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self._join_at_ms = self._now_ms + self._backoff_ms(self._failures)
            self._failures += 1
            self._rejoin("the coordinator is loading")
        elif code in MOVED_CODES:
            self._coordinator_gone(f"it answered the sync with {ErrorCode.name_of(code)}")
        else:
            self._refused(Call.SYNC, code)

    def _synced(self, answer: SyncGroupResponse) -> None:
        self._coordinator_answered()
        try:
            assignment, user_data = decode_assignment(answer.assignment)
        except ProtocolError as error:
            self._misread(Call.SYNC, error)
            return
        if self._own_plan is not None and freeze(assignment) != self._own_plan:
            error = ProtocolError(
                f"group {self.config.group_id!r}: the leader planned {self._own_plan} for itself "
                f"and was assigned {freeze(assignment)}; the answer was damaged"
            )
            self._misread(Call.SYNC, error)
            return
        topics = self._topics or frozenset()
        if topics != self._joined_topics:
            self._rejoin("the subscription changed during the rebalance")  # B38
            return
        if strangers := sorted(set(assignment) - topics):
            self._out.append(
                Warn(
                    f"group {self.config.group_id!r}: the leader assigned topics that this member "
                    f"does not subscribe to ({', '.join(strangers[:5])}); rejoining"
                )
            )
            self._join_at_ms = self._now_ms + self._backoff_ms(self._failures)
            self._failures += 1
            self._rejoin("assigned topics that it does not subscribe to")
            return
        try:
            self.assignors[self.protocol or ""].on_assignment(
                assignment, user_data, self.generation
            )
        except Exception as error:  # a user's own code: any error is named and fatal
            self._fail(broken_callback(self.protocol, "on_assignment", error), leave=True)
            return
        self._take(assignment)

    def _take(self, assignment: Partitions) -> None:
        self._move(Event.SYNCED)
        self._failures = self._misreads = 0
        self.rebalances += 1
        self._owned_generation = self.generation
        if self.cooperative:  # KIP-429: other members first give up what it gets
            self._pace.restart()
        wait_ms = 0 if self._hurried else self._wait_ms(assignment)
        self._heartbeat_at_ms = self._now_ms + wait_ms
        added, gone = subtract(assignment, self._owned), subtract(self._owned, assignment)
        if gone:
            # KIP-429, phase two: what is given up now goes to its new owner in the next rebalance.
            self._again = f"gave up {count(gone)} partitions so that others can take them"
            self._revoke(gone, False, f"reassigned in generation {self.generation}")
        self._owned = assignment
        self._serial += 1
        self._step = self._serial
        self._out.append(Assign(self._serial, added, assignment, self.generation))

    def _inherit(self, answer: Message | KohortError) -> None:
        """The plan that a leader found when it came back; without it, today's topics must do."""
        self._inherits = False
        known = {t: view for t, view in self._seen.items() if t in self._group.topics}
        self._planned_for = known
        if isinstance(answer, DescribeGroupsResponse):
            for group in answer.groups:
                if group.error_code == ErrorCode.NONE and group.members:
                    self._planned_for = planned_topics(group.members, self._group.topics)
        if self.state is State.STABLE:
            self._settle()

    # -- heartbeat -----------------------------------------------------------------------------

    def _heartbeat(self) -> None:
        self._pace.beat(self.config.heartbeat_interval_ms)
        wait_ms, self._hurried = self._wait_ms(self._owned), False
        self._heartbeat_at_ms = self._now_ms + wait_ms
        message = heartbeat_request(self.config, self.member_id, self.generation)
        timeout = min(self.config.request_timeout_ms, self.config.session_timeout_ms)
        self._send(Call.HEARTBEAT, message, timeout)

    def _wait_ms(self, owned: Partitions) -> int:
        return self._beat_wait_ms(self.config.heartbeat_interval_ms, idle=not owned)

    def _heartbeat_answered(self, answer: HeartbeatResponse) -> None:
        code = answer.error_code
        if code in MOVED_CODES:
            self._coordinator_gone(f"it answered a heartbeat with {ErrorCode.name_of(code)}")
            return
        self._coordinator_answered()
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            if self.state in {State.STABLE, State.ASSIGNING}:
                self._rejoin("the coordinator announced a rebalance")
        elif code in UNKNOWN_CODES:
            self._lose(code, "a heartbeat")
        elif code not in {ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}:
            self._refused(Call.HEARTBEAT, code)

    def _keeps_session(self) -> bool:
        return self.state in HEARTBEATING and self.generation >= 0 and self.coordinator is not None

    def _may_heartbeat(self) -> bool:
        return self._keeps_session() and Call.HEARTBEAT not in self._calls

    # -- time, as `MemberBase` asks for it -----------------------------------------------------

    def _due(self) -> list[int]:
        due = super()._due()
        if self._keeps_session():
            due.append(self._last_answer_ms + self.config.session_timeout_ms)
        if self.state is State.PLANNING:
            due.append(self._plan_at_ms)
        if self.state in {State.JOINING, State.SYNCING} and self._calls and not self._warned:
            due.append(self._joining_since_ms + LONG_REBALANCE_MS)
        return due

    def _timers(self) -> None:
        now, config = self._now_ms, self.config
        if self._keeps_session() and now >= self._last_answer_ms + config.session_timeout_ms:
            silent = now - self._last_answer_ms
            self._coordinator_gone(f"no answer for {silent} ms (session.timeout.ms)")
        super()._timers()
        if self.state is State.PLANNING:
            self._plan()
        if not self._warned and (text := self.waits_for_others(now)):
            self._warned = True
            self._out.append(Warn(text))
