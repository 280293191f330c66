"""The transaction coordinator's shard, record by record, under a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.errors import ConfigError, DecodeError, ErrorCode
from kohort.group.coordinator.state.effects import GroupRecord, RequestContext
from kohort.transactions.config import TransactionConfig
from kohort.transactions.effects import TransactionEffects
from kohort.transactions.records import (
    EPOCH_LAST_ISSUED,
    Transaction,
    decode_record,
    transaction_record,
)
from kohort.transactions.refusals import refusal_of
from kohort.transactions.shard import TransactionShard
from kohort.transactions.states import (
    ANSWERS,
    TRANSITIONS,
    RequestKind,
    Step,
    TransactionEvent,
    TransactionState,
    next_state,
)
from kohort.wire import encode_versioned
from kohort.wire.messages.describe_transactions_request import DescribeTransactionsRequest
from kohort.wire.messages.end_txn_response import EndTxnResponse
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.init_producer_id_request import InitProducerIdRequest
from kohort.wire.messages.list_transactions_request import ListTransactionsRequest
from kohort.wire.messages.transaction_log_value import PartitionsSchema, TransactionLogValue
from tests.transactions.harness import BEFORE, KIP_890, T0, T1, WALL_MS, Bench, ProducerIdentity

E, S = ErrorCode, TransactionState
VERSIONS = pytest.mark.parametrize("version", [BEFORE, KIP_890])
NOW = WALL_MS + 1_000


def records(bench: Bench) -> list[Transaction | None]:
    """What the last event wrote."""
    decoded = [decode_record(record) for record in bench.last.records]
    return [entry[1] for entry in decoded if entry is not None]


def prepared(state: TransactionState, *, epoch: int = 4, version: int = KIP_890) -> Bench:
    """A shard with "tx" in a state, producer id 7."""
    bench = Bench()
    if state is S.DEAD:
        return bench
    partitions = frozenset({T0}) if state in (S.ONGOING, *ENDING) else frozenset[Any]()
    known = Transaction(
        7, epoch, 60_000, state, partitions, NOW, NOW, client_version=2 * (version == KIP_890)
    )
    bench.log.append(transaction_record("tx", known))
    bench.load()
    return bench


ENDING = (S.PREPARE_COMMIT, S.PREPARE_ABORT)


# -- records


def test_the_life_of_a_transaction_in_records() -> None:
    bench = Bench()
    first = bench.initialized()
    base = Transaction(100, 0, 60_000, S.EMPTY, frozenset(), NOW, -1)
    assert records(bench) == [base]
    bench.now_ms += 10
    assert bench.add(first, T0) == 0
    ongoing = base.but(
        state=S.ONGOING,
        partitions=frozenset({T0}),
        updated_ms=NOW + 10,
        started_ms=NOW + 10,
        client_version=2,
    )
    assert records(bench) == [ongoing]
    bench.now_ms += 10
    assert bench.add(first, T0) == 0
    assert records(bench) == []  # it is there already
    assert bench.add(first, T0, T1) == 0
    grown = ongoing.but(partitions=frozenset({T0, T1}), updated_ms=NOW + 20)
    assert records(bench) == [grown]
    bench.now_ms += 10
    assert bench.end(first, commit=True) is None
    decided = grown.but(state=S.PREPARE_COMMIT, epoch=1, updated_ms=NOW + 30)
    assert records(bench) == [decided]
    (markers,) = bench.markers
    assert markers == ("tx", 100, 1, True, (T0, T1))
    bench.now_ms += 10
    bench.write_markers()
    complete = decided.but(state=S.COMPLETE_COMMIT, partitions=frozenset(), updated_ms=NOW + 40)
    assert records(bench) == [complete]
    assert bench.answers[bench.token].producer_epoch == 1


def test_records_bit_for_bit() -> None:
    """As Apache Kafka's TransactionLog writes them: key v0, value v1, tagged fields at the end."""
    known = Transaction(
        5, 3, 1_000, S.PREPARE_ABORT, frozenset({("ab", 2), ("ab", 1)}), 9, 8, 4, 6, 2
    )
    record = transaction_record("tx", known)
    assert record.key == bytes.fromhex("0000 0002") + b"tx"
    assert record.value == bytes.fromhex(
        "0001"  # version
        "0000000000000005 0003 000003e8 03"  # producer id, epoch, timeout, status
        "02 03 6162 03 00000001 00000002 00"  # one topic: name, two partitions, no tags
        "0000000000000009 0000000000000008"  # last update, start
        "03"  # three tagged fields: previous and next producer id, client's version
        "00 08 0000000000000004 01 08 0000000000000006 02 02 0002"
    )
    assert decode_record(record) == ("tx", known)


def test_values_of_older_brokers_are_read() -> None:
    value = TransactionLogValue(
        producer_id=5,
        producer_epoch=1,
        transaction_timeout_ms=7,
        transaction_status=1,
        transaction_partitions=[PartitionsSchema(topic="t", partition_ids=[0])],
        transaction_last_update_timestamp_ms=9,
        transaction_start_timestamp_ms=8,
    )
    key = transaction_record("tx", Transaction(5, 1, 7)).key
    decoded = decode_record(GroupRecord(key, encode_versioned(value, 0)))
    assert decoded == ("tx", Transaction(5, 1, 7, S.ONGOING, frozenset({T0}), 9, 8))
    value.transaction_status = 9
    with pytest.raises(DecodeError, match="status 9"):
        decode_record(GroupRecord(key, encode_versioned(value, 0)))
    assert decode_record(GroupRecord(b"\0\5", b"")) is None


# -- tables


def test_every_cell_of_the_answer_table() -> None:
    """Each (request, state): the code, or what the step stands for."""
    for asked, row in ANSWERS.items():
        for state, wanted in row.items():
            bench = prepared(state)
            bench.markers.clear()
            code = ask(bench, asked)
            if isinstance(wanted, ErrorCode):
                assert code == wanted, (asked, state)
                assert not bench.last.records
                continue
            written = [t.state for t in records(bench) if t is not None]
            assert (code, written) == STEPS[wanted](asked), (asked, state)


def expected(code: int | None, *states: TransactionState) -> Any:
    return lambda asked: (code, list(states))


STEPS = {
    Step.BEGIN: expected(0, S.EMPTY),
    Step.FENCE: expected(E.CONCURRENT_TRANSACTIONS, S.PREPARE_ABORT),
    Step.ADD: expected(0, S.ONGOING),
    Step.COMPARE: expected(E.TRANSACTION_ABORTABLE),
    Step.COMMIT: expected(None, S.PREPARE_COMMIT),
    Step.ABORT: expected(None, S.PREPARE_ABORT),
    Step.ABORT_NOTHING: expected(None, S.PREPARE_ABORT),
    Step.AGAIN: expected(0),
}


def ask(bench: Bench, asked: RequestKind) -> int | None:
    """Ask as the row says; the code, or None while the answer waits."""
    now, before = ProducerIdentity(7, 4), ProducerIdentity(7, 3)
    if asked is RequestKind.INIT:
        return bench.init().error_code
    if asked in (RequestKind.ADD, RequestKind.VERIFY):
        return bench.add(now, T1, verify=asked is RequestKind.VERIFY)
    commit = asked in (RequestKind.COMMIT, RequestKind.COMMIT_2, RequestKind.COMMIT_2_RETRY)
    version = BEFORE if asked in (RequestKind.COMMIT, RequestKind.ABORT) else KIP_890
    retry = asked in (RequestKind.COMMIT_2_RETRY, RequestKind.ABORT_2_RETRY)
    answer = bench.end(before if retry else now, commit=commit, version=version)
    return None if answer is None else answer.error_code


def test_transitions_that_the_table_lacks_are_our_bug() -> None:
    for state in S:
        for event in TransactionEvent:
            if (state, event) in TRANSITIONS:
                assert next_state(state, event, "tx") is TRANSITIONS[state, event]
            else:
                with pytest.raises(AssertionError, match="'tx'"):
                    next_state(state, event, "tx")


# -- epochs and fencing


@VERSIONS
def test_who_is_not_the_producer_is_refused(version: int) -> None:
    bench = Bench()
    old = bench.initialized()
    new = bench.initialized()
    assert new == ProducerIdentity(old.producer_id, old.epoch + 1)
    assert bench.add(old, T0, version=version) == E.PRODUCER_FENCED
    assert bench.end(old._replace(epoch=9), commit=True, version=version).error_code == (
        E.PRODUCER_FENCED
    )
    other = ProducerIdentity(999, 0)
    assert bench.add(other, T0, version=version) == E.INVALID_PRODUCER_ID_MAPPING
    assert bench.end(other, commit=True, version=version).error_code == (
        E.INVALID_PRODUCER_ID_MAPPING
    )
    assert bench.init(identity=old).error_code == E.PRODUCER_FENCED


def test_a_fence_raises_the_epoch_beyond_the_next_one() -> None:
    """KIP-890: by one, the fenced producer's own EndTxn would look like a retry that went well."""
    bench = Bench()
    old = bench.initialized()
    bench.add(old, T0)
    assert bench.init().error_code == E.CONCURRENT_TRANSACTIONS
    assert bench.state().epoch == old.epoch + 2
    bench.write_markers()
    assert bench.end(old, commit=False).error_code == E.PRODUCER_FENCED
    assert bench.initialized().epoch == old.epoch + 3


def test_an_exhausted_epoch_that_is_fenced() -> None:
    bench = prepared(S.ONGOING, epoch=EPOCH_LAST_ISSUED)
    assert bench.init().error_code == E.CONCURRENT_TRANSACTIONS
    assert bench.state().epoch == EPOCH_LAST_ISSUED + 1
    bench.write_markers()
    old = ProducerIdentity(7, EPOCH_LAST_ISSUED)
    assert bench.end(old, commit=False).error_code == E.PRODUCER_FENCED
    assert bench.init(identity=old).error_code == E.PRODUCER_FENCED
    assert bench.initialized() == ProducerIdentity(100, 0)


def test_a_new_producer_id_when_epochs_run_out() -> None:
    """KIP-360: and a lost answer to that may be asked for again."""
    bench = prepared(S.EMPTY, epoch=EPOCH_LAST_ISSUED)
    old = ProducerIdentity(7, EPOCH_LAST_ISSUED)
    new = bench.initialized(identity=old)
    assert new == ProducerIdentity(100, 0)
    assert bench.initialized(identity=old) == new
    bench = prepared(S.EMPTY, epoch=EPOCH_LAST_ISSUED)
    bench.no_ids = True
    assert bench.init().error_code == E.KAFKA_STORAGE_ERROR
    assert bench.last.records == []


def test_the_epoch_before_the_last_is_forgotten_by_a_failover() -> None:
    """As in Kafka: it is not in the log."""
    bench = Bench()
    first = bench.initialized()
    second = bench.initialized(identity=first)
    assert bench.initialized(identity=first) == second
    bench.failover()
    assert bench.init(identity=first).error_code == E.PRODUCER_FENCED
    assert bench.initialized(identity=second).epoch == second.epoch + 1


def test_a_lost_end_may_be_followed_by_an_init() -> None:
    """KIP-360, KIP-890: with the epoch that it had before the end a producer gets the one after."""
    bench = Bench()
    first = bench.initialized()
    bench.add(first, T0)
    second = bench.ended(first, commit=True)
    assert bench.initialized(identity=first) == second


def test_an_end_that_rotates_the_producer_id() -> None:
    bench = prepared(S.ONGOING, epoch=EPOCH_LAST_ISSUED)
    old = ProducerIdentity(7, EPOCH_LAST_ISSUED)
    assert bench.end(old, commit=True) is None
    (markers,) = bench.markers
    assert (markers.producer_id, markers.epoch) == (7, EPOCH_LAST_ISSUED + 1)
    assert bench.end(old, commit=True).error_code == E.CONCURRENT_TRANSACTIONS
    assert (
        bench.add(ProducerIdentity(100, 0), T0) == E.CONCURRENT_TRANSACTIONS
    )  # its id is the next one's
    bench.failover()
    bench.write_markers()
    again = bench.end(old, commit=True)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (0, 100, 0)
    assert bench.end(old, commit=False).error_code == E.INVALID_TXN_STATE
    assert bench.add(ProducerIdentity(100, 0), T0) == 0


# -- time


def test_a_transaction_is_aborted_when_its_time_is_over() -> None:
    bench = Bench()
    identity = bench.initialized(timeout_ms=5_000)
    bench.now_ms += 100
    bench.add(identity, T0)
    bench.advance(4_000)
    bench.add(identity, T1)  # does not lengthen it
    bench.advance(999)
    assert bench.state().state is S.ONGOING
    bench.advance(1)
    assert bench.state().state is S.PREPARE_ABORT
    (markers,) = bench.markers
    assert markers == ("tx", 100, 2, False, (T0, T1))
    bench.write_markers()
    assert bench.end(identity, commit=True).error_code == E.PRODUCER_FENCED


def test_timeouts_go_on_after_a_failover_and_when_the_clock_is_set() -> None:
    bench = Bench()
    identity = bench.initialized(timeout_ms=5_000)
    bench.add(identity, T0)
    bench.advance(2_000)
    bench.failover()
    bench.shard.wall_offset_ms -= 1_000  # the clock goes back
    bench.advance(2_999)
    assert bench.state().state is S.ONGOING
    bench.advance(1)
    assert bench.state().state is S.PREPARE_ABORT


MONTH_MS = 30 * 24 * 3_600_000


@pytest.mark.parametrize("fails_over", [False, True])
@pytest.mark.parametrize("days", [-1, 1])
def test_a_wall_clock_that_is_set_changes_no_timeout(fails_over: bool, days: int) -> None:
    """An abandoned transaction ends after its timeout at most, whatever the wall clock says."""
    bench = Bench()
    identity = bench.initialized(timeout_ms=5_000)
    bench.add(identity, T0)
    bench.shard.wall_offset_ms += days * MONTH_MS
    if fails_over:
        offset_ms = bench.shard.wall_offset_ms
        bench.failover(wall_offset_ms=offset_ms)
    bench.advance(5_000)
    assert bench.state().state is S.PREPARE_ABORT


def test_ids_expire_in_steps_of_bounded_size() -> None:
    bench = Bench(
        transactional_id_expiration_ms=10_000,
        transaction_remove_expired_transaction_cleanup_interval_ms=1_000,
        transaction_sweep_max_records=3,
    )
    for n in range(8):
        bench.initialized(f"tx{n}")
    busy = bench.initialized("busy")
    bench.add(busy, T0, name="busy")
    bench.now_ms += 10_000
    sizes: list[int] = []
    while bench.shard.next_deadline() is not None and len(bench.shard.durable) > 1:
        bench.took(bench.shard.tick(bench.now_ms))
        sizes.append(len(bench.last.records))
    assert sizes == [3, 3, 2]
    assert set(bench.shard.durable) == {"busy"}


def test_an_end_whose_markers_take_long_is_answered_all_the_same() -> None:
    bench = Bench()
    identity = bench.initialized()
    bench.add(identity, T0)
    assert bench.end(identity, commit=True) is None
    bench.advance(999)
    count = len(bench.answers)
    bench.advance(1)
    assert len(bench.answers) == count + 1
    assert bench.state().state is S.PREPARE_COMMIT
    bench.write_markers()
    assert bench.state().state is S.COMPLETE_COMMIT


# -- life of the shard


def test_while_loading_and_after_unloading() -> None:
    shard = TransactionShard(0, TransactionConfig(), lambda: 1)
    requests = [
        InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1),
        DescribeTransactionsRequest(transactional_ids=["tx"]),
        ListTransactionsRequest(),
    ]
    for request in requests:
        effects = shard.handle(request, RequestContext(1, 0, "", ""), 0)
        assert effects.replies[0].response == refusal_of(request, E.COORDINATOR_LOAD_IN_PROGRESS)
    assert shard.tick(0) == TransactionEffects()
    shard.loaded(0)
    shard.unload()
    effects = shard.handle(requests[0], RequestContext(1, 0, "", ""), 0)
    assert effects.replies[0].response == refusal_of(requests[0], E.NOT_COORDINATOR)
    assert shard.next_deadline() is None


def test_who_waits_is_sent_away_when_the_shard_goes() -> None:
    bench = Bench()
    identity = bench.initialized()
    bench.add(identity, T0)
    bench.end(identity, commit=True)
    (reply,) = bench.shard.unload().replies
    assert isinstance(reply.response, EndTxnResponse)
    assert reply.response.error_code == E.NOT_COORDINATOR


def test_replies_whose_records_were_not_written() -> None:
    bench = Bench()
    context = RequestContext(1, 5, "", "")
    request = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1_000)
    effects = bench.shard.handle(request, context, bench.now_ms)
    (reply,) = bench.shard.append_failed(effects, E.KAFKA_STORAGE_ERROR)
    assert reply.response == refusal_of(request, E.NOT_COORDINATOR)


def test_requests_of_others_are_our_bug() -> None:
    with pytest.raises(TypeError):
        Bench().ask(HeartbeatRequest(), 0)
    with pytest.raises(TypeError):
        refusal_of(HeartbeatRequest(), 0)


def test_limits() -> None:
    bench = Bench(transaction_shard_max_ids=1)
    bench.initialized()
    assert bench.init("other").error_code == E.POLICY_VIOLATION
    assert bench.init("x" * 9_000).error_code == E.INVALID_REQUEST
    with pytest.raises(ConfigError, match="transaction_max_timeout_ms"):
        TransactionConfig(transaction_max_timeout_ms=0)


def test_late_news_of_markers_change_nothing() -> None:
    """B57: what was written for one transaction never ends another."""
    bench = Bench()
    identity = bench.initialized()
    bench.add(identity, T0)
    bench.end(identity, commit=False)
    stale = bench.markers[0]
    bench.write_markers()
    assert not bench.shard.markers_written(stale, bench.now_ms).records
    following = ProducerIdentity(identity.producer_id, identity.epoch + 1)
    bench.add(following, T0)
    bench.end(following, commit=True)
    assert not bench.shard.ended(stale).replies
    assert not bench.shard.markers_written(stale, bench.now_ms).records
    assert bench.state().state is S.PREPARE_COMMIT
