"""Requests that are compressed side by side leave in their order (KIP-98), whatever is ready first.

`Backwards` plants the reorder: it packs the newest job first, on a thread of its own.
"""

from __future__ import annotations

import queue
import random
import threading
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.client.cluster.network_thread import NetworkThread
from kohort.client.common.compression_pool import CompressionPool
from kohort.client.producer.plan.send_order import PendingRequest, SendOrder
from kohort.client.producer.plan.sender import ProducePlan
from kohort.client.producer.producer import Producer
from kohort.errors import DeliveryFailedError
from kohort.testing import VirtualClock
from tests.client.producer.test_producer import Topic
from tests.patience import PATIENCE_S, until

SOUND = random.Random(5)
NOISE = [SOUND.randbytes(200) for _ in range(400)]


@given(st.lists(st.integers(0, 2), max_size=12), st.randoms(use_true_random=False))
def test_requests_of_a_node_leave_in_order_whatever_is_ready_first(nodes, chance) -> None:
    line = SendOrder()
    plans = [ProducePlan(node, [], at) for at, node in enumerate(nodes)]
    under_way = [PendingRequest(plan, transactional=False) for plan in plans]
    left: dict[int, list[int]] = defaultdict(list)
    for request in under_way:
        request.detach()
        line.enter(request)

    def let_go() -> None:
        while (request := line.leave()) is not None:
            assert request.ready
            left[request.plan.node_id].append(request.plan.deadline_ms)

    for request in chance.sample(under_way, len(under_way)):
        request.pack().packed()
        if chance.random() < 0.5:
            let_go()
    let_go()
    for node in range(3):
        assert left[node] == [at for at, n in enumerate(nodes) if n == node]


def test_a_node_is_not_held_back_by_another() -> None:
    line = SendOrder()
    slow, fast, last = (
        PendingRequest(ProducePlan(n, [], 0), transactional=False) for n in (1, 2, 1)
    )
    slow.detach()
    for request in (slow, fast, last):
        line.enter(request)
    assert line.leave() is fast
    assert line.leave() is None
    slow.packed()
    assert [line.leave(), line.leave(), line.leave()] == [slow, last, None]


class Backwards(CompressionPool):
    """Packs the newest first: up to three at a time, or what is there."""

    def __init__(self, post) -> None:
        super().__init__(post)
        self.jobs: queue.Queue = queue.Queue()
        self.submitted = self.reordered = 0
        self.held = threading.Event()
        self.held.set()
        threading.Thread(target=self.run, daemon=True).start()

    def submit(self, job, on_packed) -> None:
        self.jobs.put((job, on_packed))
        self.submitted += 1

    def let_go(self) -> None:
        """Pack what was held, when there is something to be put into another order."""
        until(lambda: self.submitted > 1, "a second job")
        self.held.set()

    def stop(self, *, wait: bool) -> None:
        self.jobs.put(None)

    def run(self) -> None:
        ended = False
        while not ended:
            taken = [self.jobs.get()]
            self.held.wait(PATIENCE_S)
            while len(taken) < 3:
                try:
                    taken.append(self.jobs.get(timeout=0.02))
                except queue.Empty:
                    break
            ended = None in taken
            todo = [each for each in taken if each is not None]
            self.reordered += len(todo) > 1
            for job, on_packed in reversed(todo):
                self._post(on_packed, job())


@pytest.fixture
def made(broker):
    """A producer whose compression pool works backwards, and the topic."""
    topic = Topic(broker)
    found: list[Producer] = []

    def make(**config) -> tuple[Producer, Topic, Backwards]:
        producer = Producer(bootstrap_servers=broker.address, retry_backoff_ms=5, **config)
        found.append(producer)
        thread = producer._core.thread
        thread._compression_pool = pool = Backwards(thread.loop.call_soon_threadsafe)
        return producer, topic, pool

    yield make
    for producer in found:
        if not producer._core.closed:
            producer._shut_down()


def first_alone(producer: Producer, partition: int) -> bytes:
    """Store a partition's first record, which nothing follows before that; its value."""
    producer.send("t", b"first", partition=partition).result(PATIENCE_S)
    return b"first"


@pytest.mark.parametrize("codec", ["lz4", "zstd", "snappy", "gzip"])
def test_what_is_packed_in_another_order_is_stored_in_this_one(made, codec) -> None:
    producer, topic, pool = made(compression_type=codec, batch_size=40_000)
    sent = {p: [first_alone(producer, p)] for p in range(2)}
    pool.held.clear()
    for n in range(4_000):
        value = b"%d " % n + NOISE[n % 400]
        producer.send("t", value, partition=n % 2)
        sent[n % 2].append(value)
    pool.let_go()
    producer.flush(PATIENCE_S)
    assert pool.reordered
    assert {p: [bytes(v) for v in topic.values(p)] for p in sent} == sent


def test_order_holds_when_requests_are_refused_as_well(made) -> None:
    """A retry goes alone and first, also when what is behind it is being packed."""
    producer, topic, pool = made(compression_type="lz4", batch_size=40_000)
    sent = [first_alone(producer, 0)]
    topic.codes = [0, 7, 0, 0, 7, 7, 0, 6]
    pool.held.clear()
    for n in range(4_000):
        sent.append(b"%d " % n + NOISE[n % 400])
        producer.send("t", sent[-1], partition=0)
    pool.let_go()
    producer.flush(PATIENCE_S)
    assert pool.reordered
    assert [bytes(value) for value in topic.values(0)] == sent


def test_a_close_while_batches_are_packed_fails_them_and_nothing_else(made) -> None:
    """Each record fails once; a builder that is being packed serves nobody else."""
    producer, topic, pool = made(compression_type="zstd", batch_size=40_000)
    producer.send("t", b"before", partition=0).result(PATIENCE_S)
    pool.held.clear()
    futures = [producer.send("t", NOISE[n % 400], partition=0) for n in range(1_000)]
    with pytest.raises((TimeoutError, DeliveryFailedError)):
        producer.close(0.05)
    pool.held.set()
    assert all(future.error(PATIENCE_S) is not None for future in futures)
    assert topic.values(0) == [b"before"]


def test_what_cannot_be_packed_fails_with_the_reason(made, monkeypatch) -> None:
    producer, topic, _ = made(compression_type="lz4", batch_size=40_000)
    producer.send("t", b"before", partition=0).result(PATIENCE_S)

    def broken(*args, **kwargs) -> None:
        raise MemoryError("planted")

    with monkeypatch.context() as patch:
        patch.setattr("kohort.client.producer.plan.send_order.take", broken)
        future = producer.send("t", bytes(50_000), partition=0)
        producer._core.flushes.gather()
        assert "planted" in str(future.error(PATIENCE_S))
    producer._core.flushes.end()
    assert producer.send("t", b"after", partition=0).result(PATIENCE_S)
    assert [bytes(value) for value in topic.values(0)] == [b"before", b"after"]


def test_small_requests_and_plain_ones_start_no_thread(made, broker) -> None:
    producer, topic, pool = made(compression_type="lz4", linger_ms=0)
    producer.send("t", bytes(1_000), partition=0).result(PATIENCE_S)
    plain, _, unused = made(batch_size=100_000)
    plain.send("t", bytes(90_000), partition=0).result(PATIENCE_S)
    assert pool.jobs.empty()
    assert unused.jobs.empty()
    assert len(topic.values(0)) == 2


def test_packers_start_with_the_first_job_and_end_with_their_thread() -> None:
    results: queue.Queue = queue.Queue()
    pool = CompressionPool(lambda fn, *args: fn(*args), count=2)
    assert not pool._threads
    for n in range(10):
        pool.submit(lambda n=n: n, results.put)
    assert sorted(results.get(timeout=PATIENCE_S) for _ in range(10)) == list(range(10))
    threads = list(pool._threads)
    assert len(threads) == 2
    pool.stop(wait=True)
    assert not any(thread.is_alive() for thread in threads)


def test_virtual_time_has_no_packers() -> None:
    """Under a clock that tests move, all is done where it is asked for."""
    with VirtualClock():  # whose thread it is then
        thread = NetworkThread.shared()
        assert thread.compression_pool() is None
        thread.release()
