"""Static members (KIP-345, KIP-814; spec 2.13)."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.errors import ErrorCode
from kohort.group.coordinator.state.classic_records import GroupEntry
from kohort.group.coordinator.state.classic_table import GroupState
from tests.group.harness import (
    DELAY_MS,
    RANGE,
    REBALANCE_MS,
    SESSION_MS,
    Bench,
    consumer,
    decoded,
)
from tests.known import of_type

C, S = ErrorCode, GroupState


def formed(**options: Any) -> tuple[Bench, str, str]:
    """A Stable group of two static members, `one` (the leader) and `two`."""
    bench = Bench()
    tokens = [bench.join(instance=i, **options) for i in ("one", "two")]  # type: ignore[arg-type]
    bench.advance(2 * DELAY_MS)
    one, two = (bench.answers[t].member_id for t in tokens)
    bench.settle([one, two])
    return bench, one, two


def test_static_members_are_members_at_once() -> None:
    """Never MEMBER_ID_REQUIRED; the id begins with the instance id."""
    bench, one, two = formed()
    assert (one, two) == ("one-id1", "two-id2")
    assert bench.stored.members[one].instance_id == "one"


def test_get_different_static_member_id_after_each_rejoin() -> None:
    bench, one, _ = formed()
    seen = {one}
    for _ in range(3):
        seen.add(bench.answers[bench.join(instance="one")].member_id)
    assert len(seen) == 4


@pytest.mark.parametrize("version", [5, 8, 9])
def test_replace_static_follower_in_stable_state(version: int) -> None:
    """No rebalance; the new id is in the log before the answer; its assignment stays."""
    bench, one, two = formed()
    answer = bench.answers[bench.join(instance="two", version=version)]
    new = answer.member_id
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 1, one)
    assert (answer.skip_assignment, answer.members) == (False, [])
    (entry,) = decoded(bench.last)
    assert of_type(entry, GroupEntry).value is not None
    assert bench.stored.members[new].assignment == b"a-" + two.encode()
    assert two not in bench.stored.members
    assert bench.state is S.STABLE
    assert bench.answers[bench.sync(new, instance="two")].assignment == b"a-" + two.encode()


def test_replace_static_leader_in_stable_state_skips_the_assignment() -> None:
    """v9 says so (KIP-814)."""
    bench, _, two = formed()
    answer = bench.answers[bench.join(instance="one", version=9)]
    new = answer.member_id
    assert (answer.leader, answer.skip_assignment) == (new, True)
    assert {m.member_id for m in answer.members} == {new, two}
    assert (bench.state, bench.stored.leader) == (S.STABLE, new)


def test_replace_static_leader_in_stable_state_before_v9() -> None:
    """The old leader's id keeps an older leader from assigning for nothing."""
    bench, one, _ = formed()
    answer = bench.answers[bench.join(instance="one", version=8)]
    assert (answer.leader, answer.skip_assignment, answer.members) == (one, False, [])
    assert bench.group.leader == answer.member_id


def test_replace_static_member_with_updated_protocol_triggers_rebalance() -> None:
    bench, _, _ = formed(protocols=[("range", b"r"), ("sticky", b"s")])
    token = bench.join(instance="two", protocols=[("sticky", b"s")])
    assert (bench.code(token), bench.state) == (None, S.PREPARING)


def test_replace_static_member_with_other_topics_triggers_rebalance() -> None:
    """Spec 2.10: a changed subscription; changed user data alone is none."""
    bench, one, _ = formed(protocols=consumer("t"))
    same = [("range", consumer("t")[0][1] + b"\0")]
    assert bench.code(bench.join(instance="two", protocols=same)) is C.NONE
    token = bench.join(instance="two", protocols=consumer("t", "u"))
    assert (bench.code(token), bench.state) == (None, S.PREPARING)
    bench.join(one, instance="one", protocols=consumer("t"))
    assert bench.code(token) is C.NONE


def test_static_member_fence_duplicate() -> None:
    """The old id is fenced at everything it asks; fenced wins over unknown and illegal."""
    bench, one, two = formed()
    assert bench.heartbeat(one, 1, "two") is C.FENCED_INSTANCE_ID
    assert bench.heartbeat(one, 1, "nobody") is C.UNKNOWN_MEMBER_ID
    assert bench.heartbeat(one, 1, "one") is C.NONE
    bench.join(instance="two")
    assert bench.heartbeat(two, 1, "two") is C.FENCED_INSTANCE_ID
    assert bench.heartbeat(two, 99, "two") is C.FENCED_INSTANCE_ID
    assert bench.code(bench.sync(two, instance="two")) is C.FENCED_INSTANCE_ID
    assert bench.code(bench.join(two, instance="two")) is C.FENCED_INSTANCE_ID
    assert bench.commit(1, two, 1, instance="two") is C.FENCED_INSTANCE_ID
    assert bench.txn_commit(1, 1, two, 1, instance="two") is C.FENCED_INSTANCE_ID
    assert bench.leave((two, "two")) == [C.FENCED_INSTANCE_ID]
    assert bench.heartbeat(two, 1) is C.UNKNOWN_MEMBER_ID
    assert bench.heartbeat(two, 1, "three") is C.UNKNOWN_MEMBER_ID


def test_static_member_fence_duplicate_rejoining_follower() -> None:
    """A parked JoinGroup of the old id is fenced when the new one takes over."""
    bench, one, two = formed()
    bench.join(one, instance="one")
    first = bench.join(two, instance="two", protocols=RANGE)
    assert bench.state is S.COMPLETING
    assert bench.code(first) is C.NONE
    bench.settle([one, two])
    parked = bench.join(one, instance="one")  # the leader: rebalance
    token = bench.join(instance="one")
    assert bench.code(parked) is C.FENCED_INSTANCE_ID
    assert bench.code(token) is None
    bench.join(two, instance="two")
    assert bench.code(token) is C.NONE


def test_static_member_fence_duplicate_syncing_follower_after_member_id_changed() -> None:
    """B18's setting: in CompletingRebalance a replacement always rebalances."""
    bench, one, two = formed()
    bench.join(one, instance="one")
    bench.join(two, instance="two")
    assert bench.state is S.COMPLETING
    parked = bench.sync(two, instance="two")
    token = bench.join(instance="two")
    assert bench.code(parked) is C.FENCED_INSTANCE_ID
    assert (bench.code(token), bench.state) == (None, S.PREPARING)


def test_group_stuck_in_rebalance_timeout_due_to_nonjoined_static_member() -> None:
    """A static member that misses the join phase keeps its place, until its session ends."""
    bench = Bench()
    for instance in ("one", "two"):
        bench.join(instance=instance, rebalance_ms=20_000, session_ms=45_000)
    bench.advance(2 * DELAY_MS)
    one, two = bench.group.members
    bench.settle([one, two])
    token = bench.join(one, instance="one", rebalance_ms=20_000, session_ms=45_000)
    bench.advance(20_000)
    assert bench.code(token) is C.NONE
    assert bench.stored.members.keys() == {one, two}
    bench.settle([one])  # two is in the plan's generation and never syncs
    bench.advance(20_000)
    assert list(bench.group.members) == [one]
    assert bench.state is S.PREPARING


def test_complete_join_phase_no_members_rejoined_extends_join_phase() -> None:
    """Nobody joins, only static members are left: the phase goes on until sessions end."""
    bench = Bench()
    for instance in ("one", "two"):
        bench.join(instance=instance, rebalance_ms=20_000, session_ms=45_000)
    dynamic = bench.new_member_id(session_ms=45_000)
    bench.join(dynamic, rebalance_ms=20_000, session_ms=45_000)
    bench.advance(3 * DELAY_MS)
    ids = list(bench.group.members)
    bench.settle(ids)
    for member_id in ids:
        bench.heartbeat(member_id)
    bench.leave(dynamic)
    bench.advance(20_000)
    assert (bench.state, bench.stored.generation) == (S.PREPARING, 1)
    bench.advance(25_000)  # both sessions end
    assert (bench.state, bench.stored.generation) == (S.EMPTY, 2)


def test_static_member_leader_fail_to_rejoin_before_rebalance_timeout() -> None:
    """A leader that has not joined cannot lead: one that has takes over."""
    bench, one, two = formed()
    token = bench.join(two, instance="two", protocols=[("range", b"new")])
    for _ in range(2 * REBALANCE_MS // SESSION_MS):
        bench.heartbeat(one, 1, "one")
        bench.advance(SESSION_MS // 2)
    answer = bench.answers[token]
    assert (answer.leader, len(answer.members)) == (two, 2)


def test_static_members_batch_leave() -> None:
    """LeaveGroup by instance id alone is an administrator's; unknown and fenced are told apart."""
    bench, one, two = formed()
    codes = bench.leave(("", "two"), ("", "nobody"), ("wrong", "one"), "")
    unknown = C.UNKNOWN_MEMBER_ID
    assert codes == [C.NONE, unknown, C.FENCED_INSTANCE_ID, unknown]
    assert list(bench.group.members) == [one]
    assert two not in bench.group.members


def test_static_members_join_group_with_max_size() -> None:
    """A full group takes back its own static member, and no other."""
    bench = Bench(group_max_size=2)
    for instance in ("one", "two"):
        bench.join(instance=instance)
    assert bench.code(bench.join(instance="three")) is C.GROUP_MAX_SIZE_REACHED
    bench.advance(2 * DELAY_MS)
    bench.settle(list(bench.group.members))
    assert bench.code(bench.join(instance="three")) is C.GROUP_MAX_SIZE_REACHED
    assert bench.code(bench.join(instance="two")) is C.NONE
    leader = bench.group.leader or ""
    bench.join(leader, instance="one")
    assert bench.state is S.PREPARING
    assert bench.code(bench.join()) is C.GROUP_MAX_SIZE_REACHED  # two's place is two's
    assert bench.code(bench.join(instance="two")) is C.NONE
    assert len(bench.stored.members) == 2


def test_static_member_with_a_pending_id_is_a_protocol_error() -> None:
    bench = Bench()
    pending = bench.new_member_id()
    assert bench.code(bench.join(pending, instance="one")) is C.UNKNOWN_SERVER_ERROR


def test_replaced_member_that_had_not_synced_is_still_expected_to() -> None:
    """GL4 holds for the new id as well."""
    bench, one, two = formed()
    bench.join(one, instance="one")
    bench.join(two, instance="two")
    bench.sync(one, plan={one: b"x", two: b"y"}, instance="one")
    assert bench.state is S.STABLE
    new = bench.answers[bench.join(instance="two")].member_id
    assert list(bench.group.pending_sync) == [new]
    assert bench.answers[bench.sync(new, instance="two")].assignment == b"y"
    assert not bench.group.pending_sync
