"""How a member of the consumer protocol moves through its table: the steps behind its inputs.

Rules:
- Nothing here is called from outside; `consumer_member` has the inputs, and the rules of the whole.
- A step changes the state only by an event of `consumer_member_table`, and appends effects in the
  order in which they must be carried out.
- Passing through a state without waiting there (DISCOVERING with a known coordinator, FENCED with
  nothing to give up, STABLE with a new assignment) is done by the step that leads into it.
- `_owned` is what the caller owns once it has run every step that was emitted; `_held` is what it
  owns now, by the steps it has confirmed. The coordinator is told of `_held` (B2, B8), and by a
  full request that goes out while a step is open, also of what that step may add (`_now_told`).
"""

from __future__ import annotations

import enum
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
from kohort.group.consumer_member_messages import (
    JOIN_EPOCH,
    Owned,
    Told,
    assigned,
    heartbeat_request,
    leave_request,
    union,
    without,
)
from kohort.group.consumer_member_table import (
    HEARTBEATING,
    SEEKING,
    SETTLING,
    TRANSITIONS,
    Event,
    State,
)
from kohort.group.member_config import MemberConfig
from kohort.group.member_effects import (
    Assign,
    Effect,
    Fatal,
    FindCoordinator,
    Revoke,
    Send,
    Warn,
    WatchTopics,
)
from kohort.group.member_errors import fatal_error, unsupported_protocol
from kohort.group.pace import Pace
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse

MOVED_CODES = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
LOST_CODES = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
FIRST_INTERVAL_MS = 5_000
"""Until the coordinator names an interval, and when it names none that can be used (B9)."""


class Call(enum.Enum):
    """Requests of which at most one is under way."""

    JOIN = "joining"
    HEARTBEAT = "heartbeating"
    LEAVE = "leaving"


class OpenStep(NamedTuple):
    """A step that the caller has not confirmed; `held` is what it owns when it has."""

    token: int
    held: Owned
    gives_up: bool


class ConsumerMemberCore:
    """The state of a member and its steps; see `ConsumerMember` for the inputs."""

    def __init__(
        self, config: MemberConfig, new_id: Callable[[], str], jitter: Callable[[], float]
    ) -> None:
        self.config = config
        self.cooperative = True
        self.is_leader = False
        self.state = State.DOWN
        self.since_ms = 0
        self.member_id = new_id()
        self.generation = NO_GENERATION
        self.coordinator: int | None = None
        self.last_reason = ""
        self.rebalances = 0
        self.error: KohortError | None = None
        self._new_id = new_id
        self._jitter = jitter
        self._out: list[Effect] = []
        self._now_ms = 0
        self._serial = 0
        self._calls: dict[Call, int] = {}
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
        # What the coordinator has confirmed to know, what it is being told, and whether it may
        # still count this member in.
        self._known: Told | None = None
        self._telling: Told | None = None
        self._counted_in = False
        # The caller is to be told that a reconciliation is complete, even if nothing is new.
        self._announce = False
        self._finding = False
        self._finds = 0
        self._failures = 0
        self._find_at_ms = 0
        self._join_at_ms = 0
        self._heartbeat_at_ms = 0
        self._sent_ms = 0
        self._interval_ms = FIRST_INTERVAL_MS
        self._pace = Pace(config.join_heartbeat_ms)
        self._polled_ms = 0

    # -- moving --------------------------------------------------------------------------------

    def _move(self, event: Event) -> bool:
        """Follow the table; False when the event does not concern the present state."""
        to = TRANSITIONS[self.state].get(event)
        if to is None:
            return False
        if to is not self.state:
            self.state, self.since_ms = to, self._now_ms
        return True

    def _flush(self) -> list[Effect]:
        """The end of every input: whoever needs a coordinator and has none looks for one."""
        if self._may_seek() and self._now_ms >= self._find_at_ms:
            self._finding = True
            self._out.append(FindCoordinator())
        out, self._out = self._out, []
        return out

    def _advance(self) -> None:
        """Go on from a state that waits for the caller, once its last step is confirmed."""
        if self._steps:
            return
        if self.state is State.RECONCILING:
            self._settle()
        elif self.state is State.FENCED:
            self._move(Event.REVOKED)
            self._enter()
        elif self.state is State.UNSUBSCRIBING:
            self._send_leave()
            self._move(Event.REVOKED)
            if self._subscribed:
                self._start()
        elif self.state is State.CLOSING:
            self._move(Event.REVOKED)
            token = self._send_leave()
            if token is None:
                self._move(Event.GONE)
            else:
                self._calls[Call.LEAVE] = token

    def _start(self) -> None:
        self._polled_ms = self._now_ms
        self._find_at_ms = self._join_at_ms = self._now_ms
        self._failures = 0
        self._move(Event.SUBSCRIBE)
        self._enter()

    def _enter(self) -> None:
        """From DISCOVERING on to JOINING, at once if the coordinator is known (spec 1.1)."""
        if self.coordinator is not None and self._move(Event.COORDINATOR_FOUND):
            self._join()

    # -- after what was assigned ---------------------------------------------------------------

    def _settle(self) -> None:
        """Bring the caller to what was assigned: give up, tell the coordinator, take, tell it.

        One step at a time, each computed from what the caller really owns then; so an assignment
        that comes meanwhile is never compared with a set that is on its way out (B3). Nothing is
        taken before the coordinator has noted what is owned: what it then assigns is the latest.
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
        """By name; two topics of one name (the old one and the one made anew) come together."""
        found: dict[str, set[int]] = {}
        for topic_id, numbers in owned.items():
            found.setdefault(self._names[topic_id], set()).update(numbers)
        return freeze(found)

    def _watch(self, names: frozenset[str], ids: frozenset[bytes]) -> None:
        wanted = (names - self._topics, ids)
        if wanted != self._watched:
            self._watched = wanted
            self._out.append(WatchTopics(*wanted))

    # -- giving up -----------------------------------------------------------------------------

    def _revoke(self, partitions: Owned, lost: bool, reason: str) -> None:
        """With `lost`, also when only an open step gives something up: it must know that (C6)."""
        if not partitions and not (lost and any(step.gives_up for step in self._steps)):
            return
        self._owned = without(self._owned, partitions)
        self._serial += 1
        self._steps.append(OpenStep(self._serial, self._owned, True))
        self._out.append(Revoke(self._serial, self._named(partitions), lost, reason))

    def _lose(self, code: int, asked: str) -> None:
        """Fenced: what was owned is lost, nothing may be committed, join afresh (B6, spec 1.5).

        Whoever is fenced while it joins, with epoch 0, is held for somebody else: it joins under
        another id then.
        """
        reason = f"{asked} was answered {ErrorCode.name_of(code)} in epoch {self.generation}"
        if self.state is State.JOINING:
            self.member_id = self._new_id()
        self._forget()
        if self._move(Event.LOST):
            self.last_reason = reason
            wait_ms = self._backoff_ms(self._failures - 1) if self._failures else 0
            self._join_at_ms, self._failures = self._now_ms + wait_ms, self._failures + 1
            self._revoke(self._owned, True, reason)
            self._advance()

    def _forget(self) -> None:
        """Out of the group: no epoch, no assignment, and no answer counts any more."""
        self._calls.clear()
        self.generation = NO_GENERATION
        self._known = self._telling = None
        self._target = {}
        self._announce = self._counted_in = False
        self._pace.grow_up()
        self._watch(frozenset(), frozenset())

    def _overdue(self) -> None:
        """The caller does not poll: leave, so that others get the partitions (spec 1.3, B10)."""
        idle, limit = self._now_ms - self._polled_ms, self.config.max_poll_interval_ms
        reason = f"no poll for {idle} ms (max.poll.interval.ms={limit})"
        self._move(Event.POLL_OVERDUE)
        self.last_reason = reason
        self._send_leave()
        self._out.append(
            Warn(
                f"left group {self.config.group_id!r}: {reason}. Others take its partitions; "
                f"it joins again at the next poll. Process less per poll (max.poll.records), or "
                f"raise max.poll.interval.ms"
            )
        )
        self._revoke(self._owned, True, reason)

    def _give_up(self, event: Event, reason: str) -> None:
        if not self._move(event):
            return
        self.last_reason = reason
        self._revoke(self._owned, self.generation < 0, reason)
        self._advance()

    def _fail(self, error: KohortError) -> None:
        """Out for good. While closing there is nobody left to tell, so it only lets go."""
        if self.state is State.CLOSING:
            self._forget()
        if not self._move(Event.FAIL):
            return
        self.error, self.last_reason = error, str(error)
        self._forget()
        self._revoke(self._owned, True, str(error))
        self._out.append(Fatal(error))

    def _send_leave(self) -> int | None:
        """Leave if there is anybody to tell who may count this member in."""
        node_id, there = self.coordinator, self._counted_in
        self._forget()
        if node_id is None or not there:
            return None
        message = leave_request(self.config, self.member_id)
        self._serial += 1
        self._out.append(Send(self._serial, message, node_id, self.config.request_timeout_ms))
        return self._serial

    # -- the coordinator -----------------------------------------------------------------------

    def _send(self, call: Call, epoch: int) -> None:
        assert self.coordinator is not None, "a request needs a coordinator"
        now = self._telling = self._now_told()
        message = heartbeat_request(self.config, self.member_id, epoch, now, self._known)
        self._sent_ms = self._now_ms
        self._heartbeat_at_ms = self._now_ms + self._pace.wait_ms(self._interval_ms)
        self._pace.beat()
        self._serial += 1
        self._calls[call] = self._serial
        self._out.append(
            Send(self._serial, message, self.coordinator, self.config.request_timeout_ms)
        )

    def _join(self) -> None:
        if self._now_ms >= self._join_at_ms:
            self._known, self._counted_in = None, True
            self._send(Call.JOIN, JOIN_EPOCH)

    def _heartbeat_soon(self) -> None:
        """At once, or as soon as the one under way is answered, unless that says it all."""
        if self._calls and self._telling == self._now_told():
            return
        self._heartbeat_at_ms = min(self._heartbeat_at_ms, self._now_ms)
        if self._may_heartbeat():
            self._send(Call.HEARTBEAT, self.generation)

    def _coordinator_gone(self, reason: str) -> None:
        """Every answer still under way belongs to the old connection: none will count.

        What it would have said is unknown, so the next heartbeat is a full one (B5). Looked for at
        once; with a back-off when no answer was any good since the last time.
        """
        if self.coordinator is None:
            return
        self.coordinator, self.last_reason = None, f"coordinator lost: {reason}"
        wait = self._backoff_ms(self._finds - 1) if self._finds else 0
        self._find_at_ms, self._finds = self._now_ms + wait, self._finds + 1
        leaving = Call.LEAVE in self._calls
        self._calls.clear()
        self._known = None
        if leaving:
            self._move(Event.GONE)
        self._move(Event.COORDINATOR_LOST)

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
        asked = "the join" if call is Call.JOIN else "a heartbeat"
        if code in MOVED_CODES:
            self._coordinator_gone(f"it answered {asked} with {ErrorCode.name_of(code)}")
        elif code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            wait_ms = self._backoff_ms(self._failures)
            self._failures, self._finds = self._failures + 1, 0
            self._join_at_ms = self._heartbeat_at_ms = self._now_ms + wait_ms
        elif code in LOST_CODES or (
            code == ErrorCode.GROUP_ID_NOT_FOUND and call is Call.HEARTBEAT
        ):
            self._finds = 0
            self._lose(code, asked)
        elif code in RETRIABLE_CODES:
            self._coordinator_gone(f"{asked} was answered {ErrorCode.name_of(code)}")
        elif code == ErrorCode.UNSUPPORTED_VERSION:
            refused = UnsupportedVersionError(answer.error_message or "it gave no reason")
            self._fail(unsupported_protocol(self.config, refused, pattern=bool(self._pattern)))
        else:
            said = answer.error_message or ""
            self._fail(fatal_error(code, call.value, self.config, [], said))

    def _accepted(self, call: Call, answer: ConsumerGroupHeartbeatResponse) -> None:
        try:
            target = assigned(answer)
        except ProtocolError as error:
            self._fail(error)
            return
        self._finds = self._failures = 0
        self._known, self._telling = self._telling, None
        self.generation = answer.member_epoch
        if answer.heartbeat_interval_ms > 0:
            self._interval_ms = answer.heartbeat_interval_ms
        if call is Call.JOIN or (target is not None and self._pace.is_young):
            self._pace.restart()
        if self._heartbeat_at_ms > self._now_ms:
            self._heartbeat_at_ms = max(
                self._now_ms, self._sent_ms + self._pace.wait_ms(self._interval_ms)
            )
        if call is Call.JOIN:
            self.member_id = answer.member_id or self.member_id
            self._announce = True
            self._move(Event.JOINED)
        if target is not None:
            self._target = target
        self._settle()
        if self._known is not None and self._known != self._now_told():
            self._heartbeat_soon()

    def _now_told(self) -> Told:
        """What a heartbeat says now. While a step is open, what is owned is left as it was told.

        If it must be told all the same (in full), what the caller may yet take by an open step is
        in it: told that it is not owned, the coordinator could give it away at the very moment at
        which the caller takes it (G1).
        """
        if self._known is not None and self._steps:
            return Told(self._topics, self._pattern, self._known.owned)
        owned = {topic: set(numbers) for topic, numbers in self._held.items()}
        for step in self._steps:
            for topic, numbers in step.held.items():
                owned.setdefault(topic, set()).update(numbers)
        whole = {topic: tuple(sorted(numbers)) for topic, numbers in owned.items()}
        return Told(self._topics, self._pattern, whole)

    def _unsay(self, gone: Owned) -> None:
        """What was given up has to be told, even if it was never told that it was taken (B3).

        The coordinator assigned it and waits for the word; so it counts as told until then.
        """
        if gone and self._known is not None:
            self._known = self._known._replace(owned=union(self._known.owned, gone))
        if gone and self._telling is not None:
            self._telling = self._telling._replace(owned=union(self._telling.owned, gone))

    # -- time ----------------------------------------------------------------------------------

    def _timers(self) -> None:
        now = self._now_ms
        if self._may_heartbeat() and now >= self._heartbeat_at_ms:
            self._send(Call.HEARTBEAT, self.generation)
        if self.state is State.JOINING and Call.JOIN not in self._calls:
            self._join()

    def _may_heartbeat(self) -> bool:
        return (
            self.state in HEARTBEATING
            and self.generation > 0
            and self.coordinator is not None
            and not self._calls
        )

    def _may_seek(self) -> bool:
        return self.coordinator is None and not self._finding and self.state in SEEKING

    def _backoff_ms(self, failures: int) -> int:
        """KIP-580: doubling, bounded, and spread by a fifth either way."""
        config = self.config
        flat = min(config.retry_backoff_max_ms, config.retry_backoff_ms << min(failures, 20))
        return int(flat * (0.8 + 0.4 * self._jitter()))
