"""Online migration between the protocols (KIP-848), by exact records where groups are converted."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.errors import ErrorCode
from kohort.group.assignors.protocol import (
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from kohort.group.coordinator.state.classic_records import StoredGroup
from kohort.group.coordinator.state.classic_table import GroupState
from kohort.group.coordinator.state.consumer_records import ClassicMetadata
from kohort.group.coordinator.state.consumer_table import ConsumerState, MemberState
from tests.group.consumer_harness import ConsumerBench, assignment_of, code
from tests.group.harness import GROUP, REBALANCE_MS, SESSION_MS
from tests.known import known

C = ErrorCode
ALL = {"t": [0, 1, 2, 3, 4, 5]}
Named = dict[str, tuple[int, ...]]


def says(*topics: str, owned: Named | None = None, generation: int = -1) -> bytes:
    return encode_subscription(topics or ("t",), None, owned or {}, generation, None)


def protocols(**options: Any) -> tuple[tuple[str, bytes], ...]:
    return (("range", says(**options)),)


def classic_group(bench: ConsumerBench, shares: list[Named], **options: Any) -> list[str]:
    """A Stable classic group whose members have these partitions; the leader first."""
    ids = bench.form(len(shares), protocols=protocols(), **options)
    plan = {m: encode_assignment(share) for m, share in zip(ids, shares, strict=True)}
    for member_id in ids[1:]:
        bench.sync(member_id)
    bench.sync(ids[0], plan=plan)
    assert bench.state is GroupState.STABLE
    return ids


def rejoin(bench: ConsumerBench, member_id: str, owned: Named | None = None, **options: Any) -> Any:
    token = bench.join(member_id, protocols=protocols(owned=owned), **options)
    return bench.answers[token]


def synced(bench: ConsumerBench, member_id: str, generation: int, **options: Any) -> Any:
    """What a SyncGroup gives; an error code instead when it fails."""
    answer = bench.answers[bench.sync(member_id, generation, **options)]
    return code(answer) or decode_assignment(answer.assignment)[0]


# Upgrade


def test_heartbeat_with_a_stable_classic_group() -> None:
    """ConsumerGroupHeartbeatWithStableClassicGroup: nobody's partitions move by the conversion."""
    bench = ConsumerBench()
    one, two = classic_group(bench, [{"t": (0, 1, 2)}, {"t": (3, 4, 5)}])
    answer = bench.enter("new")
    classic = bench.meta(
        rebalance_timeout_ms=REBALANCE_MS, classic=ClassicMetadata(SESSION_MS, protocols())
    )

    def held(*numbers: int) -> Any:
        return (1, 1, "STABLE", {"t": dict.fromkeys(numbers, 1)}, {})

    assert bench.wrote() == [
        (2, GROUP, None),
        (5, one, classic),
        (5, two, classic),
        (3, "", 1),
        (7, one, {"t": [0, 1, 2]}),
        (7, two, {"t": [3, 4, 5]}),
        (6, "", 1),
        (8, one, held(0, 1, 2)),
        (8, two, held(3, 4, 5)),
        (5, "new", bench.meta()),
        (3, "", 2),
        (7, one, {"t": [0, 1]}),
        (7, two, {"t": [3, 4]}),
        (7, "new", {"t": [2, 5]}),
        (6, "", 2),
        (8, "new", (2, 0, "UNRELEASED", {}, {})),
    ]
    assert (answer.member_epoch, assignment_of(answer)) == (2, {})
    assert bench.heartbeat(one, 1) is C.REBALANCE_IN_PROGRESS
    shown = bench.describe()
    assert [m.member_type for m in shown.members] == [0, 0, 1]
    assert bench.describe(version=0).members[0].member_type == -1


@pytest.mark.parametrize("eager", [True, False])
def test_members_are_led_over_join_and_sync(eager: bool) -> None:
    """ReconciliationInJoiningConsumerGroupWith{Eager, Cooperative}Protocol."""
    bench = ConsumerBench()
    one, two = classic_group(bench, [{"t": (0, 1, 2)}, {"t": (3, 4, 5)}])
    bench.enter("new")
    owned: Named = {} if eager else {"t": (0, 1, 2)}
    joined = rejoin(bench, one, owned)
    assert (joined.leader, joined.members, joined.protocol_name) == ("", [], "range")
    if not eager:
        assert joined.generation_id == 1
        assert bench.current(one).state is MemberState.UNREVOKED
        assert synced(bench, one, 1) == {"t": (0, 1)}
        assert bench.heartbeat(one, 1) is C.REBALANCE_IN_PROGRESS
        joined = rejoin(bench, one, {"t": (0, 1)})
    assert joined.generation_id == 2
    assert synced(bench, one, 2) == {"t": (0, 1)}
    assert bench.heartbeat(one, 2) is C.NONE
    assert assignment_of(bench.keep("new")) == {"t": [2]}
    assert rejoin(bench, two, {"t": (3, 4)}).generation_id == 2
    assert synced(bench, two, 2) == {"t": (3, 4)}
    assert assignment_of(bench.keep("new")) == {"t": [2, 5]}
    assert bench.consumers.state() is ConsumerState.STABLE


@pytest.mark.parametrize("state", ["preparing", "completing"])
def test_heartbeat_with_a_classic_group_that_rebalances(state: str) -> None:
    """ConsumerGroupHeartbeatWith{PreparingRebalance, CompletingRebalance}ClassicGroup: who waits is
    sent to join again, and what members still hold is not given away (G1)."""
    bench = ConsumerBench()
    one, two = classic_group(bench, [{"t": (0, 1, 2)}, {"t": (3, 4, 5)}])
    cooperative = protocols(owned={"t": (0, 1, 2)}, generation=1)
    waits = bench.join(one, protocols=cooperative)
    if state == "completing":
        bench.join(two, protocols=protocols(owned={"t": (3, 4, 5)}, generation=1))
        waits = bench.sync(two)
    assert bench.code(waits) is None
    answer = bench.enter("new")
    assert (code(answer), assignment_of(answer)) == (C.NONE, {})
    assert bench.code(waits) is C.REBALANCE_IN_PROGRESS
    assert bench.shard.groups == {}
    for member_id, mine in ((one, [0, 1, 2]), (two, [3, 4, 5])):
        current = bench.current(member_id)
        held = {
            n for part in (current.assigned, current.pending) for ns in part.values() for n in ns
        }
        assert held == set(mine)
    assert assignment_of(bench.keep("new")) is None


def test_heartbeat_with_an_empty_classic_group() -> None:
    """ConsumerGroupHeartbeatWithEmptyClassicGroup: tombstone first; the epoch goes on (G3)."""
    bench = ConsumerBench()
    (one,) = classic_group(bench, [{"t": (0, 1, 2, 3, 4, 5)}])
    bench.commit(7, one, 1)
    bench.leave(one)
    bench.advance(60_000)
    assert (bench.state, bench.stored.generation) == (GroupState.EMPTY, 2)
    answer = bench.enter("new")
    assert [r[:2] for r in bench.wrote()[:3]] == [(2, GROUP), (5, "new"), (3, "")]
    assert (answer.member_epoch, assignment_of(answer)) == (3, ALL)
    assert bench.fetch() == (7, C.NONE)
    bench.beat("new", -1)
    rejoined = bench.join()
    assert bench.code(rejoined) is C.MEMBER_ID_REQUIRED
    written = [r for r in bench.wrote() if r[0] != 1]
    assert [r[0] for r in written] == [6, 3, 2]
    assert written[-1] == (
        2,
        GROUP,
        StoredGroup(None, 4, None, None, bench.stored.state_timestamp_ms),
    )
    assert bench.fetch() == (7, C.NONE)


def test_a_group_of_offsets_alone_becomes_a_consumer_group() -> None:
    bench = ConsumerBench()
    bench.commit(7)
    assert code(bench.enter("m1")) is C.NONE
    assert bench.fetch() == (7, C.NONE)
    assert bench.shard.groups == {}


def test_heartbeat_from_an_existing_classic_static_member() -> None:
    """ConsumerGroupHeartbeatFromExistingClassicStaticMember: its new self takes its place."""
    bench = ConsumerBench()
    token = bench.join(instance="one", protocols=protocols())
    bench.advance(3_000)
    old = bench.answers[token].member_id
    bench.sync(old, plan={old: encode_assignment(ALL)}, instance="one")
    answer = bench.enter("new", instance="one")
    assert (answer.member_epoch, assignment_of(answer)) == (2, ALL)
    assert set(bench.consumers.members) == {"new"}
    assert bench.heartbeat(old, 1, "one") is C.FENCED_INSTANCE_ID


def test_an_upgrade_always_assigns_anew() -> None:
    """A static member that returns in a rebalance must not freeze the partitions of who left."""
    bench = ConsumerBench()
    token = bench.join(instance="one", protocols=protocols())
    other = bench.new_member_id()
    bench.join(other, protocols=protocols())
    bench.advance(6_000)
    old = bench.answers[token].member_id
    plan = {old: encode_assignment({"t": (0, 1, 2)}), other: encode_assignment({"t": (3, 4, 5)})}
    bench.sync(other)
    bench.sync(old, plan=plan, instance="one")
    bench.leave(other)
    assert assignment_of(bench.enter("new", instance="one")) == ALL


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"group_consumer_migration_policy": "disabled"}, "policy"),
        ({"group_consumer_migration_policy": "downgrade"}, "policy"),
        ({"group_consumer_max_size": 1}, "more than"),
    ],
)
def test_no_upgrade_when_it_is_not_allowed(options: dict[str, Any], text: str) -> None:
    bench = ConsumerBench(**options)
    classic_group(bench, [{"t": (0, 1, 2)}, {"t": (3, 4, 5)}])
    answer = bench.enter("new")
    assert code(answer) is C.GROUP_ID_NOT_FOUND
    assert text in known(answer.error_message)
    assert bench.wrote() == []
    assert bench.state is GroupState.STABLE


def test_no_upgrade_of_what_is_no_consumers_group() -> None:
    bench = ConsumerBench()
    bench.stable(protocol_type="connect")
    assert code(bench.enter("new")) is C.GROUP_ID_NOT_FOUND
    mine = encode_assignment({}, b"mine")
    for name, metadata, share in (("range", b"\0", b""), ("mine", says(), mine)):
        bench = ConsumerBench()
        (one,) = bench.form(1, protocols=((name, metadata),))
        bench.sync(one, plan={one: share}, protocol=name)
        assert code(bench.enter("new")) is C.GROUP_ID_NOT_FOUND
        assert bench.shard.groups[GROUP].members
    bench = ConsumerBench()
    (one,) = bench.form(1, protocols=protocols())
    bench.sync(one, plan={one: mine})  # librdkafka's cooperative-sticky does this
    assert code(bench.enter("new")) is C.NONE


# Members of the classic protocol inside a consumer group


def test_a_classic_member_joins_a_consumer_group() -> None:
    bench = ConsumerBench()
    bench.enter("m1")
    answer = bench.answers[bench.join(protocols=protocols())]
    assert (code(answer), answer.member_id) == (C.MEMBER_ID_REQUIRED, "c-id1")
    assert bench.wrote() == []
    joined = rejoin(bench, "c-id1")
    assert (joined.generation_id, joined.member_id) == (2, "c-id1")
    assert synced(bench, "c-id1", 2) == {}
    assert bench.heartbeat("c-id1", 2) is C.NONE  # m1 has not given anything up
    bench.keep("m1")
    bench.follow("m1")
    assert bench.heartbeat("c-id1", 2) is C.REBALANCE_IN_PROGRESS  # now there is something
    assert rejoin(bench, "c-id1").generation_id == 2
    assert synced(bench, "c-id1", 2) == {"t": (3, 4, 5)}
    old = bench.answers[bench.join(protocols=protocols(), version=3)]
    assert (code(old), old.generation_id) == (C.NONE, 3)  # before v4 an id needs no second join


def test_what_a_classic_join_is_refused_for() -> None:
    bench = ConsumerBench(group_consumer_max_size=2)
    bench.enter("m1")
    refused = {
        "connect": bench.join(protocols=protocols(), protocol_type="connect"),
        "none": bench.join(protocols=()),
        "broken": bench.join("x", protocols=(("range", b"\0\1\0\0"),)),
    }
    for name, token in refused.items():
        assert bench.code(token) is C.INCONSISTENT_GROUP_PROTOCOL, name
    rejoin(bench, "c1")
    other = (("mine", says()),)
    assert bench.code(bench.join("c1", protocols=other)) is C.INCONSISTENT_GROUP_PROTOCOL
    assert code(rejoin(bench, "c2")) is C.GROUP_MAX_SIZE_REACHED
    stray = bench.join("s", instance="one", protocols=protocols())
    assert bench.code(stray) is C.GROUP_MAX_SIZE_REACHED
    assert set(bench.consumers.members) == {"m1", "c1"}


def test_who_was_fenced_and_does_not_know_is_told() -> None:
    """G1: an unknown member that still owns something must drop it first."""
    bench = ConsumerBench()
    bench.enter("m1")
    assert code(rejoin(bench, "ghost", {"t": (0,)})) is C.UNKNOWN_MEMBER_ID
    assert code(rejoin(bench, "ghost")) is C.NONE


def test_sync_heartbeat_and_leave_of_classic_members() -> None:
    """ClassicGroupHeartbeatToConsumerGroupRebalanceInProgress, and what each request checks."""
    bench = ConsumerBench()
    bench.enter("m1", instance="static")
    rejoin(bench, "c1")
    for member_id, expected in (("m1", C.UNKNOWN_MEMBER_ID), ("x", C.UNKNOWN_MEMBER_ID)):
        assert bench.heartbeat(member_id, 1) is expected
        assert synced(bench, member_id, 1) is expected
        assert bench.leave(member_id) == [expected]
    assert bench.heartbeat("c1", 1) is C.ILLEGAL_GENERATION
    assert synced(bench, "c1", 1) is C.ILLEGAL_GENERATION
    assert synced(bench, "c1", 2, protocol="sticky") is C.INCONSISTENT_GROUP_PROTOCOL
    assert synced(bench, "c1", 2, protocol_type="x") is C.INCONSISTENT_GROUP_PROTOCOL
    assert bench.heartbeat("c1", 2, "static") is C.FENCED_INSTANCE_ID
    assert bench.heartbeat("c1", 2, "nobody") is C.UNKNOWN_MEMBER_ID
    bench.enter("m2")
    assert bench.heartbeat("c1", 2) is C.REBALANCE_IN_PROGRESS
    assert synced(bench, "c1", 2) is C.REBALANCE_IN_PROGRESS
    answers = bench.leave("c1", "c1", ("", "static"), ("", "nobody"))
    assert answers == [C.NONE, C.UNKNOWN_MEMBER_ID, C.NONE, C.UNKNOWN_MEMBER_ID]
    assert set(bench.consumers.members) == {"m2"}


@pytest.mark.parametrize("timer", ["session", "join", "sync"])
def test_a_classic_member_is_fenced_when_its_time_is_over(timer: str) -> None:
    """ConsumerGroupMemberUsingClassicProtocolFencedWhen{Session, Join}Timeout."""
    bench = ConsumerBench()
    bench.enter("m1")
    rejoin(bench, "c1", rebalance_ms=20_000, session_ms=30_000)
    until = 30_000
    if timer == "join":
        synced(bench, "c1", 2)
        bench.enter("m2")
        assert bench.heartbeat("c1", 2) is C.REBALANCE_IN_PROGRESS
        until = 20_000
    elif timer == "sync":
        until = 20_000
    else:
        synced(bench, "c1", 2)
    bench.advance(until // 2)
    bench.keep("m1")
    if timer == "join":
        bench.keep("m2")
        bench.heartbeat("c1", 2)  # being told again gives no more time
    bench.advance(until // 2 - 1)
    assert "c1" in bench.consumers.members
    bench.advance(1)
    assert "c1" not in bench.consumers.members


def test_a_rolling_upgrade_and_back() -> None:
    """Two members change over one by one, and back; offsets stay, nothing has two owners."""
    bench = ConsumerBench()
    one, two = classic_group(bench, [{"t": (0, 1, 2)}, {"t": (3, 4, 5)}])
    bench.leave(one)
    bench.enter("n1")
    rejoin(bench, two)
    synced(bench, two, bench.current(two).epoch)
    bench.commit(5, two, bench.current(two).epoch)
    bench.leave(two)
    bench.enter("n2")
    bench.settle_all()
    assert sum(len(bench.assigned(m)["t"]) for m in ("n1", "n2")) == 6
    bench.beat("n1", -1)
    rejoin(bench, "c1")
    bench.beat("n2", -1)
    assert bench.state is GroupState.PREPARING
    assert bench.shard.consumer_groups == {}
    token = bench.join("c1", protocols=protocols())
    answer = bench.answers[token]
    assert (answer.leader, code(answer)) == ("c1", C.NONE)
    assert bench.fetch() == (5, C.NONE)


# Downgrade


def mixed(**options: Any) -> ConsumerBench:
    """A Stable consumer group of `m1` and the classic member `c1`."""
    bench = ConsumerBench(**options)
    bench.enter("m1", instance="one", rebalance_ms=20_000)
    rejoin(bench, "c1")
    bench.keep("m1")
    bench.follow("m1")
    rejoin(bench, "c1")
    assert synced(bench, "c1", 2) == {"t": (3, 4, 5)}
    return bench


@pytest.mark.parametrize("why", ["leaves", "session", "rebalance"])
def test_last_consumer_protocol_member(why: str) -> None:
    """LastConsumerProtocolMember{Leaving, SessionTimeoutIn, RebalanceTimeoutIn}ConsumerGroup."""
    bench = mixed()
    if why == "leaves":
        bench.beat("m1", -1, instance="one")
    else:
        if why == "rebalance":
            bench.keep("m1", topics=[])
            assert bench.current("m1").state is MemberState.UNREVOKED
        passed = 0
        while bench.shard.consumer_groups:
            bench.advance(5_000)
            passed += 5_000
            if bench.shard.consumer_groups:
                bench.heartbeat("c1", 2)
                if why == "rebalance":
                    bench.keep("m1", instance="one")
        assert passed == (45_000 if why == "session" else 20_000)
    removed = [r[:2] for r in bench.wrote() if r[2] is None]
    assert [kind for kind, _ in removed] == [8, 8, 7, 7, 6, 5, 5, 3]
    kept = bench.wrote()[-1][2]
    assert (kept.protocol_type, kept.protocol, kept.leader) == ("consumer", "range", None)
    assert kept.generation == 2 + (why == "rebalance")
    assert decode_assignment(kept.members["c1"].assignment)[0] == {"t": (3, 4, 5)}
    assert bench.state is GroupState.PREPARING
    assert bench.heartbeat("c1") is C.REBALANCE_IN_PROGRESS
    answer = bench.answers[bench.join("c1", protocols=protocols())]
    assert answer.generation_id == kept.generation + 1
    bench.settle(["c1"])


def test_a_downgrade_is_finished_by_the_next_coordinator() -> None:
    """Spec 2.12: the partitions of who left find an owner, whoever asks the members to join."""
    bench = mixed()
    bench.beat("m1", -1, instance="one")
    bench.failover()
    assert bench.state is GroupState.PREPARING
    assert bench.heartbeat("c1") is C.REBALANCE_IN_PROGRESS


def test_last_static_member_replaced_by_a_classic_one() -> None:
    """LastStaticConsumerProtocolMemberReplacedByClassicProtocolMember: nothing has moved."""
    bench = mixed()
    answer = bench.answers[bench.join(instance="one", protocols=protocols())]
    assert (code(answer), answer.generation_id) == (C.NONE, 2)
    new = answer.member_id
    assert bench.state is GroupState.STABLE
    assert bench.heartbeat("c1", 2) is C.NONE
    assert synced(bench, new, 2, instance="one") == {"t": (0, 1, 2)}
    assert synced(bench, "c1", 2) == {"t": (3, 4, 5)}
    bench.failover()
    assert bench.state is GroupState.STABLE


def test_a_replacement_that_reads_otherwise_rebalances() -> None:
    bench = mixed()
    other = (("range", says("t", "u")),)
    answer = bench.answers[bench.join(instance="one", protocols=other)]
    assert code(answer) is C.NONE
    assert bench.state is GroupState.PREPARING
    assert bench.heartbeat(answer.member_id, answer.generation_id) is C.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    "options",
    [
        {"group_consumer_migration_policy": "disabled"},
        {"group_consumer_migration_policy": "upgrade"},
    ],
)
def test_no_downgrade_when_it_is_not_allowed(options: dict[str, Any]) -> None:
    bench = mixed(**options)
    bench.beat("m1", -1, instance="one")
    assert set(bench.consumers.members) == {"c1"}
    assert bench.heartbeat("c1", 2) is C.REBALANCE_IN_PROGRESS
    assert rejoin(bench, "c1", {"t": (3, 4, 5)}).generation_id == 3
    assert synced(bench, "c1", 3) == {"t": (0, 1, 2, 3, 4, 5)}


def test_no_conversion_when_size_exceeds_classic_max_group_size() -> None:
    """NoConversionWhenSizeExceedsClassicMaxGroupSize."""
    bench = mixed(group_max_size=1)
    rejoin(bench, "c2")
    bench.beat("m1", -1, instance="one")
    assert set(bench.consumers.members) == {"c1", "c2"}


def test_a_classic_static_member_replaced_inside_a_consumer_group() -> None:
    bench = ConsumerBench()
    bench.enter("m1")
    first = bench.answers[bench.join(instance="one", protocols=protocols())]
    bench.keep("m1")
    bench.follow("m1")
    rejoin(bench, first.member_id, instance="one")
    mine = bench.assigned(first.member_id)
    second = bench.answers[bench.join(instance="one", protocols=protocols())]
    assert bench.heartbeat(first.member_id, 2, "one") is C.FENCED_INSTANCE_ID
    assert second.generation_id == 2
    assert bench.assigned(second.member_id) == mine
    assert bench.consumers.state() is ConsumerState.STABLE
