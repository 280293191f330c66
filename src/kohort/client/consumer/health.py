"""The health of a consumer as text: every partition's state, lag, and why it is not moving.

Rules:
- Pure over what the core knows at one instant; asking costs no request and changes nothing.
- A partition is *moving* when nothing has to happen outside before its records come: it is being
  read, or it has been read to its end. Everything else has a reason that names who can mend it.
- "Alive and silent" is an error: a partition with records to read that has not moved for longer
  than `watchdog_ms`, while its caller polls, is raised as ConsumerStalledError (issue C).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kohort.client.cluster.refusal_log import Refusals
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.plan.positions import Phase, Position
from kohort.config import format_elapsed
from kohort.errors import ConsumerStalledError
from kohort.lean import dataclass

HELD_MS = 3_000
"""Transactions of most programs are shorter: those are no news."""
UNANSWERED_MS = 5_000
"""A healthy broker answers a fetch of records that exist within milliseconds."""


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """One partition. Times are milliseconds; None where something is not known (yet).

    Attributes:
        state: the sentence of its phase.
        since_ms: how long it has been in that phase.
        still_ms: how long its position has not moved.
        position: the offset of the next record.
        lag: records between the position and the end that this consumer can see.
        lag_ms: the age of the last record that was handed out, 0 at the end.
        buffered_bytes: fetched and not handed out.
        why: why it is not moving; "" when it is.
        at_bound: it is read up to its bound (`limit`), and `why` says that.
    """

    partition: TopicPartition
    state: str
    since_ms: int
    still_ms: int
    position: int | None
    lag: int | None
    lag_ms: int | None
    buffered_bytes: int
    paused: bool
    why: str
    at_bound: bool = False

    @property
    def moving(self) -> bool:
        """True when nothing is in its way."""
        return not self.why


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """A consumer at one instant.

    Attributes:
        group: the state of its membership ("" without a subscription), and for how long.
        last_rebalance: what the last rebalance was for; "" before the first.
        polled_ms: how long ago the caller polled last; 0 while it is inside a poll.
        buffered_bytes, budget_bytes: what is held of the one byte budget, and how large it is.
        partitions: every assigned partition.
        concerns: problems that affect no single partition: no broker answers, a topic does not
            exist or did not when the consumer subscribed to it.
    """

    group: str
    group_since_ms: int
    last_rebalance: str
    coordinator: int | None
    polled_ms: int
    buffered_bytes: int
    budget_bytes: int
    partitions: tuple[PartitionHealth, ...]
    concerns: tuple[str, ...] = ()

    @property
    def stuck(self) -> tuple[PartitionHealth, ...]:
        """The partitions that something is in the way of."""
        return tuple(each for each in self.partitions if each.why)

    def __str__(self) -> str:
        """A few lines for the engineer on call."""
        held = f"{self.buffered_bytes} of {self.budget_bytes} bytes held"
        lines = [f"polled {format_elapsed(self.polled_ms)} ago, {held}"]
        if self.group:
            where = "no coordinator" if self.coordinator is None else f"node {self.coordinator}"
            since = format_elapsed(self.group_since_ms)
            lines.append(f"group: {self.group} for {since}, coordinator: {where}")
        lines += self.concerns
        for each in self.partitions:
            lag = "?" if each.lag is None else str(each.lag)
            lines.append(
                f"{each.partition} at {each.position}, lag {lag}: {each.why or each.state}"
            )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the partitions' reasons rest on beside themselves."""

    now_ms: int
    wall_ms: int
    polled_ms: int
    committed_only: bool
    budget_bytes: int
    buffered_bytes: int
    coordinator: int | None
    has_group: bool
    leader_of: Callable[[TopicPartition], int | None]
    reachable: Callable[[int], bool]
    refusals: Refusals


def examine(position: Position, around: Surroundings) -> PartitionHealth:
    """One partition's health."""
    lag = position.lag(committed_only=around.committed_only)
    seen_ms = position.timestamp_ms
    lag_ms = 0 if lag == 0 else None if seen_ms < 0 else max(0, around.wall_ms - seen_ms)
    return PartitionHealth(
        partition=position.tp,
        state=position.phase.value,
        since_ms=around.now_ms - position.entered_ms,
        still_ms=_still_ms(position, around),
        position=position.offset if position.offset >= 0 else None,
        lag=lag,
        lag_ms=lag_ms,
        buffered_bytes=position.buffered_bytes,
        paused=position.paused,
        why=_why(position, around, lag),
        at_bound=position.error is None and not position.paused and _at_bound(position),
    )


def _at_bound(position: Position) -> bool:
    return position.end is not None and position.known and position.offset >= position.end


def _why(position: Position, around: Surroundings, lag: int | None) -> str:
    """Why nothing of this partition is handed out at present; "" when that is as it should be."""
    if position.error is not None:
        what = "stopped" if position.phase is Phase.FAILED else "refused, retrying"
        return f"{what}: {position.error}"
    if position.paused:
        return "paused; resume() continues it"
    if _at_bound(position):
        return f"read up to its bound {position.end}; limit() sets another"
    if position.phase is Phase.AWAITING_OFFSET and around.has_group and around.coordinator is None:
        return f"{position.phase.value}; the group's coordinator is not known at present"
    if position.buffer is not None:
        idle_ms = around.polled_ms
        late = f"{position.buffered_bytes} bytes wait here; poll() was called last "
        return f"{late}{format_elapsed(idle_ms)} ago" if idle_ms > 1_000 else ""
    leader = around.leader_of(position.tp)
    if leader is None:
        return "it has no leader at present; the cluster is asked again and again"
    if not around.reachable(leader):
        return f"its leader, node {leader}, cannot be reached at present"
    refusal = around.refusals.get(position.tp)
    if refusal is not None:
        return f"{position.phase.value}; refused with {refusal.text(around.now_ms)}, retrying"
    if position.retry_at_ms > around.now_ms:
        left = format_elapsed(position.retry_at_ms - around.now_ms)
        return f"{position.phase.value}; the last request failed, it is made again in {left}"
    if position.phase is not Phase.FETCHING:
        return position.phase.value
    waited_ms = _still_ms(position, around)
    if lag and position.in_flight is not None and waited_ms >= UNANSWERED_MS:
        return f"node {leader} has not answered a fetch of it for up to {format_elapsed(waited_ms)}"
    if _held_ms(position, around) >= HELD_MS:
        return _held_back(position, around)
    if lag and around.buffered_bytes >= around.budget_bytes:
        return "the byte budget is full of what other partitions hold; poll(), or resume() those"
    return ""


def _held_ms(position: Position, around: Surroundings) -> int:
    """How long an open transaction has held back what a read_committed reader would read next."""
    at_its_begin = around.committed_only and position.offset >= position.last_stable
    if position.held_ms < 0 or not at_its_begin or not position.known:
        return 0
    return around.now_ms - position.held_ms


def _held_back(position: Position, around: Surroundings) -> str:
    count = position.high_watermark - position.last_stable
    return (
        f"an open transaction has held back {count} offsets from {position.last_stable} on for "
        f"{format_elapsed(_held_ms(position, around))} (isolation_level=read_committed); they are "
        "read when it is committed or aborted; `kohort transaction open "
        f"{position.tp.topic}` says whose it is"
    )


def _still_ms(position: Position, around: Surroundings) -> int:
    """How long its position has not moved."""
    return around.now_ms - max(position.moved_ms, position.entered_ms)


def raise_stalled(positions: Iterable[Position], around: Surroundings, watchdog_ms: int) -> None:
    """Raise for the first partition that is alive and silent for too long."""
    for position in positions:
        still_ms = _still_ms(position, around)
        lag = position.lag(committed_only=around.committed_only)
        waits_for_caller = position.paused or position.buffer is not None
        at_end = lag == 0 and _held_ms(position, around) < watchdog_ms
        if still_ms < watchdog_ms or at_end or waits_for_caller or _at_bound(position):
            continue
        if position.error is not None:
            continue  # poll raises that one itself
        why = _why(position, around, lag) or "no fetch of it is answered with records"
        raise ConsumerStalledError(
            f"{position.tp} has not moved from offset {position.offset} for "
            f"{format_elapsed(still_ms)} (watchdog_ms={watchdog_ms}), lag "
            f"{'unknown' if lag is None else lag}: {why}"
        )
