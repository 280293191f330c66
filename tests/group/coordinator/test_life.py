"""The life of a classic group, event by event: exact records, exact answers (spec 2.1-2.10)."""

from __future__ import annotations

from typing import Any

from kohort.errors import ErrorCode
from kohort.group.coordinator.state.classic_records import GroupEntry, StoredGroup, StoredMember
from kohort.group.coordinator.state.classic_table import GroupState
from kohort.wire.messages.join_group_response import JoinGroupResponse, JoinGroupResponseMember
from kohort.wire.messages.sync_group_response import SyncGroupResponse
from tests.group.harness import (
    DELAY_MS,
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    WALL_MS,
    Bench,
    decoded,
)


def member(member_id: str, assignment: bytes = b"") -> StoredMember:
    return StoredMember(
        member_id=member_id,
        instance_id=None,
        client_id="c",
        client_host="/127.0.0.1",
        rebalance_timeout_ms=REBALANCE_MS,
        session_timeout_ms=SESSION_MS,
        subscription=b"r",
        assignment=assignment,
    )


def test_generate_records_on_new_classic_group() -> None:
    """A group's birth is written when its first member is told its id (KIP-394)."""
    bench = Bench()
    token = bench.join()
    assert decoded(bench.last) == [GroupEntry(GROUP, StoredGroup(None, 0, None, None, WALL_MS))]
    assert bench.answers[token] == JoinGroupResponse(
        error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="c-id1", protocol_name=None
    )
    assert bench.state is GroupState.EMPTY


def test_a_group_from_its_first_join_to_stable() -> None:
    """Spec 2.4-2.6: generation and assignment are each written before they are told."""
    bench = Bench()
    a, b = bench.new_member_id(), bench.new_member_id()
    join_a, join_b = bench.join(a), bench.join(b)
    assert bench.state is GroupState.PREPARING
    assert (bench.code(join_a), bench.code(join_b)) == (None, None)

    bench.advance(DELAY_MS * 2)
    first = StoredGroup(
        "consumer", 1, "range", a, WALL_MS + 2 * DELAY_MS, {a: member(a), b: member(b)}
    )
    assert decoded(bench.last) == [GroupEntry(GROUP, first)]
    shared = {"generation_id": 1, "protocol_type": "consumer", "protocol_name": "range"}
    everybody = [
        JoinGroupResponseMember(member_id=a, metadata=b"r"),
        JoinGroupResponseMember(member_id=b, metadata=b"r"),
    ]
    assert bench.answers[join_a] == JoinGroupResponse(
        **shared, leader=a, member_id=a, members=everybody
    )
    assert bench.answers[join_b] == JoinGroupResponse(**shared, leader=a, member_id=b)

    sync_b = bench.sync(b)
    assert bench.code(sync_b) is None
    sync_a = bench.sync(a, plan={a: b"0", b: b"1"})
    assigned = StoredGroup(
        "consumer", 1, "range", a, WALL_MS + 2 * DELAY_MS, {a: member(a, b"0"), b: member(b, b"1")}
    )
    assert decoded(bench.last) == [GroupEntry(GROUP, assigned)]
    names: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range"}
    assert bench.answers[sync_a] == SyncGroupResponse(**names, assignment=b"0")
    assert bench.answers[sync_b] == SyncGroupResponse(**names, assignment=b"1")
    assert bench.state is GroupState.STABLE
