"""A transactional producer's table and its dealings with coordinators, without a network."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.client.cluster.client import ANY, Versioned
from kohort.client.cluster.refusal_log import Refusals
from kohort.client.common.backoff import Backoff
from kohort.client.common.config import ProducerConfig
from kohort.client.common.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from kohort.client.producer.plan.accumulator import Accumulator
from kohort.client.producer.plan.fast_send_choice import Guard
from kohort.client.producer.plan.sender import Sender
from kohort.client.producer.plan.transaction_manager import Ask, Settled, Transactions
from kohort.client.producer.plan.transaction_requests import Kind, Verdict, verdict
from kohort.client.producer.plan.transaction_table import TRANSITIONS, TxEvent, TxState
from kohort.client.producer.transactions_shell import Transactional
from kohort.errors import (
    AbortableTransactionError,
    BrokerError,
    ClosedError,
    ConnectionFailedError,
    ErrorCode,
    FencedError,
    KohortError,
    TransactionAbortedError,
    UsageError,
)
from kohort.wire.messages.add_offsets_to_txn_response import AddOffsetsToTxnResponse
from kohort.wire.messages.add_partitions_to_txn_response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from kohort.wire.messages.end_txn_response import EndTxnResponse
from kohort.wire.messages.find_coordinator_response import Coordinator, FindCoordinatorResponse
from kohort.wire.messages.init_producer_id_response import InitProducerIdResponse
from kohort.wire.messages.txn_offset_commit_response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

E, K, S, V = ErrorCode, Kind, TxState, Verdict
NODE, GROUP_NODE = 3, 4
GROUP = GroupMetadata("g", 5, "m", None)
OFFSETS = {TopicPartition("t", 0): OffsetAndMetadata(7)}
FOUND = FindCoordinatorResponse(coordinators=[Coordinator(node_id=NODE, host="h", port=1)])
FOUND_GROUP = FindCoordinatorResponse(
    coordinators=[Coordinator(node_id=GROUP_NODE, host="h", port=2)]
)


def added(code: int = 0) -> AddPartitionsToTxnResponse:
    part = AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=code)
    topic = AddPartitionsToTxnTopicResult(name="t", results_by_partition=[part])
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])


def stored(code: int = 0) -> TxnOffsetCommitResponse:
    part = TxnOffsetCommitResponsePartition(partition_index=0, error_code=code)
    return TxnOffsetCommitResponse(topics=[TxnOffsetCommitResponseTopic(partitions=[part])])


class Driver:
    """A `Transactions` with its clock, and what became of each token."""

    def __init__(self, *, kip_890: bool = True, ready: bool = True) -> None:
        self.now_ms = 0
        self.refusals = Refusals()
        self.tx = Transactions(
            "tx",
            60_000,
            Backoff(100, 1_000, lambda: 0.5),
            lambda node, name: 2 * kip_890,
            self.refusals,
        )
        self.ends: dict[str, KohortError | None] = {}
        if ready:
            self.take(self.tx.init("init"))
            self.asked(K.FIND_TRANSACTIONS, FOUND)
            self.asked(K.INIT, InitProducerIdResponse(producer_id=9, producer_epoch=1))
            assert self.ends == {"init": None}
            self.tx.outcome_delivered()

    def take(self, settled: list[Settled]) -> None:
        for token, error in settled:
            assert token not in self.ends, "a token is settled once"
            self.ends[token] = error

    def asked(self, kind: Kind, answer: Any) -> Ask:
        """It asks just this now, and gets this answer."""
        ask = self.tx.next_request(self.now_ms)
        assert ask is not None
        assert ask.kind is kind
        self.take(self.tx.answered(ask, answer, self.now_ms))
        return ask

    def idle(self) -> bool:
        return self.tx.next_request(self.now_ms) is None

    def later(self) -> None:
        deadline = self.tx.next_deadline()
        assert deadline is not None
        assert self.idle()
        self.now_ms = deadline

    def end(self, *, commit: bool, token: str = "end") -> None:
        self.tx.end(commit=commit)
        self.take(self.tx.flushed(token))

    def write(self) -> None:
        """A record goes out."""
        if not self.tx.admits("t", 0):
            self.asked(K.ADD_PARTITIONS, added())
            assert self.tx.admits("t", 0)
        self.tx.sent()


def body(ask: Ask, version: int = 5) -> Any:
    return ask.message.build(version) if isinstance(ask.message, Versioned) else ask.message


def test_every_state_refuses_what_its_table_lacks() -> None:
    """A call that the table does not have raises and changes nothing."""
    calls = {
        TxEvent.INIT_CALLED: lambda tx: tx.init("x"),
        TxEvent.BEGIN_CALLED: lambda tx: tx.begin(),
        TxEvent.COMMIT_CALLED: lambda tx: tx.end(commit=True),
        TxEvent.ABORT_CALLED: lambda tx: tx.end(commit=False),
    }
    for state in TxState:
        for event, call in calls.items():
            tx = Driver().tx
            tx.state, tx.error = state, BrokerError(E.UNKNOWN_SERVER_ERROR)
            target = TRANSITIONS.get((state, event))
            if target is not None:
                call(tx)
                assert tx.state is target
                continue
            with pytest.raises(KohortError):
                call(tx)
            assert tx.state is state


def test_every_state_can_be_reached_and_left() -> None:
    reached = set(TRANSITIONS.values())
    assert reached == set(TxState) - {S.NEW}
    for state in TxState:
        assert {s for s, _ in TRANSITIONS} >= {state}
        assert (state, TxEvent.FATAL) in TRANSITIONS


def test_a_transaction_with_kip_890() -> None:
    """No partition is added by request; the end gives the next epoch."""
    d = Driver()
    d.tx.begin()
    assert d.idle()
    d.write()
    d.end(commit=True)
    ask = d.asked(K.END, EndTxnResponse(producer_id=9, producer_epoch=2))
    assert (ask.target, body(ask).committed) == (NODE, True)
    assert isinstance(ask.message, Versioned)
    assert ask.message.at_most is None
    assert d.ends["end"] is None
    assert d.tx.identity[1:] == (9, 2)
    assert d.tx.state is S.READY


def test_a_transaction_before_kip_890() -> None:
    d = Driver(kip_890=False)
    d.tx.begin()
    assert not d.tx.admits("t", 0)
    assert not d.tx.admits("t", 1)
    ask = d.tx.next_request(0)
    assert ask is not None
    assert not d.tx.admits("u", 0)  # while the first two are asked for
    d.take(d.tx.answered(ask, added(), 0))
    assert d.tx.admits("t", 0)
    assert d.tx.admits("t", 1)
    ask = d.asked(K.ADD_PARTITIONS, added())
    assert [t.name for t in body(ask, 3).v3_and_below_topics] == ["u"]
    d.tx.sent()
    d.end(commit=True)
    ask = d.asked(K.END, EndTxnResponse(producer_id=-1, producer_epoch=-1))
    assert isinstance(ask.message, Versioned)
    assert ask.message.at_most == 4
    assert d.tx.identity[1:] == (9, 1)
    assert d.ends["end"] is None


@pytest.mark.parametrize("kip_890", [True, False])
def test_offsets_go_with_the_member_that_read_them(kip_890: bool) -> None:
    """KIP-447."""
    d = Driver(kip_890=kip_890)
    d.tx.begin()
    d.tx.commit_offsets(GROUP, OFFSETS, "offsets")
    if not kip_890:
        d.asked(K.ADD_OFFSETS, AddOffsetsToTxnResponse())
    assert d.asked(K.FIND_GROUP, FOUND_GROUP).target == ANY
    ask = d.asked(K.OFFSETS, stored())
    request = body(ask)
    assert ask.target == GROUP_NODE
    assert (request.generation_id, request.member_id) == (5, "m")
    assert body(ask, 2).generation_id == -1
    assert d.ends["offsets"] is None
    d.end(commit=True)
    d.asked(K.END, EndTxnResponse(producer_id=9, producer_epoch=2))
    assert d.ends["end"] is None


@pytest.mark.parametrize("commit", [True, False])
def test_an_empty_transaction_asks_nobody(commit: bool) -> None:
    d = Driver()
    d.tx.begin()
    d.end(commit=commit)
    assert d.ends["end"] is None
    assert d.idle()
    assert d.tx.state is S.READY


def test_what_is_lost_is_asked_again() -> None:
    d = Driver()
    d.tx.begin()
    d.write()
    d.end(commit=True)
    d.asked(K.END, ConnectionFailedError("cut"))
    d.later()
    d.asked(K.FIND_TRANSACTIONS, FOUND)
    d.asked(K.END, EndTxnResponse(error_code=E.NOT_COORDINATOR))
    d.later()
    d.asked(K.FIND_TRANSACTIONS, FindCoordinatorResponse(error_code=15))
    d.later()
    d.asked(K.FIND_TRANSACTIONS, FOUND)
    d.asked(K.END, EndTxnResponse(error_code=E.COORDINATOR_LOAD_IN_PROGRESS))
    d.later()
    d.asked(K.END, EndTxnResponse(error_code=E.CONCURRENT_TRANSACTIONS))
    assert d.tx.next_deadline() == d.now_ms + 10  # markers do not take long
    d.later()
    d.asked(K.END, EndTxnResponse(producer_id=9, producer_epoch=2))
    assert d.ends["end"] is None


def test_nothing_is_due_after_a_back_off_that_leaves_nothing_to_ask() -> None:
    """The network thread woke without end until `abort_transaction` (seed 60002450)."""
    d = Driver(kip_890=False)
    d.tx.begin()
    assert not d.tx.admits("t", 0)
    d.asked(K.ADD_PARTITIONS, added(E.CONCURRENT_TRANSACTIONS))
    d.take(d.tx.failed(ConnectionFailedError("a record was not stored")))
    d.later()
    assert d.idle()
    assert d.tx.next_deadline() is None


@pytest.mark.parametrize("code", [E.UNKNOWN_SERVER_ERROR, E.INVALID_TXN_STATE, 999])
def test_a_commit_is_never_reported_that_was_refused(code: int) -> None:
    """B57: EndTxn refused with an unknown error ends the producer, not with a success."""
    d = Driver()
    d.tx.begin()
    d.write()
    d.end(commit=True)
    d.asked(K.END, EndTxnResponse(error_code=code))
    assert isinstance(d.ends["end"], BrokerError)
    assert d.tx.state is S.DEAD
    with pytest.raises(BrokerError):
        d.tx.begin()


@pytest.mark.parametrize("code", [E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH])
def test_a_fenced_producer_is_of_no_more_use(code: int) -> None:
    d = Driver()
    d.tx.begin()
    d.write()
    d.end(commit=True)
    d.asked(K.END, EndTxnResponse(error_code=code))
    assert isinstance(d.ends["end"], FencedError)
    for call in (d.tx.begin, d.tx.check_may_write, lambda: d.tx.end(commit=False)):
        with pytest.raises(FencedError):
            call()


@pytest.mark.parametrize("kip_890", [True, False])
def test_a_failed_record_leaves_only_an_abort(kip_890: bool) -> None:
    """And sequences that are in doubt begin anew under the next epoch (KIP-360)."""
    d = Driver(kip_890=kip_890)
    d.tx.begin()
    d.write()
    d.take(d.tx.failed(BrokerError(E.OUT_OF_ORDER_SEQUENCE_NUMBER)))
    for call in (d.tx.check_may_write, d.tx.begin, lambda: d.tx.end(commit=True)):
        with pytest.raises(AbortableTransactionError, match="abort_transaction"):
            call()
    assert not d.tx.admits("t", 0)
    d.end(commit=False)
    assert not body(d.asked(K.END, EndTxnResponse(producer_id=9, producer_epoch=2))).committed
    if not kip_890:
        assert "end" not in d.ends
        ask = d.asked(K.INIT, InitProducerIdResponse(producer_id=9, producer_epoch=2))
        assert (body(ask).producer_id, body(ask).producer_epoch) == (9, 1)
    assert d.ends["end"] is None
    assert d.tx.identity[1:] == (9, 2)
    d.tx.begin()
    d.write()


@pytest.mark.parametrize("kip_890", [True, False])
def test_a_record_that_failed_before_it_was_sent(kip_890: bool) -> None:
    """The coordinator knows of no transaction; the next epoch is asked for all the same."""
    d = Driver(kip_890=kip_890)
    d.tx.begin()
    d.take(d.tx.failed(BrokerError(E.REQUEST_TIMED_OUT)))
    d.end(commit=False)
    d.asked(K.INIT, InitProducerIdResponse(producer_id=9, producer_epoch=2))
    assert d.ends["end"] is None


@pytest.mark.parametrize("kip_890", [False, True])
@pytest.mark.parametrize(
    "code", [E.INVALID_TXN_STATE, E.INVALID_PRODUCER_ID_MAPPING, E.UNKNOWN_PRODUCER_ID]
)
def test_a_producer_that_its_coordinator_has_forgotten(kip_890: bool, code: int) -> None:
    """Its transactional id was idle for longer than `transactional.id.expiration.ms`."""
    d = Driver(kip_890=kip_890)
    d.tx.begin()
    if kip_890:
        d.write()
        refusal = BrokerError(E.INVALID_PRODUCER_ID_MAPPING)
        d.take(d.tx.failed(refusal))
    else:
        assert not d.tx.admits("t", 0)
        d.asked(K.ADD_PARTITIONS, added(E.INVALID_PRODUCER_ID_MAPPING))
    assert d.tx.state is S.BROKEN
    d.end(commit=False)
    d.asked(K.END, EndTxnResponse(error_code=code))
    d.asked(K.INIT, InitProducerIdResponse(producer_id=10, producer_epoch=0))
    assert d.ends["end"] is None
    assert d.tx.identity[1:] == (10, 0)


def test_a_coordinator_that_refuses_for_ever_is_no_secret() -> None:
    """Told once, by name, after a while, and when it is over; what gets no answer is none."""
    d = Driver()
    d.tx.begin()
    d.write()
    d.end(commit=True)
    d.asked(K.END, ConnectionFailedError("cut"))
    assert not d.refusals
    for answer in (E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_NOT_AVAILABLE):
        d.later()
        d.asked(K.FIND_TRANSACTIONS, FOUND)  # which is no sign that the coordinator serves
        d.asked(K.END, EndTxnResponse(error_code=answer))
    message = "transactional_id 'tx' is refused with COORDINATOR_NOT_AVAILABLE for 600ms (its "
    assert (d.refusals.longest(d.now_ms) or "").startswith(message)
    report = d.refusals.look(d.now_ms + 3_000)
    assert report is not None
    assert [event.what for event in report.events] == ["transactional_id 'tx'"]
    d.later()
    d.asked(K.FIND_TRANSACTIONS, FOUND)
    d.asked(K.END, EndTxnResponse(producer_id=9, producer_epoch=2))
    assert not d.refusals
    report = d.refusals.look(d.now_ms)
    assert report is not None
    assert report.warnings == ["transactional_id 'tx': not refused any more"]


@pytest.mark.parametrize("code", [E.PRODUCER_FENCED, E.TOPIC_AUTHORIZATION_FAILED])
def test_what_is_refused_for_good_is_not_tried_on(code: int) -> None:
    """It is told by the error; that of the tries before is over."""
    d = Driver(kip_890=False)
    d.tx.begin()
    assert not d.tx.admits("t", 0)
    d.asked(K.ADD_PARTITIONS, added(E.COORDINATOR_LOAD_IN_PROGRESS))
    assert d.refusals
    d.later()
    d.asked(K.ADD_PARTITIONS, added(code))
    assert not d.refusals


B, F, D, M, R = V.BROKEN, V.FENCED, V.FATAL, V.MOVED, V.RETRY
VERDICTS: dict[int, dict[Kind | None, Verdict]] = {
    E.COORDINATOR_NOT_AVAILABLE: {None: M, K.FIND_GROUP: R, K.FIND_TRANSACTIONS: R},
    E.NOT_COORDINATOR: {None: M},
    E.COORDINATOR_LOAD_IN_PROGRESS: {None: R},
    E.CONCURRENT_TRANSACTIONS: {None: R},
    E.REQUEST_TIMED_OUT: {None: R},
    E.UNKNOWN_TOPIC_OR_PARTITION: {None: R},
    E.INVALID_PRODUCER_EPOCH: {None: F},
    E.PRODUCER_FENCED: {None: F},
    E.TRANSACTION_ABORTABLE: {None: B, K.INIT: D},
    E.INVALID_PRODUCER_ID_MAPPING: {None: B, K.INIT: D},
    E.UNKNOWN_PRODUCER_ID: {None: B, K.INIT: D},
    E.TOPIC_AUTHORIZATION_FAILED: {None: B},
    E.GROUP_AUTHORIZATION_FAILED: {None: B},
    E.OPERATION_NOT_ATTEMPTED: {None: B},
    E.ILLEGAL_GENERATION: {None: D, K.OFFSETS: B},
    E.UNKNOWN_MEMBER_ID: {None: D, K.OFFSETS: B},
    E.FENCED_INSTANCE_ID: {None: D, K.OFFSETS: B},
    E.STALE_MEMBER_EPOCH: {None: D, K.OFFSETS: B},
    E.GROUP_ID_NOT_FOUND: {None: D, K.OFFSETS: B},
    E.OFFSET_METADATA_TOO_LARGE: {None: D, K.OFFSETS: B},
    E.INVALID_GROUP_ID: {None: D, K.OFFSETS: B, K.ADD_OFFSETS: B, K.FIND_GROUP: B},
    E.INVALID_TXN_STATE: {None: D},
    E.INVALID_TRANSACTION_TIMEOUT: {None: D},
    E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: {None: D},
    E.CLUSTER_AUTHORIZATION_FAILED: {None: D},
    E.UNSUPPORTED_VERSION: {None: D},
    E.UNKNOWN_SERVER_ERROR: {None: D},
    9_999: {None: D},
}
"""What each error means to each request, as Java's TransactionManager takes it; None: to all."""


@pytest.mark.parametrize("code", VERDICTS, ids=E.name_of)
def test_what_an_error_means(code: int) -> None:
    """Fatal, or abortable, or to be asked again; what is not known to be harmless is fatal."""
    usual = VERDICTS[code]
    for kind in Kind:
        assert verdict(kind, code) is usual.get(kind, usual[None]), kind


class Cluster:
    """What a `Transactional` needs of a cluster in these tests."""

    def __init__(self) -> None:
        self.connections = self

    def uniform(self) -> float:
        return 0.5

    def feature(self, node_id: int, name: str) -> int:
        return 0


def test_sequences_of_records_that_were_dropped_after_a_try_are_in_doubt() -> None:
    """An abort drops a record that was sent and came back: the next epoch begins anew."""
    config = ProducerConfig(transactional_id="tx")
    accumulator = Accumulator(config)
    sender = Sender(accumulator, config, lambda: 0.5)
    shell = Transactional(config, Cluster(), Guard(), sender, lambda: None)  # type: ignore[arg-type]
    tx = shell._tx
    for attempts in (0, 1):
        batch = accumulator.open_batch(accumulator.queue("t", 0), 0)
        assert batch is not None
        batch.attempts = attempts
        tx.state = S.ABORTING
        assert len(shell.drop_unsent()) == 1
        assert tx._renew is bool(attempts)
    tx.state = S.OPEN
    assert shell.drop_unsent() == []


def test_a_record_that_fails_during_the_commit() -> None:
    d = Driver()
    d.tx.begin()
    d.write()
    d.tx.end(commit=True)
    d.take(d.tx.failed(BrokerError(E.MESSAGE_TOO_LARGE)))
    with pytest.raises(AbortableTransactionError):
        d.tx.flushed("end")
    d.end(commit=False, token="abort")
    d.asked(K.END, EndTxnResponse(producer_id=9, producer_epoch=2))
    assert d.ends == {"init": None, "abort": None}


@pytest.mark.parametrize("code", [E.ILLEGAL_GENERATION, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID])
def test_offsets_of_a_member_that_was_left_behind(code: int) -> None:
    d = Driver()
    d.tx.begin()
    d.tx.commit_offsets(GROUP, OFFSETS, "offsets")
    d.asked(K.FIND_GROUP, FOUND_GROUP)
    d.asked(K.OFFSETS, stored(code))
    assert isinstance(d.ends["offsets"], AbortableTransactionError)
    d.end(commit=False)
    d.asked(K.END, EndTxnResponse(producer_id=9, producer_epoch=2))
    assert d.ends["end"] is None


def test_the_coordinator_never_heard_of_what_is_aborted() -> None:
    """Before KIP-890 an abort of nothing is refused; whether it was nothing we need not know."""
    d = Driver(kip_890=False)
    d.tx.begin()
    assert not d.tx.admits("t", 0)
    d.asked(K.ADD_PARTITIONS, ConnectionFailedError("cut"))
    d.end(commit=False)
    d.later()
    d.asked(K.FIND_TRANSACTIONS, FOUND)
    d.asked(K.END, EndTxnResponse(error_code=E.INVALID_TXN_STATE))
    assert d.ends["end"] is None
    assert d.tx.state is S.READY


def test_offsets_that_wait_when_the_transaction_is_aborted() -> None:
    d = Driver()
    d.tx.begin()
    d.tx.commit_offsets(GROUP, OFFSETS, "offsets")
    d.asked(K.FIND_GROUP, FOUND_GROUP)
    d.end(commit=False)
    d.asked(K.END, EndTxnResponse(producer_id=9, producer_epoch=2))
    assert isinstance(d.ends["offsets"], TransactionAbortedError)
    assert d.ends["end"] is None


def test_an_end_may_be_called_again_after_a_timeout() -> None:
    d = Driver()
    d.tx.begin()
    d.write()
    d.end(commit=True, token="first")
    ask = d.tx.next_request(0)
    assert ask is not None
    d.end(commit=True, token="second")
    with pytest.raises(UsageError):
        d.tx.end(commit=False)
    d.take(d.tx.answered(ask, EndTxnResponse(producer_id=9, producer_epoch=2), 0))
    assert (d.ends["first"], d.ends["second"]) == (None, None)


@pytest.mark.parametrize("commit", [True, False])
def test_a_call_that_was_not_told_may_be_made_again(commit: bool) -> None:
    """Its answer came between the two calls: "the same call again waits for its outcome"."""
    d = Driver(ready=False)
    d.take(d.tx.init("given up"))
    d.asked(K.FIND_TRANSACTIONS, FOUND)
    d.asked(K.INIT, InitProducerIdResponse(producer_id=9, producer_epoch=1))
    d.take(d.tx.init("again"))
    assert d.ends == {"given up": None, "again": None}
    d.tx.outcome_delivered()
    with pytest.raises(UsageError):
        d.tx.init("once more")
    d.tx.begin()
    d.write()
    d.end(commit=commit, token="end given up")
    d.asked(K.END, EndTxnResponse(producer_id=9, producer_epoch=2))
    with pytest.raises(UsageError):  # which is not the same call
        d.tx.end(commit=not commit)


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_that_was_not_told_may_be_called_again(commit: bool) -> None:
    d = Driver()
    d.tx.begin()
    d.write()
    d.end(commit=commit, token="given up")
    d.asked(K.END, EndTxnResponse(producer_id=9, producer_epoch=2))
    d.end(commit=commit, token="again")
    assert d.ends["again"] is None
    d.tx.outcome_delivered()
    for _ in range(2):
        with pytest.raises(UsageError):
            d.tx.end(commit=commit)
    d.tx.begin()
    d.end(commit=commit, token="empty")
    d.tx.begin()  # whoever begins the next one has done with the last
    d.end(commit=commit, token="the next")
    assert d.ends["the next"] is None


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    d = Driver()
    d.tx.begin()
    d.write()
    d.end(commit=True)
    ask = d.tx.next_request(0)
    assert ask is not None
    d.take(d.tx.answered(ask, EndTxnResponse(producer_id=9, producer_epoch=2), 0))
    assert d.tx.answered(ask, EndTxnResponse(error_code=90), 0) == []
    assert d.tx.state is S.READY


@pytest.mark.parametrize("code", [E.INVALID_TRANSACTION_TIMEOUT, E.INVALID_PRODUCER_ID_MAPPING])
def test_an_initialization_that_is_refused(code: int) -> None:
    d = Driver(ready=False)
    d.take(d.tx.init("init"))
    d.asked(K.FIND_TRANSACTIONS, FOUND)
    d.asked(K.INIT, InitProducerIdResponse(error_code=code))
    assert isinstance(d.ends["init"], BrokerError)
    assert d.tx.state is S.DEAD


def test_closing_ends_every_wait() -> None:
    d = Driver()
    d.tx.begin()
    d.tx.commit_offsets(GROUP, OFFSETS, "offsets")
    d.take(d.tx.close(ClosedError("closed")))
    assert isinstance(d.ends["offsets"], ClosedError)
