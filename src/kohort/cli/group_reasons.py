"""Why a group does or does not move, in words: two looks at it, some seconds apart, are compared.

Rules:
- Pure: looks in, findings out; the command gathers them.
- Every sentence says what is in the way and what to do next; it never guesses. What only the member
  itself knows (which of its handler's calls hangs), is said to be asked of the member.
- A partition *stands* when it has records to read and its committed offset is the same in both
  looks. A member that commits more seldom than the looks are apart looks the same; it is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kohort.cli.open_transactions import Open
    from kohort.client.admin_types import GroupDescription, MemberDescription
    from kohort.client.types import TopicPartition

HOT_SHARE: Final = 0.8
"""Of all lag in one of several partitions: its keys are not spread, or its records are slow."""
REBALANCES_MANY: Final = 6
"""In some minutes; a roll-out of a few members has fewer."""
HOT_LEAST: Final = 100
"""A lag so small is nobody's trouble."""
NAMES_SHOWN: Final = 5
EMPTY, JOINING = "Empty", ("PreparingRebalance", "CompletingRebalance")


class State(StrEnum):
    """What a partition does between two looks."""

    READ = "read to its end"
    MOVES = "moves"
    BEHIND = "falls behind"
    WAITS = "waits"
    STANDS = "stands"


@dataclass(frozen=True)
class Seen:
    """A partition at one look; None where nobody can tell.

    Attributes:
        leader: None without one; `exists` is False of a topic that is gone.
        down: the replicas whose nodes do not run.
        stable: the end of what is committed; `end` of everything.
    """

    committed: int | None
    first: int | None
    stable: int | None
    end: int | None
    leader: int | None
    down: tuple[int, ...] = ()
    exists: bool = True

    @property
    def lag(self) -> int | None:
        """Records that are not done."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


@dataclass(frozen=True)
class Look:
    """A group at one moment; `at_s` counts seconds from any beginning."""

    at_s: float
    group: GroupDescription
    partitions: Mapping[TopicPartition, Seen]


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
    """All that two looks tell: of the group as a whole, and of each partition."""

    now: Look
    watched_s: float
    concerns: Sequence[str]
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
    before: Look, now: Look, transactions: Sequence[Open], rebalances: Sequence[str]
) -> Verdict:
    """Compare two looks. `rebalances`: a line for each recent one; many are a concern."""
    judged = _Judged(before, now, transactions)
    findings = [judged.finding(tp, seen) for tp, seen in sorted(now.partitions.items())]
    unread = any(f.state is not State.READ for f in findings)
    return Verdict(now, judged.seconds, judged.concerns(rebalances, unread), _hot(findings))


class _Judged:
    def __init__(self, before: Look, now: Look, transactions: Sequence[Open]) -> None:
        self._before, self._now = before, now
        self.seconds = max(0.001, now.at_s - before.at_s)
        self._open = {one.partition: one for one in reversed(transactions)}  # the first one holds
        self._owners = {tp: m for m in now.group.members for tp in m.assignment}

    def concerns(self, rebalances: Sequence[str], unread: bool) -> list[str]:
        """What is in the way of the group as a whole."""
        group, found = self._now.group, list[str]()
        if not group.members and unread:
            found.append(
                "nobody reads: the group has no members. Start them; `kohort group timeline "
                f"{group.group_id}` says who left last, and why"
            )
        elif group.state in JOINING and self._before.group.state in JOINING:
            names = ", ".join(_name(m) for m in group.members[:NAMES_SHOWN])
            found.append(
                "a rebalance does not end: the coordinator waits for a member that does not join "
                "again, and nobody reads until it does or its max.poll.interval.ms is over. It "
                f"hangs in its handler, or is stopped; the members are {names}"
                + (" and more" if len(group.members) > NAMES_SHOWN else "")
            )
        if len(rebalances) >= REBALANCES_MANY:
            found.append(
                f"{len(rebalances)} rebalances in the last minutes, the last ones: "
                + "; ".join(rebalances[-NAMES_SHOWN:])
                + ". A member that crashes, or polls too seldom, comes and goes so"
            )
        return found

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
            return State.STANDS, unreachable
        beyond = seen.committed is not None and seen.committed > (seen.end or 0)
        if not beyond and (seen.lag == 0 or seen.end == seen.first):
            return State.READ, ""
        if seen.committed != was.committed:
            return State.MOVES, ""
        if f".{self._now.group.group_id}.retry." in tp.topic:
            return State.WAITS, "a retry tier: `kohort retry status` says when its records are due"
        return State.STANDS, self._why_it_stands(tp, seen)

    def _why_it_stands(self, tp: TopicPartition, seen: Seen) -> str:
        wrong = _wrong_place(tp, seen)
        if wrong:
            return wrong
        held = self._open.get(tp)
        if held and seen.committed is not None and seen.committed >= (seen.stable or 0):
            return f"{held}; readers of committed records get nothing behind it"
        owner = self._owners.get(tp)
        if owner is None:
            return self._nobody(tp)
        target = () if owner.target is None else owner.target
        if owner.target is not None and tp not in target:
            return f"{_name(owner)} is to give it up, and has not yet"
        return self._owned(owner)

    def _nobody(self, tp: TopicPartition) -> str:
        group = self._now.group
        if not group.members:
            return "nobody has it: the group has no members"
        coming = [m for m in group.members if tp in (m.target or ())]
        if coming:
            late = [m for m in group.members if m is not coming[0] and _is_behind(m, group)]
            waits = f" when {_name(late[0])} has given it up, which hangs" if late else ""
            return f"nobody has it yet: {_name(coming[0])} is to get it{waits}"
        if group.state in JOINING:
            return "nobody has it until the rebalance ends"
        return f"nobody has it: no member reads {tp.topic}"

    def _owned(self, owner: MemberDescription) -> str:
        return (
            f"{_name(owner)} has it and has committed nothing for {self.seconds:.0f} s: its next "
            "record is slow, hangs or fails again and again there (or it commits more seldom than "
            "that). The record: `kohort consume TOPIC --partition P --offset N --max 1`; what the "
            "member does: `kill -USR1` its PID (`kohort app run`), or `consumer.health()` in it"
        )


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
