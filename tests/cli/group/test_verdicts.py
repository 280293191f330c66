"""Spec 8.3: what `group why` calls stuck is stuck. Situations by name, healthy and sick.

Each is two looks at a group, 10 s apart unless it says otherwise. Real clients against a broker are
in `test_verdicts_of_clients.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from kohort.client.admin.types import (
    GroupDescription,
    MemberDescription,
    ProducerDescription,
    TransactionListing,
)
from kohort.client.cluster.metadata import Node
from kohort.client.common.types import TopicPartition
from kohort.observe.open_transactions import Open
from kohort.observe.snapshot import Look, Seen
from kohort.observe.verdicts import State, Verdict, judge

P0, P1, P2 = (TopicPartition("orders", n) for n in range(3))
OTHER = TopicPartition("old", 0)
RETRY_TOPIC = TopicPartition("orders.g.retry.5m", 0)
NODE = Node(1, "here", 9092, None)
READ = Seen(committed=20, first=0, stable=20, end=20, leader=1)
LATE = READ._replace(committed=7)
NEVER = READ._replace(committed=None)
GONE = LATE._replace(exists=False, leader=None, first=None, stable=None, end=None)
LEADERLESS = LATE._replace(leader=None, first=None, stable=None, end=None, down=(2,))
SILENT = LATE._replace(first=None, stable=None, end=None)
TRIMMED = LATE._replace(first=9)
BEYOND = LATE._replace(end=3, stable=3)
HELD = LATE._replace(stable=7)
A = MemberDescription("a-1", None, "a", "/h", ("orders",), (P0,))
B = replace(A, member_id="b-1", client_id="b", assignment=(P1,))
IDLE = replace(A, assignment=())
STATIC = replace(A, group_instance_id="a")
NEW = replace(A, assignment=(P0,), target=(P0,), epoch=3)
STORM = [f"2026-01-01T00:0{n}:00Z (joined)" for n in range(6)]
Partitions = Mapping[TopicPartition, Seen]


def moved(seen: Seen, by: int = 5) -> Seen:
    assert seen.committed is not None
    return seen._replace(committed=seen.committed + by)


def transaction(*, known: bool = True, open_s: float | None = None) -> list[Open]:
    listed = TransactionListing("pay", 5, "Ongoing") if known else None
    return [Open(P0, ProducerDescription(5, 0, 0, 0, -1, 7), listed, open_s)]


@dataclass(frozen=True)
class Case:
    """A group at two looks; what is not said of the second is as it was at the first."""

    name: str
    was: Partitions
    now: Partitions | None = None
    members: Sequence[MemberDescription] = (A,)
    members_now: Sequence[MemberDescription] | None = None
    state: str = "Stable"
    state_now: str | None = None
    protocol: str = "consumer"
    apart_s: float = 10.0
    transactions: Sequence[Open] = ()
    rebalances: Sequence[str] = ()
    rebalancing_s: float | None = None
    timeout_s: float = 300.0
    empty: Sequence[TopicPartition] = field(default=())

    def verdict(self) -> Verdict:
        now = self.was if self.now is None else self.now
        members_now = self.members if self.members_now is None else self.members_now
        first = self._group(self.state, self.members)
        second = self._group(self.state_now or self.state, members_now)
        return judge(
            Look(0, first, self.was),
            Look(self.apart_s, second, now),
            self.transactions,
            self.rebalances,
            rebalancing_s=self.rebalancing_s,
            rebalance_timeout_s=self.timeout_s,
            nothing_to_read=self.empty,
        )

    def _group(self, state: str, members: Sequence[MemberDescription]) -> GroupDescription:
        kohorts = any(m.target is not None for m in members)
        return GroupDescription(
            "g",
            state,
            self.protocol,
            "range",
            NODE,
            tuple(members),
            "consumer" if kohorts else "classic",
            3 if kohorts else None,
            3 if kohorts else None,
        )


HEALTHY = (
    Case("all is read", {P0: READ}),
    Case("all is read, and nobody is there", {P0: READ}, members=(), state="Empty"),
    Case("records are read", {P0: LATE}, {P0: moved(LATE)}),
    Case("it falls behind, and moves", {P0: LATE}, {P0: moved(LATE)._replace(end=9_000)}),
    Case("idle with `latest`, never committed", {P0: NEVER}),
    Case("an empty partition, never committed", {P0: NEVER._replace(first=0, stable=0, end=0)}),
    Case("all was deleted by retention before it was read", {P0: TRIMMED._replace(first=20)}),
    Case("records came after the first look", {P0: LATE._replace(end=7)}, {P0: LATE}),
    Case("the lag was unknown at the first look", {P0: SILENT}, {P0: LATE}),
    Case("a leader that went since", {P0: LATE}, {P0: LEADERLESS}),
    Case("a leader that came back", {P0: LEADERLESS}, {P0: LATE}),
    Case("a partition that is new to the group", {}, {P0: LATE}),
    Case(
        "an owner that is new", {P0: LATE}, members=(replace(A, member_id="z"),), members_now=(A,)
    ),
    Case(
        "a first member has come",
        {P0: LATE},
        members=(),
        members_now=(A,),
        state="Empty",
        state_now="Stable",
    ),
    Case("the only member restarts", {P0: LATE}, members_now=(), state_now="Empty"),
    Case(
        "a member has left, nobody has its partition yet",
        {P0: READ, P1: LATE},
        members=(A, B),
        members_now=(A,),
    ),
    Case("a static member may be restarting", {P0: LATE}, members=(STATIC,)),
    Case(
        "a first rebalance within its delay",
        {P0: LATE},
        members=(IDLE,),
        state="PreparingRebalance",
        apart_s=0.76,
    ),
    Case("members join again", {P0: LATE}, state="PreparingRebalance"),
    Case("members wait for their assignment", {P0: LATE}, state="CompletingRebalance"),
    Case(
        "a rebalance of 5 min, with max.poll.interval.ms of 15 min",
        {P0: LATE},
        state="PreparingRebalance",
        rebalancing_s=400,
        timeout_s=900,
    ),
    Case(
        "KIP-848: the target is being worked out",
        {P0: LATE},
        members=(replace(IDLE, target=()),),
        state="Assigning",
    ),
    Case(
        "KIP-848: it is to be given up",
        {P0: LATE},
        members=(replace(NEW, target=()),),
        state="Reconciling",
    ),
    Case(
        "KIP-848: it is to be had when another has given it up",
        {P0: LATE},
        members=(replace(NEW, assignment=()),),
        state="Reconciling",
    ),
    Case(
        "one slow record, others behind it are done",
        {P0: LATE._replace(metadata="8-9")},
        {P0: LATE._replace(metadata="8-12")},
    ),
    Case("behind a transaction that is young", {P0: HELD}, transactions=transaction(open_s=12)),
    Case(
        "behind one transaction after the other",
        {P0: HELD._replace(stable=5)},
        {P0: HELD},
        transactions=transaction(open_s=90),
    ),
    Case("behind a transaction that has just ended", {P0: HELD}),
    Case("only a transaction's marker is left", {P0: LATE._replace(committed=19)}, empty=[P0]),
    Case(
        "a retry topic whose records are not due",
        {RETRY_TOPIC: LATE},
        members=(replace(A, assignment=(RETRY_TOPIC,)),),
    ),
    Case(
        "a retry topic waits through a roll-out",
        {RETRY_TOPIC: LATE},
        rebalances=STORM,
        members=(replace(A, assignment=(RETRY_TOPIC,)),),
    ),
    Case("a roll-out of many members that read", {P0: LATE}, {P0: moved(LATE)}, rebalances=STORM),
    Case(
        "a roll-out, one partition has a new owner",
        {P0: LATE, P1: LATE},
        {P0: moved(LATE), P1: LATE},
        members=(A, replace(B, member_id="z")),
        members_now=(A, B),
        rebalances=STORM,
    ),
    Case(
        "members that were joining have left",
        {P0: LATE},
        members=(IDLE,),
        members_now=(),
        state="PreparingRebalance",
        state_now="Empty",
    ),
    Case("a roll-out of a group that has nothing to read", {P0: READ}, rebalances=STORM),
    Case("offsets of a topic that no member reads any more", {P0: READ, OTHER: LATE}),
    Case("offsets of a topic that was deleted", {P0: READ, OTHER: GONE}),
    Case("a topic that this user may not see", {P0: GONE._replace(committed=None)}),
    Case("a hidden topic that is read", {P0: GONE}, {P0: moved(GONE)}),
    Case(
        "Spark: commits without members, between batches",
        {P0: LATE},
        members=(),
        state="Empty",
        protocol="",
    ),
    Case(
        "Spark: commits without members, all read",
        {P0: READ},
        members=(),
        state="Empty",
        protocol="",
    ),
    Case(
        "Flink: commits without members",
        {P0: LATE},
        {P0: moved(LATE)},
        members=(),
        state="Empty",
        protocol="",
    ),
    Case(
        "`assign` in a group that once had members",
        {P0: LATE},
        {P0: moved(LATE)},
        members=(),
        state="Empty",
    ),
    Case("Connect: workers without offsets", {}, protocol="connect"),
    Case("a share group", {}, members=(IDLE,), protocol="share"),
    Case("more members than partitions", {P0: READ}, members=(A, IDLE)),
    Case("offsets were reset while it is looked at", {P0: READ}, {P0: READ._replace(committed=0)}),
    Case("a new leader has not caught up", {P0: READ}, {P0: READ._replace(end=18, stable=18)}),
)

SICK = (
    Case("a handler hangs", {P0: LATE}),
    Case(
        "a handler hangs while more is written", {P0: LATE}, {P0: LATE._replace(end=90, stable=90)}
    ),
    Case("a handler hangs at the last record", {P0: LATE._replace(committed=19)}),
    Case(
        "one of two partitions hangs",
        {P0: LATE, P1: LATE},
        {P0: LATE, P1: moved(LATE)},
        members=(A, B),
    ),
    Case(
        "one of two topics hangs",
        {P0: LATE, OTHER: READ},
        members=(replace(A, topics=("orders", "old"), assignment=(P0, OTHER)),),
    ),
    Case("a paused member, from outside", {P0: LATE}, apart_s=60),
    Case(
        "a static member hangs for longer than a restart takes",
        {P0: LATE},
        members=(STATIC,),
        apart_s=90,
    ),
    Case("KIP-848: a handler hangs", {P0: LATE}, members=(NEW,)),
    Case(
        "KIP-848: a handler hangs while others move",
        {P0: LATE},
        members=(NEW,),
        state="Reconciling",
    ),
    Case(
        "KIP-848: a static member hangs",
        {P0: LATE},
        apart_s=90,
        members=(replace(NEW, group_instance_id="a"),),
    ),
    Case(
        "KIP-848: a classic member hangs",
        {P0: LATE},
        members=(replace(NEW, member_type="classic"),),
    ),
    Case(
        "KIP-848: a member does not give it up",
        {P0: LATE},
        members=(replace(NEW, target=()),),
        state="Reconciling",
        rebalancing_s=400,
    ),
    Case(
        "KIP-848: no target for ever",
        {P0: LATE},
        members=(replace(IDLE, target=()),),
        state="Assigning",
        rebalancing_s=400,
    ),
    Case("no members", {P0: LATE}, members=(), state="Empty"),
    Case("no members, many partitions", {P0: LATE, P1: READ, P2: LATE}, members=(), state="Empty"),
    Case("no members, and what was to be read is gone", {P0: TRIMMED}, members=(), state="Empty"),
    Case(
        "Spark: the next record to read is gone",
        {P0: TRIMMED},
        members=(),
        state="Empty",
        protocol="",
    ),
    Case("Spark: the topic was made again", {P0: BEYOND}, members=(), state="Empty", protocol=""),
    Case("a member reads the topic, nobody has the partition", {P0: READ, P1: LATE}),
    Case(
        "KIP-848: it is to be had, and nobody lets it",
        {P0: LATE},
        members=(replace(NEW, assignment=()),),
    ),
    Case("no leader", {P0: LEADERLESS}),
    Case("no leader of one partition", {P0: LEADERLESS, P1: READ}, members=(A, B)),
    Case(
        "no leader of a retry topic",
        {RETRY_TOPIC: LEADERLESS},
        members=(replace(A, assignment=(RETRY_TOPIC,)),),
    ),
    Case("the leader does not answer", {P0: SILENT}),
    Case("the topic is gone under its reader", {P0: GONE}),
    Case("the next record to read is gone", {P0: TRIMMED}),
    Case("the topic was created again, and is shorter", {P0: BEYOND}),
    Case(
        "the topic was created again, and is empty", {P0: LATE._replace(first=0, end=0, stable=0)}
    ),
    Case("a transaction hangs", {P0: HELD}, transactions=transaction(known=False)),
    Case("a transaction is open for long", {P0: HELD}, transactions=transaction(open_s=600)),
    Case(
        "a handler hangs before an open transaction",
        {P0: HELD._replace(committed=3)},
        transactions=transaction(open_s=2),
    ),
    Case("a rebalance does not end", {P0: LATE}, state="PreparingRebalance", rebalancing_s=400),
    Case("an assignment does not come", {P0: LATE}, state="CompletingRebalance", apart_s=400),
    Case(
        "a rebalance outlasts what members asked for",
        {P0: LATE},
        state="PreparingRebalance",
        rebalancing_s=80,
        timeout_s=10,
    ),
    Case("one rebalance after the other", {P0: LATE}, state="PreparingRebalance", rebalances=STORM),
    Case(
        "one rebalance after the other, other members each time",
        {P0: LATE},
        rebalances=STORM,
        members=(replace(A, member_id="z"),),
        members_now=(A,),
    ),
)


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.name)
def test_healthy(case: Case) -> None:
    verdict = case.verdict()
    wrong = [f.why for f in verdict.findings if f.state is State.STUCK]
    assert not verdict.stuck, [*verdict.concerns, *wrong]


@pytest.mark.parametrize("case", SICK, ids=lambda case: case.name)
def test_sick(case: Case) -> None:
    verdict = case.verdict()
    assert verdict.stuck, [(f.state.value, f.why) for f in verdict.findings]
    reasons = [*verdict.concerns, *(f.why for f in verdict.findings if f.state is State.STUCK)]
    assert all(reasons), "an alarm says why"


def test_each_situation_is_told_apart() -> None:
    """At least 30 of each kind, no name twice."""
    names = [case.name for case in HEALTHY + SICK]
    assert min(len(HEALTHY), len(SICK)) >= 30
    assert len(set(names)) == len(names)
