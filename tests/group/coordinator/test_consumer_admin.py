"""Offsets of consumer groups, and what tools ask of them (KIP-848, KIP-1251): each answer."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.errors import ErrorCode
from kohort.group.coordinator.state.consumer_table import ANSWERS, Holder, RequestKind, Step, answer
from kohort.group.coordinator.state.group_kind import holder_of
from kohort.wire.messages.consumer_group_describe_request import ConsumerGroupDescribeRequest
from kohort.wire.messages.consumer_group_describe_response import ConsumerGroupDescribeResponse
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from kohort.wire.messages.delete_groups_request import DeleteGroupsRequest
from kohort.wire.messages.describe_groups_request import DescribeGroupsRequest
from kohort.wire.messages.list_groups_request import ListGroupsRequest
from kohort.wire.messages.offset_delete_request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kohort.wire.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.group.consumer_harness import INTERVAL_MS, ConsumerBench, code, topic_id
from tests.group.coordinator.test_migration import classic_group, mixed, protocols, rejoin
from tests.group.harness import GROUP
from tests.known import of_type

C = ErrorCode
WEEK_MS = 7 * 86_400_000


def settled() -> ConsumerBench:
    """Members m1 (t 0 to 2, since epoch 1) and m2 (t 3 to 5, since epoch 2), both in epoch 2."""
    bench = ConsumerBench()
    bench.enter("m1")
    bench.enter("m2")
    bench.settle_all()
    assert bench.assigned("m1") == {"t": [0, 1, 2]}
    return bench


# Commits


def test_who_may_commit() -> None:
    bench = settled()
    assert bench.commit(1, "m1", 2) is C.NONE
    assert bench.commit(1, "x", 2) is C.UNKNOWN_MEMBER_ID
    assert bench.commit(1) is C.UNKNOWN_MEMBER_ID  # nobody else, while there are members
    assert bench.commit(1, "m1", 3) is C.STALE_MEMBER_EPOCH
    assert bench.commit(1, "m1", -1) is C.STALE_MEMBER_EPOCH
    assert bench.commit(1, "m1", 2, version=8) is C.UNSUPPORTED_VERSION
    assert bench.fetch() == (1, C.NONE)
    bench.beat("m1", -1)
    bench.beat("m2", -1)
    assert bench.commit(2) is C.NONE  # an administrator
    assert bench.commit(2, "m1", 2) is C.UNKNOWN_MEMBER_ID


def test_an_older_epoch_commits_what_the_member_has_had_since() -> None:
    """KIP-1251, B11: assignment epoch <= commit's epoch <= member's epoch, for every partition."""
    bench = settled()
    assert bench.commit(1, "m1", 1, partition=0) is C.NONE
    assert bench.commit(1, "m2", 1, partition=3) is C.STALE_MEMBER_EPOCH  # given in epoch 2
    assert bench.commit(1, "m1", 1, partition=3) is C.STALE_MEMBER_EPOCH  # another's
    assert bench.commit(1, "m1", 0, partition=0) is C.STALE_MEMBER_EPOCH
    assert bench.commit(1, "m1", 1, topic="gone") is C.STALE_MEMBER_EPOCH
    bench.enter("m3")
    bench.keep("m1")
    assert bench.pending("m1") == {"t": [2]}
    assert bench.commit(9, "m1", 1, partition=2) is C.NONE  # in onPartitionsRevoked


def test_classic_members_commit_in_their_own_words() -> None:
    bench = mixed()
    assert bench.commit(1, "c1", 2, partition=3, version=8) is C.NONE
    assert bench.commit(1, "c1", 1, partition=3) is C.ILLEGAL_GENERATION


def test_a_replaced_static_member_is_told_so_by_its_commit() -> None:
    """G8: UNKNOWN_MEMBER_ID would make it join again, and two twins replace each other for ever.

    Found by the simulator (seeds 662 and 1551): classic static twins inside a consumer group.
    """
    bench = ConsumerBench()
    bench.enter("m1")
    first = bench.answers[bench.join(instance="one", protocols=protocols())].member_id
    assert bench.commit(1, first, -1, instance="one") is C.ILLEGAL_GENERATION
    second = bench.answers[bench.join(instance="one", protocols=protocols())].member_id
    assert first != second
    assert bench.commit(1, first, 1, instance="one") is C.FENCED_INSTANCE_ID
    assert bench.commit(1, first, 1) is C.UNKNOWN_MEMBER_ID
    assert bench.commit(1, "x", 1, instance="two") is C.UNKNOWN_MEMBER_ID
    assert bench.txn_commit(1, 7, first, 1, instance="one") is C.FENCED_INSTANCE_ID


def test_transactional_commits() -> None:
    bench = settled()
    assert bench.txn_commit(1, 7) is C.NONE  # a producer that names no member
    assert bench.txn_commit(1, 7, "m1", 2) is C.NONE
    assert bench.txn_commit(1, 7, "m1", 5) is C.ILLEGAL_GENERATION
    assert bench.txn_commit(1, 7, "m1", -1) is C.ILLEGAL_GENERATION
    assert bench.txn_commit(1, 7, "x", 2) is C.UNKNOWN_MEMBER_ID
    assert bench.fetch(require_stable=True)[1] is C.UNSTABLE_OFFSET_COMMIT
    bench.marker(7, committed=True)
    assert bench.fetch(require_stable=True) == (1, C.NONE)


def fetch_as(bench: ConsumerBench, member_id: str | None, epoch: int) -> tuple[ErrorCode, int]:
    """OffsetFetch v9 by a member: the group's error code, and how many topics were answered."""
    group = OffsetFetchRequestGroup(
        group_id=GROUP,
        member_id=member_id,
        member_epoch=epoch,
        topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])],
    )
    found = bench.ask(OffsetFetchRequest(groups=[group]), 9).groups[0]
    return ErrorCode(found.error_code), len(found.topics)


def test_offset_fetch_checks_the_member_since_v9() -> None:
    bench = mixed()
    assert fetch_as(bench, None, -1) == (C.NONE, 1)
    assert fetch_as(bench, "m1", 2) == (C.NONE, 1)
    assert fetch_as(bench, "m1", 1) == (C.STALE_MEMBER_EPOCH, 0)
    assert fetch_as(bench, "c1", 1) == (C.ILLEGAL_GENERATION, 0)
    assert fetch_as(bench, "x", 2) == (C.UNKNOWN_MEMBER_ID, 0)


def test_offset_delete_spares_what_is_read() -> None:
    bench = settled()
    bench.commit(1, "m1", 2)
    bench.commit(1, "m1", 2, topic="u")
    topics = [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)]
        )
        for name in ("t", "u")
    ]
    found = bench.ask(OffsetDeleteRequest(group_id=GROUP, topics=topics), 0)
    codes = [t.partitions[0].error_code for t in found.topics]
    assert codes == [C.GROUP_SUBSCRIBED_TO_TOPIC, C.NONE]
    assert (bench.fetch()[0], bench.fetch("u")[0]) == (1, -1)


def test_offsets_expire_by_their_commit_and_only_unread() -> None:
    """O4; then the group goes, when nobody is left and no transaction is open."""
    bench = settled()
    bench.commit(1, "m1", 2)
    bench.commit(1, "m1", 2, topic="u")
    for _ in range(8):
        bench.advance(1)
        for _ in range(0, 86_400_000, 43_200_000):
            bench.shard._ws.timers.arm(("offsets", "", ""), bench.now_ms + 43_200_000)
            bench.now_ms += 43_200_000  # members heartbeat all the while
            bench.keep("m1")
            bench.keep("m2")
            bench.took(bench.shard.tick(bench.now_ms))
    assert (bench.fetch()[0], bench.fetch("u")[0]) == (1, -1)
    bench.txn_commit(5, 7, topic="u")
    bench.beat("m1", -1)
    bench.beat("m2", -1)
    bench.advance(WEEK_MS + 600_000)
    assert bench.fetch()[0] == -1
    assert GROUP in bench.shard.consumer_groups
    bench.marker(7, committed=False)
    bench.advance(600_000)
    assert bench.shard.consumer_groups == {}
    assert bench.shard.durable == ConsumerBench().shard.durable


def test_a_deleted_topic_takes_its_offsets_along() -> None:
    bench = settled()
    bench.commit(1, "m1", 2)
    bench.took(bench.shard.topics_deleted(["t"], bench.now_ms))
    assert bench.fetch()[0] == -1


# Tools


def test_describe_shows_everything() -> None:
    bench = settled()
    bench.enter("m3", ["t", "u"], instance="one", rack="r")
    shown = bench.describe()
    assert (shown.group_state, shown.group_epoch, shown.assignment_epoch) == ("Reconciling", 3, 3)
    assert shown.assignor_name == "uniform"
    first, _, third = shown.members
    assert (first.member_id, first.member_epoch, first.client_host) == ("m1", 2, "/127.0.0.1")
    held = first.assignment.topic_partitions
    assert [(t.topic_id, t.topic_name, t.partitions) for t in held] == [
        (topic_id("t"), "t", bench.assigned("m1")["t"])
    ]
    assert first.target_assignment.topic_partitions[0].partitions == bench.target("m1")["t"]
    assert (third.instance_id, third.rack_id, third.member_type) == ("one", "r", 1)
    assert third.subscribed_topic_names == ["t", "u"]
    bench.drop("t")
    assert bench.describe().members[0].assignment.topic_partitions == []


def test_describe_of_what_is_no_consumer_group() -> None:
    bench = ConsumerBench()
    classic_group(bench, [{"t": (0,)}])
    for name in (GROUP, "missing"):
        shown = bench.describe(name)
        assert code(shown) is C.GROUP_ID_NOT_FOUND
        assert name in shown.error_message
    bench.enter("m1", group="new")
    for version, expected in ((5, C.NONE), (6, C.GROUP_ID_NOT_FOUND)):
        shown = bench.ask(DescribeGroupsRequest(groups=["new"]), version).groups[0]
        assert (code(shown), shown.group_state) == (expected, "Dead")


def listed(bench: ConsumerBench, **filters: Any) -> list[tuple[str, str, str]]:
    found = bench.ask(ListGroupsRequest(**filters), 5).groups
    return sorted((g.group_id, g.group_type, g.group_state) for g in found)


def test_groups_are_listed_by_type_and_state() -> None:
    bench = settled()
    bench.commit(1, group="simple")
    bench.enter("m1", group="other")
    bench.beat("m1", -1, group="other")
    assert listed(bench) == [
        (GROUP, "consumer", "Stable"),
        ("other", "consumer", "Empty"),
        ("simple", "classic", "Empty"),
    ]
    assert [g[0] for g in listed(bench, types_filter=["Consumer"])] == [GROUP, "other"]
    assert [g[0] for g in listed(bench, types_filter=["classic"])] == ["simple"]
    assert [g[0] for g in listed(bench, states_filter=["empty"])] == ["other", "simple"]
    bench.enter("m3")
    assert [g[0] for g in listed(bench, states_filter=["reconciling"])] == [GROUP]
    bench.beat("m2", -1)
    assert [g[0] for g in listed(bench, states_filter=["assigning"])] == [GROUP]


def test_only_an_empty_group_is_deleted() -> None:
    """Offsets first, then 8s, 7s, 6, 5s, 16s, 3."""
    bench = settled()
    bench.commit(1, "m1", 2)
    request = DeleteGroupsRequest(groups_names=[GROUP])
    assert bench.ask(request, 2).results[0].error_code == C.NON_EMPTY_GROUP
    bench.beat("m1", -1)
    bench.beat("m2", -1)
    assert bench.ask(request, 2).results[0].error_code == C.NONE
    assert [(r[0], r[2]) for r in bench.wrote()] == [(1, None), (6, None), (3, None)]
    assert bench.ask(request, 2).results[0].error_code == C.GROUP_ID_NOT_FOUND
    assert bench.fetch()[0] == -1


def test_unloaded_and_loading_shards_turn_everybody_away() -> None:
    bench = settled()
    beat = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="m1", member_epoch=2)
    describe = ConsumerGroupDescribeRequest(group_ids=[GROUP])
    held = bench.shard.handle(beat, _context(1), bench.now_ms)
    failed = bench.shard.append_failed(held, C.NOT_LEADER_OR_FOLLOWER)
    refusal = of_type(failed[0].response, ConsumerGroupHeartbeatResponse)
    assert refusal.error_code == C.NOT_COORDINATOR
    held = bench.shard.handle(describe, _context(1), bench.now_ms)
    failed = bench.shard.append_failed(held, C.REQUEST_TIMED_OUT)
    described = of_type(failed[0].response, ConsumerGroupDescribeResponse)
    assert described.groups[0].error_code == C.COORDINATOR_NOT_AVAILABLE
    for shard, expected in (
        (bench.new_shard(), C.COORDINATOR_LOAD_IN_PROGRESS),
        (bench.shard, C.NOT_COORDINATOR),
    ):
        if shard is bench.shard:
            shard.unload()
        answer = shard.handle(beat, _context(1), 0).replies[0].response
        assert of_type(answer, ConsumerGroupHeartbeatResponse).error_code == expected
        answer = shard.handle(describe, _context(1), 0).replies[0].response
        groups = of_type(answer, ConsumerGroupDescribeResponse).groups
        assert [(g.group_id, g.error_code) for g in groups] == [(GROUP, expected)]


def _context(version: int) -> Any:
    from kohort.group.coordinator.state.effects import RequestContext

    return RequestContext("token", version, "c", "/h")


# The answer table


def bench_of(holder: Holder) -> ConsumerBench:
    """A bench whose group id stands for that."""
    bench = ConsumerBench()
    match holder:
        case Holder.CLASSIC_EMPTY:
            bench.commit(1)
        case Holder.CLASSIC:
            classic_group(bench, [{"t": (0, 1, 2, 3, 4, 5)}])
        case Holder.EMPTY | Holder.MEMBERS:
            bench.enter("m1")
            rejoin(bench, "c1")
            if holder is Holder.EMPTY:
                bench.beat("m1", -1)
                bench.leave("c1")
                bench = ConsumerBench()
                bench.enter("m1")
                bench.beat("m1", -1)
        case _:
            pass
    assert holder_of(bench.shard._ws, GROUP) is holder
    return bench


@pytest.mark.parametrize("holder", Holder)
@pytest.mark.parametrize("asked", RequestKind)
def test_every_cell_of_the_answer_table(asked: RequestKind, holder: Holder) -> None:
    """What the table says is what happens."""
    bench, step = bench_of(holder), answer(asked, holder)
    member = "m1" if asked in (RequestKind.HEARTBEAT, RequestKind.LEAVE) else "c1"
    match asked:
        case RequestKind.JOIN:
            got = code(bench.enter("new"))
        case RequestKind.HEARTBEAT:
            got = code(bench.beat(member, 1))
        case RequestKind.LEAVE:
            got = code(bench.beat(member, -1))
        case RequestKind.DESCRIBE:
            got = code(bench.describe())
        case RequestKind.CLASSIC_JOIN:
            got = bench.code(bench.join("", protocols=protocols())) or C.NONE
        case RequestKind.CLASSIC_SYNC:
            got = bench.code(bench.sync(member, 2)) or C.NONE
        case RequestKind.CLASSIC_HEARTBEAT:
            got = bench.heartbeat(member, 2)
        case RequestKind.CLASSIC_LEAVE:
            got = bench.leave(member)[0]
        case RequestKind.CLASSIC_DESCRIBE:
            got = code(bench.ask(DescribeGroupsRequest(groups=[GROUP]), 6).groups[0])
    if isinstance(step, ErrorCode):
        assert got is step
    elif step is Step.SHOW_DEAD:
        assert got is C.GROUP_ID_NOT_FOUND
    elif step is Step.CLASSIC_RULES:
        assert bench.shard.consumer_groups == {}
    elif asked is RequestKind.CLASSIC_JOIN:
        assert got is C.MEMBER_ID_REQUIRED
        assert (GROUP in bench.shard.consumer_groups) == (step is Step.ADMIT)
    else:
        assert got is C.NONE
    assert set(ANSWERS[asked]) == set(Holder)


def test_heartbeats_tell_the_configured_interval() -> None:
    bench = ConsumerBench(
        group_consumer_heartbeat_interval_ms=700, group_consumer_min_heartbeat_interval_ms=100
    )
    assert bench.enter("m1").heartbeat_interval_ms == 700 != INTERVAL_MS
