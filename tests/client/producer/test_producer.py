"""The producer against scripted brokers: futures, flush, back-pressure, loss, leaders that move."""

from __future__ import annotations

import asyncio
import os
import queue
import random
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kohort.client.producer.plan.partitioner import Sticky, for_key, murmur2
from kohort.client.producer.producer import AsyncProducer, Producer
from kohort.errors import (
    BrokerError,
    ClosedError,
    ConnectionFailedError,
    DeliveryFailedError,
    ForkedError,
    KafkaTimeoutError,
    KohortError,
    RecordTooLargeError,
    UsageError,
)
from kohort.records import Chunk, read_batch_header
from kohort.wire.messages.produce_response import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.client.scripted import CLOSE, Log, ScriptedBroker
from tests.known import known
from tests.patience import PATIENCE_S, until


class Topic:
    """What a scripted broker has stored; refuses with `codes` first."""

    def __init__(self, broker: ScriptedBroker, name: str = "t", partitions: int = 2) -> None:
        self.broker, self.name = broker, name
        self.stored: dict[int, list] = {p: [] for p in range(partitions)}
        self.logs = {p: Log() for p in self.stored}
        self.codes: list[int] = []
        self.payloads: list[bytes] = []
        broker.cluster.topics[name] = dict.fromkeys(self.stored, (broker.node_id, 1))
        broker.cluster.topic_ids[name] = name.encode().ljust(16, b"-")
        broker.answers["ProduceRequest"] = self.produce

    def produce(self, request, call):
        topics = []
        for topic in request.topic_data:
            answer = TopicProduceResponse(name=self.name, topic_id=topic.topic_id)
            for data in topic.partition_data:
                code = self.codes.pop(0) if self.codes else 0
                base = len(self.stored[data.index])
                payload = bytes(data.records)
                code = code or self.logs[data.index].append(payload)
                if code == 0:
                    self.payloads.append(payload)
                    chunk = Chunk(self.name, data.index, payload, fetch_offset=0)
                    self.stored[data.index] += chunk.next_records(100_000)
                answer.partition_responses.append(
                    PartitionProduceResponse(
                        index=data.index, error_code=code, base_offset=-1 if code else base
                    )
                )
            topics.append(answer)
        return ProduceResponse(responses=topics) if request.acks else None

    def values(self, partition: int) -> list:
        return [record.value for record in self.stored[partition]]


@pytest.fixture
def topic(broker) -> Topic:
    return Topic(broker)


@pytest.fixture
def producer(broker, topic):
    made: list[Producer] = []

    def make(**config) -> Producer:
        config = {"retry_backoff_ms": 5, "reconnect_backoff_ms": 5, **config}
        made.append(Producer(bootstrap_servers=broker.address, **config))
        return made[-1]

    yield make
    for one in made:
        if not one._core.closed:
            one._shut_down()


def in_time(call: Callable[..., object], *args: object, **options: Any) -> Any:
    """Call until its time is not over before a broker has been heard, as on a slow machine."""
    while True:
        try:
            return call(*args, **options)
        except KafkaTimeoutError:
            continue


def test_a_record_comes_back_with_its_place(producer, topic):
    p = producer()
    first = p.send("t", b"v", b"k", partition=1, timestamp_ms=77, headers=[("h", b"x")])
    second = p.send("t", None, None, 1)
    assert first.result(PATIENCE_S) == ("t", 1, 0, 77)
    assert second.result(PATIENCE_S).offset == 1
    assert first.done
    assert first.error() is None
    record = topic.stored[1][0]
    assert (record.key, record.value, record.timestamp) == (b"k", b"v", 77)
    assert list(record.headers) == [("h", b"x")]
    assert topic.stored[1][1].value is None


def test_text_is_refused_with_what_to_write_instead(producer, topic):
    """Before the topic is known and after; the next record is not harmed."""
    p = producer()
    for _ in range(2):
        with pytest.raises(TypeError, match=r"value is a str.*value\.encode\(\)"):
            p.send("t", "text")
        with pytest.raises(TypeError, match=r"key is a str.*key\.encode\(\)"):
            p.send("t", b"value", key="text")
        assert p.send("t", b"value").result(PATIENCE_S)


def test_records_keep_their_order_within_a_partition(producer, topic):
    p = producer(batch_size=300)
    for n in range(2_000):
        p.send("t", b"%d" % n, partition=n % 2)
    p.flush(PATIENCE_S)
    assert topic.values(0) == [b"%d" % n for n in range(0, 2_000, 2)]
    assert topic.values(1) == [b"%d" % n for n in range(1, 2_000, 2)]


def test_equal_keys_meet_in_one_partition(producer, topic):
    p = producer()
    for n in range(100):
        p.send("t", b"%d" % n, key=b"k%d" % (n % 10))
    p.flush(PATIENCE_S)
    for partition, records in topic.stored.items():
        assert {for_key(record.key, 2) for record in records} == {partition}


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec(producer, topic, codec):
    p = producer(compression_type=codec)
    p.send_many("t", [b"v" * 1000] * 50, partition=0)
    p.flush(PATIENCE_S)
    assert topic.values(0) == [b"v" * 1000] * 50
    assert sum(map(len, topic.payloads)) < 5_000


def test_retriable_errors_are_retried_without_loss_or_reordering(producer, topic):
    topic.codes = [6, 3, 5]
    p = producer(batch_size=200, linger_ms=0)
    futures = [p.send("t", b"%d" % n, partition=0) for n in range(200)]
    p.flush(PATIENCE_S)
    assert topic.values(0) == [b"%d" % n for n in range(200)]
    assert [f.result().offset for f in futures] == list(range(200))


def test_a_cut_connection_is_survived(producer, topic, broker):
    cuts = [CLOSE, CLOSE]
    broker.answers["ProduceRequest"] = lambda r, call: (
        cuts.pop() if cuts else topic.produce(r, call)
    )
    p = producer()
    p.send("t", b"v", partition=0).result(PATIENCE_S)
    assert topic.values(0) == [b"v"]


def test_a_leader_that_moves_is_followed(brokers, producer, broker, topic):
    other = ScriptedBroker(brokers, 1)
    there = Topic(other)
    there.logs = topic.logs  # a replica
    brokers.topics["t"] = {0: (0, 1), 1: (0, 1)}
    p = producer()
    p.send("t", b"here", partition=0).result(PATIENCE_S)

    def moved(request, call):
        brokers.topics["t"] = {0: (1, 2), 1: (1, 2)}
        topic.codes = [6]
        return topic.produce(request, call)

    broker.answers["ProduceRequest"] = moved
    p.send("t", b"there", partition=0).result(PATIENCE_S)
    assert topic.values(0) == [b"here"]
    assert there.values(0) == [b"there"]
    assert [known(read_batch_header(b)).base_sequence for b in there.payloads] == [1]


def test_lasting_errors_are_in_the_future_and_raised_by_flush_unless_seen(producer, topic):
    topic.codes = [87] * 3  # both records of the second part, in one batch or in two
    p = producer()
    seen = p.send("t", b"v", partition=0)
    with pytest.raises(BrokerError, match="INVALID_RECORD"):
        seen.result(PATIENCE_S)
    assert isinstance(seen.error(), BrokerError)
    p.flush(PATIENCE_S)
    for _ in range(2):
        p.send("t", b"w", partition=0)
    with pytest.raises(DeliveryFailedError, match="2 records could not be stored") as caught:
        p.flush(PATIENCE_S)
    assert caught.value.count == 2
    assert isinstance(caught.value.first, BrokerError)
    p.flush(PATIENCE_S)


def test_close_flushes_and_reports(producer, topic):
    p = producer(linger_ms=10_000, delivery_timeout_ms=120_000)
    p.send("t", b"v", partition=0)
    p.close(PATIENCE_S)
    assert topic.values(0) == [b"v"]
    p.close()
    with pytest.raises(ClosedError):
        p.send("t", b"v")
    topic.codes = [87]
    with pytest.raises(DeliveryFailedError), producer() as q:
        q.send("t", b"v", partition=0)


def test_a_producer_that_two_threads_close_is_closed_once(producer, topic, monkeypatch):
    """The network thread is that of all clients: it ended under the others."""
    p, other = producer(), producer()
    meeting = threading.Barrier(2)
    monkeypatch.setattr(p, "flush", lambda *_: meeting.wait(PATIENCE_S))
    closers = [threading.Thread(target=p.close) for _ in range(2)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(PATIENCE_S)
    assert p._core.closed
    assert other.send("t", b"v", partition=0).result(PATIENCE_S).offset == 0


def test_an_answer_is_known_by_the_id_that_was_sent(producer, topic, broker):
    """KIP-516: metadata may have lost the topic meanwhile; the record counted as not stored."""
    p = producer()
    p.send("t", b"0", partition=0).result(PATIENCE_S)
    held: queue.SimpleQueue = queue.SimpleQueue()
    broker.answers["ProduceRequest"] = lambda request, call: held.put((request, call))
    future = p.send("t", b"1", partition=0)
    request, call = held.get(timeout=PATIENCE_S)
    broker.cluster.errors["t"] = 3  # a broker that is behind does not know it
    core = p._core
    core.thread.call(core._cluster.refresh_soon).wait(PATIENCE_S)
    until(lambda: "t" not in core._cluster.metadata.topics)
    call.answer(topic.produce(request, call))
    assert future.result(PATIENCE_S).offset == 1


def test_an_error_in_the_with_block_is_not_hidden(producer, topic, broker):
    broker.answers["ProduceRequest"] = lambda r, call: None
    futures = []

    def fail_inside() -> None:
        with producer() as p:
            futures.append(p.send("t", b"v", partition=0))
            _ = 1 // 0

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert isinstance(futures[0].error(PATIENCE_S), ClosedError)


def test_close_is_bounded_and_fails_what_is_left(producer, broker):
    broker.answers["ProduceRequest"] = lambda r, call: None
    p = producer()
    future = p.send("t", b"v", partition=0)
    with pytest.raises(KafkaTimeoutError):
        p.close(0.05)
    with pytest.raises(ClosedError):
        future.result(PATIENCE_S)


def test_acks_0_asks_for_no_answer(producer, topic):
    p = producer(acks=0)
    assert p.send("t", b"v", partition=0).result(PATIENCE_S).offset == -1
    p.send("t", b"w", partition=0).result(PATIENCE_S)
    p.close(PATIENCE_S)
    topic.broker.wait_for("ProduceRequest")
    topic.broker.wait_for("ProduceRequest")
    assert topic.values(0) == [b"v", b"w"]


def test_acks_0_looks_for_the_leader_anew_where_the_broker_hangs_up(producer, topic):
    """The one sign of a refusal that there is."""
    broker = topic.broker
    p = producer(acks=0)
    p.send("t", b"v", partition=0).result(PATIENCE_S)
    broker.wait_for("ProduceRequest")
    broker.answers["ProduceRequest"] = lambda r, call: CLOSE
    p.send("t", b"w", partition=0).result(PATIENCE_S)
    broker.wait_for("ProduceRequest")
    broker.wait_for("MetadataRequest")


def test_an_unknown_topic_is_a_clear_error_and_a_new_one_is_waited_for(producer, topic, brokers):
    p = producer(max_block_ms=500)
    with pytest.raises(BrokerError, match="does it exist"):
        in_time(p.send, "nowhere", b"v")
    brokers.errors["bad"] = 17
    with pytest.raises(BrokerError, match="INVALID_TOPIC"):
        in_time(p.send, "bad", b"v")
    late = producer()
    topic.name = "late"
    brokers.topic_ids["late"] = b"late" * 4
    plain, asked = brokers.metadata, []

    def made_when_it_was_missed(request, call):
        if request.topics and request.topics[0].name == "late":
            asked.append(request)
            if len(asked) == 3:
                brokers.topics["late"] = {0: (0, 1)}
        return plain(request, call)

    topic.broker.answers["MetadataRequest"] = made_when_it_was_missed
    late.send("late", b"v").result(PATIENCE_S)
    assert len(asked) >= 3


def test_no_broker_is_a_clear_error():
    p = Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=100)
    with pytest.raises(KafkaTimeoutError, match=r"127\.0\.0\.1:1"):
        p.send("t", b"v")
    p.close()


def test_bad_records_are_refused_at_once(producer):
    p = producer(max_request_size=1_000)
    with pytest.raises(RecordTooLargeError):
        p.send("t", b"x" * 2_000, partition=0)
    with pytest.raises(UsageError, match="0 to 1"):
        p.send("t", b"x", partition=2)
    with pytest.raises(TypeError):
        p.send("t", "text", partition=0)
    p.send("t", b"fine", partition=0).result(PATIENCE_S)


def test_send_waits_for_room_and_goes_on_when_there_is_some(producer, topic, broker):
    gate = threading.Event()

    def held(request, call):
        assert gate.wait(PATIENCE_S)
        return topic.produce(request, call)

    broker.answers["ProduceRequest"] = held
    p = producer(buffer_memory=4_000, batch_size=1_000, max_block_ms=50)
    for _ in range(4):  # the first one waits for the topic to be known
        in_time(p.send, "t", b"x" * 900, partition=0)
    with pytest.raises(KafkaTimeoutError, match="buffer_memory"):
        p.send("t", b"x" * 900, partition=0)
    gate.set()
    q = producer(buffer_memory=4_000, batch_size=1_000)
    for _ in range(50):
        q.send("t", b"y" * 900, partition=1)
    q.flush(PATIENCE_S)
    assert len(topic.values(1)) == 50


def test_many_threads_may_send(producer, topic):
    p = producer(batch_size=500)

    def work(thread: int) -> None:
        for n in range(500):
            p.send("t", b"%d-%d" % (thread, n), partition=0)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    p.flush(PATIENCE_S)
    for number in range(4):
        mine = [v for v in topic.values(0) if v.startswith(b"%d-" % number)]
        assert mine == [b"%d-%d" % (number, n) for n in range(500)]


def test_send_many_fills_batches_and_splits_by_key(producer, topic):
    p = producer(batch_size=1_000)
    futures = p.send_many("t", [b"%d" % n for n in range(1_000)], partition=1)
    assert futures[-1].result(PATIENCE_S).offset == 999
    assert topic.values(1) == [b"%d" % n for n in range(1_000)]
    keys = [None if n % 5 == 0 else b"k%d" % (n % 7) for n in range(200)]
    for future in p.send_many("t", [b"m%d" % n for n in range(200)], keys):
        future.result(PATIENCE_S)
    for partition, records in topic.stored.items():
        assert {for_key(r.key, 2) for r in records if r.key is not None} <= {partition}
    stored = [r.value for rs in topic.stored.values() for r in rs if r.value.startswith(b"m")]
    assert sorted(stored) == sorted(b"m%d" % n for n in range(200))


def test_arrow_batches_go_by_partition_column_or_key(producer, topic):
    p = producer()
    table = pa.table(
        {
            "value": pa.array([b"a", None, b"c"], pa.binary()),
            "partition": pa.array([1, 0, 1], pa.int32()),
            "timestamp": pa.array([5, 6, 7], pa.int64()),
        }
    )
    for future in p.produce_arrow("t", table):
        future.result(PATIENCE_S)
    assert [(r.value, r.timestamp) for r in topic.stored[1]] == [(b"a", 5), (b"c", 7)]
    assert topic.values(0) == [None]
    batch = pa.record_batch({"key": ["x", "y", None, "x"], "value": ["1", "2", "3", "4"]})
    for future in p.produce_arrow("t", batch):
        future.result(PATIENCE_S)
    where = for_key(b"x", 2)
    assert [r.value for r in topic.stored[where] if r.key == b"x"] == [b"1", b"4"]
    with pytest.raises(UsageError, match="cannot be produced"):
        p.produce_arrow("t", pa.table({"other": [1]}))


def test_an_arrow_row_without_a_partition_goes_by_its_key(producer, topic):
    """A column of partitions may name some and leave others to the keys, as Spark's sink does."""
    p = producer()
    keys = [b"k%d" % n for n in range(20)]
    other = [1 - for_key(key, 2) for key in keys[:5]]
    table = pa.table(
        {"key": pa.array(keys, pa.binary()), "partition": pa.array(other + [None] * 15, pa.int32())}
    )
    for future in p.produce_arrow("t", table):
        future.result(PATIENCE_S)
    stored = {r.key: number for number, records in topic.stored.items() for r in records}
    assert stored == dict(zip(keys, other + [for_key(key, 2) for key in keys[5:]], strict=True))


def test_arrow_rows_go_where_their_keys_send_them_one_by_one(producer, topic):
    """As `send` would, with a partitioner of the user's own, too; sliced and dictionary columns."""
    keys = [None if n % 7 == 0 else b"k%d" % (n % 13) for n in range(300)]
    batch = pa.record_batch(
        {"key": pa.array(keys, pa.binary()), "value": [str(n) for n in range(300)]}
    )
    coded = pa.table(
        {"key": batch.column("key").dictionary_encode(), "value": batch.column("value")}
    )
    p = producer()
    for data in (batch.slice(20, 200), coded.slice(220)):
        for future in p.produce_arrow("t", data):
            future.result(PATIENCE_S)
    stored = {r.value: (r.key, n) for n, rs in topic.stored.items() for r in rs}
    assert stored.keys() == {b"%d" % n for n in range(20, 300)}
    for value, (key, number) in stored.items():
        assert key == keys[int(value)]
        assert key is None or number == for_key(key, 2)
    for rs in topic.stored.values():
        order = [int(r.value) for r in rs if r.key == b"k3"]
        assert order == sorted(order)
    by_last = producer(partitioner=lambda topic, key, count: key[-1] % count)
    for future in by_last.produce_arrow("t", pa.record_batch({"key": ["q1", "q2", "q1"]})):
        future.result(PATIENCE_S)
    assert [r.key for r in topic.stored[1] if r.key and r.key[:1] == b"q"] == [b"q1", b"q1"]
    astray = producer(partitioner=lambda topic, key, count: count)
    with pytest.raises(UsageError, match="partitions 0 to 1, not 2"):
        astray.produce_arrow("t", pa.record_batch({"key": ["x"]}))


def test_the_async_face(broker, topic):
    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=broker.address) as p:
            futures = [await p.send("t", b"%d" % n, partition=0) for n in range(10)]
            assert (await futures[9]).offset == 9
            assert (await futures[0]).offset == 0
            await p.send("t", b"last", partition=1)
            await p.flush()
        assert topic.values(1) == [b"last"]
        with pytest.raises(ClosedError):
            await p.send("t", b"v")
        q = AsyncProducer(bootstrap_servers=broker.address, max_block_ms=500)
        await q.send("t", b"v")  # so that the broker is known to be there
        with pytest.raises((BrokerError, KafkaTimeoutError), match="no metadata"):
            await q.send("nowhere", b"v")
        await q.close()

    asyncio.run(main())


def test_the_async_face_sends_many_at_once(broker, topic):
    """As the other face does: by key, by column, and waiting for room without blocking the loop."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        settings: dict[str, Any] = {"batch_size": 300, "buffer_memory": 900, "linger_ms": 0}
        async with AsyncProducer(bootstrap_servers=broker.address, **settings) as p:
            beside = asyncio.create_task(others())
            values, keys = [b"%d" % n for n in range(200)], [b"k%d" % (n % 7) for n in range(200)]
            for future in await p.send_many("t", values, keys):
                assert (await future).offset >= 0
            table = pa.table({"value": values, "partition": [n % 2 for n in range(200)]})
            futures = await p.produce_arrow("t", table)
            assert len(futures) > 2
            await p.flush()
            assert turns > len(futures)
            beside.cancel()
            with pytest.raises(UsageError, match="1 values and 2 keys"):
                await p.send_many("t", [b"v"], [b"a", b"b"])
        stored = topic.values(0) + topic.values(1)
        assert sorted(stored) == sorted(values * 2)
        for number in (0, 1):
            of_keys = [r for r in topic.stored[number] if r.key is not None]
            assert {for_key(r.key, 2) for r in of_keys} == {number}
            assert [int(r.value) for r in of_keys] == sorted(int(r.value) for r in of_keys)
        nowhere = AsyncProducer(bootstrap_servers=broker.address, max_block_ms=300)
        for call in (nowhere.send_many("no", [b"v"]), nowhere.produce_arrow("no", table)):
            with pytest.raises(KohortError, match="topic 'no'"):
                await call
        await nowhere.close()

    asyncio.run(main())


def test_murmur2_is_javas():
    """Vectors of Kafka's own UtilsTest (murmur2)."""
    vectors = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    for data, expected in vectors.items():
        assert murmur2(data) == expected & 0xFFFFFFFF


def test_the_sticky_partition_moves_on_only_from_the_one_that_is_full():
    sticky = Sticky([0, 1, 2], lambda: 0.0)
    assert sticky.partition == 0
    sticky.move_on(2)
    assert sticky.partition == 0
    sticky.move_on(0)
    assert sticky.partition == 1
    alone = Sticky([4], lambda: 0.9)
    alone.move_on(4)
    assert alone.partition == 4


def chosen(lines, longest):
    """How often each partition follows 0 in 7,000 tries."""
    sticky = Sticky(range(len(lines)), random.Random(1).random)
    counts = [0] * len(lines)
    for _ in range(7_000):
        sticky.partition = 0
        sticky.move_on(0, lines.__getitem__, longest)
        counts[sticky.partition] += 1
    return counts


def test_records_without_a_key_go_rather_where_the_line_is_short():
    """KIP-794: lines of 0, 2 and 3 batches make chances of 4, 2 and 1 in 7."""
    counts = chosen([0, 0, 2, 3], 3)
    assert counts == [
        0,
        pytest.approx(4_000, 0.05),
        pytest.approx(2_000, 0.1),
        pytest.approx(1_000, 0.15),
    ]


def test_a_choice_looks_at_few_of_many_partitions():
    """It is made for each batch of a megabyte, and by the caller's thread."""
    looked = []
    sticky = Sticky(range(1_000), random.Random(1).random)
    for _ in range(100):
        sticky.move_on(sticky.partition, lambda p: looked.append(p) or p % 2, 1)
    assert len(looked) < 200


def test_what_waits_for_a_connection_lets_an_older_batch_of_its_partition_pass(
    producer, topic, monkeypatch
):
    """Spec P2; found by seed 20000443. The first came back from a connection that failed while
    the second was in line for the next one: it left first, for a broker that knew neither.
    """
    p = producer(linger_ms=0)
    cluster, waiting = p._core._cluster, queue.Queue()
    p.send("t", b"0", partition=1).result(PATIENCE_S)
    send = cluster.request

    def hold(node_id, request, done, **options):
        if options.get("kind") == "produce":
            waiting.put((request, done))
        else:
            send(node_id, request, done, **options)

    monkeypatch.setattr(cluster, "request", hold)
    sent = [p.send("t", b"1", partition=1)]
    _, first_done = waiting.get(timeout=PATIENCE_S)
    sent.append(p.send("t", b"2", partition=1))
    second, _ = waiting.get(timeout=PATIENCE_S)
    left = queue.Queue()

    def connect() -> None:
        monkeypatch.setattr(cluster, "request", send)
        first_done(ConnectionFailedError("refused"))
        left.put(second.build(9))

    p._core._loop.call_soon_threadsafe(connect)
    assert left.get(timeout=PATIENCE_S) is None, "the second overtakes the first"
    for future in sent:
        future.result(PATIENCE_S)
    assert topic.values(1) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("many", [False, True])
def test_no_record_travels_alone_behind_a_full_batch(producer, broker, many):
    """KIP-794: a record that does not fit goes to the partition to which the next ones go."""
    topic = Topic(broker, "wide", 50)
    p = producer(batch_size=1_000, linger_ms=60_000)
    values = [b"%04d" % n + bytes(96) for n in range(3_000)]
    if many:
        p.send_many("wide", values)
    else:
        for value in values:
            p.send("wide", value)
    p.flush(PATIENCE_S)
    counts = sorted(known(read_batch_header(payload)).record_count for payload in topic.payloads)
    assert sum(counts) == 3_000
    assert counts[1] > 1, "the last one may be small"


def test_equal_lines_make_equal_chances():
    """KIP-794: uniform, when no broker is slower than the others."""
    for longest in (0, 5):
        counts = chosen([longest] * 4, longest)
        assert counts == [0, *[pytest.approx(7_000 / 3, 0.1)] * 3]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_producer_of_before_a_fork_is_refused_in_the_child(producer, topic, broker):
    """Invariant C14, also for the hot path: an open batch of the parent takes no records."""
    p = producer(linger_ms=10_000, delivery_timeout_ms=120_000)
    future = p.send("t", b"parent", partition=0)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            p.send("t", b"child", partition=0)
        except ForkedError:
            p.close()
            with Producer(bootstrap_servers=broker.address) as fresh:
                fresh.send("t", b"fresh", partition=1).result(PATIENCE_S)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    p.flush(PATIENCE_S)
    assert future.result(PATIENCE_S).offset == 0
    assert topic.values(0) == [b"parent"]
    assert topic.values(1) == [b"fresh"]


def test_waiting_on_the_network_thread_is_refused_instead_of_hanging(producer, topic):
    p = producer()
    caught: list[BaseException] = []
    done = threading.Event()

    def callback(future) -> None:
        for call in (p.flush, lambda: p.send("unseen", b"v")):
            try:
                call()
            except UsageError as error:
                caught.append(error)
        done.set()

    p.send("t", b"v", partition=0).add_done_callback(callback)
    assert done.wait(PATIENCE_S)
    assert len(caught) == 2


def test_a_done_callback_that_raises_keeps_no_other_record_from_its_outcome(
    producer, topic, caplog
):
    """Nor another callback of its own record."""
    p = producer(linger_ms=60_000)
    futures = [p.send("t", b"v", partition=partition) for partition in (0, 1, 1)]
    seen: list[Any] = []
    for future in futures:
        future.add_done_callback(lambda _: 1 // 0)
        future.add_done_callback(seen.append)
    p.flush(PATIENCE_S)
    assert [future.result(PATIENCE_S).offset for future in futures] == [0, 0, 1]
    until(lambda: len(seen) == 3, "every callback")
    futures[0].add_done_callback(lambda _: 1 // 0)  # at once, on this thread
    p.close(PATIENCE_S)
    assert {r.name for r in caplog.records} == {"kohort.client"}
    assert [r.exc_info[0] for r in caplog.records] == [ZeroDivisionError] * 4


def test_a_topic_that_nobody_waits_for_any_more_is_not_asked_for(producer, topic, broker):
    p = producer(max_block_ms=300)
    with pytest.raises((BrokerError, KafkaTimeoutError)):
        p.send("nowhere", b"v")
    core = p._core
    watched = core.thread.call(lambda: core._cluster.watched_topics).result(PATIENCE_S)
    assert watched == frozenset()


def test_metadata_that_comes_when_nobody_waits_any_more_is_asked_for_again(
    producer, topic, brokers, broker
):
    """Its topic was watched no longer and had a route: no record of it ever found its leader."""
    plain, go_on, asked = brokers.metadata, threading.Event(), []

    def held(request, call):
        if not asked and request.topics and request.topics[0].name == "t":
            asked.append(request)
            assert go_on.wait(PATIENCE_S)
        return plain(request, call)

    broker.answers["MetadataRequest"] = held
    p = producer(max_block_ms=100)
    while not asked:  # a first try may not get so far
        with pytest.raises(KafkaTimeoutError, match="no metadata for topic 't'"):
            p.send("t", b"too late", partition=0)
    go_on.set()
    Topic(broker, "u")
    assert in_time(p.send, "u", b"other", partition=0).result(PATIENCE_S)  # behind that answer
    broker.answers["ProduceRequest"] = topic.produce
    assert in_time(p.send, "t", b"v", partition=0).result(PATIENCE_S)


def test_filling_a_batch_holds_nobody_up(producer, topic):
    """While one thread fills a batch others send and are stored, each thread in its order."""
    p = producer(linger_ms=0)
    p.send("t", b"before", partition=0).result(PATIENCE_S)
    begun, go_on = threading.Event(), threading.Event()
    filled: list = []

    def slowly(builder) -> int:
        builder.append(0, None, b"slow 1")
        begun.set()
        assert go_on.wait(PATIENCE_S)
        builder.append(0, None, b"slow 2")
        return 2

    filler = threading.Thread(target=lambda: filled.append(p._core.fill("t", 0, slowly, 0)))
    filler.start()
    assert begun.wait(PATIENCE_S)
    behind = p.send("t", b"behind", partition=0)
    assert p.send("t", b"elsewhere", partition=1).result(PATIENCE_S)
    with pytest.raises(KafkaTimeoutError):
        p.flush(0.05)
    assert not behind.done
    go_on.set()
    p.flush(PATIENCE_S)
    filler.join(PATIENCE_S)
    future, count = filled[0]
    assert (count, future.result(PATIENCE_S).offset, behind.result(PATIENCE_S).offset) == (2, 2, 3)
    assert topic.values(0) == [b"before", b"slow 1", b"slow 2", b"behind"]


def test_threads_that_fill_the_same_partitions_each_keep_their_order(producer, topic):
    p = producer(batch_size=500)

    def many(name: int) -> None:
        for start in range(0, 400, 40):
            p.send_many("t", [b"%d %d" % (name, n) for n in range(start, start + 40)], partition=0)
            p.send("t", b"%d %d" % (name, start + 40), partition=1)

    threads = [threading.Thread(target=many, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    p.flush(PATIENCE_S)
    for partition in (0, 1):
        for name in range(3):
            mine = [v for v in topic.values(partition) if v.startswith(b"%d " % name)]
            assert len(mine) == (400 if partition == 0 else 10)
            assert mine == sorted(mine, key=lambda value: int(value.split()[1]))


def test_a_row_that_cannot_be_encoded_leaves_the_rest_to_be_sent(producer, topic):
    """Nothing waits for a batch in which there is nothing."""
    p = producer(linger_ms=0)
    with pytest.raises(TypeError):
        p.send_many("t", ["text"], partition=0)  # type: ignore[list-item]
    p.flush(PATIENCE_S)
    assert p.send("t", b"after", partition=0).result(PATIENCE_S)
    assert topic.values(0) == [b"after"]


@pytest.mark.parametrize("many", [False, True])
def test_who_sends_much_at_once_gives_way_to_the_network_thread(producer, topic, monkeypatch, many):
    """Only when a quarter of the memory is in use, for longer the more it is, and never on the
    network thread itself."""
    pauses: list[float] = []
    its = {name: getattr(time, name) for name in ("monotonic", "time_ns")}
    monkeypatch.setattr(
        "kohort.client.producer.producer.time", SimpleNamespace(**its, sleep=pauses.append)
    )
    p = producer(buffer_memory=400_000, batch_size=10_000, linger_ms=60_000)
    p.send("t", b"known", partition=1)
    p._core.flushes.gather()
    p._core.flushes.end()
    topic.broker.answers["ProduceRequest"] = lambda request, call: None
    monkeypatch.setattr("kohort.client.producer.plan.accumulator._GIVE_WAY_S", 0.0)
    assert not p._core.give_way_s
    assert not pauses
    for _ in range(30):
        if many:
            p.send_many("t", [bytes(8_000)], partition=0)
        else:
            p.send("t", bytes(8_000), partition=0)
    assert p._core.give_way_s > 0
    assert len(pauses) > 1
    assert pauses[-1] > 1.5 * pauses[0]
    assert p._core.thread.call(lambda: p._core.give_way_s).wait(PATIENCE_S)
    assert p._core.thread.call(lambda: p._core.give_way_s).result(PATIENCE_S) == 0
