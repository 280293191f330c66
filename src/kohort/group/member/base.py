"""What members of both protocols have in common: finding the coordinator, the caller, time.

Rules:
- A member is one object in three layers: this one, the steps of its protocol (`classic_steps`,
  `consumer_steps`), and its inputs (`classic`, `consumer`).
- Every input sets the time, takes steps, and ends with `_flush`: the effects to be carried out.
- The state moves only by the table of the protocol (`classic_table`, `consumer_table`). What
  the two tables both have is named here by a `Machine`.
- Each request has a token. An answer whose token has been overtaken is dropped (C7, B30).
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic

from kohort.config import format_elapsed
from kohort.errors import ErrorCode, KohortError
from kohort.group.assignors.base import NO_GENERATION
from kohort.group.member.config import MemberConfig
from kohort.group.member.effects import Effect, Fatal, FindCoordinator, Warn
from kohort.group.member.machine import E, Machine, S
from kohort.group.member.pace import Pace
from kohort.wire import Message

LONG_REBALANCE_MS = 5_000
"""Members that are well have joined again by then (Kafka's first round alone waits for 3 s)."""
MOVED_CODES = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class Call(enum.Enum):
    """Requests of which at most one is under way."""

    JOIN = "joining"
    SYNC = "taking the assignment"
    HEARTBEAT = "heartbeating"
    LEAVE = "leaving"
    LOOK = "looking at the group's plan"


class MemberBase(ABC, Generic[S, E]):
    """A member of one group. Every input returns the effects to be carried out, in order.

    All times are milliseconds of one monotonic clock of the shell's. A caller that is blocked
    inside `poll` is polling: the shell may call `polled` on its behalf as often as it likes.
    """

    def __init__(
        self, config: MemberConfig, machine: Machine[S, E], jitter: Callable[[], float]
    ) -> None:
        self.config = config
        self.state: S = machine.down
        self.since_ms = 0
        self.member_id = ""
        self.generation = NO_GENERATION
        self.coordinator: int | None = None
        self.last_reason = ""
        self.rebalances = 0
        self.error: KohortError | None = None
        self._machine = machine
        self._jitter = jitter
        self._out: list[Effect] = []
        self._now_ms = 0
        self._serial = 0
        self._calls: dict[Call, int] = {}
        self._finding = False
        self._finds = 0
        self._failures = 0
        self._find_at_ms = 0
        self._join_at_ms = 0
        self._heartbeat_at_ms = 0
        self._pace = Pace(config.join_heartbeat_ms)
        self._polled_ms = 0
        self._joining_since_ms = 0
        self._warned = False

    # -- what it shows -------------------------------------------------------------------------

    @property
    def group_instance_id(self) -> str | None:
        """`group.instance.id` of a static member (KIP-345), else None."""
        return self.config.group_instance_id

    @property
    def overdue(self) -> bool:
        """True when the member has left for lack of polls; the next poll brings it back."""
        return self.state is self._machine.overdue

    @property
    def is_out(self) -> bool:
        """True when there is nothing left to leave: not subscribed, left, or stopped
        permanently."""
        return self.state in self._machine.out

    def waits_for_others(self, now_ms: int) -> str:
        """The message about a join or sync that waits long for other members; "" if there is
        none."""
        waits = Call.JOIN in self._calls or Call.SYNC in self._calls
        if not waits or now_ms - self._joining_since_ms < LONG_REBALANCE_MS:
            return ""
        config, waited = self.config, format_elapsed(now_ms - self._joining_since_ms)
        return (
            f"group {config.group_id!r}: {self.state.value} for {waited}. The coordinator waits "
            "for members that have not joined again: for slow ones until their "
            "max_poll_interval_ms is over, for crashed ones until their session is (here "
            f"session_timeout_ms={config.session_timeout_ms}). So that a crash does not stop the "
            "others, give each member its own group_instance_id (static membership), or a shorter "
            "session_timeout_ms"
        )

    # -- the caller ----------------------------------------------------------------------------

    def unsubscribe(self, now_ms: int) -> list[Effect]:
        """Give up everything, leave the group, stay ready for another `subscribe`."""
        self._now_ms = now_ms
        self._unsubscribed()
        self._give_up(self._machine.unsubscribe, "the consumer unsubscribed")
        return self._flush()

    def close(self, now_ms: int) -> list[Effect]:
        """Release everything and leave permanently; done in state LEFT.

        A static member stays in the group; under KIP-848 it says that it may be back.
        """
        self._now_ms = now_ms
        self._give_up(self._machine.close, "the consumer is being closed")
        return self._flush()

    def polled(self, at_ms: int) -> list[Effect]:
        """The caller polled, or was inside `poll`, at `at_ms`; an older time changes nothing."""
        self._now_ms = max(self._now_ms, at_ms)
        if at_ms > self._polled_ms:
            self._polled_ms = at_ms
            if self._move(self._machine.polled):
                self._join_at_ms = self._now_ms
                self._advance()
        return self._flush()

    def revoked(self, token: int, now_ms: int) -> list[Effect]:
        """The caller has run the step `Revoke(token)`."""
        return self._confirmed(token, now_ms)

    def assigned(self, token: int, now_ms: int) -> list[Effect]:
        """The caller has run the step `Assign(token)`."""
        return self._confirmed(token, now_ms)

    def _confirmed(self, token: int, now_ms: int) -> list[Effect]:
        self._now_ms = now_ms
        self._step_done(token)
        return self._flush()

    # -- the cluster ---------------------------------------------------------------------------

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
        self._coordinator_known()
        if self.state is self._machine.discovering:
            self._enter()
        elif self._move(self._machine.found):
            self._member_again()
        self._timers()
        return self._flush()

    def coordinator_not_found(self, error: KohortError, now_ms: int) -> list[Effect]:
        """The lookup failed; it is tried again after a back-off unless `error` is for a person."""
        self._now_ms = now_ms
        self._finding = False
        if not error.retriable and self.state in self._machine.seeking:
            self._fail(error)
        self._find_at_ms = now_ms + self._backoff_ms(self._finds)
        self._finds += 1
        return self._flush()

    def coordinator_lost(self, now_ms: int) -> list[Effect]:
        """The connection to the coordinator broke, or an answer was NOT_COORDINATOR."""
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
            self._move(self._machine.gone)
        else:
            self._take_answer(call, answer)
        return self._flush()

    # -- time ----------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When `tick` is due at the latest, None while nothing but an event can change anything."""
        return min(self._due(), default=None)

    def _due(self) -> list[int]:
        due: list[int] = []
        if self._may_heartbeat():
            due.append(self._heartbeat_at_ms)
        if self.state in self._machine.poll_watched:
            due.append(self._polled_ms + self.config.max_poll_interval_ms)
        if self.state is self._machine.joining and Call.JOIN not in self._calls:
            due.append(self._join_at_ms)
        if self._may_seek():
            due.append(self._find_at_ms)
        return due

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what has fallen due. Call `polled` with the caller's latest poll first.

        Only here is the caller found to be overdue: other events come without its latest poll.
        """
        self._now_ms = now_ms
        limit_ms = self._polled_ms + self.config.max_poll_interval_ms
        if self.state in self._machine.poll_watched and now_ms >= limit_ms:
            self._overdue()
        self._timers()
        return self._flush()

    def _timers(self) -> None:
        if self._may_heartbeat() and self._now_ms >= self._heartbeat_at_ms:
            self._heartbeat()
        if self.state is self._machine.joining and Call.JOIN not in self._calls:
            self._join()

    # -- steps ---------------------------------------------------------------------------------

    def _move(self, event: E) -> bool:
        """Follow the table; False when the event does not concern the present state."""
        to = self._machine.transitions[self.state].get(event)
        if to is None:
            return False
        if to is not self.state:
            self.state, self.since_ms = to, self._now_ms
        return True

    def _flush(self) -> list[Effect]:
        """The end of every input: start a coordinator lookup if one is needed and missing."""
        if self._may_seek() and self._now_ms >= self._find_at_ms:
            self._finding = True
            self._out.append(FindCoordinator())
        out, self._out = self._out, []
        return out

    def _start(self) -> None:
        self._polled_ms = self._now_ms
        self._find_at_ms = self._join_at_ms = self._now_ms
        self._failures = 0
        self._move(self._machine.subscribe)
        self._enter()

    def _enter(self) -> None:
        """From DISCOVERING on to JOINING, at once if the coordinator is known (spec 1.1)."""
        if self.coordinator is not None and self._move(self._machine.found):
            self._join()

    def _overdue(self) -> None:
        """The caller does not poll: leave, so that others get the partitions (spec 1.3, B10)."""
        idle, limit = self._now_ms - self._polled_ms, self.config.max_poll_interval_ms
        reason = f"no poll for {idle} ms (max.poll.interval.ms={limit})"
        self._move(self._machine.poll_overdue)
        self.last_reason = reason
        self._send_leave(reason)
        self._out.append(
            Warn(
                f"left group {self.config.group_id!r}: {reason}. Others take its partitions; "
                f"it joins again at the next poll. Process less per poll (max.poll.records), or "
                f"raise max.poll.interval.ms"
            )
        )
        self._give_all_up(reason, lost=True)

    def _give_up(self, event: E, reason: str) -> None:
        if not self._move(event):
            return
        self.last_reason = reason
        self._leaving()
        self._give_all_up(reason, lost=self.generation < 0)
        self._advance()

    def _fail(self, error: KohortError, *, leave: bool = False) -> None:
        """Stopped permanently. While closing there is no caller to report to, so it only
        releases."""
        if self.state is self._machine.closing:
            self._drop_out()
        if not self._move(self._machine.fail):
            return
        self.error, self.last_reason = error, str(error)
        if leave:
            self._send_leave("its assignor failed")
        self._drop_out()
        self._give_all_up(str(error), lost=True)
        self._out.append(Fatal(error))

    def _coordinator_gone(self, reason: str) -> None:
        """Every answer still under way belongs to the old connection: none will count.

        Looked for at once; with a back-off when no answer was any good since the last time, or two
        brokers that point at each other would be asked without end.
        """
        if self.coordinator is None:
            return
        self.coordinator, self.last_reason = None, f"coordinator lost: {reason}"
        wait = self._backoff_ms(self._finds - 1) if self._finds else 0
        self._find_at_ms, self._finds = self._now_ms + wait, self._finds + 1
        leaving = Call.LEAVE in self._calls
        self._calls.clear()
        self._requests_lost()
        if leaving:
            self._move(self._machine.gone)
        self._move(self._machine.lost)

    def _may_seek(self) -> bool:
        return (
            self.coordinator is None and not self._finding and self.state in self._machine.seeking
        )

    def _beat_wait_ms(self, interval_ms: int, *, idle: bool) -> int:
        """The time until the next heartbeat of a member that owns nothing, if it is `idle`."""
        wait_ms, most_ms = self._pace.wait_ms(interval_ms), self.config.idle_heartbeat_ms
        return min(wait_ms, most_ms) if idle and most_ms else wait_ms

    def _backoff_ms(self, failures: int) -> int:
        """KIP-580: doubling, bounded, and spread by a fifth either way."""
        config = self.config
        flat = min(config.retry_backoff_max_ms, config.retry_backoff_ms << min(failures, 20))
        return int(flat * (0.8 + 0.4 * self._jitter()))

    # -- what each protocol does in its own way ------------------------------------------------

    @abstractmethod
    def _unsubscribed(self) -> None:
        """The caller subscribes to nothing any more."""

    @abstractmethod
    def _step_done(self, token: int) -> None:
        """The caller has run a step."""

    @abstractmethod
    def _advance(self) -> None:
        """Continue from a state that waits for the caller, once its last step is confirmed."""

    @abstractmethod
    def _join(self) -> None:
        """Ask to be taken in, if it is time."""

    @abstractmethod
    def _heartbeat(self) -> None:
        """Send a heartbeat."""

    @abstractmethod
    def _may_heartbeat(self) -> bool:
        """Whether a heartbeat could go out now."""

    @abstractmethod
    def _take_answer(self, call: Call, answer: Message | KohortError) -> None:
        """An answer to anything but a leave."""

    @abstractmethod
    def _send_leave(self, reason: str) -> int | None:
        """Leave if there is anybody to tell; the request's token. Forgets who it was."""

    @abstractmethod
    def _drop_out(self) -> None:
        """Out of the group: nothing of the membership counts any more."""

    @abstractmethod
    def _give_all_up(self, reason: str, *, lost: bool) -> None:
        """Let the caller give up everything that it owns."""

    def _leaving(self) -> None:
        """The caller wants to go."""

    def _coordinator_known(self) -> None:
        """A coordinator was found."""

    def _member_again(self) -> None:
        """A member that continued without a coordinator has one again."""

    def _requests_lost(self) -> None:
        """What was asked last will not be answered."""
