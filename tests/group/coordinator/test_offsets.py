"""Committed offsets (spec 2.7, 2.11; invariants O1-O7)."""

from __future__ import annotations

import pytest

from kohort.errors import ErrorCode
from kohort.group.coordinator.state.classic_records import OffsetEntry, StoredOffset, decode_record
from kohort.group.coordinator.state.classic_table import GroupState
from kohort.group.coordinator.state.effects import Producer
from kohort.wire.messages.delete_groups_request import DeleteGroupsRequest
from kohort.wire.messages.describe_groups_request import DescribeGroupsRequest
from kohort.wire.messages.list_groups_request import ListGroupsRequest
from kohort.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kohort.wire.messages.offset_delete_request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kohort.wire.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.group.harness import GROUP, SESSION_MS, WALL_MS, Bench, consumer, decoded

C, S = ErrorCode, GroupState
WEEK_MS, SWEEP_MS = 7 * 86_400_000, 600_000


def test_commit_writes_one_record_a_partition() -> None:
    """O1, O7: the record, and then the answer."""
    bench = Bench(now_ms=5)
    assert bench.commit(42) is C.NONE
    stored = StoredOffset(42, 7, "m", WALL_MS + 5, -1, -1)
    assert decoded(bench.last) == [OffsetEntry(GROUP, ("t", 0), stored)]
    assert bench.fetch() == (42, C.NONE)
    assert bench.state is S.EMPTY


def test_commit_with_a_retention_time_of_its_own() -> None:
    """OffsetCommit v2-v4: value v1, with its expiry."""
    bench = Bench()
    bench.commit(42, version=4, retention_ms=1_000)
    assert bench.last.records[0].value is not None
    assert bench.last.records[0].value[:2] == b"\0\1"
    (entry,) = decoded(bench.last)
    assert entry == OffsetEntry(GROUP, ("t", 0), StoredOffset(42, -1, "m", WALL_MS, WALL_MS + 1000))


def test_metadata_limits() -> None:
    """Too long metadata refuses its partition alone; null is empty."""
    bench = Bench(offset_metadata_max_bytes=4)
    partitions = [
        OffsetCommitRequestPartition(partition_index=0, committed_metadata="12345"),
        OffsetCommitRequestPartition(
            partition_index=1, committed_offset=3, committed_metadata="1234"
        ),
        OffsetCommitRequestPartition(partition_index=2, committed_metadata=None),
    ]
    topics = [OffsetCommitRequestTopic(name="t", partitions=partitions)]
    answer = bench.ask(OffsetCommitRequest(group_id=GROUP, topics=topics), 9)
    codes = [p.error_code for p in answer.topics[0].partitions]
    assert codes == [C.OFFSET_METADATA_TOO_LARGE, 0, 0]
    assert [e.partition for e in decoded(bench.last) if isinstance(e, OffsetEntry)] == [
        ("t", 1),
        ("t", 2),
    ]
    assert bench.shard.durable.offsets[GROUP]["t", 2].metadata == ""


def test_topic_ids_are_handed_through() -> None:
    """OffsetCommit and OffsetFetch v10: the broker filled in the names; ids come back."""
    bench, topic_id = Bench(), b"0123456789abcdef"
    bench.commit(5)
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=GROUP,
                topics=[
                    OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=[0])
                ],
            )
        ]
    )
    from kohort.group.coordinator.state.effects import RequestContext

    effects = bench.shard.handle(request, RequestContext("x", 10, "c", "h"), 0)
    topic = effects.replies[0].response.groups[0].topics[0]  # type: ignore[attr-defined]
    assert (topic.topic_id, topic.partitions[0].committed_offset) == (topic_id, 5)
    topics = [OffsetCommitRequestTopic(name="t", topic_id=topic_id)]
    commit = OffsetCommitRequest(group_id=GROUP, topics=topics)
    effects = bench.shard.handle(commit, RequestContext("y", 10, "c", "h"), 0)
    assert effects.replies[0].response.topics[0].topic_id == topic_id  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", [1, 2, 7])
def test_fetch_of_one_group(version: int) -> None:
    bench = Bench()
    bench.commit(5, topic="a", partition=1)
    bench.commit(6, topic="b")
    topics = [OffsetFetchRequestTopic(name="a", partition_indexes=[0, 1])]
    answer = bench.ask(OffsetFetchRequest(group_id=GROUP, topics=topics), version)
    found = [(p.committed_offset, p.metadata, p.error_code) for p in answer.topics[0].partitions]
    assert found == [(-1, "", 0), (5, "m", 0)]
    if version >= 2:
        answer = bench.ask(OffsetFetchRequest(group_id=GROUP, topics=None), version)
        assert [t.name for t in answer.topics] == ["a", "b"]
        missing = bench.ask(OffsetFetchRequest(group_id="none", topics=None), version)
        assert missing.topics == []


def test_fetch_of_several_groups() -> None:
    """KIP-709."""
    bench = Bench()
    bench.commit(5, group="a")
    bench.commit(6, group="b", partition=3)
    one = [OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])]
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(group_id="a", topics=one),
            OffsetFetchRequestGroup(group_id="b", topics=None),
            OffsetFetchRequestGroup(group_id="none", topics=None),
        ]
    )
    answer = bench.ask(request, 8)
    found = {
        g.group_id: [
            (p.partition_index, p.committed_offset) for t in g.topics for p in t.partitions
        ]
        for g in answer.groups
    }
    assert found == {"a": [(0, 5), (1, -1)], "b": [(3, 6)], "none": []}
    assert {g.error_code for g in answer.groups} == {0}


# Transactions


def test_transactional_offsets_are_visible_after_the_marker() -> None:
    """O6: RequireStable says that one is under way."""
    bench = Bench()
    bench.commit(1)
    assert bench.txn_commit(10, 5) is C.NONE
    assert bench.last.producer == Producer(5, 1)
    assert bench.fetch() == (1, C.NONE)
    assert bench.fetch(require_stable=True) == (-1, C.UNSTABLE_OFFSET_COMMIT)
    assert bench.fetch(partition=1, require_stable=True) == (-1, C.NONE)
    bench.marker(5, committed=True)
    assert bench.fetch(require_stable=True) == (10, C.NONE)


def test_aborted_offsets_are_gone() -> None:
    bench = Bench()
    bench.commit(1)
    bench.txn_commit(10, 5)
    bench.marker(5, committed=False)
    assert bench.fetch(require_stable=True) == (1, C.NONE)
    bench.marker(5, committed=False)  # a marker without offsets is nothing
    assert bench.fetch() == (1, C.NONE)


def test_transactions_of_several_producers() -> None:
    bench = Bench()
    bench.txn_commit(10, 5)
    bench.txn_commit(20, 6)
    bench.marker(6, committed=True)
    assert bench.fetch() == (20, C.NONE)
    assert bench.fetch(require_stable=True)[1] is C.UNSTABLE_OFFSET_COMMIT
    bench.marker(5, committed=True)  # its record is older in the log
    assert bench.fetch(require_stable=True) == (20, C.NONE)


def test_refused_transactional_commit_writes_nothing() -> None:
    bench = Bench()
    assert bench.txn_commit(1, 5, "m", 3) is C.ILLEGAL_GENERATION
    assert (bench.last.records, bench.last.producer) == ([], None)


def test_tombstones_clear_pending_offsets_too() -> None:
    bench = Bench()
    bench.txn_commit(10, 5)
    bench.txn_commit(11, 5, partition=1)
    delete_offset(bench)
    bench.marker(5, committed=True)
    assert bench.fetch() == (-1, C.NONE)
    assert bench.fetch(partition=1) == (11, C.NONE)


def delete_offset(bench: Bench, topic: str = "t", partition: int = 0) -> ErrorCode:
    partitions = [OffsetDeleteRequestPartition(partition_index=partition)]
    topics = [OffsetDeleteRequestTopic(name=topic, partitions=partitions)]
    answer = bench.ask(OffsetDeleteRequest(group_id=GROUP, topics=topics), 0)
    assert answer.error_code == 0, ErrorCode(answer.error_code)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


# Removal


def test_offset_delete() -> None:
    bench = Bench()
    bench.commit(5)
    assert delete_offset(bench) is C.NONE
    assert len(bench.last.records) == 1
    assert delete_offset(bench) is C.NONE  # nothing there: nothing written
    assert bench.last.records == []


def test_offset_delete_in_a_group_of_another_type_with_members() -> None:
    bench = Bench()
    bench.stable(protocol_type="connect")
    request = OffsetDeleteRequest(group_id=GROUP, topics=[])
    assert bench.ask(request, 0).error_code == C.NON_EMPTY_GROUP


def test_delete_groups() -> None:
    """Offsets first, pending ones too, then the group; afterwards it does not exist."""
    bench = Bench()
    bench.stable()
    bench.commit(5, "c-id1", 1)
    bench.txn_commit(7, 5, partition=2)
    request = DeleteGroupsRequest(groups_names=[GROUP, "none"])
    codes = [r.error_code for r in bench.ask(request, 2).results]
    assert codes == [C.NON_EMPTY_GROUP, C.GROUP_ID_NOT_FOUND]
    bench.advance(SESSION_MS)
    pending = bench.new_member_id()
    assert bench.ask(request, 2).results[0].error_code == 0
    assert [record.value for record in bench.last.records] == [None] * 3
    assert bench.state is None
    assert bench.shard.durable == Bench().shard.durable
    assert bench.code(bench.join(pending)) is C.UNKNOWN_MEMBER_ID
    bench.marker(5, committed=True)
    assert bench.fetch(partition=2) == (-1, C.NONE)


def test_topics_deleted() -> None:
    bench = Bench()
    bench.commit(1, topic="gone")
    bench.commit(2, topic="kept")
    bench.txn_commit(3, 5, topic="gone", group="other")
    bench.took(bench.shard.topics_deleted(["gone"], bench.now_ms))
    assert bench.fetch("gone") == (-1, C.NONE)
    assert bench.fetch("kept") == (2, C.NONE)
    bench.marker(5, committed=True)
    assert bench.fetch("gone", group="other") == (-1, C.NONE)


# Expiry


def test_simple_group_expires_by_commit_time() -> None:
    bench = Bench()
    bench.commit(1)
    bench.advance(WEEK_MS - SWEEP_MS)
    bench.commit(2, partition=1)
    bench.advance(SWEEP_MS)
    assert [bench.fetch(partition=p)[0] for p in (0, 1)] == [-1, 2]
    bench.advance(WEEK_MS)
    assert bench.state is None


def test_empty_group_expires_by_the_time_it_became_empty() -> None:
    """Spec 2.11; and a commit made later counts from then."""
    bench = Bench()
    (member,) = bench.stable()
    bench.commit(1, member, 1)
    bench.advance(SESSION_MS)
    empty_since = bench.now_ms
    bench.advance(WEEK_MS - 2 * SWEEP_MS)
    bench.commit(2, partition=1)
    bench.advance(empty_since + WEEK_MS + SWEEP_MS - bench.now_ms)
    assert [bench.fetch(partition=p)[0] for p in (0, 1)] == [-1, 2]
    assert bench.stored.generation == 2
    bench.advance(WEEK_MS)
    assert bench.state is None
    assert bench.shard.durable.groups == {}


def test_stable_group_expires_what_it_no_longer_subscribes_to() -> None:
    bench = Bench()
    (member,) = bench.stable(protocols=consumer("t"), session_ms=1_800_000)
    bench.check = False
    bench.commit(1, member, 1, topic="t")
    bench.commit(2, member, 1, topic="old")
    for _ in range(WEEK_MS // SWEEP_MS + 1):
        bench.advance(SWEEP_MS)
        assert bench.heartbeat(member) is C.NONE
    bench.check_log()
    assert (bench.fetch("t")[0], bench.fetch("old")[0]) == (1, -1)


def test_group_of_another_type_with_members_never_expires() -> None:
    bench = Bench(offsets_retention_minutes=1)
    (member,) = bench.stable(protocol_type="connect", session_ms=1_800_000)
    bench.commit(1, member, 1)
    bench.advance(2 * SWEEP_MS)
    assert bench.fetch() == (1, C.NONE)


def test_explicit_expiry_wins() -> None:
    bench = Bench()
    bench.commit(1, version=4, retention_ms=SWEEP_MS)
    bench.commit(2, version=4, retention_ms=SWEEP_MS + 1, partition=1)
    bench.advance(SWEEP_MS)
    assert [bench.fetch(partition=p)[0] for p in (0, 1)] == [-1, 2]


def test_sweep_goes_in_steps() -> None:
    """Bounded batches; other events may come between the steps."""
    bench = Bench(offsets_sweep_max_records=10)
    bench.check = False
    for partition in range(25):
        bench.commit(1, partition=partition)
    bench.now_ms = WEEK_MS + SWEEP_MS
    sizes: list[int] = []
    while (due := bench.shard.next_deadline()) is not None and due <= bench.now_ms:
        sizes.append(len(bench.took(bench.shard.tick(bench.now_ms)).records))
    assert sizes == [10, 10, 6]  # the group's own tombstone is the last
    bench.check_log()
    assert bench.state is None


def test_group_that_waits_for_a_pending_member_is_kept() -> None:
    bench = Bench()
    bench.new_member_id(session_ms=1_800_000)
    bench.advance(SWEEP_MS)
    assert bench.state is S.EMPTY
    bench.advance(4 * SWEEP_MS)
    assert bench.state is None


def test_generation_outlives_an_empty_group_for_the_retention_time() -> None:
    """G3: generations rise as long as anybody may remember them."""
    bench = Bench()
    bench.stable()
    bench.advance(SESSION_MS + WEEK_MS - SWEEP_MS)
    assert bench.stored.generation == 2
    bench.form()
    assert bench.stored.generation == 3


# Describing


def test_list_groups() -> None:
    bench = Bench()
    bench.stable()
    bench.commit(1, group="simple")

    def listed(**filters: list[str]) -> list[tuple[str, str, str, str]]:
        answer = bench.ask(ListGroupsRequest(**filters), 5)  # type: ignore[arg-type]
        return [(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in answer.groups]

    both = [(GROUP, "consumer", "Stable", "classic"), ("simple", "", "Empty", "classic")]
    assert listed() == both
    assert listed(states_filter=["stable", "Dead"]) == both[:1]
    assert listed(types_filter=["Classic"]) == both
    assert listed(types_filter=["consumer"]) == []
    assert listed(states_filter=["NoSuchState"]) == []


def test_describe_groups() -> None:
    bench = Bench()
    a, b = bench.stable(2)
    answer = bench.ask(DescribeGroupsRequest(groups=[GROUP, "none"]), 5)
    group, missing = answer.groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    shown = [(m.member_id, m.client_id, m.client_host, m.member_metadata) for m in group.members]
    assert shown == [(m, "c", "/127.0.0.1", b"r") for m in (a, b)]
    assert group.members[1].member_assignment == b"a-" + b.encode()
    assert (missing.group_state, missing.error_code) == ("Dead", 0)


def test_wall_clock_offset_may_move() -> None:
    """Records carry wall-clock time, timers do not."""
    bench = Bench()
    bench.shard.wall_offset_ms = 123
    bench.commit(1)
    entry = decode_record(bench.log[-1].record, 0)  # type: ignore[arg-type]
    assert isinstance(entry, OffsetEntry)
    assert entry.value is not None
    assert entry.value.commit_timestamp_ms == bench.now_ms + 123
    assert bench.shard.wall_offset_ms == 123


def test_a_retention_time_beyond_all_time_is_for_ever() -> None:
    """What a client asks for is added to the clock, and has to fit the record all the same."""
    bench = Bench()
    bench.commit(42, version=4, retention_ms=2**63 - 1)
    (entry,) = decoded(bench.last)
    assert entry == OffsetEntry(GROUP, ("t", 0), StoredOffset(42, -1, "m", WALL_MS, 2**63 - 1))
