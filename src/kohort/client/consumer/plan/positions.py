"""The position of a consumer in each of its partitions: one state a partition, and its cause.

Rules:
- A partition is in exactly one `Phase`, with the time it was entered; `TRANSITIONS` is the whole
  machine. Flags that could contradict each other do not exist.
- `Position.offset` is the next offset to hand out: last delivered + 1. It falls only by a seek or a
  reset, and both raise the seek version of its `Stamp` (C3).
- A result of anything asynchronous names the `Stamp` (assignment, seek version) it was asked under
  and is dropped when the partition has moved on (C7).
- The reset policy is applied only on an answer that a broker has confirmed: no committed offset, or
  the offset is out of range at the current leader; and every application is an `OffsetReset` that
  says from where, to where and why (C8, spec 4.7).
- Pausing keeps what is buffered. Revoking forgets everything about the partition, retaining keeps
  everything (C10).
- The buffer is a chain: each set begins where the one before it ends, the first one at `offset`. A
  set that does not is dropped with all sets after it, so nothing is read twice or skipped.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from kohort.client.cluster.refusal_log import Refusals
from kohort.client.common.offset_reset import EARLIEST, LATEST, ResetPolicy
from kohort.client.common.types import TopicPartition
from kohort.errors import (
    DataLossError,
    ErrorCode,
    KohortError,
    NoOffsetForPartitionError,
    UsageError,
)
from kohort.lean import dataclass, field

UNKNOWN = -1
MAX_RESET_EVENTS = 1_000
DOUBT_EPOCH_MS = 5_000
DENIED_RETRY_MS = 1_000
"""How long a partition waits for a right that is missing before it is asked for again."""
"""A leader that lags behind the metadata has caught up by then."""


class Phase(enum.Enum):
    """What a partition is doing; the value is the sentence that `health()` shows."""

    __hash__ = object.__hash__  # an enumeration's own is a call of Python for each look-up

    AWAITING_OFFSET = "looking up the committed offset"
    AWAITING_RESET = "asking the leader for the offset to start from"
    AWAITING_VALIDATION = "checking the position against a new leader's log"
    FETCHING = "fetching"
    FAILED = "stopped by an error"


class Event(enum.Enum):
    """What happens to a partition."""

    COMMITTED = "a committed offset was found"
    NOTHING_COMMITTED = "the group has no committed offset"
    RESET_FOUND = "the leader named the offset to start from"
    OUT_OF_RANGE = "the leader says that the offset is out of range"
    LEADER_MOVED = "the partition has a new leader epoch"
    VALIDATED = "the new leader's log holds the position"
    TRUNCATED = "the new leader's log ends before the position"
    SEEK = "the caller moved the position"
    SEEK_RESET = "the caller asked for the beginning, the end or a time"
    FAIL = "an error that only the caller can mend"


_P, _E = Phase, Event
TRANSITIONS: dict[tuple[Phase, Event], Phase] = {
    (_P.AWAITING_OFFSET, _E.COMMITTED): _P.FETCHING,
    (_P.AWAITING_OFFSET, _E.NOTHING_COMMITTED): _P.AWAITING_RESET,
    (_P.AWAITING_RESET, _E.RESET_FOUND): _P.FETCHING,
    (_P.FETCHING, _E.OUT_OF_RANGE): _P.AWAITING_RESET,
    (_P.FETCHING, _E.LEADER_MOVED): _P.AWAITING_VALIDATION,
    (_P.AWAITING_VALIDATION, _E.LEADER_MOVED): _P.AWAITING_VALIDATION,
    (_P.AWAITING_VALIDATION, _E.VALIDATED): _P.FETCHING,
    (_P.AWAITING_VALIDATION, _E.TRUNCATED): _P.FETCHING,
    **{(phase, _E.SEEK): _P.FETCHING for phase in _P},
    **{(phase, _E.SEEK_RESET): _P.AWAITING_RESET for phase in _P},
    **{(phase, _E.FAIL): _P.FAILED for phase in _P},
}


class Stamp(NamedTuple):
    """What an asynchronous result about a partition belongs to."""

    assignment: int
    seek: int


class OffsetReset(NamedTuple):
    """One move of a position that the caller did not make: where from, where to, and why."""

    partition: TopicPartition
    from_offset: int
    to_offset: int
    policy: str
    cause: str
    at_ms: int


@dataclass(slots=True, eq=False)
class Position:
    """One assigned partition. Offsets are -1 while unknown; times are the core's milliseconds."""

    tp: TopicPartition
    stamp: Stamp
    phase: Phase
    entered_ms: int
    offset: int = UNKNOWN
    acked: int = UNKNOWN
    acked_epoch: int = UNKNOWN
    committed: int = UNKNOWN
    offset_epoch: int = UNKNOWN
    leader_epoch: int = UNKNOWN
    high_watermark: int = UNKNOWN
    last_stable: int = UNKNOWN
    held_ms: int = UNKNOWN
    """Since when the same open transaction has been in front of `last_stable`; unknown: none is."""
    log_start: int = UNKNOWN
    end: int | None = None
    paused: bool = False
    queued: bool = False
    buffer: Any = None
    """The record set that is read next (`Fetched`), with its `offset` and `size`."""
    behind: list[Any] = field(default_factory=list[Any])
    """Those after it."""
    buffered_end: int = UNKNOWN
    """Where the last of them ends; unknown until its batches have been looked at."""
    buffered_bytes: int = 0
    in_flight: int | None = None
    lane: int = 0
    lookup_token: int | None = None
    retry_at_ms: int = 0
    last_fetch_ms: int = UNKNOWN
    moved_ms: int = UNKNOWN
    timestamp_ms: int = UNKNOWN
    reset_to: int | None = None
    reset_cause: str = ""
    reset_from: int = UNKNOWN
    error: KohortError | None = None
    damaged_at: int = UNKNOWN
    """Where damaged records were met and are fetched once more."""
    replica: int | None = None
    replica_until_ms: int = 0

    @property
    def known(self) -> bool:
        """True once there is an offset to hand out from."""
        return self.offset >= 0 and self.phase in (Phase.FETCHING, Phase.AWAITING_VALIDATION)

    @property
    def handed_out(self) -> bool:
        """True where records up to `offset` were handed out, also when no more can be fetched."""
        return self.offset >= 0

    @property
    def fetch_offset(self) -> int:
        """Where the next fetch begins: behind all that is buffered; unknown when that is."""
        return self.offset if self.buffer is None else self.buffered_end

    def lag(self, *, committed_only: bool) -> int | None:
        """Records between the position and the end that this reader can see; None if unknown."""
        end = self.last_stable if committed_only and self.last_stable >= 0 else self.high_watermark
        return None if end < 0 or not self.known else max(0, end - self.offset)


class Denials:
    """The partitions that brokers refuse because a right is missing.

    The caller gets the error; the partition is asked for again until the right is granted.
    """

    def __init__(self) -> None:
        self._partitions: set[TopicPartition] = set()

    def __bool__(self) -> bool:
        return bool(self._partitions)

    def note(self, position: Position, error: KohortError, now_ms: int) -> None:
        """A request for the partition was refused."""
        position.error, position.retry_at_ms = error, now_ms + DENIED_RETRY_MS
        self._partitions.add(position.tp)

    def served(self, position: Position) -> None:
        """A request for the partition was answered."""
        if position.tp in self._partitions:
            self._partitions.discard(position.tp)
            position.error = None

    def forget(self, tp: TopicPartition) -> None:
        """The partition is read from elsewhere, has stopped, or is no longer assigned."""
        self._partitions.discard(tp)


def _latest_resets() -> deque[OffsetReset]:
    return deque(maxlen=MAX_RESET_EVENTS)


def _none_yet() -> Counter[Phase]:
    return Counter(dict.fromkeys(Phase, 0))


@dataclass
class Positions:
    """All assigned partitions of one consumer, and the only code that moves them."""

    policy: ResetPolicy
    version: int = 0
    partitions: dict[TopicPartition, Position] = field(
        default_factory=dict[TopicPartition, Position]
    )
    resets: deque[OffsetReset] = field(default_factory=_latest_resets)
    buffered_bytes: int = 0
    denials: Denials = field(default_factory=Denials)
    counts: Counter[Phase] = field(default_factory=_none_yet)
    """How many partitions are in each phase, so that no call looks at all of them."""
    refusals: Refusals = field(default_factory=Refusals)

    # -- membership of the set ---------------------------------------------------------------

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self.partitions

    def __iter__(self) -> Iterator[Position]:
        return iter(self.partitions.values())

    def __len__(self) -> int:
        return len(self.partitions)

    def get(self, tp: TopicPartition) -> Position:
        """The partition's position; UsageError when it is not assigned here."""
        position = self.partitions.get(tp)
        if position is None:
            raise UsageError(
                f"{tp.topic}-{tp.partition} is not assigned to this consumer; "
                f"assigned are {len(self.partitions)} partitions (see assignment())"
            )
        return position

    def add(self, tps: Iterable[TopicPartition], now_ms: int) -> list[Position]:
        """Take partitions in; those that are here already keep everything (retained)."""
        self.version += 1
        added: list[Position] = []
        for tp in tps:
            if tp in self.partitions:
                continue
            position = Position(tp, Stamp(self.version, 0), Phase.AWAITING_OFFSET, now_ms)
            self.partitions[tp] = position
            self.counts[position.phase] += 1
            added.append(position)
        return added

    def remove(self, tps: Iterable[TopicPartition]) -> list[Position]:
        """Give partitions up; everything in flight for them is stale from now on."""
        self.version += 1
        removed = [self.partitions.pop(tp) for tp in list(tps) if tp in self.partitions]
        for position in removed:
            self.counts[position.phase] -= 1
            self._drop_buffer(position)
            self.refusals.forget(position.tp)
            self.denials.forget(position.tp)
            position.stamp = Stamp(-1, -1)
        return removed

    def current(self, tp: TopicPartition, stamp: Stamp) -> Position | None:
        """The partition, if a result asked under `stamp` still belongs to it (C7)."""
        position = self.partitions.get(tp)
        return position if position is not None and position.stamp == stamp else None

    @property
    def settled(self) -> bool:
        """True when no partition has a question open about where to read."""
        idle = self.counts[Phase.FETCHING] + self.counts[Phase.FAILED]
        return idle == len(self.partitions)

    # -- what is known about the committed offset and the reset --------------------------------

    def committed_found(
        self, tp: TopicPartition, stamp: Stamp, offset: int, epoch: int, now_ms: int
    ) -> None:
        """OffsetFetch named a committed offset."""
        position = self.current(tp, stamp)
        if position is None or position.phase is not Phase.AWAITING_OFFSET:
            return
        self._enter(position, Event.COMMITTED, now_ms)
        self._place(position, offset, epoch)
        position.committed = offset
        if 0 <= epoch < position.leader_epoch:
            self._enter(position, Event.LEADER_MOVED, now_ms)

    def nothing_committed(self, tp: TopicPartition, stamp: Stamp, now_ms: int) -> None:
        """OffsetFetch confirmed that there is no committed offset: the policy decides (C8)."""
        position = self.current(tp, stamp)
        if position is None or position.phase is not Phase.AWAITING_OFFSET:
            return
        self._enter(position, Event.NOTHING_COMMITTED, now_ms)
        self._apply_policy(position, "the group has no committed offset", now_ms)

    def out_of_range(
        self, tp: TopicPartition, stamp: Stamp, offset: int, log_start: int, now_ms: int
    ) -> None:
        """The current leader says that the offset it was asked for is not in its log."""
        position = self.current(tp, stamp)
        if position is None or position.phase is not Phase.FETCHING or position.offset != offset:
            return
        self._drop_buffer(position)
        self._enter(position, Event.OUT_OF_RANGE, now_ms)
        start = f"; the log starts at {log_start}" if log_start >= 0 else ""
        self._apply_policy(position, f"offset {offset} is out of range{start}", now_ms)

    def reset_found(
        self, tp: TopicPartition, stamp: Stamp, offset: int, epoch: int, now_ms: int
    ) -> OffsetReset | None:
        """ListOffsets named the offset to start from; the event, unless the caller asked for it."""
        position = self.current(tp, stamp)
        if position is None or position.phase is not Phase.AWAITING_RESET:
            return None
        self._enter(position, Event.RESET_FOUND, now_ms)
        event = OffsetReset(
            tp, position.reset_from, offset, self._describe(position), position.reset_cause, now_ms
        )
        self._place(position, offset, epoch)
        position.leader_epoch = max(position.leader_epoch, epoch)
        position.reset_to = None
        if not position.reset_cause:
            return None
        self.resets.append(event)
        return event

    def validated(self, tp: TopicPartition, stamp: Stamp, now_ms: int) -> None:
        """The leader's log contains the position; fetching continues where it stopped (B52)."""
        position = self.current(tp, stamp)
        if position is not None and position.phase is Phase.AWAITING_VALIDATION:
            self._enter(position, Event.VALIDATED, now_ms)

    def truncated(
        self, tp: TopicPartition, stamp: Stamp, end: int, epoch: int, now_ms: int
    ) -> OffsetReset | None:
        """The leader's log ends at `end`, before the position: go back there, visibly (KIP-320)."""
        position = self.current(tp, stamp)
        if position is None or position.phase is not Phase.AWAITING_VALIDATION:
            return None
        if end >= position.offset:
            self._enter(position, Event.VALIDATED, now_ms)
            return None
        cause = f"the log was truncated to {end} under a new leader (epoch {epoch})"
        self._drop_buffer(position)
        if self.policy.target is None:
            text = (
                f"{tp.topic}-{tp.partition}: {cause}, and the position is {position.offset}; "
                "seek() to the offset to continue from"
            )
            self.fail(tp, stamp, DataLossError(text), now_ms)
            return None
        self._enter(position, Event.TRUNCATED, now_ms)
        event = OffsetReset(tp, position.offset, end, "truncation", cause, now_ms)
        self._place(position, end, epoch)
        self.resets.append(event)
        return event

    def fail(self, tp: TopicPartition, stamp: Stamp, error: KohortError, now_ms: int) -> None:
        """An error that only the caller can mend (by a seek, for example) stops the partition."""
        position = self.current(tp, stamp)
        if position is not None:
            self._drop_buffer(position)
            self._enter(position, Event.FAIL, now_ms)
            self.refusals.forget(tp)
            position.error = error

    def leader_moved(
        self, tp: TopicPartition, epoch: int, *, can_validate: bool, now_ms: int
    ) -> None:
        """Metadata shows a leader epoch; a newer one has to confirm the position (KIP-320).

        An unknown epoch (-1, a partition without leader) changes nothing (B53).
        """
        position = self.partitions.get(tp)
        if position is None or epoch <= position.leader_epoch:
            return
        position.leader_epoch = epoch
        position.replica = None
        known = position.offset >= 0 and position.offset_epoch >= 0
        if not (can_validate and known) or position.offset_epoch == epoch:
            return
        if position.phase in (Phase.FETCHING, Phase.AWAITING_VALIDATION):
            self._enter(position, Event.LEADER_MOVED, now_ms)
            self._drop_behind(position)

    def topic_recreated(self, topic: str) -> None:
        """The topic was deleted and created again: epochs start over, offsets mean nothing."""
        for position in self:
            if position.tp.topic == topic:
                position.leader_epoch = position.offset_epoch = UNKNOWN
                position.acked_epoch, position.replica = UNKNOWN, None

    def refused(self, position: Position, error: int, now_ms: int) -> None:
        """An answer refused this partition with a code that may pass.

        A leader that keeps not knowing our epoch never had it: the epoch was damaged on its way.
        """
        self.refusals.note(position.tp, error, now_ms)
        refusal = self.refusals.get(position.tp)
        if error != ErrorCode.UNKNOWN_LEADER_EPOCH or refusal is None:
            return
        if now_ms - refusal.since_ms >= DOUBT_EPOCH_MS:
            position.leader_epoch = UNKNOWN

    def ends_at(
        self, position: Position, high_watermark: int, last_stable: int, now_ms: int
    ) -> None:
        """An answer reported the end of the log and the first open transaction (LSO)."""
        if not 0 <= last_stable < high_watermark:
            position.held_ms = UNKNOWN
        elif position.held_ms == UNKNOWN or last_stable != position.last_stable:
            position.held_ms = now_ms
        position.high_watermark, position.last_stable = high_watermark, last_stable

    # -- what the caller does ------------------------------------------------------------------

    def seek(self, tp: TopicPartition, offset: int, epoch: int, now_ms: int) -> None:
        """Move to an offset; everything buffered or in flight for the partition is dropped."""
        if offset < 0:
            raise UsageError(f"cannot seek {tp.topic}-{tp.partition} to {offset}: offsets are >= 0")
        position = self.get(tp)
        self._moved(position)
        self._enter(position, Event.SEEK, now_ms)
        self._place(position, offset, epoch)

    def seek_reset(self, tp: TopicPartition, target: int, now_ms: int) -> None:
        """Move to EARLIEST or LATEST, once the leader has named the offset."""
        position = self.get(tp)
        self._moved(position)
        self._enter(position, Event.SEEK_RESET, now_ms)
        position.reset_to, position.reset_cause = target, ""
        position.reset_from, position.offset = position.offset, UNKNOWN

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Hand nothing out of these until `resume`; what is buffered stays."""
        for position in [self.get(tp) for tp in tps]:
            position.paused = True

    def resume(self, tps: Iterable[TopicPartition]) -> list[Position]:
        """Undo `pause`; returns those that have buffered data to hand out (B51: no move)."""
        resumed = [p for p in [self.get(tp) for tp in tps] if p.paused]
        for position in resumed:
            position.paused = False
        return [p for p in resumed if p.buffer is not None]

    def bound(self, tp: TopicPartition, end: int | None) -> None:
        """Read below `end` only; data that was cut at another bound is fetched again."""
        position = self.get(tp)
        if position.end != end:
            position.end = end
            if position.phase is Phase.FETCHING:
                self._moved(position)

    def advance(self, position: Position, offset: int, epoch: int) -> None:
        """Records up to `offset` (not included) were handed out, or there were none to see."""
        assert offset >= position.offset, "a position never falls by reading (C3)"
        position.offset, position.offset_epoch = offset, epoch

    def acknowledge(self, positions: Iterable[Position], now_ms: int) -> None:
        """The caller came back: what these handed out may be committed automatically (C4)."""
        for position in positions:
            position.moved_ms = now_ms
            position.acked, position.acked_epoch = position.offset, position.offset_epoch

    def store_buffer(self, position: Position, buffer: Any, size: int, end: int = UNKNOWN) -> None:
        """Fetched data, which begins at `fetch_offset`, waits to be read. It ends at `end`."""
        if position.buffer is None:
            position.buffer = buffer
        else:
            position.behind.append(buffer)
        position.buffered_end = end
        buffer.size = size
        position.buffered_bytes += size
        self.buffered_bytes += size

    def resize_buffer(self, position: Position, size: int) -> None:
        """The memory that the rest of the set being read takes now."""
        more = size - position.buffer.size
        position.buffer.size = size
        position.buffered_bytes += more
        self.buffered_bytes += more

    def release_buffer(self, position: Position) -> None:
        """The first of the fetched sets has been read to its end; the next one is its turn."""
        behind = position.behind
        if not behind or behind[0].offset != position.offset:
            self._drop_buffer(position)
            return
        self.buffered_bytes -= position.buffer.size
        position.buffered_bytes -= position.buffer.size
        position.buffer = behind.pop(0)

    def forget_buffer(self, position: Position) -> None:
        """The buffered data turned out to be unreadable; fetch it again."""
        self._drop_buffer(position)

    # -- inside --------------------------------------------------------------------------------

    def _enter(self, position: Position, event: Event, now_ms: int) -> None:
        phase = TRANSITIONS[(position.phase, event)]
        if phase is not position.phase:
            self.counts[position.phase] -= 1
            self.counts[phase] += 1
            position.entered_ms = now_ms
        position.phase, position.retry_at_ms, position.error = phase, 0, None
        self.denials.forget(position.tp)
        position.lookup_token = None

    def _place(self, position: Position, offset: int, epoch: int) -> None:
        position.stamp = Stamp(position.stamp.assignment, position.stamp.seek + 1)
        position.offset, position.offset_epoch = offset, epoch
        position.acked, position.acked_epoch = offset, epoch
        position.damaged_at = UNKNOWN

    def _moved(self, position: Position) -> None:
        position.stamp = Stamp(position.stamp.assignment, position.stamp.seek + 1)
        position.in_flight, position.reset_to = None, None
        self._drop_buffer(position)

    def _drop_buffer(self, position: Position) -> None:
        self.buffered_bytes -= position.buffered_bytes
        position.buffer, position.buffered_bytes, position.buffered_end = None, 0, UNKNOWN
        if position.behind:
            position.behind = []

    def _drop_behind(self, position: Position) -> None:
        """Keep only the buffered set that is being read; prefetched ones are not needed.

        Before a new leader has confirmed the position, the less of the old one's log the better.
        """
        size = sum(each.size for each in position.behind)
        self.buffered_bytes -= size
        position.buffered_bytes -= size
        position.behind, position.buffered_end = [], UNKNOWN

    def _apply_policy(self, position: Position, cause: str, now_ms: int) -> None:
        position.reset_from, position.reset_cause = position.offset, cause
        position.reset_to = self.policy.target
        if self.policy.target is None:
            tp = position.tp
            text = (
                f"{tp.topic}-{tp.partition}: {cause}, and auto_offset_reset is 'none'; "
                "seek() to where to start, or choose earliest or latest"
            )
            self.fail(tp, position.stamp, NoOffsetForPartitionError(text), now_ms)
            return
        position.stamp = Stamp(position.stamp.assignment, position.stamp.seek + 1)

    def _describe(self, position: Position) -> str:
        named = {EARLIEST: "earliest", LATEST: "latest"}
        if position.reset_to is None:
            return self.policy.text
        return named.get(position.reset_to, self.policy.text)
