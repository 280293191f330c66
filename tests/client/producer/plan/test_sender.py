"""Accumulator and sender as pure logic: order, sequences, retries, memory; a broker in a few lines.

The simulation is the main test: whatever is lost, refused or cut, in whatever order answers come,
what the broker has stored in the end is what was sent, in order, once (KIP-98).
"""

from __future__ import annotations

import random
import re

import pytest

from kohort.client.common.config import ProducerConfig
from kohort.client.producer.plan.accumulator import Accumulator
from kohort.client.producer.plan.fast_send_choice import RecordFuture
from kohort.client.producer.plan.produce_requests import seal
from kohort.client.producer.plan.sender import (
    PRODUCER_ID,
    Answer,
    IdState,
    ProducePlan,
    Sender,
    topic_recreated,
)
from kohort.errors import (
    BrokerError,
    ClosedError,
    ConnectionFailedError,
    ErrorCode,
    KafkaTimeoutError,
    KohortError,
    RecordTooLargeError,
)
from kohort.records import read_batch_header
from tests.client.scripted import Log, values_of
from tests.known import known


class Side:
    """An accumulator with its sender, and what became of each batch."""

    def __init__(self, **config) -> None:
        settings = {"linger_ms": 5, "batch_size": 200, "retry_backoff_ms": 10, **config}
        self.config = ProducerConfig(**settings)
        self.accumulator = Accumulator(self.config)
        self.sender = Sender(self.accumulator, self.config, lambda: 0.5)
        self.outcomes = []
        self.first = False
        """True: no log has stored anything of the producer."""

    def add(self, value: bytes, partition: int = 0, now_ms: int = 0):
        queue = self.accumulator.queue("t", partition)
        if not self.first:
            queue.stored_id = self.sender.producer_id
        return self.accumulator.add(queue, lambda b: b.append(0, None, value) + 1, now_ms)

    def close(self, now_ms: int = 0) -> None:
        """What is due is closed, even if it only stands in line."""
        self.accumulator.close_due(now_ms, lambda queue: False)

    def plan(self, now_ms: int = 0, *, leader=lambda topic, partition: 1):
        plans, _ = self.sender.drain(now_ms, leader)
        for plan in plans:
            for batch in plan.batches:
                builder = batch.builder
                if seal(batch) and builder is not None:
                    batch.builder = None
                    self.accumulator.keep(builder)
        return plans

    def end(self, outcomes) -> None:
        for outcome in outcomes:
            self.accumulator.release(outcome.batch)
        self.outcomes += outcomes

    def ok(self, plan, now_ms: int = 0) -> None:
        answers = [Answer(0, "", 100, -1) for _ in plan.batches]
        self.end(self.sender.answered(plan, answers, now_ms))

    def refuse(self, plan, code: int, now_ms: int = 0) -> None:
        answers = [Answer(code, "", -1, -1) for _ in plan.batches]
        self.end(self.sender.answered(plan, answers, now_ms))


def one_by_one(side: Side, count: int, **how):
    """Each batch in a request of its own."""
    plans = []
    for _ in range(count):
        side.add(b"v" * 150)
        side.close(5)
        plans += side.plan(5, **how)
    return plans


def test_no_more_batches_are_under_way_than_a_broker_knows_again() -> None:
    """P2: a leader moves, and the next one gets no sixth batch before the first is answered: sent
    again, it would be out of order, and stored twice under another epoch (seed 64000017)."""
    side = Side(max_in_flight_requests_per_connection=5)
    side.sender.take_identity(9, 0)
    first = one_by_one(side, 3)
    rest = one_by_one(side, 4, leader=lambda topic, partition: 2)
    assert (len(first), len(rest)) == (3, 2)
    for plan in rest:
        side.ok(plan, 6)
    assert side.plan(6, leader=lambda topic, partition: 2) == []
    side.ok(first[0], 7)
    (sixth,) = side.plan(7, leader=lambda topic, partition: 2)
    assert sixth.batches[0].sequence == 5


def test_the_first_batch_of_a_producer_in_a_partition_goes_alone() -> None:
    """P1: a log that does not know a producer takes any sequence as its first. The leader moved
    while the first batch was under way to a dead broker; the new one took the second batch, and the
    first behind it (seed 77005640)."""
    side = idempotent(max_in_flight_requests_per_connection=5)
    side.first = True
    (first,) = one_by_one(side, 2)
    assert side.plan(6, leader=lambda topic, partition: 2) == []
    side.end(side.sender.failed(first, ConnectionFailedError("it is dead"), 7))
    (again,) = side.plan(1_000, leader=lambda topic, partition: 2)
    assert [batch.sequence for batch in again.batches] == [0]
    assert one_by_one(side, 1) == []
    side.ok(again, 1_001)
    behind = side.plan(1_001) + one_by_one(side, 1)
    assert [batch.sequence for plan in behind for batch in plan.batches] == [1, 2, 3]


def test_nothing_overtakes_what_is_in_flight_for_a_topic_that_was_deleted() -> None:
    """P1: the topic that was created again has no sequences: it took the second batch, and the
    first, which had gone to the deleted topic, behind it (seed 74001092)."""
    side = idempotent(max_in_flight_requests_per_connection=5)
    (first,) = one_by_one(side, 1)
    topic_recreated(side.accumulator.queues.values(), "t")
    assert one_by_one(side, 1) == []
    side.refuse(first, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 6)
    (again,) = side.plan(1_000)
    assert again.batches == first.batches
    side.ok(again, 1_001)
    (second,) = side.plan(1_001)
    assert [plan.batches[0].sequence for plan in (again, second)] == [0, 1]


def test_a_request_that_waited_while_its_topic_was_created_again_is_held_back() -> None:
    """P1: its connection had to be opened first; the batch before it is at the deleted topic."""
    side = idempotent(max_in_flight_requests_per_connection=5)
    first, second = one_by_one(side, 2)
    topic_recreated(side.accumulator.queues.values(), "t")
    assert not side.sender.hold_back(first, 6), "it has none before it"
    assert side.sender.hold_back(second, 6)
    assert second.batches == []
    assert side.plan(6) == []
    side.ok(first, 7)
    (again,) = side.plan(7)
    assert again.batches[0].sequence == 1


def seal_of(batch):
    """What the batch would be on the wire; it stays as it is."""
    return batch.builder.build()


def idempotent(**config) -> Side:
    side = Side(**config)
    side.sender.producer_id_assigned(7, 0)
    return side


def test_records_wait_for_linger_unless_their_batch_is_full():
    side = idempotent()
    side.add(b"a", now_ms=0)
    assert side.plan(4) == []
    assert side.accumulator.next_linger_ms() == 5
    (plan,) = side.plan(5)
    assert values_of(plan.batches[0].payload) == [b"a"]
    for _ in range(3):
        side.add(b"x" * 60, now_ms=10)
    (plan,) = side.plan(10)  # two fit into 200 bytes, so the third closed the batch
    assert plan.batches[0].count == 2


def test_what_would_only_stand_in_line_stays_open_and_takes_records():
    """A slow broker is given few large batches, not one each `linger_ms` (as by Java's)."""
    side = idempotent(batch_size=16_384)
    plans = []
    for now_ms in range(0, 200, 5):  # a record each `linger_ms`, and no answer
        side.add(b"%d" % now_ms, now_ms=now_ms)
        plans += side.plan(now_ms + 5)
    assert [plan.batches[0].count for plan in plans] == [1] * 5  # as many as may be under way
    assert side.accumulator.next_linger_ms() == 25 + side.config.delivery_timeout_ms
    assert not side.accumulator.ready
    side.ok(plans[0])
    (plan,) = side.plan(205)  # the first answer lets all of it go
    assert plan.batches[0].count == 35
    assert values_of(plan.batches[0].payload) == [b"%d" % n for n in range(25, 200, 5)]
    assert side.accumulator.next_linger_ms() is None
    side.add(b"after", now_ms=205)
    for each in (*plans[1:], plan):
        side.ok(each)
    (last,) = side.plan(210)
    side.ok(last)
    assert side.accumulator.memory_bytes == 0


def test_one_that_waits_behind_another_of_its_partition_leaves_with_the_next_request():
    """Within the same turn, when there are requests left: nothing else would wake it."""
    side = idempotent(batch_size=200)
    for n in range(3):  # two fit into a batch
        side.add(b"%d" % n * 60)
    side.add(b"other", partition=1)
    plans = side.plan(5)
    assert [[b.queue.partition for b in plan.batches] for plan in plans] == [[0, 1], [0]]
    assert not side.accumulator.holds


@pytest.mark.parametrize("held", [False, True])
def test_an_open_batch_is_given_up_at_its_deadline(held):
    """Whether it lingers still or is held back (KIP-91); its memory is free then."""
    side = idempotent(delivery_timeout_ms=40_000)
    plans = []
    for now_ms in range(0, 25, 5):
        side.add(b"under way", now_ms=now_ms)
        plans += side.plan(now_ms + 5)
    side.add(b"late", now_ms=25)
    if held:
        assert side.plan(30) == []
        assert side.accumulator.holds
    side.end(side.sender.expire(40_024))
    assert side.outcomes == []
    side.end(side.sender.expire(40_025))
    (outcome,) = side.outcomes
    assert isinstance(outcome.error, KafkaTimeoutError)
    for plan in plans:
        side.ok(plan)
    assert side.plan(50_000) == []
    assert side.accumulator.memory_bytes == 0


def test_a_flush_lets_everything_into_line():
    side = idempotent()
    for now_ms in range(0, 30, 5):
        side.add(b"%d" % now_ms, now_ms=now_ms)
        side.plan(now_ms + 5)
    assert side.accumulator.holds
    assert side.sender.drain(30, lambda topic, partition: 1, everything=True)[0] == []
    assert not side.accumulator.holds
    assert len(side.accumulator.ready) == 1


def test_nothing_is_sent_before_a_producer_id_is_held():
    side = Side()
    side.add(b"a")
    assert side.plan(5) == []
    assert side.sender.id_state is IdState.WANTED
    side.sender.producer_id_assigned(7, 3)
    (plan,) = side.plan(5)
    header = known(read_batch_header(plan.batches[0].payload))
    assert (
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    ) == (7, 3, 0)


def test_batches_without_idempotence_carry_no_identity():
    side = Side(acks=1)
    side.add(b"a")
    (plan,) = side.plan(5)
    header = known(read_batch_header(plan.batches[0].payload))
    assert (
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    ) == (-1, -1, -1)


def test_a_request_has_one_batch_of_each_partition_and_five_requests_are_in_flight():
    side = idempotent(linger_ms=0)
    for n in range(14):
        for partition in range(2):
            side.add(b"%d" % n * 60, partition)
            side.close()
    plans = side.plan()
    assert len(plans) == 5
    for plan in plans:
        assert [batch.queue.partition for batch in plan.batches] == [0, 1]
    assert [p.batches[0].sequence for p in plans] == [0, 1, 2, 3, 4]
    assert side.plan() == []
    side.ok(plans[0])
    assert len(side.plan()) == 1


def test_a_request_stays_within_max_request_size():
    side = idempotent(max_request_size=450, linger_ms=0)
    for partition in range(5):
        side.add(b"x" * 100, partition)
    assert [len(plan.batches) for plan in side.plan()] == [2, 2, 1]


def test_a_partition_without_leader_waits_and_says_so():
    side = idempotent(linger_ms=0)
    side.add(b"a")
    assert side.plan(leader=lambda topic, partition: -1) == []
    assert side.sender.leader_missing
    assert len(side.plan()) == 1
    assert not side.sender.leader_missing


def test_a_retry_goes_first_and_alone_with_its_old_sequence():
    side = idempotent(linger_ms=0)
    for n in range(3):
        side.add(b"%d" % n)
        side.close()
    first, second, third = side.plan()
    side.refuse(first, 6)  # NOT_LEADER_OR_FOLLOWER
    side.add(b"new")
    assert side.plan(100) == []  # the others are still in flight
    side.refuse(second, 45)  # OUT_OF_ORDER_SEQUENCE_NUMBER: its predecessor is missing
    side.refuse(third, 45)
    assert side.sender.producer_epoch == 0
    for expected in (b"0", b"1", b"2", b"new"):
        (plan,) = side.plan(1_000)
        assert values_of(plan.batches[0].payload) == [expected]
        side.ok(plan)
    assert [o.error for o in side.outcomes] == [None] * 4


def test_a_retry_waits_for_its_backoff():
    side = idempotent(linger_ms=0)
    side.add(b"a")
    (plan,) = side.plan()
    side.refuse(plan, 5, now_ms=0)
    assert side.plan(9) == []
    assert side.sender.next_deadline() == 10
    (plan,) = side.plan(10)
    side.refuse(plan, 5, now_ms=10)
    assert side.plan(29) == []
    assert side.plan(30) != []


@pytest.mark.parametrize("code", [6, 3], ids=["NOT_LEADER_OR_FOLLOWER", "UNKNOWN_TOPIC"])
def test_what_follows_a_batch_that_a_leader_answered_as_it_resigned_keeps_its_sequence(code: int):
    """P1: its followers may have both. Under the next epoch the second would be stored twice."""
    side = idempotent(linger_ms=0, retries=1)
    for value in (b"first", b"second"):
        side.add(value)
        side.close()
    first, second = side.plan()
    side.refuse(first, code)
    side.refuse(second, code)
    (again,) = side.plan(1_000)
    side.refuse(again, code, 1_000)
    assert isinstance(side.outcomes[0].error, BrokerError)
    (kept,) = side.plan(2_000)
    assert kept.batches[0].queue.identity == (side.sender.producer_id, 0)
    assert [batch.sequence for batch in kept.batches] == [1]
    side.refuse(kept, 45, 2_000)  # OUT_OF_ORDER_SEQUENCE_NUMBER: the first one is gone
    (last,) = side.plan(3_000)
    assert last.batches[0].queue.identity == (side.sender.producer_id, 1)
    assert [batch.sequence for batch in last.batches] == [0]


def test_what_follows_a_batch_that_was_refused_for_good_goes_on_under_the_next_epoch():
    side = idempotent(linger_ms=0)
    for value in (b"bad", b"good"):
        side.add(value)
        side.close()
    bad, good = side.plan()
    side.refuse(bad, 87)  # INVALID_RECORD
    assert isinstance(side.outcomes[0].error, BrokerError)
    side.refuse(good, 45)
    (again,) = side.plan(1_000)
    header = known(read_batch_header(again.batches[0].payload))
    assert (header.producer_epoch, header.base_sequence) == (1, 0)
    assert values_of(again.batches[0].payload) == [b"good"]  # its CRC is right, too
    side.ok(again)
    assert side.outcomes[1].error is None


def lost_then_refused(side: Side) -> ProducePlan:
    """Two batches lose their connection; the first is refused permanently when it is sent again.

    Returns the request with the second one.
    """
    first, second = one_by_one(side, 2)
    for plan in (first, second):
        side.end(side.sender.failed(plan, ConnectionFailedError("cut"), 6))
    (again,) = side.plan(1_000)
    side.refuse(again, 32, 1_000)  # INVALID_TIMESTAMP
    assert isinstance(side.outcomes[0].error, BrokerError)
    (behind,) = side.plan(1_000)
    return behind


def test_what_is_refused_after_a_lost_answer_may_be_stored_and_what_is_behind_it_too():
    """P2: no new epoch, under which the broker would not know the second one again (70005292)."""
    side = idempotent()
    behind = lost_then_refused(side)
    header = known(read_batch_header(behind.batches[0].payload))
    assert (header.producer_epoch, header.base_sequence) == (0, 1)
    side.ok(behind)
    assert side.outcomes[1].error is None


def test_what_is_behind_it_begins_a_new_epoch_where_nothing_was_stored():
    side = idempotent()
    side.refuse(lost_then_refused(side), 45, 1_000)  # OUT_OF_ORDER_SEQUENCE_NUMBER
    (again,) = side.plan(2_000)
    header = known(read_batch_header(again.batches[0].payload))
    assert (header.producer_epoch, header.base_sequence) == (1, 0)
    side.refuse(again, 32, 2_000)  # of the new epoch nothing is in doubt
    side.add(b"v" * 150)
    side.close(2_005)
    (third,) = side.plan(2_005)
    assert known(read_batch_header(third.batches[0].payload)).producer_epoch == 2


def test_when_the_epochs_are_used_up_a_new_producer_id_is_asked_for():
    side = Side(linger_ms=0)
    side.sender.producer_id_assigned(7, 32_767)
    side.add(b"a")
    (plan,) = side.plan()
    side.refuse(plan, 59)  # UNKNOWN_PRODUCER_ID
    assert side.plan(1_000) == []
    assert side.sender.id_state is IdState.WANTED
    side.sender.producer_id_assigned(8, 0)
    (plan,) = side.plan(1_000)
    header = known(read_batch_header(plan.batches[0].payload))
    assert (
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    ) == (8, 0, 0)


def test_a_batch_that_is_too_large_for_the_broker_fails_with_a_clear_error():
    side = idempotent(linger_ms=0)
    side.add(b"a")
    (plan,) = side.plan()
    side.refuse(plan, 10)
    assert isinstance(side.outcomes[0].error, RecordTooLargeError)


def test_a_batch_that_is_too_large_for_the_broker_goes_on_in_halves():
    """As Java: in order, with its sequences, and each future knows its own record's offset."""
    side = idempotent(linger_ms=0, batch_size=500)
    futures = []
    for n in range(5):
        batch, _ = known(side.add(b"%d" % n))
        futures.append(RecordFuture(batch.delivery, n, 0))
    (plan,) = side.plan()
    assert side.add(b"next") is not None
    (behind,) = side.plan()
    held = side.accumulator.memory_bytes
    side.refuse(plan, 10)
    assert side.accumulator.memory_bytes == held
    side.refuse(behind, 45)  # OUT_OF_ORDER_SEQUENCE_NUMBER: what was before it is not stored
    stored = []
    for base in (100, 200, 300):
        (plan,) = side.plan(1_000)
        header = known(read_batch_header(plan.batches[0].payload))
        stored.append((header.base_sequence, values_of(plan.batches[0].payload)))
        side.end(side.sender.answered(plan, [Answer(0, "", base, -1)], 1_000))
        for outcome in side.outcomes[-1:]:
            outcome.batch.delivery.complete(None, outcome.base_offset)
    assert stored == [(0, [b"0", b"1"]), (2, [b"2", b"3", b"4"]), (5, [b"next"])]
    assert [f.result(0).offset for f in futures] == [100, 101, 200, 201, 202]
    assert side.accumulator.memory_bytes == 0


def test_of_a_split_batch_only_the_record_that_is_too_large_fails():
    side = idempotent(linger_ms=0, batch_size=500)
    batch, _ = known(side.add(b"small"))
    side.add(b"x" * 200)
    futures = [RecordFuture(batch.delivery, n, 0) for n in range(2)]
    (plan,) = side.plan()
    side.refuse(plan, 10)
    (plan,) = side.plan()
    side.ok(plan)
    (plan,) = side.plan()
    side.refuse(plan, 10)
    for outcome in side.outcomes:
        outcome.batch.delivery.complete(outcome.error, outcome.base_offset)
    assert futures[0].error(0) is None
    assert isinstance(futures[1].error(0), RecordTooLargeError)
    with pytest.raises(RecordTooLargeError):
        futures[1].result(0)


def test_duplicates_count_as_stored():
    side = idempotent(linger_ms=0)
    side.add(b"a")
    (plan,) = side.plan()
    side.refuse(plan, 46)  # DUPLICATE_SEQUENCE_NUMBER
    assert side.outcomes[0].error is None


def test_batches_expire_waiting_and_in_flight():
    side = idempotent(linger_ms=0, delivery_timeout_ms=40_000)
    side.add(b"a")
    (plan,) = side.plan()
    side.end(side.sender.failed(plan, ConnectionFailedError("cut"), 39_000))
    assert side.outcomes == []
    side.add(b"b", now_ms=39_000)
    side.end(side.sender.expire(40_000))
    (outcome,) = side.outcomes
    assert isinstance(outcome.error, KafkaTimeoutError)
    assert "1 try" in str(outcome.error)
    (plan,) = side.plan(40_000)
    side.end(side.sender.failed(plan, ConnectionFailedError("cut"), 80_000))
    assert isinstance(side.outcomes[1].error, KafkaTimeoutError)
    assert side.accumulator.memory_bytes == 0


def test_retries_are_bounded_and_lasting_errors_are_not_retried():
    side = Side(acks=1, retries=1, linger_ms=0)
    side.add(b"a")
    (plan,) = side.plan()
    side.refuse(plan, 5)
    (plan,) = side.plan(1_000)
    side.refuse(plan, 5)
    assert side.outcomes[0].error.code == 5
    side.add(b"b", now_ms=2_000)
    (plan,) = side.plan(2_000)
    side.refuse(plan, 29)  # TOPIC_AUTHORIZATION_FAILED
    assert side.outcomes[1].error.code == 29


def test_an_answer_that_leaves_a_batch_out_is_no_success():
    side = Side(acks=1, retries=0, linger_ms=0)
    side.add(b"a")
    (plan,) = side.plan()
    side.end(side.sender.answered(plan, [None], 0))
    assert isinstance(side.outcomes[0].error, BrokerError)


def test_memory_is_refused_until_half_of_it_is_free():
    side = idempotent(buffer_memory=800, linger_ms=0)
    for partition in range(4):
        assert side.add(b"x" * 80, partition) is not None
    assert side.add(b"x", 4) is None
    plans = side.plan()
    side.ok(plans[0])
    assert side.accumulator.memory_bytes == 0
    assert side.add(b"x", 4) is not None


def test_a_record_larger_than_a_batch_travels_alone_and_counts_with_its_size():
    side = idempotent()
    side.add(b"x" * 5_000)
    assert side.accumulator.memory_bytes > 5_000
    side.add(b"y")
    (plan,) = side.plan()
    assert values_of(plan.batches[0].payload) == [b"x" * 5_000]


def test_a_record_that_no_request_can_carry_is_refused_and_leaves_nothing_behind():
    side = idempotent(max_request_size=1_000)
    with pytest.raises(RecordTooLargeError, match="max_request_size is 1000"):
        side.add(b"x" * 1_000)
    with pytest.raises(TypeError):
        side.add("not bytes")  # type: ignore[arg-type]
    assert side.accumulator.memory_bytes == 0
    assert side.plan(5) == []
    assert side.add(b"fits") is not None


@pytest.mark.rows(15)
@pytest.mark.parametrize("seed", range(60))
def test_whatever_fails_everything_is_stored_once_and_in_order(seed):
    rng = random.Random(seed)
    side = Side(linger_ms=0, batch_size=120, max_in_flight_requests_per_connection=5)
    side.sender.producer_id_assigned(1, 0)
    side.first = True
    logs = {p: Log() for p in range(3)}
    sent: dict[int, list[bytes]] = {p: [] for p in logs}
    largest = 90 if seed % 2 else 1_000  # bytes of a batch that the broker takes: three records
    network: list[tuple[ProducePlan, list[Answer] | None]] = []  # answers of what was reached
    now = 0

    def answers(plan) -> list[Answer]:
        if rng.random() < 0.1:
            return [Answer(rng.choice([5, 6, 19]), "", -1, -1) for _ in plan.batches]
        return [
            Answer(
                10 if len(b.payload) > largest else logs[b.queue.partition].append(b.payload),
                "",
                0,
                -1,
            )
            for b in plan.batches
        ]

    while len(side.outcomes) == 0 or side.accumulator.memory_bytes or now < 4_000:
        now += rng.randrange(1, 10)
        assert now < 200_000, "it never comes to rest"
        if now < 4_000:
            partition = rng.randrange(3)
            value = b"%d" % len(sent[partition])
            if side.add(value, partition, now) is not None:
                sent[partition].append(value)
        network += [(plan, None) for plan in side.plan(now)]
        if network and rng.random() < 0.1:  # the connection is cut: what is on it is lost
            for plan, answered in network:
                if answered is None and rng.random() < 0.5:
                    answers(plan)  # it was stored, but the answer is lost
                error: KohortError = ConnectionFailedError("cut")
                side.end(side.sender.failed(plan, error, now))
            network = []
        elif network and rng.random() < 0.7:
            at = next((i for i, (_, answered) in enumerate(network) if answered is None), None)
            if at is not None and rng.random() < 0.6:
                plan = network[at][0]
                network[at] = (plan, answers(plan))
            elif network[0][1] is not None:
                plan, answered = network.pop(0)
                side.end(side.sender.answered(plan, known(answered), now))
    assert [o.error for o in side.outcomes if o.error] == []
    assert {p: log.values for p, log in logs.items()} == sent


def test_a_full_batch_grows_while_others_wait_in_line():
    """ADR 0013: what cannot be sent yet becomes one large batch, not many small ones."""
    side = idempotent(batch_size=200, linger_ms=1_000, max_request_size=3_250)
    sent = [b"%06d" % n + b"x" * 44 for n in range(200)]
    for value in sent:
        assert side.add(value) is not None
    queue = side.accumulator.queue("t", 0)
    assert [len(values_of(seal_of(b))) for b in queue.closed] == [2, 55, 55, 55]
    held = sum(batch.reserved_bytes for batch in queue.closed) + known(queue.open).reserved_bytes
    assert side.accumulator.memory_bytes == held
    assert all(batch.reserved_bytes <= 3_200 for batch in queue.closed)
    stored = []
    while plans := side.plan(2_000):
        for plan in plans:
            stored += values_of(plan.batches[0].payload)
            side.ok(plan)
    assert stored == sent
    assert side.accumulator.memory_bytes == 0
    side.add(b"x" * 100)
    side.add(b"x" * 100)
    assert [batch.count for batch in queue.closed] == [1]  # nobody waits: as small as asked for


def test_while_others_wait_a_batch_begins_as_large_as_the_last_one_became():
    """ADR 0013: a partition that needed 3,200 bytes does not go there by steps again and again."""
    side = idempotent(batch_size=200, linger_ms=1_000, max_request_size=3_250, buffer_memory=20_000)
    queue = side.accumulator.queue("t", 0)

    def next_one() -> int:
        """The size with which the batch behind the open one begins."""
        closed = len(queue.closed)
        while len(queue.closed) == closed:
            assert side.add(b"x" * 50) is not None
        assert queue.open is not None
        return known(queue.open.builder).max_bytes

    assert next_one() == 200, "the first was small"
    assert next_one() == known(queue.open).reserved_bytes == 3_200
    assert [next_one() for _ in range(6)] == [3_200] * 4 + [200] * 2, "memory becomes short"
    assert side.accumulator.memory_bytes <= 20_000
    while plans := side.plan(2_000):
        for plan in plans:
            side.ok(plan)
    side.add(b"x" * 100)
    assert known(queue.open).reserved_bytes == 200, "nobody waits"
    assert side.accumulator.memory_bytes == 200


def test_batches_grow_neither_past_the_memory_nor_past_what_a_broker_takes():
    side = idempotent(batch_size=200, linger_ms=1_000, buffer_memory=1_000)
    while side.add(b"x" * 50) is not None:
        assert side.accumulator.memory_bytes <= 1_000
    side = idempotent(batch_size=200, linger_ms=0, max_request_size=1_000)
    for _ in range(40):
        side.add(b"x" * 50)
    assert max(batch.reserved_bytes for batch in side.accumulator.queue("t", 0).closed) <= 1_000
    plans = side.plan()
    side.refuse(plans[1], 10)  # MESSAGE_TOO_LARGE: a batch that had grown
    for plan in (plans[0], *plans[2:]):
        side.refuse(plan, 45)
    stored = 0
    for _ in range(20):
        for plan in side.plan(1_000):
            stored += plan.batches[0].count
            side.ok(plan, 1_000)
    assert stored == 40
    closed = len(side.accumulator.queue("t", 0).closed)
    for _ in range(40):
        side.add(b"x" * 50)
    fresh = list(side.accumulator.queue("t", 0).closed)[closed:]
    assert all(batch.reserved_bytes <= 200 for batch in fresh)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_grown_batch_that_no_codec_makes_smaller_is_within_a_brokers_limit(codec):
    side = idempotent(batch_size=16_384, linger_ms=0, compression_type=codec)
    rng = random.Random(3)
    for _ in range(250):
        side.add(rng.randbytes(9_697))  # 108 of them are 7 bytes less than 1 MB
    sizes = [len(b.payload) for plan in side.plan() for b in plan.batches]
    assert 1_000_000 < max(sizes) <= 1_048_588  # max.message.bytes of Apache Kafka


def lease(side: Side, values: list[bytes], partition: int = 0):
    """A batch on lease, with `values` put into it."""
    queue = side.accumulator.queue("t", partition)
    queue.stored_id = side.sender.producer_id
    batch = side.accumulator.lease(queue, 0)
    builder = known(batch).builder
    for value in values:
        known(builder).append(0, None, value)
    return batch, builder


def test_a_batch_on_lease_is_not_sent_and_keeps_its_place():
    """KIP-98: what others add meanwhile stands behind it, also when linger or a flush closes it."""
    side = idempotent(linger_ms=0)
    side.add(b"first")
    batch, _ = lease(side, [b"second"])
    side.add(b"third")
    assert side.plan(10) == []
    assert side.accumulator.give_back(known(batch), 1)
    one, two = side.plan(10)
    sent = [values_of(plan.batches[0].payload) for plan in (one, two)]
    assert sent == [[b"first", b"second"], [b"third"]]
    assert [plan.batches[0].sequence for plan in (one, two)] == [0, 2]
    side.ok(one)
    side.ok(two)
    assert side.accumulator.memory_bytes == 0


def test_two_leases_of_a_partition_are_two_batches():
    side = idempotent(linger_ms=0)
    one, a = lease(side, [b"a"])
    two, b = lease(side, [b"b"])
    assert a is not b
    side.accumulator.give_back(known(two), 1)
    assert side.plan(10) == []
    side.accumulator.give_back(known(one), 1)
    sent = [values_of(plan.batches[0].payload) for plan in side.plan(10)]
    assert sent == [[b"a"], [b"b"]]


def test_a_lease_that_ends_with_nothing_leaves_nothing():
    """Whether the batch is open still or was closed meanwhile."""
    for closed in (False, True):
        side = idempotent(linger_ms=0)
        batch, _ = lease(side, [])
        if closed:
            side.close(10)
        assert not side.accumulator.give_back(known(batch), 0)
        assert side.plan(20) == []
        assert side.accumulator.memory_bytes == 0
        assert not side.accumulator.ready
        assert not known(batch).queue.busy


def test_the_builder_of_a_batch_given_up_on_lease_serves_nobody_else():
    """Whoever fills it may still be writing: after an abort, a refused login, a timeout."""
    for end in ("drop", "expire"):
        side = idempotent(linger_ms=0, delivery_timeout_ms=100, request_timeout_ms=50)
        batch, builder = lease(side, [b"lost"])
        if end == "drop":
            side.end(side.sender.drop_unsent(ClosedError("closed")))
        else:
            side.plan(10)
            side.end(side.sender.expire(1_000))
        assert [outcome.batch for outcome in side.outcomes] == [batch]
        side.add(b"other")
        assert all(
            known(queue.open).builder is not builder for queue in side.accumulator.queues.values()
        )
        known(builder).append(0, None, b"more")
        assert side.accumulator.give_back(known(batch), 1)
        (plan,) = side.plan(10)
        assert values_of(plan.batches[0].payload) == [b"other"]


def test_a_full_batch_on_lease_grows_or_is_closed():
    side = idempotent()
    batch, builder = lease(side, [b"x" * 60, b"x" * 60])
    assert known(builder).append(0, None, b"x" * 60) == -1
    assert side.accumulator.give_back(known(batch), 0)  # nothing more fitted
    assert known(batch).queue.open is None
    assert known(batch).count == 2


def test_what_is_refused_again_and_again_is_known_until_it_is_stored():
    """KAFKA_STORAGE_ERROR is retriable: it was tried on in silence until `delivery_timeout_ms`."""
    side = idempotent(delivery_timeout_ms=1_000, request_timeout_ms=100)
    side.add(b"a")
    (plan,) = side.plan(5)
    side.refuse(plan, ErrorCode.KAFKA_STORAGE_ERROR, 6)
    side.end(side.sender.failed(side.plan(20)[0], ConnectionFailedError("cut"), 21))
    refusal = side.sender.refusals.get(("t", 0))
    assert refusal is not None
    assert (refusal.code, refusal.since_ms) == (ErrorCode.KAFKA_STORAGE_ERROR, 6)
    side.ok(side.plan(100)[0])
    assert not side.sender.refusals


@pytest.mark.parametrize(
    ("id_state", "message"),
    [
        ("id", "has no leader"),
        ("none", "given the producer its id$"),
        ("refused", "NOT_AVAILABLE$"),
    ],
)
def test_a_batch_that_was_never_sent_says_why(id_state, message):
    side = idempotent() if id_state == "id" else Side()
    side.add(b"a")
    side.plan(5, leader=lambda topic, partition: -1)
    if id_state == "refused":
        side.sender.producer_id_missing(ErrorCode.COORDINATOR_NOT_AVAILABLE, 10)
        assert side.sender.refusals.get(PRODUCER_ID) is not None
    side.end(side.sender.expire(130_000))
    (outcome,) = side.outcomes
    assert isinstance(outcome.error, KafkaTimeoutError)
    assert re.search(f"after 0 tries; .*{message}", str(outcome.error)), outcome.error


def test_a_batch_that_expires_in_line_names_its_last_error():
    side = idempotent(delivery_timeout_ms=1_000, request_timeout_ms=100)
    side.add(b"a")
    side.refuse(side.plan(5)[0], ErrorCode.KAFKA_STORAGE_ERROR, 6)
    side.end(side.sender.expire(1_000))
    assert "after 1 try; last error: KAFKA_STORAGE_ERROR (56)" in str(side.outcomes[0].error)
