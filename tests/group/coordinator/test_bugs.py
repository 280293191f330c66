"""Bugs that other coordinators had, replayed against ours: B13 to B29."""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.group.coordinator.state.classic_records import (
    StoredOffset,
    group_tombstone,
    offset_record,
    offset_tombstone,
)
from kohort.group.coordinator.state.classic_table import GroupState
from kohort.group.coordinator.state.effects import GroupRecord, RequestContext
from kohort.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.group.harness import (
    DELAY_MS,
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    WALL_MS,
    Bench,
    Logged,
    consumer,
)

C, S = ErrorCode, GroupState
FIVE_MINUTES_MS, SWEEP_MS, WEEK_MS = 300_000, 600_000, 7 * 86_400_000


def test_b13_ghost_of_an_old_client_that_joined_and_went_away_expires() -> None:
    """KAFKA-9752: once its join has been answered, an ordinary session runs."""
    bench = Bench()
    (a,) = bench.stable()
    ghost = bench.join(version=3)  # and its client is gone
    bench.join(a)
    assert bench.code(ghost) is C.NONE
    bench.sync(a, plan={a: b"x"})
    for _ in range(3):
        bench.advance(SESSION_MS // 2)
        bench.heartbeat(a)
    assert list(bench.group.members) == [a]


def test_b14_member_that_heartbeats_and_never_syncs() -> None:
    """KAFKA-12890: the generation does not wait for it longer than a rebalance timeout."""
    bench = Bench()
    leader, follower = bench.form(2)
    token = bench.sync(follower)
    for _ in range(2 * REBALANCE_MS // SESSION_MS):
        assert bench.heartbeat(leader, 1) is C.NONE
        bench.advance(SESSION_MS // 2)
    assert bench.code(token) is C.REBALANCE_IN_PROGRESS
    assert list(bench.group.members) == [follower]


def test_b15_client_that_gives_up_and_asks_again_leaves_no_members() -> None:
    """KAFKA-7610, KIP-394: ids, which expire."""
    bench = Bench()
    bench.stable()
    for _ in range(50):
        bench.new_member_id()
    assert len(bench.group.members) == 1
    assert len(bench.group.pending_join) == 50
    bench.advance(SESSION_MS - 1)
    bench.advance(1)
    assert not bench.group.pending_join


def test_b16_pending_member_that_leaves_does_not_hold_the_rebalance() -> None:
    """KAFKA-7909."""
    bench = Bench()
    (a,) = bench.stable()
    pending = bench.new_member_id()
    token = bench.join(a)
    assert bench.code(token) is None
    assert bench.leave(pending) == [C.NONE]
    assert bench.code(token) is C.NONE


def test_b17_concurrent_joins_do_not_pass_the_limit() -> None:
    """KAFKA-9844: both got an id while there was room for one."""
    bench = Bench(group_max_size=3)
    ids = bench.stable(2)
    new = [bench.new_member_id() for _ in range(2)]
    for member_id in new:
        bench.join(member_id)
    for member_id in ids:
        bench.join(member_id)
    assert bench.state is S.COMPLETING
    assert len(bench.stored.members) == 3


def test_b18_static_member_that_rejoins_in_completing_gets_an_assignment() -> None:
    """KAFKA-9801: the leader's plan would name the old id; so a new generation is due."""
    bench = Bench()
    for instance in ("one", "two"):
        bench.join(instance=instance)
    bench.advance(2 * DELAY_MS)
    one, two = bench.group.members
    token = bench.join(instance="two")
    late_plan = bench.sync(one, 1, {one: b"x", two: b"y"}, instance="one")
    assert bench.code(late_plan) is C.REBALANCE_IN_PROGRESS
    bench.join(one, instance="one")
    new = bench.answers[token].member_id
    bench.settle([one, new])
    assert bench.stored.members[new].assignment == b"a-" + new.encode()


def test_b19_replaced_static_member_survives_a_failover() -> None:
    """KAFKA-10284: the new id is stored; the zombie is fenced, the live one is not."""
    bench = Bench()
    bench.join(instance="one")
    bench.advance(DELAY_MS)
    (old,) = bench.group.members
    bench.settle([old])
    new = bench.answers[bench.join(instance="one")].member_id
    bench.failover()
    assert bench.heartbeat(old, 1, "one") is C.FENCED_INSTANCE_ID
    assert bench.heartbeat(new, 1, "one") is C.NONE


def test_b19_no_answer_names_an_id_that_is_not_stored() -> None:
    """In every state: replaced while preparing, completing and stable."""
    for state in (S.PREPARING, S.COMPLETING, S.STABLE):
        bench = Bench()
        for instance in ("one", "two"):
            bench.join(instance=instance)
        bench.advance(2 * DELAY_MS)
        one, two = bench.group.members
        if state is not S.COMPLETING:
            bench.settle([one, two])
        if state is S.PREPARING:
            bench.join(one, instance="one")
        token = bench.join(instance="two")
        if bench.code(token) is None:
            bench.join(one, instance="one")
        assert bench.answers[token].member_id in bench.stored.members


def test_b20_static_ids_after_a_load_are_fresh() -> None:
    """KAFKA-8715."""
    bench = Bench()
    bench.join(instance="one")
    bench.advance(DELAY_MS)
    (old,) = bench.group.members
    bench.settle([old])
    bench.failover()
    assert bench.answers[bench.join(instance="one")].member_id != old


def test_b20_rejoin_takes_the_new_rebalance_timeout() -> None:
    """KAFKA-14009: a static member that comes back with a longer one is not expelled (G13)."""
    bench = Bench()
    bench.join(instance="one", rebalance_ms=10_000, session_ms=200_000)
    bench.advance(DELAY_MS)
    bench.settle(list(bench.group.members))
    bench.join(instance="one", rebalance_ms=100_000, session_ms=200_000)
    bench.new_member_id(session_ms=30_000)
    bench.failover()
    assert bench.group.rebalance_timeout_ms() == 100_000


def test_b21_simple_consumer_with_an_instance_id_may_commit() -> None:
    """KAFKA-14201."""
    bench = Bench()
    assert bench.commit(1, instance="one") is C.NONE
    assert bench.commit(2, instance="one") is C.NONE
    assert bench.fetch() == (2, C.NONE)


def test_b22_failed_append_of_a_group_record_is_retriable_for_a_join() -> None:
    """KAFKA-10870: clients know COORDINATOR_NOT_AVAILABLE as an answer to JoinGroup."""
    bench = Bench()
    bench.join(bench.new_member_id())
    bench.now_ms = DELAY_MS
    effects = bench.shard.tick(bench.now_ms)
    (reply,) = bench.shard.append_failed(effects, C.REQUEST_TIMED_OUT)
    assert reply.response.error_code == C.COORDINATOR_NOT_AVAILABLE  # type: ignore[attr-defined]
    assert bench.failover().replies == []  # nobody is told twice


def test_b24_compacted_logs_load() -> None:
    """KAFKA-19862, 17306: tombstones first, tombstones of what is not there, odd orders."""
    stored = StoredOffset(1, -1, "", WALL_MS)
    records = [
        group_tombstone(GROUP),
        offset_tombstone(GROUP, ("t", 0)),
        offset_tombstone("other", ("t", 0)),
        offset_record(GROUP, ("t", 1), stored),
        group_tombstone(GROUP),
        GroupRecord(b"\0\3\0\1x", None),
    ]
    bench = Bench(log=[Logged(10 * i, r) for i, r in enumerate(records)])
    assert bench.fetch(partition=1) == (1, C.NONE)
    bench.marker(77, committed=True)
    assert bench.commit(2, partition=1) is C.NONE


def test_b25_nothing_expires_while_the_group_rebalances() -> None:
    """KAFKA-13636."""
    bench = Bench(offsets_retention_minutes=1)
    (a,) = bench.stable(protocols=consumer("t"), session_ms=1_800_000, rebalance_ms=1_800_000)
    bench.commit(1, a, 1, topic="other")
    bench.new_member_id(session_ms=1_800_000, protocols=consumer("t"))
    bench.join(a, protocols=consumer("t"), session_ms=1_800_000, rebalance_ms=1_800_000)
    bench.advance(SWEEP_MS)
    assert bench.state is S.PREPARING
    assert bench.fetch("other") == (1, C.NONE)


def test_b25_offset_v1_without_expiry_is_not_expired_after_a_failover() -> None:
    """KAFKA-8069."""
    key = offset_record(GROUP, ("t", 0), StoredOffset(1, -1, "", WALL_MS)).key
    value = bytes.fromhex("0001 0000000000000009 0000") + WALL_MS.to_bytes(8, "big") + b"\xff" * 8
    bench = Bench(log=[Logged(0, GroupRecord(key, value))])
    bench.advance(SWEEP_MS)
    assert bench.fetch() == (9, C.NONE)


def test_b26_sweep_spares_what_a_transaction_has_staged() -> None:
    """KAFKA-19163: neither the offset, nor a group that has nothing else."""
    bench = Bench()
    bench.commit(1)
    bench.txn_commit(2, 5)
    bench.txn_commit(3, 5, group="staged-only")
    bench.advance(WEEK_MS + SWEEP_MS)
    assert bench.fetch() == (1, C.NONE)
    bench.marker(5, committed=True)
    assert bench.fetch() == (2, C.NONE)
    assert bench.fetch(group="staged-only") == (3, C.NONE)


def test_b27_live_state_and_replay_pick_the_same_winner() -> None:
    """CORE-17000: staged at 10, plain commit at 11, marker at 12 (and the other way round)."""
    bench = Bench()
    bench.txn_commit(10, 5)
    bench.commit(11)
    bench.marker(5, committed=True)  # the harness compares live, replayed and compacted state
    assert bench.fetch() == (11, C.NONE)
    bench.commit(12)
    bench.txn_commit(13, 6)
    bench.marker(6, committed=True)
    assert bench.fetch() == (13, C.NONE)
    bench.failover()
    assert bench.fetch() == (13, C.NONE)


def test_b28_transactional_commit_is_checked_in_the_step_that_records_it() -> None:
    """KAFKA-15784: the member is gone, so is its right to commit."""
    bench = Bench()
    a, b = bench.stable(2)
    assert bench.txn_commit(1, 5, b, 1) is C.NONE
    bench.leave(b)
    assert bench.txn_commit(2, 5, b, 1) is C.UNKNOWN_MEMBER_ID
    bench.join(a)
    assert bench.txn_commit(2, 5, a, 1) is C.ILLEGAL_GENERATION


def test_b29_commit_is_answered_together_with_its_record() -> None:
    """O7: what is not replayed is not there; what is refused is not written."""
    bench = Bench()
    topics = [
        OffsetCommitRequestTopic(
            name="t", partitions=[OffsetCommitRequestPartition(committed_offset=9)]
        )
    ]
    request = OffsetCommitRequest(group_id=GROUP, topics=topics)
    effects = bench.shard.handle(request, RequestContext(0, 9, "c", "h"), 0)
    assert (len(effects.records), len(effects.replies)) == (1, 1)
    assert bench.shard.durable.offsets == {}
    bench.took(effects)
    assert bench.fetch() == (9, C.NONE)
    bench.stable()
    assert bench.commit(10) is C.UNKNOWN_MEMBER_ID
    assert bench.last.records == []
    bench.advance(FIVE_MINUTES_MS)
