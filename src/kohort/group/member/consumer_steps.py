"""How a member of the consumer protocol moves through its table: the steps behind its inputs.

Rules:
- Nothing here is called from outside; `consumer` has the inputs, and the rules of the whole.
- A step changes the state only by an event of `consumer_table`, and appends effects in the
  order in which they must be carried out.
- Passing through a state without waiting there (DISCOVERING with a known coordinator, FENCED with
  nothing to give up, STABLE with a new assignment) is done by the step that leads into it.
- `_owned` is what the caller owns once it has run every step that was emitted; `_held` is what it
  owns now, by the steps it has confirmed. The coordinator gets `_held` (B2, B8), and in a full
  request that goes out while a step is open, also what that step may add (`_current_report`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kohort.errors import (
    RETRIABLE_CODES,
    ErrorCode,
    KohortError,
    ProtocolError,
    UnsupportedVersionError,
)
from kohort.group.assignors.base import NO_GENERATION, Partitions, freeze
from kohort.group.member.base import MOVED_CODES, Call, MemberBase
from kohort.group.member.config import MemberConfig
from kohort.group.member.consumer_messages import (
    JOIN_EPOCH,
    Owned,
    Report,
    assigned,
    heartbeat_request,
    leave_request,
    union,
    without,
)
from kohort.group.member.consumer_table import (
    HEARTBEATING,
    MACHINE,
    SETTLING,
    Event,
    State,
)
from kohort.group.member.effects import (
    Assign,
    Revoke,
    Send,
    WatchTopics,
)
from kohort.group.member.errors import fatal_error, unsupported_protocol
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse

LOST_CODES = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
LONGEST_INTERVAL_MS = 60_000
"""For any interval the coordinator names: four times what Kafka's own allow at most by default."""
UNRESOLVED_MS = 10_000
"""The id of a topic that exists is found out by then."""
MISREAD_MAX = 3
"""So many answers in a row that make no sense are the broker's fault."""
FIRST_INTERVAL_MS = 5_000
"""Until the coordinator names an interval, and when it names none that can be used (B9)."""


class OpenStep(NamedTuple):
    """A step that the caller has not confirmed; `held` is what it owns when it has."""

    token: int
    held: Owned
    gives_up: bool


class ConsumerMemberCore(MemberBase[State, Event]):
    """The state of a member and its steps; see `ConsumerMember` for the inputs."""

    def __init__(
        self, config: MemberConfig, new_id: Callable[[], str], jitter: Callable[[], float]
    ) -> None:
        super().__init__(config, MACHINE, jitter)
        self.cooperative = True
        self.is_leader = False
        self.member_id = new_id()
        self._new_id = new_id
        self._steps: deque[OpenStep] = deque()
        self._subscribed = False
        self._topics: frozenset[str] = frozenset()
        self._pattern = ""
        # Assigned, owned after all steps, owned now; and the names of the topics in them.
        self._target: Owned = {}
        self._owned: Owned = {}
        self._held: Owned = {}
        self._names: dict[bytes, str] = {}
        self._seen: dict[bytes, str] = {}
        self._watched: tuple[frozenset[str], frozenset[bytes]] = (frozenset(), frozenset())
        # What the coordinator is known to have, what is on its way to it, and whether it may
        # still count this member in.
        self._known: Report | None = None
        self._reporting: Report | None = None
        self._counted_in = False
        # The caller must learn that a reconciliation is complete, even if nothing is new.
        self._announce = False
        self._sent_ms = 0
        self._interval_ms = FIRST_INTERVAL_MS
        self._misreads = 0

    # -- moving --------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Continue from a state that waits for the caller, once its last step is confirmed."""
        if self._steps:
            return
        if self.state is State.RECONCILING:
            self._settle()
        elif self.state is State.FENCED:
            self._move(Event.REVOKED)
            self._enter()
        elif self.state is State.UNSUBSCRIBING:
            self._send_leave(self.last_reason)
            self._move(Event.REVOKED)
            if self._subscribed:
                self._start()
        elif self.state is State.CLOSING:
            self._move(Event.REVOKED)
            token = self._send_leave(self.last_reason)
            if token is None:
                self._move(Event.GONE)
            else:
                self._calls[Call.LEAVE] = token

    # -- after what was assigned ---------------------------------------------------------------

    def _settle(self) -> None:
        """Bring the caller to what was assigned: give up, tell the coordinator, take, tell it.

        One step at a time, each computed from what the caller really owns then; so an assignment
        that comes meanwhile is never compared with a set that is being revoked (B3). Nothing is
        taken before the coordinator has noted the owned partitions: its next assignment is the
        latest.
        """
        if self.state not in SETTLING or self._steps:
            return
        target = self._target
        ready = {i: parts for i, parts in target.items() if i in self._owned or i in self._seen}
        unknown = frozenset(target.keys() - ready.keys())
        self._names = {i: self._seen.get(i) or self._names[i] for i in {*ready, *self._owned}}
        self._watch(frozenset(self._names[i] for i in ready), unknown)
        gone, added = without(self._owned, ready), without(ready, self._owned)
        if gone:
            self._move(Event.TARGET)
            self._announce = True
            self.last_reason = f"reassigned in epoch {self.generation}"
            self._revoke(gone, False, self.last_reason)
        elif self._known is None or self._known.owned != self._held:
            self._move(Event.TAKEN)
            if self.coordinator is None:
                self._move(Event.COORDINATOR_LOST)
            elif self._known is not None:
                self._heartbeat_soon()
        elif added or (self._announce and (ready or not unknown)):
            self._move(Event.TARGET)
            self._take(added, ready)
        else:
            self._move(Event.TAKEN)
            self._move(Event.UNRESOLVED if unknown else Event.SETTLED)

    def _take(self, added: Owned, whole: Owned) -> None:
        self._announce = False
        self.last_reason = f"assigned in epoch {self.generation}"
        self.rebalances += 1
        self._owned = whole
        self._serial += 1
        self._steps.append(OpenStep(self._serial, whole, False))
        self._out.append(
            Assign(self._serial, self._named(added), self._named(whole), self.generation)
        )

    def _named(self, owned: Owned) -> Partitions:
        """By name; two topics of one name (the deleted one and its successor) are merged."""
        partitions: dict[str, set[int]] = {}
        for topic_id, numbers in owned.items():
            partitions.setdefault(self._names[topic_id], set()).update(numbers)
        return freeze(partitions)

    def _watch(self, names: frozenset[str], ids: frozenset[bytes]) -> None:
        watched = (names - self._topics, ids)
        if watched != self._watched:
            self._watched = watched
            self._out.append(WatchTopics(*watched))

    # -- giving up -----------------------------------------------------------------------------

    def _revoke(self, partitions: Owned, lost: bool, reason: str) -> None:
        """With `lost`, also when only an open step gives something up: it must know that (C6)."""
        if not partitions and not (lost and any(step.gives_up for step in self._steps)):
            return
        self._owned = without(self._owned, partitions)
        self._serial += 1
        self._steps.append(OpenStep(self._serial, self._owned, True))
        self._out.append(Revoke(self._serial, self._named(partitions), lost, reason))

    def _lose(self, code: int, request_name: str) -> None:
        """Fenced: owned partitions are lost, nothing may be committed, join afresh (B6, spec 1.5).

        A member fenced while it joins, with epoch 0, is mistaken for another one: it joins under
        another id then.
        """
        reason = f"{request_name} was answered {ErrorCode.name_of(code)} in epoch {self.generation}"
        if self.state is State.JOINING:
            self.member_id = self._new_id()
        self._drop_out()
        if self._move(Event.LOST):
            self.last_reason = reason
            wait_ms = self._backoff_ms(self._failures - 1) if self._failures else 0
            self._join_at_ms, self._failures = self._now_ms + wait_ms, self._failures + 1
            self._revoke(self._owned, True, reason)
            self._advance()

    def _give_all_up(self, reason: str, *, lost: bool) -> None:
        self._revoke(self._owned, lost, reason)

    def _requests_lost(self) -> None:
        self._known = None  # the next heartbeat is a full one (B5)

    def _drop_out(self) -> None:
        """Out of the group: no epoch, no assignment, and no answer counts any more."""
        self._calls.clear()
        self.generation = NO_GENERATION
        self._known = self._reporting = None
        self._target = {}
        self._announce = self._counted_in = False
        self._pace.grow_up()
        self._watch(frozenset(), frozenset())

    def _send_leave(self, reason: str) -> int | None:
        """For callers that need to know who may count this member in. KIP-848 has no place for a
        reason."""
        del reason
        node_id, there = self.coordinator, self._counted_in
        self._drop_out()
        if node_id is None or not there:
            return None
        message = leave_request(self.config, self.member_id)
        self._serial += 1
        self._out.append(Send(self._serial, message, node_id, self.config.request_timeout_ms))
        return self._serial

    # -- the coordinator -----------------------------------------------------------------------

    def _send(self, call: Call, epoch: int) -> None:
        assert self.coordinator is not None, "a request needs a coordinator"
        now = self._reporting = self._current_report()
        message = heartbeat_request(self.config, self.member_id, epoch, now, self._known)
        self._sent_ms = self._now_ms
        self._heartbeat_at_ms = self._now_ms + self._wait_ms()
        self._pace.beat(self._interval_ms)
        self._serial += 1
        self._calls[call] = self._serial
        self._out.append(
            Send(self._serial, message, self.coordinator, self.config.request_timeout_ms)
        )

    def _wait_ms(self) -> int:
        return self._beat_wait_ms(self._interval_ms, idle=not self._owned)

    def _join(self) -> None:
        if self._now_ms >= self._join_at_ms:
            self._known, self._counted_in = None, True
            self._send(Call.JOIN, JOIN_EPOCH)

    def _heartbeat_soon(self) -> None:
        """At once, or as soon as the one under way is answered, unless that says it all."""
        if self._calls and self._reporting == self._current_report():
            return
        self._heartbeat_at_ms = min(self._heartbeat_at_ms, self._now_ms)
        if self._may_heartbeat():
            self._heartbeat()

    def _unanswered(self, call: Call, error: KohortError) -> None:
        if error.retriable:
            self._coordinator_gone(f"{call.value} failed: {error}")
        elif isinstance(error, UnsupportedVersionError):
            self._fail(unsupported_protocol(self.config, error, pattern=bool(self._pattern)))
        else:
            self._fail(error)

    # -- answers -------------------------------------------------------------------------------

    def _heartbeat_answered(self, call: Call, answer: ConsumerGroupHeartbeatResponse) -> None:
        code = answer.error_code
        if code == ErrorCode.NONE:
            self._accepted(call, answer)
            return
        self._known = None
        request_name = "the join" if call is Call.JOIN else "a heartbeat"
        if code in MOVED_CODES:
            self._coordinator_gone(f"it answered {request_name} with {ErrorCode.name_of(code)}")
        elif code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            wait_ms = self._backoff_ms(self._failures)
            self._failures, self._finds = self._failures + 1, 0
            self._join_at_ms = self._heartbeat_at_ms = self._now_ms + wait_ms
        elif code in LOST_CODES or (
            code == ErrorCode.GROUP_ID_NOT_FOUND and call is Call.HEARTBEAT
        ):
            self._finds = 0
            self._lose(code, request_name)
        elif code in RETRIABLE_CODES:
            self._coordinator_gone(f"{request_name} was answered {ErrorCode.name_of(code)}")
        elif code == ErrorCode.UNSUPPORTED_VERSION:
            refused = UnsupportedVersionError(answer.error_message or "it gave no reason")
            self._fail(unsupported_protocol(self.config, refused, pattern=bool(self._pattern)))
        else:
            broker_message = answer.error_message or ""
            self._fail(fatal_error(code, call.value, self.config, [], broker_message))

    def _misread(self, call: Call, error: ProtocolError) -> None:
        """An answer makes no sense: it may have been damaged on its way, so ask in full again."""
        self._misreads += 1
        if self._misreads >= MISREAD_MAX:
            self._fail(error)
            return
        self._known = None
        wait_ms = self._backoff_ms(self._failures)
        self._failures += 1
        self._join_at_ms = self._heartbeat_at_ms = self._now_ms + wait_ms

    def _accepted(self, call: Call, answer: ConsumerGroupHeartbeatResponse) -> None:
        try:
            target = assigned(answer)
        except ProtocolError as error:
            self._misread(call, error)
            return
        self._finds = self._failures = self._misreads = 0
        self._known, self._reporting = self._reporting, None
        self.generation = answer.member_epoch
        if answer.heartbeat_interval_ms > 0:
            self._interval_ms = min(answer.heartbeat_interval_ms, LONGEST_INTERVAL_MS)
        if call is Call.JOIN or (target is not None and self._pace.is_young):
            self._pace.restart()
        if self._heartbeat_at_ms > self._now_ms:
            self._heartbeat_at_ms = max(self._now_ms, self._sent_ms + self._wait_ms())
        if call is Call.JOIN:
            self.member_id = answer.member_id or self.member_id
            self._announce = True
            self._move(Event.JOINED)
        if target is not None:
            self._target = target
        self._settle()
        if self._known is not None and self._known != self._current_report():
            self._heartbeat_soon()

    def _current_report(self) -> Report:
        """The content of a heartbeat now. While a step is open, the owned set stays as last
        reported.

        If it must be reported all the same (in full), it includes what the caller may yet take by
        an open step: a coordinator that reads it as not owned could give it away at the very moment
        at which the caller takes it (G1).
        """
        if self._known is not None and self._steps:
            return Report(self._topics, self._pattern, self._known.owned)
        owned = {topic: set(numbers) for topic, numbers in self._held.items()}
        for step in self._steps:
            for topic, numbers in step.held.items():
                owned.setdefault(topic, set()).update(numbers)
        whole = {topic: tuple(sorted(numbers)) for topic, numbers in owned.items()}
        return Report(self._topics, self._pattern, whole)

    def _report_revoked(self, gone: Owned) -> None:
        """Report partitions that were given up, even if taking them was never reported (B3).

        The coordinator assigned them and waits for the report; until then they count as reported.
        """
        if gone and self._known is not None:
            self._known = self._known._replace(owned=union(self._known.owned, gone))
        if gone and self._reporting is not None:
            self._reporting = self._reporting._replace(owned=union(self._reporting.owned, gone))

    # -- time ----------------------------------------------------------------------------------

    def _heartbeat(self) -> None:
        if self.state is State.RESOLVING and self._now_ms - self.since_ms >= UNRESOLVED_MS:
            self._known = None  # has the whole assignment sent again: its ids may be damaged
        self._send(Call.HEARTBEAT, self.generation)

    def _may_heartbeat(self) -> bool:
        return (
            self.state in HEARTBEATING
            and self.generation > 0
            and self.coordinator is not None
            and not self._calls
        )
