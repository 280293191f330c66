"""Rebalances, timers, sizes (spec 2.3-2.10, 2.13).

The names are those of Apache Kafka's GroupMetadataManagerTest, which cover the same behaviours.
"""

from __future__ import annotations

import pytest

from kohort.errors import ErrorCode
from kohort.group.coordinator.state.classic_records import GroupEntry
from kohort.group.coordinator.state.classic_table import GroupState
from kohort.wire.messages.leave_group_request import LeaveGroupRequest
from tests.group.harness import (
    DELAY_MS,
    GROUP,
    RANGE,
    REBALANCE_MS,
    SESSION_MS,
    Bench,
    consumer,
    decoded,
)
from tests.known import of_type

C, S = ErrorCode, GroupState
FIVE_MINUTES_MS = 300_000


# Initial delay


def test_delay_initial_rebalance_by_group_initial_rebalance_delay_on_empty_group() -> None:
    bench = Bench()
    token = bench.join(bench.new_member_id())
    bench.advance(DELAY_MS - 1)
    assert (bench.code(token), bench.state) == (None, S.PREPARING)
    bench.advance(1)
    assert (bench.code(token), bench.state) == (C.NONE, S.COMPLETING)


def test_reset_rebalance_delay_when_new_member_joins_group_during_initial_rebalance() -> None:
    bench = Bench()
    ids = [bench.new_member_id() for _ in range(3)]
    tokens = [bench.join(ids[0])]
    bench.advance(DELAY_MS - 1)
    tokens.append(bench.join(ids[1]))
    bench.advance(DELAY_MS)  # extended once: 1 ms before the second end
    assert bench.code(tokens[0]) is None
    tokens.append(bench.join(ids[2]))
    bench.advance(DELAY_MS)
    assert bench.state is S.PREPARING
    bench.advance(1)
    assert [bench.code(t) for t in tokens] == [C.NONE] * 3


def test_delay_rebalance_upto_rebalance_timeout() -> None:
    """New members extend the delay up to the first member's rebalance timeout, and no further."""
    bench = Bench()
    bench.join(bench.new_member_id(), rebalance_ms=2 * DELAY_MS + 500)
    for _ in range(2):
        bench.advance(DELAY_MS - 1)
        bench.join(bench.new_member_id())
        bench.advance(1)
        assert bench.state is S.PREPARING
    bench.advance(499)
    assert bench.state is S.PREPARING
    bench.advance(1)
    assert bench.state is S.COMPLETING
    assert bench.now_ms == 2 * DELAY_MS + 500


def test_no_delay_when_configured_so() -> None:
    bench = Bench(group_initial_rebalance_delay_ms=0)
    token = bench.join(bench.new_member_id())
    assert bench.shard.next_deadline() == bench.now_ms
    bench.advance(0)
    assert bench.code(token) is C.NONE


# Expiry


def test_new_member_join_expiration() -> None:
    """A new member's JoinGroup waits five minutes at most (KAFKA-9752); others stay longer."""
    bench = Bench()
    (old,) = bench.stable(1, rebalance_ms=10 * FIVE_MINUTES_MS)
    token = bench.join(bench.new_member_id())
    for _ in range(2 * FIVE_MINUTES_MS // SESSION_MS):
        assert bench.code(token) is None
        assert bench.heartbeat(old) is C.REBALANCE_IN_PROGRESS
        bench.advance(SESSION_MS // 2)
    assert bench.code(token) is C.UNKNOWN_MEMBER_ID
    assert bench.answers[token].member_id == ""
    assert list(bench.group.members) == [old]


def test_new_member_failure_after_join_group_completion() -> None:
    """Spec 2.3: the ordinary session begins with the answer to the join."""
    bench = Bench()
    ids = bench.form(2)
    bench.advance(SESSION_MS - 1)
    assert bench.heartbeat(ids[0]) is C.NONE
    bench.advance(1)
    assert list(bench.group.members) == [ids[0]]
    assert bench.state is S.PREPARING


def test_heartbeat_expiration_should_remove_pending_member() -> None:
    bench = Bench()
    member_id = bench.new_member_id()
    bench.advance(SESSION_MS - 1)
    assert member_id in bench.group.pending_join
    bench.advance(1)
    assert not bench.group.pending_join
    assert bench.code(bench.join(member_id)) is C.UNKNOWN_MEMBER_ID


def test_heartbeat_expiration_should_remove_member() -> None:
    """The last member dies: the group is Empty, one generation later (spec 2.6)."""
    bench = Bench()
    bench.stable()
    bench.advance(SESSION_MS)
    assert bench.state is S.EMPTY
    (entry,) = decoded(bench.last)
    assert of_type(entry, GroupEntry).value is not None
    assert (bench.stored.generation, bench.stored.members, bench.stored.protocol) == (2, {}, None)
    assert bench.stored.protocol_type == "consumer"


def test_heartbeats_maintain_the_session() -> None:
    """G13: nobody is expelled whose heartbeat came in time."""
    bench = Bench()
    (member,) = bench.stable()
    for _ in range(5):
        bench.advance(SESSION_MS - 1)
        assert bench.heartbeat(member) is C.NONE
    assert bench.state is S.STABLE


def test_commits_maintain_the_session() -> None:
    bench = Bench()
    (member,) = bench.stable()
    for n in range(5):
        bench.advance(SESSION_MS - 1)
        assert bench.commit(n, member, 1) is C.NONE
    assert bench.state is S.STABLE


def test_session_is_suspended_while_join_waits() -> None:
    """Spec 2.3: failure detection stops while the JoinGroup waits, and starts with its answer."""
    bench = Bench()
    a, b = bench.stable(2)
    token = bench.join(a)
    for _ in range(4):
        bench.advance(SESSION_MS - 1)
        assert bench.heartbeat(b) is C.REBALANCE_IN_PROGRESS
    assert bench.code(token) is None
    bench.join(b)
    assert bench.code(token) is C.NONE
    bench.advance(SESSION_MS - 1)
    assert a in bench.group.members


def test_session_is_suspended_while_sync_waits_and_starts_with_its_answer() -> None:
    """Spec 2.3, GL3: also for one who falls silent after it."""
    bench = Bench()
    leader, follower = bench.form(2)
    token = bench.sync(follower)
    for _ in range(3):
        bench.advance(SESSION_MS // 2)
        bench.heartbeat(leader)
    assert bench.code(token) is None
    bench.sync(leader, plan={leader: b"x"})
    assert bench.code(token) is C.NONE
    bench.heartbeat(leader)
    bench.advance(SESSION_MS - 1)
    bench.heartbeat(leader)
    assert follower in bench.group.members
    bench.advance(1)
    assert list(bench.group.members) == [leader]


def test_second_member_partially_join_and_timeout() -> None:
    """A pending id holds the rebalance until its session ends (KIP-394)."""
    bench = Bench()
    (a,) = bench.stable()
    bench.new_member_id()
    token = bench.join(a)
    bench.advance(SESSION_MS - 1)
    assert bench.code(token) is None
    bench.advance(1)
    assert bench.code(token) is C.NONE
    assert bench.stored.generation == 2


def test_classic_group_member_session_timeout_during_rebalance() -> None:
    bench = Bench()
    a, b, c = bench.stable(3)
    tokens = [bench.join(a), bench.join(b)]
    bench.advance(SESSION_MS)  # c neither joins nor heartbeats
    assert [bench.code(t) for t in tokens] == [C.NONE, C.NONE]
    assert c not in bench.group.members


def test_member_that_stalls_before_its_join_is_dropped_at_the_rebalance_timeout() -> None:
    """Spec 2.9."""
    bench = Bench()
    a, b = bench.stable(2)
    token = bench.join(a)
    while bench.code(token) is None:
        bench.heartbeat(b)
        bench.advance(SESSION_MS // 2)
    assert bench.now_ms <= 2 * DELAY_MS + REBALANCE_MS + SESSION_MS
    assert list(bench.group.members) == [a]
    assert bench.heartbeat(b, 1) is C.UNKNOWN_MEMBER_ID


def test_late_joiner_of_a_finished_rebalance_starts_the_next_one() -> None:
    """Spec 2.9, 2.10."""
    bench = Bench()
    a = bench.form()[0]
    late = bench.new_member_id()
    assert bench.state is S.COMPLETING
    waiting = bench.sync(a, plan=None) if bench.group.leader != a else None
    token = bench.join(late)
    assert waiting is None
    assert (bench.state, bench.code(token)) == (S.PREPARING, None)


@pytest.mark.parametrize("leader_syncs", [True, False])
def test_rebalance_times_out_when_sync_request_is_not_received(leader_syncs: bool) -> None:
    """GL4: who joins and never syncs is dropped after the rebalance timeout, also in Stable."""
    bench = Bench()
    leader, follower = bench.form(2, session_ms=120_000)
    syncs = leader if leader_syncs else follower
    token = bench.sync(syncs, plan={leader: b"x"})
    assert bench.state is (S.STABLE if leader_syncs else S.COMPLETING)
    bench.advance(REBALANCE_MS - 1)
    assert len(bench.group.members) == 2
    bench.advance(1)
    assert list(bench.group.members) == [syncs]
    assert bench.state is S.PREPARING
    assert bench.code(token) is (C.NONE if leader_syncs else C.REBALANCE_IN_PROGRESS)


def test_nobody_syncs() -> None:
    bench = Bench()
    bench.form(2, session_ms=120_000)
    bench.advance(REBALANCE_MS)
    assert (bench.state, bench.stored.generation) == (S.EMPTY, 2)


# Rejoin


def test_join_group_from_unchanged_follower_does_not_rebalance() -> None:
    bench = Bench()
    leader, follower = bench.stable(2)
    answer = bench.answers[bench.join(follower)]
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 1, leader)
    assert answer.members == []
    assert (bench.state, bench.last.records) == (S.STABLE, [])


def test_join_group_from_unchanged_leader_should_rebalance() -> None:
    """Spec 1.9, 2.10: that is how a leader tells of new partitions."""
    bench = Bench()
    leader, follower = bench.stable(2)
    assert bench.code(bench.join(leader)) is None
    assert bench.state is S.PREPARING
    assert bench.heartbeat(follower) is C.REBALANCE_IN_PROGRESS
    bench.join(follower)
    assert bench.stored.generation == 2


@pytest.mark.parametrize("protocols", [[("range", b"other")], [*RANGE, ("sticky", b"")]])
def test_changed_follower_rebalances(protocols: list[tuple[str, bytes]]) -> None:
    bench = Bench()
    _, follower = bench.stable(2)
    bench.join(follower, protocols=protocols)
    assert bench.state is S.PREPARING


def test_rejoin_in_completing_with_same_and_changed_protocols() -> None:
    bench = Bench()
    leader, follower = bench.form(2)
    again = bench.answers[bench.join(leader)]
    assert (again.generation_id, len(again.members)) == (1, 2)
    again = bench.answers[bench.join(follower)]
    assert (again.generation_id, again.members) == (1, [])
    sync = bench.sync(follower)
    bench.join(leader, protocols=[("range", b"changed")])
    assert bench.state is S.PREPARING
    assert bench.code(sync) is C.REBALANCE_IN_PROGRESS


def test_generation_rises_without_any_change_of_members() -> None:
    """Spec 2.6."""
    bench = Bench()
    (leader,) = bench.stable()
    for generation in range(2, 6):
        bench.join(leader)
        assert bench.stored.generation == generation
        bench.settle([leader])


def test_join_group_completion_when_pending_member_joins() -> None:
    bench = Bench()
    (a,) = bench.stable()
    pending = bench.new_member_id()
    token = bench.join(a)
    assert bench.code(token) is None
    joined = bench.join(pending)
    assert [bench.code(t) for t in (token, joined)] == [C.NONE, C.NONE]


def test_rebalance_completes_before_pending_member_joins() -> None:
    bench = Bench()
    (a,) = bench.stable(session_ms=120_000, rebalance_ms=SESSION_MS)
    pending = bench.new_member_id(session_ms=120_000)
    token = bench.join(a, rebalance_ms=SESSION_MS)
    bench.advance(SESSION_MS)
    assert (bench.code(token), bench.state) == (C.NONE, S.COMPLETING)
    bench.join(pending)
    assert bench.state is S.PREPARING
    assert pending in bench.group.members


def test_leader_failure_in_sync_group() -> None:
    """The leader dies before its plan: the followers are told to rejoin, another one leads."""
    bench = Bench()
    leader, follower = bench.form(2)
    token = bench.sync(follower)
    bench.advance(SESSION_MS)
    assert bench.code(token) is C.REBALANCE_IN_PROGRESS
    assert bench.group.leader == follower
    assert bench.code(bench.join(follower)) is C.NONE
    assert bench.stored.leader == follower
    assert leader not in bench.stored.members


def test_leader_that_does_not_rejoin_is_replaced_by_one_that_did() -> None:
    """Spec 2.4."""
    bench = Bench()
    leader, second, third = bench.stable(3)
    bench.join(third, protocols=[("range", b"new")])
    bench.join(second)
    bench.advance(SESSION_MS)
    assert leader not in bench.group.members
    assert bench.stored.leader == second  # of those who joined, the oldest


def test_plan_that_leaves_a_member_out() -> None:
    """G2, B37: every member gets an assignment, if an empty one; strangers get none."""
    bench = Bench()
    leader, follower = bench.form(2)
    token = bench.sync(follower)
    bench.sync(leader, plan={leader: b"all", "stranger": b"x"})
    assert bench.answers[token].assignment == b""
    assert bench.stored.members.keys() == {leader, follower}


def test_too_large_plan_is_refused_and_rebalanced() -> None:
    bench = Bench(group_record_max_bytes=3_000)
    leader, follower = bench.form(2)
    tokens = [bench.sync(follower), bench.sync(leader, plan={leader: b"x" * 3_000})]
    assert [bench.code(t) for t in tokens] == [C.UNKNOWN_SERVER_ERROR] * 2
    assert bench.state is S.PREPARING


# Vote


@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        (["ab", "ab", "ba"], "a"),
        (["ab", "ba", "ba"], "b"),
        (["ab", "ba"], "a"),  # a tie: the leader's preference
        (["ba", "ab"], "b"),
        (["cab", "ab"], "a"),  # c is no candidate
        (["abc", "cba", "bc"], "b"),
    ],
)
def test_vote(preferences: list[str], chosen: str) -> None:
    """Spec 2.4."""
    bench = Bench()
    for names in preferences:
        protocols = [(name, name.encode()) for name in names]
        bench.join(bench.new_member_id(protocols=protocols), protocols=protocols)
    bench.advance(5 * DELAY_MS)
    assert bench.stored.protocol == chosen
    assert {m.subscription for m in bench.stored.members.values()} == {chosen.encode()}


@pytest.mark.parametrize("state", [S.PREPARING, S.COMPLETING, S.STABLE])
def test_member_without_a_common_protocol_disturbs_nobody(state: GroupState) -> None:
    """Spec 2.4, 2.8."""
    bench = Bench()
    ids = bench.form(2)
    if state is not S.COMPLETING:
        bench.settle(ids)
    if state is S.PREPARING:
        bench.join(ids[0])
    stranger = bench.join(protocols=[("other", b"")])
    assert bench.code(stranger) is C.INCONSISTENT_GROUP_PROTOCOL
    assert bench.code(bench.join(protocol_type="connect")) is C.INCONSISTENT_GROUP_PROTOCOL
    assert bench.code(bench.join("unknown")) is C.UNKNOWN_MEMBER_ID
    assert bench.state is state
    assert list(bench.group.members) == ids


def test_protocol_type_may_change_in_an_empty_group() -> None:
    bench = Bench()
    bench.stable()
    bench.advance(SESSION_MS)
    assert bench.state is S.EMPTY
    bench.join(bench.new_member_id(protocol_type="connect"), protocol_type="connect")
    bench.advance(DELAY_MS)
    assert (bench.stored.protocol_type, bench.stored.generation) == ("connect", 3)


# Old and odd clients


def test_join_before_member_ids_were_required() -> None:
    """JoinGroup v0-v3 is a member at once; v0 has no rebalance timeout of its own."""
    bench = Bench()
    token = bench.join(version=0, client="old")
    bench.advance(DELAY_MS)
    answer = bench.answers[token]
    assert (answer.member_id, answer.protocol_name, answer.leader) == (
        "old-id1",
        "range",
        "old-id1",
    )
    assert bench.stored.members["old-id1"].rebalance_timeout_ms == SESSION_MS


@pytest.mark.parametrize(("version", "name"), [(6, ""), (7, None)])
def test_protocol_name_of_a_refused_join(version: int, name: str | None) -> None:
    """Null since v7, empty before (KIP-559)."""
    bench = Bench()
    assert bench.answers[bench.join("x", version=version)].protocol_name == name


def test_repeated_join_and_sync_leave_no_request_unanswered() -> None:
    bench = Bench()
    a, b = bench.stable(2)
    first, second = bench.join(a), bench.join(a)
    assert (bench.code(first), bench.code(second)) == (C.REBALANCE_IN_PROGRESS, None)
    bench.join(b)
    assert bench.code(second) is C.NONE
    follower = b if bench.group.leader == a else a
    first, second = bench.sync(follower), bench.sync(follower)
    assert (bench.code(first), bench.code(second)) == (C.REBALANCE_IN_PROGRESS, None)
    bench.sync(bench.group.leader or "")
    assert bench.code(second) is C.NONE


def test_changed_timeouts_of_a_follower_are_stored_without_a_rebalance() -> None:
    """KAFKA-14009: the newest timeouts count, also after a failover."""
    bench = Bench()
    _, follower = bench.stable(2)
    token = bench.join(follower, session_ms=30_000, rebalance_ms=90_000)
    assert (bench.code(token), bench.state) == (C.NONE, S.STABLE)
    bench.failover()
    assert bench.group.rebalance_timeout_ms() == 90_000
    bench.advance(29_999)
    assert list(bench.group.members) == [follower]


# Leaving


def test_leave() -> None:
    """Spec 1.10, 2.10: at once, and the leader is replaced."""
    bench = Bench()
    leader, follower = bench.stable(2)
    assert bench.leave(leader) == [C.NONE]
    assert (bench.state, bench.group.leader) == (S.PREPARING, follower)
    assert bench.heartbeat(leader, 1) is C.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", [0, 2])
def test_leave_of_one_member_up_to_v2(version: int) -> None:
    """Its error stands at the top."""
    bench = Bench()
    (member,) = bench.stable()

    def leave(member_id: str) -> tuple[int, int]:
        request = LeaveGroupRequest(group_id=GROUP, member_id=member_id)
        answer = bench.ask(request, version)
        return answer.error_code, len(answer.members)

    assert leave("nobody") == (C.UNKNOWN_MEMBER_ID, 0)
    assert leave(member) == (C.NONE, 0)
    assert bench.state is S.EMPTY
    assert leave(member) == (C.UNKNOWN_MEMBER_ID, 0)


def test_leave_in_preparing_completes_the_join_phase() -> None:
    bench = Bench()
    a, b = bench.stable(2)
    token = bench.join(a)
    assert bench.leave(b) == [C.NONE]
    assert bench.code(token) is C.NONE


def test_leaving_answers_what_the_member_waited_for() -> None:
    bench = Bench()
    a, b = bench.form(2)
    sync = bench.sync(b)
    bench.leave(b)
    assert bench.code(sync) is C.UNKNOWN_MEMBER_ID
    bench.new_member_id()  # holds the join phase
    join = bench.join(a)
    assert bench.code(join) is None
    bench.leave(a)
    assert bench.code(join) is C.UNKNOWN_MEMBER_ID


def test_batch_leave_moves_the_group_once() -> None:
    bench = Bench()
    ids = bench.stable(3)
    pending = bench.new_member_id()
    codes = bench.leave(ids[0], "nobody", pending, ids[0], ids[1], ids[2])
    assert codes == [C.NONE, C.UNKNOWN_MEMBER_ID, C.NONE, C.UNKNOWN_MEMBER_ID, C.NONE, C.NONE]
    assert (bench.state, bench.stored.generation) == (S.EMPTY, 2)
    assert len(bench.last.records) == 1


def test_all_leave_during_the_initial_delay() -> None:
    bench = Bench()
    member = bench.new_member_id()
    token = bench.join(member)
    bench.leave(member)
    assert bench.code(token) is C.UNKNOWN_MEMBER_ID
    assert bench.state is S.PREPARING
    bench.advance(DELAY_MS)
    assert bench.state is S.EMPTY


# Size


def test_dynamic_members_join_group_with_max_size_and_required_known_member() -> None:
    bench = Bench(group_max_size=2)
    ids = [bench.new_member_id() for _ in range(3)]
    codes = [bench.code(bench.join(i)) for i in ids]
    assert codes == [None, None, C.GROUP_MAX_SIZE_REACHED]
    assert not bench.group.pending_join  # the refused id is forgotten
    bench.advance(2 * DELAY_MS)
    assert bench.state is S.COMPLETING
    assert bench.code(bench.join()) is C.GROUP_MAX_SIZE_REACHED


def test_last_joining_members_are_kicked_out_when_rejoining_group_with_max_size() -> None:
    """A group loaded above the limit rebalances at once and sheds its last joiners."""
    bench = Bench()
    ids = bench.stable(4)
    small = Bench(log=bench.log, now_ms=bench.now_ms, group_max_size=2)
    assert small.state is S.PREPARING
    tokens = [small.join(i) for i in ids]
    assert [small.code(t) for t in tokens] == [C.NONE, C.NONE, *[C.GROUP_MAX_SIZE_REACHED] * 2]
    assert list(small.group.members) == ids[:2]


def test_dynamic_members_can_rejoin_group_with_max_size_while_rebalancing() -> None:
    bench = Bench(group_max_size=2)
    a, b = bench.stable(2)
    bench.join(a)
    assert bench.code(bench.join(a)) is None  # already counted
    bench.join(b)
    assert bench.stored.members.keys() == {a, b}


def test_record_size_limit() -> None:
    """A member that would not fit into the stored group is refused."""
    bench = Bench(group_record_max_bytes=4_000)
    (a,) = bench.stable()
    big = [("range", b"x" * 4_000)]
    assert bench.code(bench.join(protocols=big)) is C.GROUP_MAX_SIZE_REACHED
    assert bench.code(bench.join(instance="i", protocols=big)) is C.GROUP_MAX_SIZE_REACHED
    assert bench.state is S.STABLE
    assert bench.code(bench.join(a, protocols=big)) is C.GROUP_MAX_SIZE_REACHED
    assert bench.leave(a) == [C.UNKNOWN_MEMBER_ID]


LARGE = [("range", b"x" * 4_000)]


def test_a_member_turned_away_for_its_size_leaves_its_partitions_to_the_others() -> None:
    """G12: it is gone from the group, which rebalances as when a member leaves."""
    bench = Bench(group_record_max_bytes=4_000)
    leader, away, other = bench.stable(3)
    assert leader == bench.group.leader
    assert bench.code(bench.join(away, protocols=LARGE)) is C.GROUP_MAX_SIZE_REACHED
    assert bench.heartbeat(away) is C.UNKNOWN_MEMBER_ID
    assert bench.heartbeat(leader) is C.REBALANCE_IN_PROGRESS
    assert bench.heartbeat(other) is C.REBALANCE_IN_PROGRESS
    bench.join(leader)
    bench.join(other)
    assert bench.stored.members.keys() == {leader, other}


def test_a_leader_turned_away_for_its_size_keeps_no_sync_waiting() -> None:
    bench = Bench(group_record_max_bytes=4_000)
    leader, follower = bench.form(2)
    assert leader == bench.group.leader
    waiting = bench.sync(follower)
    assert bench.code(bench.join(leader, protocols=LARGE)) is C.GROUP_MAX_SIZE_REACHED
    assert bench.code(waiting) is C.REBALANCE_IN_PROGRESS
    assert bench.state is S.PREPARING


def test_the_last_member_turned_away_for_its_size_leaves_an_empty_group() -> None:
    bench = Bench(group_record_max_bytes=4_000)
    (a,) = bench.stable(1)
    assert bench.code(bench.join(a, protocols=LARGE)) is C.GROUP_MAX_SIZE_REACHED
    assert bench.state is S.EMPTY


def test_groups_and_pending_ids_are_bounded() -> None:
    """G12 and the rule that everything has a limit."""
    bench = Bench(shard_max_groups=2, group_pending_members_max_bytes=50)
    bench.join(group="a")
    bench.join(group="b")
    assert bench.code(bench.join(group="c")) is C.POLICY_VIOLATION
    assert bench.commit(1, group="c") is C.POLICY_VIOLATION
    assert bench.txn_commit(1, 1, group="c") is C.POLICY_VIOLATION
    codes = [bench.code(bench.join(group="a", client="client")) for _ in range(8)]
    assert codes[0] is C.MEMBER_ID_REQUIRED
    assert codes[-1] is C.GROUP_MAX_SIZE_REACHED
    bench.advance(SESSION_MS)  # they expire, and there is room again
    assert bench.code(bench.join(group="a")) is C.MEMBER_ID_REQUIRED


def test_subscribed_topics_follow_the_generation() -> None:
    bench = Bench()
    (a,) = bench.stable(protocols=consumer("t", "u"))
    assert bench.group.subscribed_topics == {"t", "u"}
    bench.join(a, protocols=consumer("v"))
    assert bench.group.subscribed_topics == {"v"}
    bench.failover()
    assert bench.group.subscribed_topics == {"v"}
