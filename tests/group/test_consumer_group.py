"""Consumer groups (KIP-848) by exact records: the behaviours of Kafka's own scenario names."""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.group.consumer_states import ConsumerState, MemberState
from tests.group.consumer_harness import ConsumerBench, code, given

C = ErrorCode


def test_reconciliation_process() -> None:
    """ReconciliationProcess: revoke, then assign, each partition changing hands once (G1)."""
    bench = ConsumerBench()
    first = bench.enter("m1")
    assert code(first) is C.NONE, first.error_message
    assert (first.member_epoch, given(first)) == (1, {"t": [0, 1, 2, 3, 4, 5]})
    assert bench.consumers.state() is ConsumerState.STABLE
    second = bench.enter("m2")
    assert (second.member_epoch, given(second)) == (2, {})
    assert bench.current("m2").state is MemberState.UNRELEASED
    told = bench.keep("m1")
    assert (told.member_epoch, len(given(told)["t"])) == (1, 3)
    assert bench.current("m1").state is MemberState.UNREVOKED
    assert given(bench.keep("m2")) is None
    acked = bench.follow("m1")
    assert acked.member_epoch == 2
    got = bench.keep("m2")
    assert given(got) == bench.target("m2")
    assert bench.consumers.state() is ConsumerState.STABLE
