"""Why a group does or does not move, as text: compares two looks at it, some seconds apart.

Rules:
- Pure: looks in, findings out; the command gathers them.
- Every sentence says what blocks the group and what to do next; it never guesses. For facts that
  only the member knows (which of its handler's calls hangs), the text says to ask the member.
- A verdict needs evidence over time (spec 8.3): the present obstacle must have been there at the
  first look. A partition is *stuck* when it had records to read at the first look, the same member
  had it, and its committed offset has not moved since. An unknown lag is not evidence, and offsets
  without a record behind them (markers of transactions, compacted records) are no lag.
- Who commits without being a member (Spark, Flink, `assign`) commits when it likes: no alarm.
- A rebalance is an alarm only when it has outlasted every time-out that the coordinator applies to
  it; until then it is reported as moving.
- A member that commits less often than the looks are apart looks stuck; the text says so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from kohort.lean import quick
from kohort.observe.lag import Total, records_behind, total
from kohort.observe.snapshot import Look, Seen
from kohort.observe.spark_query import note_of, why_unmoved

if TYPE_CHECKING:
    from kohort.client.admin.types import GroupDescription, MemberDescription
    from kohort.client.common.types import TopicPartition
    from kohort.observe.open_transactions import Open

HOT_SHARE: Final = 0.8
"""Of all lag in one of several partitions: its keys are not spread, or its records are slow."""
REBALANCES_MANY: Final = 6
"""Within `RECENT_MS`; a roll-out of a few members has fewer."""
RECENT_MS: Final = 300_000
"""The age up to which a rebalance counts."""
HOT_LEAST: Final = 100
"""A lag this small is no trouble."""
NAMES_SHOWN: Final = 5
REBALANCING: Final = frozenset(
    {"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"}
)
REBALANCE_TIMEOUT_S: Final = 300.0
"""The default of `max.poll.interval.ms`, which members send as their rebalance timeout. No request
tells the value of a group that is configured otherwise: the command takes it as an option."""
GRACE_S: Final = 60.0
"""For the phases beside it: `group.initial.rebalance.delay.ms` (3 s) before a first rebalance, and
a session timeout (45 s) for a member that falls silent after its join (spec 2.9)."""

STATIC_AWAY_S: Final = 60.0
"""A static member may be away for its session timeout (45 s by default) while it restarts."""
TRANSACTION_S: Final = 60.0
"""The default of `transaction.timeout.ms`: a younger transaction delays no reader yet."""


class State(StrEnum):
    """What a partition does between two looks."""

    CAUGHT_UP = "caught up"
    MOVING = "moving"
    BEHIND = "falling behind"
    WAITING = "waiting"
    UNKNOWN = "unknown"
    STUCK = "stuck"


class Finding(NamedTuple):
    """What a partition does, and why."""

    partition: TopicPartition
    state: State
    seen: Seen
    done_per_s: float
    written_per_s: float
    why: str = ""


@dataclass(frozen=True)
class Verdict:
    """All that two looks tell: of the group as a whole, and of each partition.

    Attributes:
        concerns: what is in the way of the whole group; an alarm.
        notes: what happens in the group and may pass by itself; no alarm.
    """

    now: Look
    watched_s: float
    concerns: Sequence[str]
    notes: Sequence[str]
    findings: Sequence[Finding]

    @property
    def stuck(self) -> bool:
        """True when something is in the way of the group or of one of its partitions."""
        return bool(self.concerns) or any(f.state is State.STUCK for f in self.findings)

    @property
    def lag(self) -> Total:
        """Records behind over all partitions."""
        return total(records_behind(f.seen) for f in self.findings)


def judge(
    before: Look,
    now: Look,
    transactions: Sequence[Open],
    rebalances: Sequence[str],
    *,
    rebalancing_s: float | None = None,
    rebalance_timeout_s: float = REBALANCE_TIMEOUT_S,
    nothing_to_read: Collection[TopicPartition] = (),
    now_ms: int | None = None,
) -> Verdict:
    """Compare two looks.

    Args:
        before: the first look.
        now: the second one; the same object when one look is enough.
        transactions: the open ones in partitions whose last stable offset is not their end.
        rebalances: a line for each recent one.
        rebalancing_s: for how long the rebalance that is under way has lasted, in seconds, where
            the coordinator remembers its beginning; None where it does not.
        rebalance_timeout_s: the longest `max.poll.interval.ms` of the members, in seconds.
        nothing_to_read: partitions that hold no record between committed offset and end.
        now_ms: the time of the second look, in milliseconds since 1970; without it the age of Spark
            queries' commits is omitted.

    Returns:
        The stuck and the moving partitions, and why.
    """
    judged = _Judged(before, now, transactions, nothing_to_read, now_ms)
    judged.time_rebalance(rebalancing_s, rebalance_timeout_s)
    findings = [judged.finding(tp, seen) for tp, seen in sorted(now.partitions.items())]
    concerns, notes = judged.concerns(rebalances, findings)
    return Verdict(now, judged.seconds, concerns, notes, _hot(findings))


def unsettled(look: Look) -> bool:
    """Whether a second look can tell more: something is to be read, or the group rebalances."""
    lags = (seen.lag for seen in look.partitions.values())
    return look.group.state in REBALANCING or any(lag != 0 for lag in lags)


def stuck_spans(verdict: Verdict) -> dict[TopicPartition, tuple[int, int]]:
    """Of stuck partitions: from the committed offset to the end, where the log has both."""
    return {
        f.partition: (f.seen.committed, f.seen.end)
        for f in verdict.findings
        if f.state is State.STUCK
        and f.seen.committed is not None
        and f.seen.end is not None
        and f.seen.leader is not None
        and (f.seen.first or 0) <= f.seen.committed < f.seen.end
    }


class _Judged:
    def __init__(
        self,
        before: Look,
        now: Look,
        transactions: Sequence[Open],
        nothing_to_read: Collection[TopicPartition],
        now_ms: int | None,
    ) -> None:
        self._before, self._now = before, now
        self._now_ms = now_ms
        self._nothing_to_read = nothing_to_read
        self.seconds = max(0.001, now.at_s - before.at_s)
        self._open = {one.partition: one for one in reversed(transactions)}  # the first one holds
        self._owners = _owners(now)
        self._owners_before = _owners(before)
        self._rebalancing = now.group.state in REBALANCING
        self._rebalance_s = 0.0
        self._overdue = False

    def time_rebalance(self, remembered_s: float | None, timeout_s: float) -> None:
        """Work out for how long the group rebalances, and whether that is longer than it may."""
        if not self._rebalancing:
            return
        watched_s = self.seconds if self._before.group.state in REBALANCING else 0.0
        self._rebalance_s = watched_s if remembered_s is None else max(watched_s, remembered_s)
        self._overdue = self._rebalance_s > timeout_s + GRACE_S

    def concerns(
        self, rebalances: Sequence[str], findings: Sequence[Finding]
    ) -> tuple[list[str], list[str]]:
        """The obstacles of the group as a whole, and its present activity."""
        group, concerns, notes = self._now.group, list[str](), list[str]()
        stuck = [f for f in findings if f.state is State.STUCK]
        moves = any(f.state in (State.MOVING, State.BEHIND) for f in findings)
        queries = any(note_of(f.seen.metadata) for f in stuck)  # they read without being members
        empty = not group.members and not self._before.group.members
        if empty and stuck and not moves and not queries:
            concerns.append(
                "nobody reads: the group has no members. Start them; `kohort group timeline "
                f"{group.group_id}` says who left last, and why"
            )
        elif self._overdue:
            concerns.append(self._endless())
        elif self._rebalancing:
            notes.append(self._rebalance())
        if len(rebalances) >= REBALANCES_MANY:
            # A roll-out of many members rebalances as often; it is none as long as records move.
            stuck = not moves and any(self._kept_waiting(f) for f in findings)
            (concerns if stuck else notes).append(
                f"{len(rebalances)} rebalances in the last minutes, the last ones: "
                + "; ".join(rebalances[-NAMES_SHOWN:])
                + ". A member that crashes, or polls too seldom, comes and goes so"
            )
        return concerns, notes

    def _kept_waiting(self, finding: Finding) -> bool:
        """Whether a partition had records to read all the time, and they were not read."""
        was = self._before.partitions.get(finding.partition)
        late = was is not None and (was.lag or 0) > 0
        waits = finding.state in (State.STUCK, State.WAITING)
        return late and waits and not self._reads_retry_topic(finding.partition)

    def _endless(self) -> str:
        return (
            f"a rebalance does not end: it has lasted for {self._rebalance_s:.0f} s, longer than "
            "the members' max.poll.interval.ms, after which the coordinator drops whom it waits "
            "for. Either a member has a longer one (`--rebalance-timeout`) and hangs in its "
            f"handler, or look at the coordinator's log; the members are {self._names()}"
        )

    def _rebalance(self) -> str:
        return (
            f"a rebalance is under way, for at least {self._rebalance_s:.0f} s: the coordinator "
            "waits for members to join again or to give partitions up. It ends at the latest when "
            f"the max.poll.interval.ms of the slowest is over; the members are {self._names()}"
        )

    def _names(self) -> str:
        members = self._now.group.members
        more = " and more" if len(members) > NAMES_SHOWN else ""
        return (", ".join(_name(m) for m in members[:NAMES_SHOWN]) or "not known yet") + more

    def finding(self, tp: TopicPartition, seen: Seen) -> Finding:
        """What one partition does."""
        was = self._before.partitions.get(tp, seen)
        if was is seen and seen.lag == 0 and not _unreachable(tp, seen):
            return quick(Finding, (tp, State.CAUGHT_UP, seen, 0.0, 0.0, ""))
        done = _rate(was.committed, seen.committed, self.seconds)
        written = _rate(was.end, seen.end, self.seconds)
        state, why = self._state(tp, was, seen)
        if state is State.MOVING and written > done and (seen.lag or 0) > HOT_LEAST:
            state, why = State.BEHIND, "more is written than is done: more workers, or more members"
        return quick(Finding, (tp, state, seen, done, written, why))

    def _state(self, tp: TopicPartition, was: Seen, seen: Seen) -> tuple[State, str]:
        if seen.committed is not None and seen.committed != was.committed:
            at_end = seen.end is not None and seen.committed == seen.end
            return (State.CAUGHT_UP if at_end else State.MOVING), ""
        if _unreachable(tp, seen):
            return self._unreached(tp, was, seen)
        nothing = seen.lag == 0 or seen.end == seen.first or tp in self._nothing_to_read
        if nothing and not seen.beyond_end:
            return State.CAUGHT_UP, ""
        if self._reads_retry_topic(tp):
            return (
                State.WAITING,
                "a retry topic: `kohort retry status` says when its records are due",
            )
        if seen.committed is None and tp in self._owners:
            return State.UNKNOWN, self._never_committed(tp)
        wrong = _wrong_place(tp, seen)
        if wrong and _wrong_place(tp, was) and tp in self._before.partitions:
            return State.STUCK, wrong
        young = self._young(tp, was, seen)
        return (State.WAITING, young) if young else self._unmoved(tp, was, seen)

    def _unreached(self, tp: TopicPartition, was: Seen, seen: Seen) -> tuple[State, str]:
        """Brokers drop the offsets of a topic that is gone, and hide it from who may not see it."""
        known = seen.exists or (tp in self._owners and seen.committed is not None)
        lasts = known and bool(_unreachable(tp, was))
        return (State.STUCK if lasts else State.UNKNOWN), _unreachable(tp, seen)

    def _young(self, tp: TopicPartition, was: Seen, seen: Seen) -> str:
        """Why the first look is no evidence that it had records to read then; "" when it is."""
        if tp not in self._before.partitions:
            return "it is of this group only since the first look"
        if was.lag is None and seen.committed is not None:
            return "its lag is known only since the first look"
        if was.lag == 0:
            return "its records came after the first look: `--for` watches longer"
        return ""

    def _unmoved(self, tp: TopicPartition, was: Seen, seen: Seen) -> tuple[State, str]:
        """It had records to read, and its committed offset is the same."""
        noted = note_of(seen.metadata) is not None
        if seen.committed is not None and seen.metadata != was.metadata and not noted:
            return State.MOVING, "one record is slow; others behind it are done: `app.health()`"
        if seen.committed is not None and seen.committed >= (seen.stable or 0):
            return self._behind_transaction(tp, was, seen)
        going_on = State.WAITING if self._rebalancing and not self._overdue else State.STUCK
        owner, before = self._owners.get(tp), self._owners_before.get(tp)
        if owner is None:
            return self._unowned(tp, before, going_on)
        if before is None or before.member_id != owner.member_id:
            return State.WAITING, f"{_name(owner)} has it only since the first look"
        if owner.target is not None and tp not in owner.target:
            return going_on, f"{_name(owner)} is to give it up, and has not yet"
        # KIP-848: a member that keeps a partition reads it on while others move.
        state = State.STUCK if owner.target is not None else going_on
        if state is State.STUCK and owner.group_instance_id and self.seconds < STATIC_AWAY_S:
            return State.WAITING, (
                f"{_name(owner)} has committed nothing for {self.seconds:.0f} s; it is a static "
                f"member ({owner.group_instance_id}), which may be restarting: "
                f"`--for {STATIC_AWAY_S:.0f}s` tells"
            )
        return state, self._owned(owner)

    def _behind_transaction(self, tp: TopicPartition, was: Seen, seen: Seen) -> tuple[State, str]:
        """All that is committed is read; a transaction holds the rest back from its readers."""
        held = self._open.get(tp)
        if held is None or was.stable != seen.stable:
            return State.WAITING, "it waits for transactions that end and begin meanwhile"
        reason = f"{held}; readers of committed records get nothing behind it"
        lasts = held.hanging or (held.open_s or 0.0) > TRANSACTION_S
        return (State.STUCK if lasts else State.WAITING), reason

    def _unowned(
        self, tp: TopicPartition, before: MemberDescription | None, going_on: State
    ) -> tuple[State, str]:
        if before is not None:
            return State.WAITING, f"{_name(before)} has given it up since the first look"
        group = self._now.group
        if not group.members and (note := note_of(self._now.partitions[tp].metadata)):
            stuck, why = why_unmoved(note, self._now_ms)
            return (State.STUCK if stuck else State.WAITING), why
        if not group.members and not group.protocol_type:
            return State.WAITING, (
                f"nothing was committed for {self.seconds:.0f} s. The group never had members: "
                "a client without membership (Spark, Flink, `assign`) commits in it when it likes"
            )
        if not group.members and self._before.group.members:
            return State.WAITING, "the members of the group have left since the first look"
        if not self._subscribed(tp):
            return State.UNKNOWN, (
                f"no member subscribes to {tp.topic}: its offsets are left over, and expire"
            )
        return going_on, self._nobody(tp)

    def _subscribed(self, tp: TopicPartition) -> bool:
        """Whether the members read this topic, or are to read it; True of a group without any."""
        members = self._now.group.members
        return not members or any(tp.topic in m.topics or tp in (m.target or ()) for m in members)

    def _reads_retry_topic(self, tp: TopicPartition) -> bool:
        return f".{self._now.group.group_id}.retry." in tp.topic

    def _never_committed(self, tp: TopicPartition) -> str:
        return (
            f"{_name(self._owners[tp])} has it and has never committed there, so its lag is not "
            "known: it waits for the next record (auto.offset.reset=latest), keeps its offsets "
            "elsewhere, or has not finished its first record. `consumer.health()` in it tells"
        )

    def _nobody(self, tp: TopicPartition) -> str:
        group = self._now.group
        if not group.members:
            return "nobody has it: the group has no members"
        coming = [m for m in group.members if tp in (m.target or ())]
        if coming:
            late = [m for m in group.members if m is not coming[0] and _is_behind(m, group)]
            waits = f" when {_name(late[0])} has given it up, which hangs" if late else ""
            return f"nobody has it yet: {_name(coming[0])} is to get it{waits}"
        if self._rebalancing:
            return "nobody has it until the rebalance ends"
        return f"nobody has it, though members subscribe to {tp.topic}: look at the assignor"

    def _owned(self, owner: MemberDescription) -> str:
        return (
            f"{_name(owner)} has it and has committed nothing for {self.seconds:.0f} s: its next "
            "record is slow, hangs or fails again and again there, or the member has paused it (or "
            "commits more seldom than that). The record: `kohort consume TOPIC --partition P "
            "--offset N --max 1`; what the member does: `kill -USR1` its PID (`kohort app run`), "
            "or `consumer.health()` in it"
        )


def _owners(look: Look) -> dict[TopicPartition, MemberDescription]:
    return {tp: m for m in look.group.members for tp in m.assignment}


def _unreachable(tp: TopicPartition, seen: Seen) -> str:
    if not seen.exists:
        return f"topic {tp.topic} does not exist (any more), or this user may not see it"
    if seen.leader is None:
        nodes = ", ".join(map(str, seen.down))
        return "it has no leader" + (f": of its replicas, node {nodes} is down" if nodes else "")
    if seen.end is None:
        return f"its leader, node {seen.leader}, does not answer for it: look at that broker's log"
    return ""


def _wrong_place(tp: TopicPartition, seen: Seen) -> str:
    at, first, end = seen.committed, seen.first, seen.end
    if at is None or first is None or end is None:
        return ""
    if at < first:
        return (
            f"the next record to read is gone: offset {at:,}, and the log begins at {first:,}. "
            "auto.offset.reset decides where members continue; with `none` they end with an error"
        )
    if at > end:
        return (
            f"offset {at:,} is behind the log's end, {end:,}: the topic was created again, or has "
            f"lost records; `kohort group reset` sets where to continue"
        )
    return ""


def _is_behind(member: MemberDescription, group: GroupDescription) -> bool:
    """Whether a member (KIP-848) has not done yet what its group's epoch asks of it."""
    epoch, target_epoch = member.epoch, group.assignment_epoch
    return epoch is not None and target_epoch is not None and epoch < target_epoch


def _rate(was: int | None, now: int | None, seconds: float) -> float:
    return 0.0 if was is None or now is None else max(0, now - was) / seconds


def _name(member: MemberDescription) -> str:
    return f"{member.client_id} ({member.host})"


def _hot(findings: list[Finding]) -> list[Finding]:
    """Say so where nearly all lag is in one of several partitions that are all read."""
    whole = sum(f.seen.lag or 0 for f in findings)
    if whole < HOT_LEAST or len(findings) < 3:
        return findings
    return [_with_share(f, (f.seen.lag or 0) / whole) for f in findings]


def _with_share(finding: Finding, share: float) -> Finding:
    if share < HOT_SHARE or finding.state not in (State.MOVING, State.BEHIND):
        return finding
    tp = finding.partition
    sentence = (
        f"{share:.0%} of all lag is here: a hot key, or records slower than elsewhere. Its keys: "
        f"`kohort consume {tp.topic} --partition {tp.partition} --offset -1000 --until-end "
        "--format key-value | cut -f1 | sort | uniq -c | sort -n`"
    )
    return Finding(
        tp,
        finding.state,
        finding.seen,
        finding.done_per_s,
        finding.written_per_s,
        f"{finding.why}. {sentence}" if finding.why else sentence,
    )
