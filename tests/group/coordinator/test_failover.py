"""Coordinator failover (spec 2.12): at each of its five steps, and what loading does.

A failover is a new shard fed with the log so far. Whichever step the old one died at: the group is
Stable again within bounded time, no generation is handed out twice, no committed offset is lost.
"""

from __future__ import annotations

import pytest

from kohort.errors import ErrorCode
from kohort.group.coordinator.state.classic_records import OffsetEntry, decode_record
from kohort.group.coordinator.state.classic_table import GroupState
from kohort.group.coordinator.state.effects import Effects, RequestContext
from kohort.group.coordinator.state.topics_image import TopicImage, TopicsImage
from kohort.wire import Message, encode
from kohort.wire.messages.delete_groups_request import DeleteGroupsRequest
from kohort.wire.messages.describe_groups_request import DescribeGroupsRequest
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.join_group_request import JoinGroupRequest
from kohort.wire.messages.leave_group_request import LeaveGroupRequest
from kohort.wire.messages.list_groups_request import ListGroupsRequest
from kohort.wire.messages.metadata_request import MetadataRequest
from kohort.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kohort.wire.messages.offset_delete_request import OffsetDeleteRequest
from kohort.wire.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from kohort.wire.messages.sync_group_request import SyncGroupRequest
from kohort.wire.messages.txn_offset_commit_request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.group.harness import DELAY_MS, GROUP, REBALANCE_MS, SESSION_MS, Bench, replay

C, S = ErrorCode, GroupState


def group_of_three() -> tuple[Bench, list[str]]:
    bench = Bench()
    ids = bench.stable(3)
    assert bench.commit(50, ids[0], 1) is C.NONE
    return bench, ids


def rejoin_until_stable(bench: Bench, ids: list[str]) -> None:
    """What clients do: heartbeat, rejoin when told, sync; for at most a rebalance timeout."""
    until = bench.now_ms + REBALANCE_MS + SESSION_MS
    joins: dict[str, int] = {}
    while not (bench.state is S.STABLE and not joins):
        assert bench.now_ms < until
        for member_id in ids:
            token = joins.get(member_id)
            if token is None and bench.heartbeat(member_id) is C.REBALANCE_IN_PROGRESS:
                joins[member_id] = bench.join(member_id)
        if bench.state is S.COMPLETING:
            assert {bench.code(token) for token in joins.values()} == {C.NONE}
            bench.settle(list(bench.group.members))
            joins.clear()
        bench.advance(SESSION_MS // 3)
    assert bench.fetch() == (50, C.NONE)


def test_step_1_trigger_noticed_nothing_done() -> None:
    """A member died and the old node had only just seen it: the new one sees it again."""
    bench, ids = group_of_three()
    bench.failover()
    assert bench.state is S.STABLE
    for _ in range(4):
        bench.advance(SESSION_MS // 3)
        for member_id in ids[:2]:
            bench.heartbeat(member_id)
    assert bench.state is S.PREPARING
    rejoin_until_stable(bench, ids[:2])
    assert bench.stored.generation == 2


def test_step_2_some_members_told() -> None:
    """A trigger that lived in memory comes again: here, a new member joins once more."""
    bench, ids = group_of_three()
    newcomer = bench.new_member_id()
    bench.join(newcomer)
    assert bench.heartbeat(ids[1]) is C.REBALANCE_IN_PROGRESS
    bench.failover()
    assert bench.state is S.STABLE
    assert bench.heartbeat(ids[0]) is C.NONE  # never that it is unknown
    token = bench.join(ids[1])  # was told, and asks: nothing is going on for a follower
    assert bench.answers[token].generation_id == 1
    assert bench.code(bench.join(newcomer)) is C.UNKNOWN_MEMBER_ID  # was never told of a generation
    newcomer = bench.new_member_id()
    bench.join(newcomer)
    rejoin_until_stable(bench, ids)
    assert (bench.stored.generation, len(bench.stored.members)) == (2, 4)


def test_step_3_some_joins_received() -> None:
    bench, ids = group_of_three()
    waiting = [bench.join(ids[0]), bench.join(ids[1])]
    bench.failover()
    assert [bench.code(t) for t in waiting] == [C.NOT_COORDINATOR] * 2
    assert bench.state is S.STABLE
    bench.join(ids[0])  # the leader asks again
    rejoin_until_stable(bench, ids[1:])
    assert bench.stored.generation == 2


def crash_after_writing_the_generation(bench: Bench, ids: list[str]) -> tuple[Effects, list[int]]:
    """All join; the record of generation 2 is written, and no answer has gone out."""
    tokens = [bench.join(ids[0]), bench.join(ids[1])]
    before = dict(bench.answers)
    tokens.append(bench.join(ids[2]))
    effects, bench.answers = bench.last, before
    assert len(effects.records) == 1
    return effects, tokens


def test_step_4_generation_written_nobody_answered() -> None:
    """Spec 2.6: a generation without its assignment is rebalanced at once, under a new number."""
    bench, ids = group_of_three()
    crash_after_writing_the_generation(bench, ids)
    bench.failover()
    assert (bench.state, bench.stored.generation) == (S.PREPARING, 2)
    tokens = [bench.join(i) for i in ids]
    assert [bench.answers[t].generation_id for t in tokens] == [3, 3, 3]
    bench.settle(ids)
    assert bench.fetch() == (50, C.NONE)


def test_step_5_some_answered() -> None:
    """Who has generation 2 is told to rejoin; nobody can get an assignment for it any more."""
    bench, ids = group_of_three()
    crash_after_writing_the_generation(bench, ids)
    bench.failover()
    assert bench.code(bench.sync(ids[0], 2, {ids[0]: b"all"})) is C.REBALANCE_IN_PROGRESS
    assert bench.heartbeat(ids[1], 2) is C.REBALANCE_IN_PROGRESS
    assert bench.heartbeat(ids[2], 1) is C.ILLEGAL_GENERATION
    tokens = [bench.join(i) for i in ids]
    assert [bench.answers[t].generation_id for t in tokens] == [3, 3, 3]
    bench.settle(ids)
    assert bench.fetch() == (50, C.NONE)


def test_assignment_written_nobody_answered() -> None:
    """The plan of a generation is the plan, whoever tells it (G7)."""
    bench = Bench()
    a, b = bench.form(2)
    bench.sync(a, plan={a: b"x", b: b"y"})
    bench.failover()
    assert bench.state is S.STABLE
    assert bench.answers[bench.sync(b, 1)].assignment == b"y"
    assert bench.answers[bench.sync(a, 1, {a: b"other"})].assignment == b"x"


@pytest.mark.parametrize("crash", range(9))
def test_no_generation_is_handed_out_twice(crash: int) -> None:
    """G3 across failovers, wherever in the log they fall."""
    bench, ids = group_of_three()
    for _ in range(3):
        for member_id in ids:
            bench.join(member_id)
        bench.settle(ids)
    assert len(bench.log) == 10
    successor = Bench(log=bench.log[: crash + 1], now_ms=bench.now_ms)
    written = successor.stored.generation
    ids = list(successor.group.members)
    for member_id in ids or [successor.new_member_id()]:
        successor.join(member_id)
    successor.advance(0 if ids else DELAY_MS)
    assert (successor.state, successor.stored.generation) == (S.COMPLETING, written + 1)


def test_dead_members_go_after_a_failover() -> None:
    """GL3: every session is armed anew by the load; nobody comes back, the group empties."""
    bench, _ = group_of_three()
    bench.failover()
    bench.advance(SESSION_MS - 1)
    assert len(bench.group.members) == 3
    bench.advance(1)
    assert (bench.state, bench.stored.generation) == (S.EMPTY, 2)


def test_unfinished_generation_of_dead_members_ends() -> None:
    bench, ids = group_of_three()
    crash_after_writing_the_generation(bench, ids)
    bench.failover()
    bench.advance(SESSION_MS)
    assert bench.state is S.EMPTY


def test_simple_groups_and_pending_transactions_are_loaded() -> None:
    bench = Bench()
    bench.commit(1, group="simple")
    bench.txn_commit(2, 5, group="staged")
    bench.failover()
    assert {"simple", "staged"} <= bench.shard.groups.keys()
    assert bench.fetch(group="staged", require_stable=True)[1] is C.UNSTABLE_OFFSET_COMMIT
    bench.marker(5, committed=True)
    assert bench.fetch(group="staged", require_stable=True) == (2, C.NONE)


def test_loaded_member_supports_the_chosen_protocol_only() -> None:
    """What was stored is all there is; a newcomer must share it."""
    protocols = [("range", b"r"), ("sticky", b"s")]
    bench = Bench()
    bench.stable(protocols=protocols)
    bench.failover()
    assert bench.code(bench.join(protocols=protocols[1:])) is C.INCONSISTENT_GROUP_PROTOCOL
    assert bench.code(bench.join(protocols=protocols)) is C.MEMBER_ID_REQUIRED


# Loading and unloading

PARTITION = OffsetCommitRequestPartition(partition_index=0)
REQUESTS: list[tuple[Message, int]] = [
    (JoinGroupRequest(group_id="g", member_id="m"), 9),
    (JoinGroupRequest(group_id="g", member_id="m"), 0),
    (SyncGroupRequest(group_id="g"), 5),
    (LeaveGroupRequest(group_id="g"), 2),
    (LeaveGroupRequest(group_id="g"), 5),
    (
        OffsetCommitRequest(
            group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=[PARTITION])]
        ),
        9,
    ),
    (
        TxnOffsetCommitRequest(
            group_id="g",
            topics=[
                TxnOffsetCommitRequestTopic(
                    name="t", partitions=[TxnOffsetCommitRequestPartition()]
                )
            ],
        ),
        3,
    ),
    (
        OffsetFetchRequest(
            group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        ),
        1,
    ),
    (OffsetFetchRequest(group_id="g"), 7),
    (OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g")]), 8),
    (OffsetDeleteRequest(group_id="g"), 0),
    (DescribeGroupsRequest(groups=["g"]), 6),
    (ListGroupsRequest(), 5),
    (DeleteGroupsRequest(groups_names=["g"]), 2),
]


def codes_in(answer: object) -> set[int]:
    """Every error code anywhere in an answer that is not 0."""
    codes: set[int] = set()
    for name in getattr(answer, "FIELDS", ()):
        value = getattr(answer, name)
        if name == "error_code" and value:
            codes.add(value)
        elif isinstance(value, list):
            for item in value:
                codes |= codes_in(item)
    return codes


@pytest.mark.parametrize(("request_", "version"), REQUESTS, ids=lambda v: getattr(v, "NAME", v))
def test_requests_while_loading_and_after_unloading(request_: Message, version: int) -> None:
    """Spec 2.2, 2.12: wait while it loads; go elsewhere when it is gone."""
    bench = Bench()
    bench.shard = bench.new_shard()
    assert codes_in(bench.ask(request_, version)) == {C.COORDINATOR_LOAD_IN_PROGRESS}
    assert bench.shard.tick(0) == Effects()
    assert bench.shard.topics_deleted(["t"], 0) == Effects()
    bench.shard.loaded(0)
    bench.shard.unload()
    assert codes_in(bench.ask(request_, version)) == {C.NOT_COORDINATOR}
    assert bench.shard.next_deadline() is None


def test_a_shard_forgets_the_offsets_of_topics_that_it_cannot_name() -> None:
    """SY17: one was deleted before the load began, and is made again; one is deleted during it."""
    bench = Bench()
    assert [bench.commit(5, topic=topic) for topic in "tuv"] == [C.NONE] * 3
    images = [TopicsImage.of(TopicImage(bytes(16), n, 1) for n in names) for names in ("tu", "tuv")]
    bench.shard = bench.new_shard()
    bench.shard.topics_changed(images[0], 0)
    replay(bench.shard, bench.log)
    bench.shard.topics_changed(images[1], 0)
    bench.shard.topics_deleted(["u"], 0)
    gone = [decode_record(record, 0) for record in bench.shard.loaded(0).records]
    assert gone == [OffsetEntry(GROUP, ("u", 0), None), OffsetEntry(GROUP, ("v", 0), None)]


def test_heartbeats_while_loading_are_answered_without_an_error() -> None:
    bench = Bench()
    bench.shard = bench.new_shard()
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert bench.ask(heartbeat, 4).error_code == C.NONE
    bench.shard.loaded(0)
    bench.shard.unload()
    assert bench.ask(heartbeat, 4).error_code == C.NOT_COORDINATOR


def test_a_request_of_another_kind_is_the_shells_mistake() -> None:
    bench = Bench()
    context = RequestContext(1, 12, "c", "h")
    with pytest.raises(TypeError, match="MetadataRequest"):
        bench.shard.handle(MetadataRequest(), context, 0)
    with pytest.raises(TypeError, match="MetadataRequest"):
        bench.new_shard().handle(MetadataRequest(), context, 0)


def test_classic_group_on_unloaded_preparing_rebalance() -> None:
    bench = Bench()
    token = bench.join(bench.new_member_id())
    gone = bench.failover()
    assert [reply.token for reply in gone.replies] == [token]
    assert (bench.code(token), gone.records) == (C.NOT_COORDINATOR, [])
    assert bench.state is S.EMPTY


def test_classic_group_on_unloaded_completing_rebalance() -> None:
    bench = Bench()
    _, follower = bench.form(2)
    token = bench.sync(follower)
    bench.failover()
    assert bench.code(token) is C.NOT_COORDINATOR
    assert bench.state is S.PREPARING


# Failed appends


@pytest.mark.parametrize(
    ("append_code", "client_code"),
    [
        (C.NOT_ENOUGH_REPLICAS, C.COORDINATOR_NOT_AVAILABLE),
        (C.REQUEST_TIMED_OUT, C.COORDINATOR_NOT_AVAILABLE),
        (C.UNKNOWN_TOPIC_OR_PARTITION, C.COORDINATOR_NOT_AVAILABLE),
        (C.NOT_LEADER_OR_FOLLOWER, C.NOT_COORDINATOR),
        (C.KAFKA_STORAGE_ERROR, C.NOT_COORDINATOR),
        (C.MESSAGE_TOO_LARGE, C.UNKNOWN_SERVER_ERROR),
        (C.NETWORK_EXCEPTION, C.COORDINATOR_LOAD_IN_PROGRESS),
        (C.INVALID_TOPIC_EXCEPTION, C.INVALID_TOPIC_EXCEPTION),
        (30_000, C.UNKNOWN_SERVER_ERROR),
    ],
)
def test_failed_append_is_told_as_kafka_tells_it(append_code: int, client_code: int) -> None:
    bench = Bench()
    request = OffsetCommitRequest(
        group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=[PARTITION])]
    )
    effects = bench.shard.handle(request, RequestContext(1, 9, "c", "h"), 0)
    (reply,) = bench.shard.append_failed(effects, append_code)
    assert codes_in(reply.response) == {client_code}
    bench.failover()
    assert bench.fetch() == (-1, C.NONE)  # G10: nothing of it is to be seen


@pytest.mark.parametrize(
    ("request_", "version", "expected"),
    [
        (OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]), 8, 16),
        (OffsetFetchRequest(group_id="g", topics=None), 7, 16),
        (
            OffsetFetchRequest(
                group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
            ),
            1,
            16,
        ),
        (DescribeGroupsRequest(groups=["g"]), 6, 15),
        (ListGroupsRequest(), 5, 15),
    ],
    ids=lambda v: getattr(v, "NAME", v),
)
def test_reads_that_waited_for_a_failed_append_are_refused(
    request_: Message, version: int, expected: int
) -> None:
    """Nobody is shown what a crash can take back (O2, O3)."""
    bench = Bench()
    bench.commit(5)
    effects = bench.shard.handle(request_, RequestContext(0, version, "c", "h"), 0)
    (reply,) = bench.shard.append_failed(effects, C.REQUEST_TIMED_OUT)
    assert codes_in(reply.response) == {expected}
    encode(reply.response, version)
    assert b"\x00\x05" not in encode(reply.response, version)


def test_every_answer_can_be_turned_round() -> None:
    """Whatever stands in effects with records: its answer can say that they were not written."""
    bench = Bench()
    a, b = bench.stable(2)
    bench.commit(1, a, 1)
    seen: set[str] = set()

    def fails(request: Message, version: int) -> None:
        effects = bench.shard.handle(request, RequestContext(1, version, "c", "h"), bench.now_ms)
        for reply in bench.shard.append_failed(effects, C.KAFKA_STORAGE_ERROR):
            assert codes_in(reply.response) == {C.NOT_COORDINATOR}
            seen.add(type(reply.response).__name__)
        bench.failover()

    sync = SyncGroupRequest(group_id="g", generation_id=1, member_id=a)
    sync.protocol_type, sync.protocol_name = "consumer", "range"
    bench.join(a)
    bench.join(b)
    sync.generation_id = bench.stored.generation
    fails(sync, 5)
    bench.advance(SESSION_MS)
    assert bench.state is S.EMPTY
    from kohort.wire.messages.join_group_request import JoinGroupRequestProtocol as Protocol

    new = JoinGroupRequest(group_id="new", session_timeout_ms=SESSION_MS)
    new.protocol_type, new.protocols = "consumer", [Protocol(name="range")]
    fails(new, 9)
    topics = [OffsetCommitRequestTopic(name="t", partitions=[PARTITION])]
    fails(OffsetCommitRequest(group_id="g", topics=topics), 9)
    staged = [TxnOffsetCommitRequestTopic(name="t", partitions=[TxnOffsetCommitRequestPartition()])]
    fails(TxnOffsetCommitRequest(group_id="g", topics=staged), 3)
    fails(DeleteGroupsRequest(groups_names=["g"]), 2)
    from kohort.wire.messages.offset_delete_request import (
        OffsetDeleteRequestPartition,
        OffsetDeleteRequestTopic,
    )

    partitions = [OffsetDeleteRequestPartition(partition_index=0)]
    deleted = [OffsetDeleteRequestTopic(name="t", partitions=partitions)]
    fails(OffsetDeleteRequest(group_id="g", topics=deleted), 0)
    (a,) = bench.stable()
    waiting = bench.new_member_id()
    bench.join(a)
    fails(LeaveGroupRequest(group_id="g", members=[]), 5)
    bench.join(a)
    assert waiting
    assert seen == {
        "SyncGroupResponse",
        "JoinGroupResponse",
        "OffsetCommitResponse",
        "TxnOffsetCommitResponse",
        "DeleteGroupsResponse",
        "OffsetDeleteResponse",
        "LeaveGroupResponse",
    }
    bench.advance(DELAY_MS)
