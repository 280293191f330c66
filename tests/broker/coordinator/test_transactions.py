"""Transactions through the broker's APIs, before KIP-890 and with it."""

from __future__ import annotations

import pytest

from kohort.broker.apis import APIS
from kohort.broker.base.config import OFFSETS_TOPIC
from kohort.broker.log.files import Names
from kohort.errors import ErrorCode
from kohort.wire.messages.api_versions_request import ApiVersionsRequest
from kohort.wire.messages.api_versions_response import ApiVersionsResponse
from kohort.wire.messages.find_coordinator_request import FindCoordinatorRequest
from kohort.wire.messages.find_coordinator_response import FindCoordinatorResponse
from kohort.wire.messages.init_producer_id_response import InitProducerIdResponse
from kohort.wire.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kohort.wire.messages.list_offsets_response import ListOffsetsResponse
from kohort.wire.messages.list_transactions_request import ListTransactionsRequest
from kohort.wire.messages.list_transactions_response import ListTransactionsResponse
from kohort.wire.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kohort.wire.messages.offset_fetch_response import OffsetFetchResponse
from kohort.wire.messages.produce_response import ProduceResponse
from kohort.wire.messages.write_txn_markers_response import WriteTxnMarkersResponse
from tests.broker import transacting
from tests.broker.harness import Harness, batch_of
from tests.broker.transacting import BEFORE, KIP_890, Tx, init_request, markers_request, read

E = ErrorCode
KINDS = pytest.mark.parametrize("kind", [BEFORE, KIP_890])


@pytest.fixture
def harness() -> Harness:
    made = Harness()
    made.create("t", 2)
    return made


def begun(harness: Harness, kind: str = KIP_890, name: str = "tx") -> Tx:
    tx = Tx(harness, name, kind)
    assert tx.init() == 0
    return tx


def committed_offset(harness: Harness, group: str = "g", *, stable: bool = True) -> int:
    """Of t-0; -1: none, -88: unstable."""
    topics = OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=[topics])], require_stable=stable
    )
    found = harness.ask(request, OffsetFetchResponse, 9).groups[0].topics[0].partitions[0]
    return -found.error_code if found.error_code else found.committed_offset


def latest(harness: Harness, *, committed: bool) -> int:
    part = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(committed),
        topics=[ListOffsetsTopic(name="t", partitions=[part])],
    )
    return harness.ask(request, ListOffsetsResponse).topics[0].partitions[0].offset


# -- what is committed is seen, what is aborted is not


@KINDS
def test_committed_records_are_seen_and_aborted_ones_never(harness: Harness, kind: str) -> None:
    """Spec F2: READ_COMMITTED returns a record iff its transaction committed, below the LSO."""
    tx = begun(harness, kind)
    assert tx.send("t", b"a1", b"a2") == 0
    assert read(harness) == []
    assert read(harness, committed=False) == [b"a1", b"a2"]
    assert tx.commit() == 0
    assert read(harness) == [b"a1", b"a2"]
    assert tx.send("t", b"b1") == 0
    assert tx.abort() == 0
    assert tx.send("t", b"c1") == 0
    assert tx.commit() == 0
    assert read(harness) == [b"a1", b"a2", b"c1"]
    assert read(harness, committed=False) == [b"a1", b"a2", b"b1", b"c1"]
    assert tx.state().transaction_state == "CompleteCommit"


@KINDS
def test_an_open_transaction_holds_what_is_behind_it(harness: Harness, kind: str) -> None:
    """The last stable offset: in Fetch, and in ListOffsets (KIP-98)."""
    harness.produce("t", batch_of([b"plain1"]))
    one, two = begun(harness, kind, "one"), begun(harness, kind, "two")
    one.send("t", b"one")
    two.send("t", b"two")
    harness.produce("t", batch_of([b"plain2"]))
    assert two.commit() == 0
    assert read(harness) == [b"plain1"]
    data = transacting.fetch(harness, committed=True)
    assert (data.last_stable_offset, data.high_watermark) == (1, 5)
    assert (latest(harness, committed=True), latest(harness, committed=False)) == (1, 5)
    assert one.abort() == 0
    assert read(harness) == [b"plain1", b"two", b"plain2"]
    assert latest(harness, committed=True) == 6


def test_interleaved_transactions_come_with_their_aborted_list(harness: Harness) -> None:
    """B56: the list is sorted by first offset, and has only what is in the range."""
    txs = [begun(harness, name=f"tx{i}") for i in range(6)]
    for tx in txs:
        tx.send("t", tx.name.encode())
    for tx in reversed(txs):
        assert tx.end(commit=tx.name in ("tx1", "tx4")) == 0
    data = transacting.fetch(harness, committed=True)
    firsts = [a.first_offset for a in data.aborted_transactions or ()]
    assert firsts == [0, 2, 3, 5]
    assert read(harness) == [b"tx1", b"tx4"]
    assert transacting.fetch(harness, 12, committed=True).aborted_transactions == []
    assert transacting.fetch(harness, committed=False).aborted_transactions is None


@KINDS
def test_offsets_of_a_transaction_count_when_it_commits(harness: Harness, kind: str) -> None:
    """KIP-447: an offset in an open transaction is unstable (O6); B27: one winner."""
    tx = begun(harness, kind)
    assert tx.commit_offsets("g", {("t", 0): 5}) == 0
    assert committed_offset(harness) == -E.UNSTABLE_OFFSET_COMMIT
    assert committed_offset(harness, stable=False) == -1
    assert tx.commit() == 0
    assert committed_offset(harness) == 5
    assert tx.commit_offsets("g", {("t", 0): 9}) == 0
    assert tx.abort() == 0
    assert committed_offset(harness) == 5
    for clean in (True, False):
        harness = harness.restarted(clean=clean)
        assert committed_offset(harness) == 5
    assert tx.moved_to(harness).commit_offsets("g", {("t", 0): 7}) == 0
    assert tx.commit() == 0
    assert committed_offset(harness) == 7


@KINDS
def test_offsets_need_the_generation_of_their_member(harness: Harness, kind: str) -> None:
    """KIP-447: a member that the group has left behind cannot commit in a transaction."""
    tx = begun(harness, kind)
    who = {"generation_id": 3, "member_id": "gone"}
    assert tx.commit_offsets("g", {("t", 0): 5}, **who) == E.ILLEGAL_GENERATION
    assert tx.commit_offsets("g", {("t", 9): 5}) == E.UNKNOWN_TOPIC_OR_PARTITION


# -- fencing


@KINDS
def test_a_second_producer_fences_the_first(harness: Harness, kind: str) -> None:
    old = begun(harness, kind)
    old.send("t", b"old")
    new = old.twin()
    assert new.init() == E.CONCURRENT_TRANSACTIONS  # it aborts what is open first
    assert new.init() == 0
    assert new.epoch > old.epoch
    assert new.producer_id == old.producer_id
    assert old.produce("t", b"late") == E.INVALID_PRODUCER_EPOCH
    assert old.commit() == E.PRODUCER_FENCED
    assert old.abort() == E.PRODUCER_FENCED
    assert old.add(("t", 1)) == E.PRODUCER_FENCED
    assert old.init(again=True) == E.PRODUCER_FENCED
    assert read(harness) == []
    new.send("t", b"new")
    assert new.commit() == 0
    assert read(harness) == [b"new"]


def test_old_versions_are_told_the_old_code(harness: Harness) -> None:
    """KIP-588: PRODUCER_FENCED is not known before InitProducerId v4, EndTxn v2, ... v2."""
    old = begun(harness, BEFORE)
    assert old.twin().init() == 0
    assert old.init(again=True, version=3) == E.INVALID_PRODUCER_EPOCH
    assert old.init(again=True, version=4) == E.PRODUCER_FENCED
    assert old.add(("t", 0), version=1) == E.INVALID_PRODUCER_EPOCH
    assert old.add(("t", 0), version=2) == E.PRODUCER_FENCED


def test_a_producer_repeats_a_lost_init(harness: Harness) -> None:
    """KIP-360: with the epoch before the last one it gets the last one again."""
    tx = begun(harness)
    before = tx.epoch
    assert tx.init(again=True) == 0
    assert tx.epoch == before + 1
    tx.epoch = before
    assert tx.init(again=True) == 0
    assert tx.epoch == before + 1


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_that_is_not_allowed(harness: Harness, timeout_ms: int) -> None:
    assert Tx(harness).init(timeout_ms=timeout_ms) == E.INVALID_TRANSACTION_TIMEOUT


def test_names_that_are_not_allowed(harness: Harness) -> None:
    assert Tx(harness, "").init() == E.INVALID_REQUEST
    half = init_request("tx")
    half.producer_id = 5
    assert harness.ask(half, InitProducerIdResponse, 5).error_code == E.INVALID_REQUEST
    nobody = Tx(harness, "nobody")
    nobody.producer_id, nobody.epoch = 7, 0
    assert nobody.add(("t", 0)) == E.INVALID_PRODUCER_ID_MAPPING
    assert nobody.commit() == E.INVALID_PRODUCER_ID_MAPPING
    assert nobody.state().error_code == E.TRANSACTIONAL_ID_NOT_FOUND


# -- what may be written where


def test_before_kip_890_a_partition_must_be_added(harness: Harness) -> None:
    """KIP-890 part 1: a batch to a partition that was not added would hang there for ever."""
    tx = begun(harness, BEFORE)
    assert tx.produce("t", b"x") == E.INVALID_TXN_STATE
    assert tx.add(("t", 1)) == 0
    assert tx.produce("t", b"x") == E.INVALID_TXN_STATE
    assert tx.produce("t", b"x", partition=1) == 0
    assert tx.store_offsets("g", {("t", 0): 1}) == E.INVALID_TXN_STATE
    assert tx.commit() == 0
    assert tx.produce("t", b"x", partition=1) == E.INVALID_TXN_STATE
    assert read(harness, partition=1) == [b"x"]


def test_with_kip_890_the_first_record_adds_it(harness: Harness) -> None:
    tx = begun(harness, KIP_890)
    assert tx.produce("t", b"x") == 0
    assert tx.produce("t", b"y", partition=1) == 0
    topics = {t.topic: t.partitions for t in tx.state().topics}
    assert topics == {"t": [0, 1]}
    first = tx.epoch
    assert tx.commit() == 0
    assert tx.epoch == first + 1
    assert tx.produce("t", b"late", producer_epoch=first) == E.INVALID_PRODUCER_EPOCH


def test_a_transaction_that_lost_its_first_batch_in_a_partition(harness: Harness) -> None:
    """KIP-890: each has an epoch of its own, and begins at sequence 0, also where nothing is known
    of its producer; before it, a producer of whom nothing is known may begin anywhere."""
    tx = begun(harness)
    assert tx.produce("t", b"second", base_sequence=1) == E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert tx.produce("t", b"first", base_sequence=0) == 0
    assert tx.produce("t", b"second", base_sequence=1) == 0
    assert tx.commit() == 0
    assert read(harness) == [b"first", b"second"]
    old = begun(harness, BEFORE, "old")
    assert old.add(("t", 1)) == 0
    assert old.produce("t", b"second", partition=1, base_sequence=1) == 0


def test_a_late_batch_of_the_transaction_before(harness: Harness) -> None:
    """KIP-890: it can never become part of the next transaction."""
    tx = begun(harness)
    first = tx.epoch
    assert tx.produce("t", b"a") == 0
    assert tx.abort() == 0
    assert tx.produce("t", b"b") == 0
    late = tx.produce("t", b"late", producer_epoch=first, base_sequence=1)
    assert late == E.INVALID_PRODUCER_EPOCH
    assert tx.commit() == 0
    assert read(harness) == [b"b"]


def test_batches_without_their_transaction(harness: Harness) -> None:
    tx = begun(harness)
    request = transacting.produce_request(
        "t", batch_of([b"x"], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    )
    answer = harness.ask(request, ProduceResponse, 12)
    code = answer.responses[0].partition_responses[0].error_code
    assert code == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert tx.produce("t", b"x") == 0
    assert tx.produce("t", b"plain", transactional=False) == E.INVALID_TXN_STATE


def test_a_repeated_batch_is_stored_once_after_its_transaction_too(harness: Harness) -> None:
    """L4: an answer that was lost may be asked for again when the transaction has ended."""
    tx = begun(harness, BEFORE)
    assert tx.send("t", b"x") == 0
    assert tx.commit() == 0
    assert tx.produce("t", b"x", base_sequence=0) == 0
    assert read(harness) == [b"x"]
    harness = harness.restarted(clean=False)
    assert tx.moved_to(harness).produce("t", b"x", base_sequence=0) == 0
    assert read(harness) == [b"x"]


def test_partitions_that_do_not_exist(harness: Harness) -> None:
    tx = begun(harness, BEFORE)
    request = transacting.add_request(3, "tx", tx.producer_id, tx.epoch, (("t", 0), ("t", 7)))
    answer = harness.ask(request, transacting.AddPartitionsToTxnResponse, 3)
    codes = [
        p.partition_error_code
        for t in answer.results_by_topic_v3_and_below
        for p in t.results_by_partition
    ]
    assert codes == [E.OPERATION_NOT_ATTEMPTED, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert tx.state().transaction_state == "Empty"


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_verify_many_transactions_at_once(harness: Harness, version: int) -> None:
    """KIP-890; v4 is answered TRANSACTION_ABORTABLE too, as Apache Kafka 4.3 does."""
    one, two = begun(harness, name="one"), begun(harness, name="two")
    one.send("t", b"x")
    asked = [
        transacting.add_request(5, tx.name, tx.producer_id, tx.epoch, (("t", 0),), verify=True)
        for tx in (one, two)
    ]
    asked[0].transactions += asked[1].transactions
    answer = harness.ask(asked[0], transacting.AddPartitionsToTxnResponse, version)
    found = {
        r.transactional_id: r.topic_results[0].results_by_partition[0].partition_error_code
        for r in answer.results_by_transaction
    }
    assert found == {"one": 0, "two": E.TRANSACTION_ABORTABLE}


# -- the end


@KINDS
def test_ends_are_idempotent_and_contradictions_are_not(harness: Harness, kind: str) -> None:
    """B57: a repeated EndTxn is told what the first one came to."""
    tx = begun(harness, kind)
    producer = tx.producer_id, tx.epoch
    tx.send("t", b"x")
    assert tx.commit() == 0
    after = tx.epoch
    tx.producer_id, tx.epoch = producer
    assert tx.commit() == 0
    assert tx.epoch == after
    tx.producer_id, tx.epoch = producer
    assert tx.abort() == E.INVALID_TXN_STATE
    assert read(harness) == [b"x"]


def test_an_empty_transaction(harness: Harness) -> None:
    """Before KIP-890 there is nothing to end; with it an abort raises the epoch."""
    old = begun(harness, BEFORE, "old")
    assert old.commit() == E.INVALID_TXN_STATE
    assert old.abort() == E.INVALID_TXN_STATE
    tx = begun(harness, KIP_890)
    first = tx.epoch
    assert tx.commit() == E.INVALID_TXN_STATE
    assert tx.abort() == 0
    assert tx.epoch == first + 1
    assert tx.produce("t", b"x") == 0
    assert tx.commit() == 0


@KINDS
def test_a_transaction_that_takes_too_long_is_aborted(harness: Harness, kind: str) -> None:
    tx = Tx(harness, kind=kind)
    assert tx.init(timeout_ms=10_000) == 0
    tx.send("t", b"x")
    harness.env.advance(9_999)
    assert tx.state().transaction_state == "Ongoing"
    harness.env.advance(1)
    assert tx.state().transaction_state == "CompleteAbort"
    assert tx.produce("t", b"y") == E.INVALID_PRODUCER_EPOCH
    assert tx.commit() == E.PRODUCER_FENCED
    assert read(harness) == []
    assert tx.init() == 0
    assert tx.send("t", b"z") == 0
    assert tx.commit() == 0
    assert read(harness) == [b"z"]


def test_a_transactional_id_is_forgotten_after_its_time() -> None:
    harness = Harness(transactional_id_expiration_ms=3_600_000)
    harness.create("t")
    tx = begun(harness)
    tx.send("t", b"x")
    assert tx.commit() == 0
    harness.env.advance(2 * 3_600_000)
    assert tx.state().error_code == E.TRANSACTIONAL_ID_NOT_FOUND
    harness = harness.restarted(clean=False)
    assert transacting.described(harness, "tx").error_code == E.TRANSACTIONAL_ID_NOT_FOUND


def test_epochs_run_out(harness: Harness) -> None:
    """At epoch 32766 the end of a transaction gives a new producer id (KIP-360, KIP-890)."""
    tx = begun(harness)
    shard = harness.node.transactions.host_of("tx").shard
    known = shard.durable["tx"]
    shard._durable["tx"] = known.but(epoch=32_765)  # pyright: ignore[reportPrivateUsage]
    tx.epoch = 32_765
    before = tx.producer_id
    assert tx.send("t", b"a") == 0
    assert tx.commit() == 0
    assert (tx.producer_id, tx.epoch) == (before, 32_766)
    assert tx.send("t", b"b") == 0
    assert tx.commit() == 0
    assert tx.producer_id != before
    assert tx.epoch == 0
    now = tx.producer_id
    tx.producer_id, tx.epoch = before, 32_766
    assert tx.commit() == 0  # a repeated end is told the same
    assert (tx.producer_id, tx.epoch) == (now, 0)
    assert tx.send("t", b"c") == 0
    assert tx.commit() == 0
    assert read(harness) == [b"a", b"b", b"c"]


# -- crashes


@KINDS
@pytest.mark.parametrize("clean", [True, False])
def test_an_open_transaction_survives_a_restart(harness: Harness, kind: str, clean: bool) -> None:
    tx = begun(harness, kind)
    aborted = begun(harness, kind, "aborted")
    aborted.send("t", b"no")
    aborted.abort()
    tx.send("t", b"a")
    tx.commit_offsets("g", {("t", 0): 3})
    harness = harness.restarted(clean=clean)
    assert read(harness) == []
    assert committed_offset(harness) == -E.UNSTABLE_OFFSET_COMMIT
    assert tx.moved_to(harness).send("t", b"b") == 0
    assert tx.commit() == 0
    assert read(harness) == [b"a", b"b"]
    assert committed_offset(harness) == 3


@pytest.mark.parametrize("commit", [True, False])
def test_the_coordinator_dies_between_decision_and_markers(commit: bool) -> None:
    """The decision is durable: after the restart the markers are written, whatever it was."""
    harness = Harness(durability="fsync")
    harness.create("t", 2)
    tx = begun(harness)
    tx.send("t", b"a")
    tx.commit_offsets("g", {("t", 0): 3})
    harness.env.hold_flushes = True
    answer = tx.start_end(commit=commit)
    assert not answer.done
    decision = harness.env.flushes
    assert len(decision) == 1
    decision[0][0].sync()  # on the disk, and the node dies before it hears of it
    harness.env.flushes.clear()
    harness.env.hold_flushes = False
    harness = harness.restarted(clean=False)
    assert tx.moved_to(harness).state().transaction_state == (
        "CompleteCommit" if commit else "CompleteAbort"
    )
    assert read(harness) == ([b"a"] if commit else [])
    assert committed_offset(harness) == (3 if commit else -1)
    assert tx.end(commit=commit) == 0  # the client asks again
    assert tx.send("t", b"b") == 0
    assert tx.commit() == 0


def test_an_end_is_answered_when_its_markers_are_durable() -> None:
    """What commit_transaction has returned from is there for READ_COMMITTED."""
    harness = Harness(durability="fsync")
    harness.create("t")
    tx = begun(harness)
    tx.send("t", b"a")
    harness.env.hold_flushes = True
    answer = tx.start_end(commit=True)
    seen: list[int] = []
    while not answer.done:
        seen.append(len(harness.env.flushes))
        harness.env.run_flushes()
        harness.env.settle()
    assert seen == [1, 1]  # the decision, the marker; not the completion
    assert tx.ended(answer) == 0
    harness.env.hold_flushes = False
    assert read(harness) == [b"a"]


def test_an_end_is_answered_when_markers_take_long(harness: Harness) -> None:
    """Kafka answers at the decision; we do after a second at the latest."""
    tx = begun(harness)
    tx.send("t", b"a")
    partition = harness.node.topics.partition("t", 0)
    assert partition is not None
    partition.fail("a test")
    answer = tx.start_end(commit=True)
    assert not answer.done
    harness.env.advance(1_000)
    assert tx.ended(answer) == 0
    assert tx.state().transaction_state == "PrepareCommit"
    assert tx.produce("t", b"b", partition=1) == E.CONCURRENT_TRANSACTIONS


def test_a_deleted_topic_does_not_hold_a_transaction_up(harness: Harness) -> None:
    harness.create("other")
    tx = begun(harness)
    tx.send("t", b"a")
    tx.send("other", b"b")
    topic = harness.node.topics.get("other")
    assert topic is not None
    harness.node.topics.delete(topic)
    assert tx.commit() == 0
    assert read(harness) == [b"a"]


def test_batches_keep_their_order_while_the_first_one_waits() -> None:
    """Pipelined batches of a new transaction: all wait for the one answer of the coordinator."""
    harness = Harness(durability="fsync")
    harness.create("t")
    tx = begun(harness)
    harness.env.hold_flushes = True
    answers = [tx.start("t", [b"%d" % i]) for i in range(5)]
    harness.env.hold_flushes = False
    harness.env.run_flushes()
    harness.env.settle()
    for answer in answers:
        response = harness.read(answer, ProduceResponse, 12)
        assert response.responses[0].partition_responses[0].error_code == 0
    assert tx.commit() == 0
    assert read(harness) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_failed_append_of_the_coordinator_writes_no_marker(harness: Harness) -> None:
    """The decision must be in the log before the first marker is."""
    tx = begun(harness)
    tx.send("t", b"a")
    host = harness.node.transactions.host_of("tx")
    host.partition.fail("a test")
    assert tx.commit() == E.NOT_COORDINATOR
    harness.env.advance(5_000)
    assert read(harness) == []
    harness = harness.restarted(clean=False)
    assert tx.moved_to(harness).state().transaction_state == "Ongoing"
    assert tx.commit() == 0
    assert read(harness) == [b"a"]


# -- tools


def test_what_tools_are_shown(harness: Harness) -> None:
    """KIP-664."""
    tx, idle = begun(harness), begun(harness, name="idle")
    tx.send("t", b"a", b"b")
    listed = harness.ask(ListTransactionsRequest(), ListTransactionsResponse, 1)
    states = {s.transactional_id: s.transaction_state for s in listed.transaction_states}
    assert states == {"idle": "Empty", "tx": "Ongoing"}
    asked = ListTransactionsRequest(state_filters=["Ongoing", "Odd"])
    listed = harness.ask(asked, ListTransactionsResponse, 1)
    assert [s.transactional_id for s in listed.transaction_states] == ["tx"]
    assert listed.unknown_state_filters == ["Odd"]
    asked = ListTransactionsRequest(producer_id_filters=[idle.producer_id])
    listed = harness.ask(asked, ListTransactionsResponse, 1)
    assert [s.transactional_id for s in listed.transaction_states] == ["idle"]
    harness.env.advance(5_000)
    for duration, names in ((4_999, ["tx"]), (5_000, [])):
        asked = ListTransactionsRequest(duration_filter=duration)
        listed = harness.ask(asked, ListTransactionsResponse, 1)
        assert [s.transactional_id for s in listed.transaction_states] == names
    (producer,) = transacting.producers(harness)
    assert (producer.producer_id, producer.current_txn_start_offset) == (tx.producer_id, 0)
    assert (producer.last_sequence, producer.coordinator_epoch) == (1, -1)
    tx.commit()
    (producer,) = transacting.producers(harness)
    assert (producer.current_txn_start_offset, producer.producer_epoch) == (-1, tx.epoch)


def test_an_administrator_ends_a_hanging_transaction(harness: Harness) -> None:
    """KIP-664: WriteTxnMarkers with the producer's epoch; one from the past is refused."""
    tx = begun(harness)
    tx.send("t", b"a")
    codes: list[int] = []
    for epoch, coordinator_epoch in ((tx.epoch, 3), (tx.epoch, 2), (tx.epoch - 1, 3)):
        request = markers_request(
            tx.producer_id, epoch, commit=False, coordinator_epoch=coordinator_epoch
        )
        answer = harness.ask(request, WriteTxnMarkersResponse)
        codes.append(answer.markers[0].topics[0].partitions[0].error_code)
    assert codes == [0, E.TRANSACTION_COORDINATOR_FENCED, E.INVALID_PRODUCER_EPOCH]
    assert latest(harness, committed=True) == latest(harness, committed=False)
    assert read(harness) == []


def test_a_coordinator_that_is_fenced_completes_nothing(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """KIP-98: else a transaction would count as committed, and never end where its records are."""
    tx = begun(harness)
    tx.send("t", b"a")
    assert tx.commit() == 0
    request = markers_request(tx.producer_id, tx.epoch, commit=False, coordinator_epoch=2)
    harness.ask(request, WriteTxnMarkersResponse)
    tx.send("t", b"b")
    answer = tx.start_end(commit=True)
    harness.env.advance(10_000)
    assert tx.ended(answer) == 0, "it is decided"
    assert caplog.text.count("transactional_id 'tx': t-0 refuses its marker of coordinator ep") == 1
    assert tx.state().transaction_state == "PrepareCommit"
    assert read(harness) == [b"a"]
    partition = harness.node.transactions.host_of("tx").partition
    while partition.leader_epoch < 2:
        harness.nodes.leaders.move(*partition.key, harness.config.node_id)
    harness.env.advance(10_000)
    assert tx.state().transaction_state == "CompleteCommit"
    assert read(harness) == [b"a", b"b"]


def test_where_the_coordinator_is(harness: Harness) -> None:
    finding = FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"])
    found = harness.ask(finding, FindCoordinatorResponse).coordinators[0]
    assert (found.error_code, found.node_id) == (0, harness.config.node_id)
    finding = FindCoordinatorRequest(key_type=2, coordinator_keys=["tx"])
    found = harness.ask(finding, FindCoordinatorResponse).coordinators[0]
    assert found.error_code == E.COORDINATOR_NOT_AVAILABLE


def test_clients_are_told_to_use_kip_890(harness: Harness) -> None:
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    answer = harness.ask(request, ApiVersionsResponse)
    levels = {f.name: f.max_version_level for f in answer.finalized_features}
    assert levels["transaction.version"] == 2
    assert APIS[26].max_version == 5
    assert answer.finalized_features_epoch >= 0


def test_nobody_writes_to_the_internal_topics(harness: Harness) -> None:
    begun(harness).commit_offsets("g", {("t", 0): 1})
    tx = begun(harness, BEFORE, "other")
    for topic in (OFFSETS_TOPIC, "__transaction_state"):
        assert harness.produce(topic, batch_of([b"x"])).error_code == E.INVALID_TOPIC_EXCEPTION
        assert tx.add((topic, 0)) == E.TOPIC_AUTHORIZATION_FAILED


# -- batches that are on their way together


@KINDS
def test_no_batch_passes_one_that_has_to_be_sent_again(harness: Harness, kind: str) -> None:
    """KIP-890: the first batch of a transaction is put off, those behind it are on their way."""
    tx = begun(harness, kind)
    if kind == BEFORE:
        assert tx.add(("t", 0)) == 0
    assert tx.produce("t", b"warm", partition=1) == (0 if kind == KIP_890 else 48)
    host = harness.node.transactions.host_of("tx")
    loading = harness.node.transactions.host_of("tx").shard
    host.shard = host.new_shard()  # as after a move: it is being loaded
    later = {0: E.NOT_ENOUGH_REPLICAS}
    assert tx.produce("t", b"0", base_sequence=0) == later[0]
    host.shard = loading
    assert tx.produce("t", b"1", base_sequence=1) == E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert tx.produce("t", b"0", base_sequence=0) == 0
    assert tx.produce("t", b"1", base_sequence=1) == 0
    assert tx.commit() == 0
    assert read(harness) == [b"0", b"1"]


def test_a_batch_waits_behind_those_that_wait_longer() -> None:
    """Each request brings another partition into the transaction, so each waits for its own record;
    none may be stored before one that came earlier.
    """
    harness = Harness(durability="fsync")
    harness.create("t", 2)
    tx = begun(harness)
    env = harness.env
    env.hold_flushes = True
    answers = [tx.start("t", [b"0"])]
    both = transacting.produce_request("t", tx.batch(b"1"))
    both.topic_data[0].partition_data += (
        transacting.produce_request("t", tx.batch(b"other", partition=1), 1)
        .topic_data[0]
        .partition_data
    )
    both.transactional_id = "tx"
    answers.append(harness.send(both, 12))
    assert len(env.flushes) == 1  # the second record waits for the first one's flush
    env.run_flushes()
    files = [file for file, _ in env.flushes if not isinstance(file, Names)]
    assert len(files) == 2, "its own, and that of the batch that waited for the first"
    answers.append(tx.start("t", [b"2"]))
    env.hold_flushes = False
    env.run_flushes()
    env.settle()
    for answer in answers:
        response = harness.read(answer, ProduceResponse, 12)
        codes = [p.error_code for p in response.responses[0].partition_responses]
        assert not any(codes), codes
    assert tx.commit() == 0
    assert read(harness) == [b"0", b"1", b"2"]


def test_the_fetch_that_ends_within_a_batch(harness: Harness) -> None:
    """A fetch may end anywhere; its list of aborted transactions covers its whole batches."""
    tx = begun(harness)
    for n in range(30):
        tx.send("t", b"%d" % n * 20)
        tx.end(commit=n % 2 == 0)
    request = transacting.fetch_request("t", 0, max_bytes=400)
    request.isolation_level = 1
    answer = harness.ask(request, transacting.FetchResponse, 12)
    data = answer.responses[0].partitions[0]
    assert data.error_code == 0
    assert data.aborted_transactions is not None
    assert [a.first_offset for a in data.aborted_transactions] == [2]
    assert read(harness) == [b"%d" % n * 20 for n in range(0, 30, 2)]
