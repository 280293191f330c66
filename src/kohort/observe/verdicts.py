"""Why a group does or does not move, in words: two looks at it, some seconds apart, are compared.

Rules:
- Pure: looks in, findings out; the command gathers them.
- Every sentence says what is in the way and what to do next; it never guesses. What only the member
  itself knows (which of its handler's calls hangs), is said to be asked of the member.
- A verdict needs evidence over time (spec 8.3): what is in the way now must have been there at the
  first look. A partition *stands* when it had records to read at the first look, the same member
  had it, and its committed offset has not moved since. An unknown lag is not evidence.
- A rebalance is an alarm only when it has outlasted every time-out that the coordinator applies to
  it; until then it is reported as going on.
- A member that commits more seldom than the looks are apart looks as if it stood; the text says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from kohort.observe.snapshot import Look, Seen

if TYPE_CHECKING:
    from kohort.client.admin.types import GroupDescription, MemberDescription
    from kohort.client.common.types import TopicPartition
    from kohort.observe.open_transactions import Open

HOT_SHARE: Final = 0.8
"""Of all lag in one of several partitions: its keys are not spread, or its records are slow."""
REBALANCES_MANY: Final = 6
"""In some minutes; a roll-out of a few members has fewer."""
HOT_LEAST: Final = 100
"""A lag so small is nobody's trouble."""
NAMES_SHOWN: Final = 5
REBALANCING: Final = frozenset(
    {"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"}
)
REBALANCE_TIMEOUT_S: Final = 300.0
"""The default of `max.poll.interval.ms`, which members send as their rebalance timeout. No request
tells the value of a group that somebody configured otherwise: the command takes it as an option."""
GRACE_S: Final = 60.0
"""For the phases beside it: `group.initial.rebalance.delay.ms` (3 s) before a first rebalance, and
a session timeout (45 s) for a member that falls silent after its join (spec 2.9)."""


class State(StrEnum):
    """What a partition does between two looks."""

    READ = "read to its end"
    MOVES = "moves"
    BEHIND = "falls behind"
    WAITS = "waits"
    UNKNOWN = "unknown"
    STANDS = "stands"


@dataclass(frozen=True)
class Finding:
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
        notes: what is going on in the group and may pass by itself; no alarm.
    """

    now: Look
    watched_s: float
    concerns: Sequence[str]
    notes: Sequence[str]
    findings: Sequence[Finding]

    @property
    def stands(self) -> bool:
        """True when something is in the way of the group or of one of its partitions."""
        return bool(self.concerns) or any(f.state is State.STANDS for f in self.findings)

    @property
    def lag(self) -> int:
        """The sum of the known lags."""
        return sum(f.seen.lag or 0 for f in self.findings)


def judge(
    before: Look,
    now: Look,
    transactions: Sequence[Open],
    rebalances: Sequence[str],
    *,
    rebalancing_s: float | None = None,
    rebalance_timeout_s: float = REBALANCE_TIMEOUT_S,
) -> Verdict:
    """Compare two looks.

    Args:
        before: the first look.
        now: the second one; the same object when one look told everything.
        transactions: those that are open in partitions whose stable end is not their end.
        rebalances: a line for each recent one.
        rebalancing_s: for how long the rebalance that is under way has lasted, in seconds, where
            the coordinator remembers its beginning; None where it does not.
        rebalance_timeout_s: the longest `max.poll.interval.ms` of the members, in seconds.

    Returns:
        What stands, what goes on, and why.
    """
    judged = _Judged(before, now, transactions)
    judged.time_rebalance(rebalancing_s, rebalance_timeout_s)
    findings = [judged.finding(tp, seen) for tp, seen in sorted(now.partitions.items())]
    concerns, notes = judged.concerns(rebalances, findings)
    return Verdict(now, judged.seconds, concerns, notes, _hot(findings))


def unsettled(look: Look) -> bool:
    """Whether a second look can tell more: something is to be read, or the group rebalances."""
    lags = (seen.lag for seen in look.partitions.values())
    return look.group.state in REBALANCING or any(lag != 0 for lag in lags)


class _Judged:
    def __init__(self, before: Look, now: Look, transactions: Sequence[Open]) -> None:
        self._before, self._now = before, now
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
        """What is in the way of the group as a whole, and what goes on in it."""
        group, concerns, notes = self._now.group, list[str](), list[str]()
        unread = [f for f in findings if f.state is not State.READ]
        if not group.members and not self._before.group.members and unread:
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
            stuck = unread and all(f.state in (State.STANDS, State.WAITS) for f in unread)
            (concerns if stuck else notes).append(
                f"{len(rebalances)} rebalances in the last minutes, the last ones: "
                + "; ".join(rebalances[-NAMES_SHOWN:])
                + ". A member that crashes, or polls too seldom, comes and goes so"
            )
        return concerns, notes

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
        done = _rate(was.committed, seen.committed, self.seconds)
        written = _rate(was.end, seen.end, self.seconds)
        state, why = self._state(tp, was, seen)
        if state is State.MOVES and written > done and (seen.lag or 0) > HOT_LEAST:
            state, why = State.BEHIND, "more is written than is done: more workers, or more members"
        return Finding(tp, state, seen, done, written, why)

    def _state(self, tp: TopicPartition, was: Seen, seen: Seen) -> tuple[State, str]:
        unreachable = _unreachable(tp, seen)
        if unreachable:
            return (State.STANDS if _unreachable(tp, was) else State.UNKNOWN), unreachable
        beyond = seen.committed is not None and seen.committed > (seen.end or 0)
        if not beyond and (seen.lag == 0 or seen.end == seen.first):
            return State.READ, ""
        if seen.committed != was.committed:
            return State.MOVES, ""
        if f".{self._now.group.group_id}.retry." in tp.topic:
            return State.WAITS, "a retry tier: `kohort retry status` says when its records are due"
        wrong = _wrong_place(tp, seen)
        if wrong:
            return State.STANDS, wrong
        if seen.committed is None and tp in self._owners:
            return State.UNKNOWN, self._never_committed(tp)
        if was.lag == 0:
            return State.WAITS, "its records came after the first look: `--for` watches longer"
        return self._unmoved(tp, seen)

    def _unmoved(self, tp: TopicPartition, seen: Seen) -> tuple[State, str]:
        """It had records to read, and its committed offset is the same."""
        held = self._open.get(tp)
        if held and seen.committed is not None and seen.committed >= (seen.stable or 0):
            return State.STANDS, f"{held}; readers of committed records get nothing behind it"
        going_on = State.WAITS if self._rebalancing and not self._overdue else State.STANDS
        owner = self._owners.get(tp)
        if owner is None:
            return going_on, self._nobody(tp)
        if owner.target is not None and tp not in owner.target:
            return going_on, f"{_name(owner)} is to give it up, and has not yet"
        before = self._owners_before.get(tp)
        if before is None or before.member_id != owner.member_id:
            return State.WAITS, f"{_name(owner)} has it only since the first look"
        # KIP-848: whoever is to keep a partition reads it on while others move.
        keeps = owner.target is not None
        return State.STANDS if keeps else going_on, self._owned(owner)

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
        return f"nobody has it: no member reads {tp.topic}"

    def _owned(self, owner: MemberDescription) -> str:
        return (
            f"{_name(owner)} has it and has committed nothing for {self.seconds:.0f} s: its next "
            "record is slow, hangs or fails again and again there (or it commits more seldom than "
            "that). The record: `kohort consume TOPIC --partition P --offset N --max 1`; what the "
            "member does: `kill -USR1` its PID (`kohort app run`), or `consumer.health()` in it"
        )


def _owners(look: Look) -> dict[TopicPartition, MemberDescription]:
    return {tp: m for m in look.group.members for tp in m.assignment}


def _unreachable(tp: TopicPartition, seen: Seen) -> str:
    if not seen.exists:
        return f"topic {tp.topic} does not exist (any more)"
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
            f"what it would read next is gone: offset {at:,}, and the log begins at {first:,}. "
            "auto.offset.reset decides where members go on; with `none` they end with an error"
        )
    if at > end:
        return (
            f"offset {at:,} is behind the log's end, {end:,}: the topic was made again, or has "
            f"lost records; `kohort group reset` sets where to go on"
        )
    return ""


def _is_behind(member: MemberDescription, group: GroupDescription) -> bool:
    """Whether a member (KIP-848) has not done yet what its group's epoch asks of it."""
    epoch, wanted = member.epoch, group.assignment_epoch
    return epoch is not None and wanted is not None and epoch < wanted


def _rate(was: int | None, now: int | None, seconds: float) -> float:
    return 0.0 if was is None or now is None else max(0, now - was) / seconds


def _name(member: MemberDescription) -> str:
    return f"{member.client_id} ({member.host})"


def _hot(findings: list[Finding]) -> list[Finding]:
    """Say so where nearly all lag is in one of several partitions that are all read."""
    total = sum(f.seen.lag or 0 for f in findings)
    if total < HOT_LEAST or len(findings) < 3:
        return findings
    return [_with_share(f, (f.seen.lag or 0) / total) for f in findings]


def _with_share(finding: Finding, share: float) -> Finding:
    if share < HOT_SHARE or finding.state not in (State.MOVES, State.BEHIND):
        return finding
    tp = finding.partition
    said = (
        f"{share:.0%} of all lag is here: a hot key, or records slower than elsewhere. Its keys: "
        f"`kohort consume {tp.topic} --partition {tp.partition} --offset -1000 --until-end "
        "--format key-value | cut -f1 | sort | uniq -c | sort -n`"
    )
    return Finding(
        tp, finding.state, finding.seen, finding.done_per_s, finding.written_per_s,
        f"{finding.why}. {said}" if finding.why else said,
    )  # fmt: skip
