"""Batches that grow past `max_request_size` because they pack well (ADR 0013), as pure logic.

Brokers count what is packed. Whatever the records turn into, no request has more than it may have,
no memory is passed, and what is stored in the end is what was sent, in order, once (KIP-98).
"""

from __future__ import annotations

import random
from array import array
from collections import deque
from itertools import accumulate

import pytest

from kohort.client.producer.plan.accumulator import Packing
from kohort.client.producer.plan.sender import Answer
from kohort.client.producer.producer import Producer
from kohort.errors import ConnectionFailedError, RecordTooLargeError
from kohort.records import KERNEL, BatchBuilder, BinaryColumn, pure
from tests.client.producer.plan.test_sender import Side
from tests.client.producer.test_producer import Topic
from tests.client.scripted import Log, values_of
from tests.known import known
from tests.patience import PATIENCE_S

ROOM = 3_250
"""`max_request_size` of these tests; what may be packed into it grows up to 3,200 bytes."""
BUILDERS = [pure.BatchBuilder] + ([BatchBuilder] if KERNEL == "cython" else [])


class Line(Side):
    """A side whose requests wait in a line after they were planned, as `Outgoing` has it."""

    def __init__(self, **config) -> None:
        settings = {"compression_type": "zstd", "max_request_size": ROOM, "linger_ms": 1_000}
        super().__init__(**{**settings, **config})
        self.line = deque()

    def plan(self, now_ms: int = 0, **leader):
        before = {}
        keep = self.accumulator.keep
        for queue in self.accumulator.queues.values():
            for batch in (*queue.closed, *([queue.open] if queue.open else [])):
                if batch.builder is not None:
                    before[batch] = batch.builder.size
        self.accumulator.keep = lambda builder: None
        plans = super().plan(now_ms, **leader)
        self.accumulator.keep = keep
        for plan in plans:
            for batch in plan.batches:
                if batch in before:
                    self.accumulator.packed(batch, BatchBuilder(), before[batch])
        self.line += plans
        return plans

    def leave(self, now_ms: int = 0):
        """The next request, if anything of it may leave."""
        plan = self.line.popleft()
        self.sender.hold_back(plan, now_ms)
        return plan if plan.batches else None


def trained(packs: bool = True, **config) -> Line:
    """A side that holds an id, and knows that its topic packs well."""
    side = Line(**config)
    if side.config.enable_idempotence:
        side.sender.producer_id_assigned(7, 0)
    side.accumulator.queue("t", 0).packing.part = 0.1 if packs else 1.0
    return side


def grown(side: Line, values) -> list[int]:
    """The sizes of the batches that so many records make while nothing is sent."""
    for value in values:
        assert side.add(value) is not None
    return [known(batch.builder).size for batch in side.accumulator.queue("t", 0).closed]


def test_a_topic_that_packs_well_has_batches_of_twice_the_size():
    assert 6_300 < max(grown(trained(), [bytes(90)] * 300)) <= 2 * 3_200
    assert max(grown(trained(packs=False), [bytes(90)] * 300)) <= 3_200
    assert max(grown(trained(compression_type="none"), [bytes(90)] * 300)) <= 3_200


def test_how_well_a_topic_packs_is_worse_at_once_and_better_slowly():
    packing = Packing()
    assert packing.part == 1.0
    packing.saw(1_000, 100)
    assert packing.part == 0.1
    packing.saw(1_000, 500)
    assert packing.part == 0.5
    packing.saw(1_000, 100)
    assert packing.part == 0.475
    packing.saw(10, 200)
    assert packing.part == 1.0


def test_partitions_of_a_topic_know_together_and_topics_do_not():
    queue = Line().accumulator.queue
    assert queue("t", 0).packing is queue("t", 1).packing
    assert queue("t", 0).packing is not queue("u", 0).packing


@pytest.mark.parametrize("idempotent", [True, False])
def test_what_does_not_pack_after_all_is_split_before_it_leaves(idempotent):
    """The halves have its sequences, and what was planned behind it waits for them."""
    side = trained(enable_idempotence=idempotent)
    rng = random.Random(5)
    values = [rng.randbytes(90) for _ in range(250)]
    assert max(grown(side, values)) > ROOM
    held = side.accumulator.memory_bytes
    stored, now, log = [], 1_000, Log()
    while side.plan(now) or side.line:
        ready = []
        while side.line:
            if (plan := side.leave(now)) is not None:
                assert all(len(batch.payload) <= ROOM for batch in plan.batches)
                ready.append(plan)
        assert side.accumulator.memory_bytes <= held
        for plan in ready:
            stored += values_of(plan.batches[0].payload)
            assert log.append(plan.batches[0].payload) == 0
            side.ok(plan, now)
        now += 10
    assert stored == log.values == values
    assert side.accumulator.memory_bytes == 0
    assert side.accumulator.queue("t", 0).packing.part > 0.9
    assert side.sender.in_flight == 0
    side.accumulator.ready.clear()
    assert max(grown(side, values)) <= 3_200, "it has learned"


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_record_that_makes_a_large_batch_alone_shares_it_with_none(builder):
    """So that a record which no request could carry is refused wherever it comes."""
    builder = builder(max_bytes=10_000)
    builder.alone_bytes = 1_000
    assert builder.append(0, None, bytes(920)) == 0
    assert builder.append(0, None, bytes(950)) == -1
    assert builder.append(0, None, bytes(920)) == 1
    builder.clear()
    assert builder.append(0, None, bytes(950)) == 0
    assert builder.size > 1_000
    assert builder.append(0, None, b"") == -1
    assert builder.extend(0, None, [b"", b""]) == 0
    builder.clear()
    assert builder.extend(0, None, [b"a", b"b", bytes(950), b"c"]) == 2


@pytest.mark.parametrize("builder", BUILDERS)
def test_columns_keep_to_that_too(builder):
    values = [b"a", b"b", bytes(950), b"c", b"d" * 900]
    ends = array("i", accumulate(map(len, values), initial=0))
    column = BinaryColumn(None, ends.tobytes(), b"".join(values))
    made = builder(max_bytes=10_000)
    made.alone_bytes = 1_000
    start, found = 0, []
    while start < len(values):
        start += made.extend_columns(0, None, column, start=start, stop=len(values))
        found.append(values_of(made.build()))
        made.clear()
    assert found == [[b"a", b"b"], [bytes(950)], [b"c", b"d" * 900]]


def test_a_record_that_no_request_can_carry_is_refused_where_a_batch_is_larger():
    side = trained()
    grown(side, [bytes(90)] * 200)
    queue = side.accumulator.queue("t", 0)
    assert known(known(queue.open).builder).max_bytes == 6_400
    before = sum(len(known(known(b).builder)) for b in (*queue.closed, queue.open))
    with pytest.raises(RecordTooLargeError):
        side.add(bytes(3_200))
    assert sum(len(known(b.builder)) for b in queue.closed) == before
    assert queue.open is None
    assert side.accumulator.memory_bytes == sum(b.reserved_bytes for b in queue.closed)


@pytest.mark.rows(15)
@pytest.mark.parametrize("seed", range(60))
def test_whatever_packs_badly_or_is_cut_is_stored_once_and_in_order(seed):
    rng = random.Random(seed)
    side = trained(linger_ms=0, buffer_memory=30_000, compression_type=rng.choice(["lz4", "gzip"]))
    logs = {p: Log() for p in range(2)}
    sent: dict[int, list[bytes]] = {p: [] for p in logs}
    network: deque = deque()
    now, noisy, largest = 0, False, rng.choice([ROOM, ROOM, 2_000])
    while now < 3_000 or side.accumulator.memory_bytes:
        now += rng.randrange(1, 10)
        assert now < 200_000, "it never comes to rest"
        noisy ^= rng.random() < 0.02
        for _ in range(rng.randrange(40) if now < 3_000 else 0):
            partition = rng.randrange(2)
            value = b"%d " % len(sent[partition])
            value += rng.randbytes(90) if noisy else bytes(90)
            if side.add(value, partition, now) is not None:
                sent[partition].append(value)
        assert side.accumulator.memory_bytes <= 30_000
        if rng.random() < 0.3:
            side.plan(now)
        while side.line and rng.random() < 0.6:
            if (plan := side.leave(now)) is not None:
                assert sum(len(batch.payload) for batch in plan.batches) <= ROOM
                network.append(plan)
        while network and rng.random() < 0.6:
            if rng.random() < 0.1:  # the connection is cut; the first was stored all the same
                error = ConnectionFailedError("cut")
                for batch in network[0].batches if rng.random() < 0.5 else ():
                    if len(batch.payload) <= largest:
                        logs[batch.queue.partition].append(batch.payload)
                while network:
                    side.end(side.sender.failed(network.popleft(), error, now))
                break
            plan = network.popleft()
            codes = [
                10 if len(b.payload) > largest else logs[b.queue.partition].append(b.payload)
                for b in plan.batches
            ]
            side.end(side.sender.answered(plan, [Answer(code, "", 0, -1) for code in codes], now))
    assert [o.error for o in side.outcomes if o.error] == []
    assert {p: log.values for p, log in logs.items()} == sent


def test_a_producer_splits_what_it_packed_too_large(broker):
    """The whole way: compression threads, the line of requests, futures."""
    topic = Topic(broker)
    rng = random.Random(6)
    values = [bytes(1_000)] * 400 + [rng.randbytes(1_000) for _ in range(300)] + [bytes(900)] * 99
    with Producer(
        bootstrap_servers=broker.address, compression_type="lz4", max_request_size=100_000
    ) as producer:
        producer.send("t", b"before", partition=0).result(PATIENCE_S)
        accumulator = producer._core._accumulator
        accumulator.queue("t", 0).packing.part = 0.1
        futures = [producer.send("t", value, partition=0) for value in values]
        producer.flush(PATIENCE_S)
        assert [f.result(PATIENCE_S).offset for f in futures] == list(range(1, len(values) + 1))
    assert [bytes(value) for value in topic.values(0)] == [b"before", *values]
