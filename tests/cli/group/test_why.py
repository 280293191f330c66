"""`kohort group why`: each thing that can be in a group's way is named, with what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kohort import Consumer, Producer
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
from kohort.observe.spark_query import FAILED, RUNS, STOPPED, QueryNote
from kohort.observe.verdicts import State, judge
from kohort.testing import Cluster
from tests.cli.conftest import Run
from tests.cli.group.test_group import member

TP = TopicPartition("orders", 0)
HERE = Node(1, "here", 9092, None)
AT_7 = Seen(committed=7, first=0, stable=20, end=20, leader=1)
MEMBER = MemberDescription("a-1", None, "a", "/h", ("orders",), (TP,))


def group(*members: MemberDescription, state: str = "Stable") -> GroupDescription:
    return GroupDescription("g", state, "consumer", "range", HERE, members)


def why(
    now: Seen, was: Seen | None = None, *, of: GroupDescription | None = None, held: str | None = ""
) -> tuple[State, str]:
    """What one partition does between two looks; `held`: by whom a transaction is open, if any."""
    description = of or group(MEMBER)
    listed = None if held is None else TransactionListing(held, 5, "Ongoing")
    open_ones = [] if held == "" else [Open(TP, ProducerDescription(5, 0, 0, 0, -1, 7), listed)]
    before, after = Look(0, description, {TP: was or now}), Look(10, description, {TP: now})
    (finding,) = judge(before, after, open_ones, []).findings
    return finding.state, finding.why


def test_what_goes_on() -> None:
    """Read to the end, and moving, need no words."""
    assert why(AT_7._replace(committed=20)) == (State.CAUGHT_UP, "")
    assert why(AT_7, AT_7._replace(committed=3)) == (State.MOVING, "")
    state, reason = why(AT_7._replace(end=2_000), AT_7._replace(committed=3, end=20))
    assert (state, "more is written than is done" in reason) == (State.BEHIND, True)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (
            AT_7._replace(leader=None, end=None, down=(2,)),
            "no leader: of its replicas, node 2 is down",
        ),
        (AT_7._replace(end=None), "node 1, does not answer"),
        (AT_7._replace(exists=False), "does not exist"),
        (AT_7._replace(first=9), "the next record to read is gone: offset 7"),
        (AT_7._replace(end=3, stable=3), "behind the log's end, 3"),
        (AT_7, "a (/h) has it and has committed nothing for 10 s: its next record"),
    ],
)
def test_what_stands(seen: Seen, expected: str) -> None:
    state, reason = why(seen)
    assert (state, expected in reason) == (State.STUCK, True), reason


def test_behind_an_open_transaction() -> None:
    """Whoever reads committed records only waits for it; who is before it does not."""
    held = AT_7._replace(stable=7)
    assert "`kohort transaction abort pay`" in why(held, held="pay")[1]
    assert "abort --partition orders:0 --producer-id 5`" in why(held, held=None)[1]
    assert "a (/h) has it" in why(AT_7._replace(committed=3, stable=7), held="pay")[1]


def test_nobody_has_it() -> None:
    """No member, none that reads the topic, or one that is to get it (KIP-848)."""
    elsewhere = replace(MEMBER, assignment=(), target=())
    assert "the group has no members" in why(AT_7, of=group(state="Empty"))[1]
    assert "members subscribe to orders" in why(AT_7, of=group(elsewhere))[1]
    coming, giving = replace(elsewhere, target=(TP,)), replace(MEMBER, target=())
    assert why(AT_7, of=group(coming))[1] == "nobody has it yet: a (/h) is to get it"
    late = replace(elsewhere, member_id="b-1", client_id="b", epoch=2)
    both = replace(group(coming, late), assignment_epoch=3)
    assert "a (/h) is to get it when b (/h) has given it up" in why(AT_7, of=both)[1]
    assert "is to give it up, and has not yet" in why(AT_7, of=group(giving))[1]


def test_a_spark_query_that_does_not_move() -> None:
    """Issue 17: by what it committed beside its offsets; a query is no member of its group."""
    nobody = replace(group(state="Empty"), protocol_type="")
    for state, expected, text in (
        (
            RUNS,
            State.WAITING,
            "its Spark query began a batch from here 1m ago and has not ended it",
        ),
        (STOPPED, State.STUCK, "its Spark query was stopped 1m ago"),
        (FAILED, State.STUCK, "its Spark query failed 1m ago: no column x. Start it again"),
    ):
        note = QueryNote(state, 1_000, words="no column x" if state == FAILED else "")
        was = AT_7._replace(metadata=str(QueryNote(RUNS, 500)))
        before = Look(0, nobody, {TP: was})
        after = Look(10, nobody, {TP: AT_7._replace(metadata=str(note))})
        verdict = judge(before, after, [], [], now_ms=61_000)
        (finding,) = verdict.findings
        assert (finding.state, text in finding.why) == (expected, True), finding.why
        assert verdict.concerns == [], "there is nobody to start but the query"


def test_what_is_in_the_way_of_a_group() -> None:
    """No members, a rebalance that does not end, one after the other."""
    for described, rebalances, text in (
        (group(state="Empty"), [], "nobody reads"),
        (group(MEMBER), ["(left)"] * 6, "6 rebalances in the last minutes"),
    ):
        look = Look(0, described, {TP: AT_7})
        verdict = judge(look, replace(look, at_s=5), [], rebalances)
        assert (len(verdict.concerns), verdict.stuck) == (1, True)
        assert text in verdict.concerns[0]
    read = Look(0, group(state="Empty"), {TP: AT_7._replace(committed=20)})
    assert not judge(read, read, [], []).stuck


def test_an_unknown_lag_is_not_stuck() -> None:
    """Spec 8.3. librdkafka's default is `latest`: such a member commits with its first record."""
    state, text = why(AT_7._replace(committed=None))
    assert (state, "has never committed there" in text) == (State.UNKNOWN, True)
    look = Look(0, group(MEMBER), {TP: AT_7._replace(committed=None)})
    assert not judge(look, replace(look, at_s=600), [], []).stuck


def test_a_partition_stands_only_when_it_stood_all_the_time() -> None:
    """Records that came, an owner that changed, and a leader that went since the first look."""
    assert why(AT_7, AT_7._replace(end=7))[0] is State.WAITING
    assert why(AT_7._replace(leader=None, end=None), AT_7)[0] is State.UNKNOWN
    before = Look(0, group(replace(MEMBER, member_id="z-1")), {TP: AT_7})
    verdict = judge(before, Look(10, group(MEMBER), {TP: AT_7}), [], [])
    assert [f.state for f in verdict.findings] == [State.WAITING]
    started = Look(10, group(MEMBER), {TP: AT_7})
    assert not judge(Look(0, group(state="Empty"), {TP: AT_7}), started, [], []).concerns


@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance", "Reconciling"])
def test_a_rebalance_is_endless_only_after_its_time_outs(state: str) -> None:
    """Spec 8.3: 300 s for members to join again, and 60 s for the phases beside that."""

    def verdict(watched_s: float, remembered_s: float | None = None, timeout_s: float = 300.0):
        look = Look(0, group(MEMBER, state=state), {TP: AT_7})
        return judge(
            look,
            replace(look, at_s=watched_s),
            [],
            [],
            rebalancing_s=remembered_s,
            rebalance_timeout_s=timeout_s,
        )

    for going_on in (verdict(0.76), verdict(10, 359), verdict(10, 1_000, 1_000)):
        assert (going_on.stuck, len(going_on.concerns)) == (False, 0)
        assert "a rebalance is under way" in going_on.notes[0]
    for endless in (verdict(361), verdict(10, 361), verdict(10, 70, 6)):
        assert "a rebalance does not end" in endless.concerns[0]
        assert endless.findings[0].state is State.STUCK
    fresh = Look(0, group(MEMBER), {TP: AT_7})
    begun = judge(fresh, Look(900, group(MEMBER, state=state), {TP: AT_7}), [], [])
    assert not begun.concerns, "it was stable at the first look"


def test_a_hang_under_kip_848_shows_while_others_move() -> None:
    """Who keeps a partition reads it on: that nothing moves there is no matter of the rebalance."""
    keeps = replace(MEMBER, target=(TP,))
    assert why(AT_7, of=group(keeps, state="Reconciling"))[0] is State.STUCK
    gives = replace(MEMBER, target=())
    assert why(AT_7, of=group(gives, state="Reconciling"))[0] is State.WAITING


def test_rebalances_of_a_roll_out_are_no_alarm() -> None:
    """A group that moves may rebalance often; one that is stuck may not."""
    was, now = Look(0, group(MEMBER), {TP: AT_7}), AT_7._replace(committed=9)
    verdict = judge(was, Look(10, group(MEMBER), {TP: now}), [], ["(joined)"] * 20)
    assert (verdict.stuck, len(verdict.notes)) == (False, 1)


def test_a_hot_partition_is_named() -> None:
    """Nearly all lag in one of several partitions that are read."""
    all_of = [TopicPartition("orders", n) for n in range(4)]
    reader = replace(MEMBER, assignment=tuple(all_of))
    was = {tp: AT_7._replace(end=1_000 if tp == TP else 25) for tp in all_of}
    now = {tp: seen._replace(committed=12) for tp, seen in was.items()}
    found = judge(Look(0, group(reader), was), Look(5, group(reader), now), [], []).findings
    assert ["a hot key" in one.why for one in found] == [True, False, False, False]


def test_a_retry_retry_topic_waits() -> None:
    """What is not due is in nobody's way."""
    retry_topic = TopicPartition("orders.g.retry.5m", 0)
    look = Look(0, group(replace(MEMBER, assignment=(retry_topic,))), {retry_topic: AT_7})
    verdict = judge(look, replace(look, at_s=5), [], [])
    assert (verdict.findings[0].state, verdict.stuck) == (State.WAITING, False)


def test_on_a_cluster(kohort: Run, cluster: Cluster) -> None:
    """A member that commits nothing, then an open transaction, then all is read."""
    kohort("topic", "create", "why")
    with member(cluster, "waits", "why") as consumer:
        consumer.commit()
        kohort("produce", "why", stdin=b"a\n")
        ran = kohort("group", "why", "waits", "--for", "1ms")
        assert (ran.code, "till (/127.0.0.1) has it and has committed nothing" in ran.out) == (
            3,
            True,
        )
        with Producer(bootstrap_servers=cluster.bootstrap, transactional_id="why") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("why", b"b").result(30)
            while consumer.position(("why", 0)) < 1:
                consumer.poll(0.2)
            consumer.commit()
            ran = kohort("group", "why", "waits", "--for", "1ms", "-o", "json")
            assert (ran.code, ran.json["stuck"], ran.json["lag"]) == (0, False, 1), "it is young"
            assert "'why' has a transaction open" in ran.json["partitions"][0]["why"]
            producer.abort_transaction()
        while consumer.position(("why", 0)) < cluster_end(kohort):
            consumer.poll(0.2)
        consumer.commit()
    assert kohort("group", "why", "waits").code == 0
    assert kohort("group", "why", "waits", "-o", "csv").lines[1].split(",")[3] == "caught up"
    assert kohort("group", "why", "wait").code == 1
    assert kohort("group", "why", "waits", "--for", "0s").code == 1


def test_an_idle_member_is_healthy(kohort: Run, cluster: Cluster) -> None:
    """`latest`, records there, nothing written since, nothing committed (librdkafka's defaults)."""
    kohort("topic", "create", "idle")
    kohort("produce", "idle", stdin=b"a\n")
    with Consumer(bootstrap_servers=cluster.bootstrap, group_id="idlers") as consumer:
        consumer.subscribe(["idle"])
        while not consumer.assignment():
            consumer.poll(0.2)
        ran = kohort("group", "why", "idlers", "--for", "1ms", "-o", "json")
    assert (ran.code, ran.json["stuck"]) == (0, False)
    assert [row["state"] for row in ran.json["partitions"]] == ["unknown"]


def test_a_fresh_group_is_healthy(kohort: Run) -> None:
    """Its first rebalance waits `group.initial.rebalance.delay.ms` for more members to come."""
    with Cluster(group_initial_rebalance_delay_ms=600_000) as slow:
        slow.create_topic("orders")
        with Consumer(bootstrap_servers=slow.bootstrap, group_id="fresh") as consumer:
            consumer.subscribe(["orders"])
            consumer.poll(0)
            slow.requests.wait(api="JoinGroup", count=2, answered=False)
            servers = ("-b", slow.bootstrap)
            ran = kohort("group", "why", "fresh", "--for", "1ms", "-o", "json", *servers)
            assert (ran.code, ran.json["concerns"]) == (0, [])
            assert "a rebalance is under way" in ran.json["notes"][0]
            consumer.close(0)


def cluster_end(kohort: Run) -> int:
    (row,) = kohort("topic", "describe", "why", "-o", "json").json["topics"][0]["partitions"]
    return row["log_end_offset"]
