"""A call that is cut off, and an error of a fetch: what the consumer had stays what it had."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from kohort import Producer, TopicPartition
from kohort.errors import BrokerError, CorruptRecordError, WakeupError
from tests.client.consumer_world import World, take, until, values
from tests.clusters import APACHE, Cluster
from tests.known import fake, known

pytestmark = pytest.mark.skipif(APACHE, reason="faults of the embedded broker")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(group_initial_rebalance_delay_ms=0) as running:
        yield running


def test_records_that_were_handed_out_are_committed_after_a_fetch_failed(world: World) -> None:
    """C3, C4, X3: the fetch behind them stops the partition while the caller works. Outputs were
    committed without their offsets, and made again at each start."""
    topic, group = world.topic(1, records=5), world.group()
    consumer = world.consumer(group_id=group, enable_auto_commit=False)
    consumer.subscribe([topic])
    take(consumer, 5)
    tp = TopicPartition(topic, 0)
    with world.cluster.faults.fail("Fetch", "CORRUPT_MESSAGE", times=1_000, topic=topic):
        with pytest.raises(CorruptRecordError):
            until(lambda: False, consumer)
        assert consumer.positions() == {tp: 5}
        consumer.commit()
    assert known(consumer.committed([tp])[tp]).offset == 5


def test_a_transaction_carries_the_offsets_of_a_partition_that_stopped(world: World) -> None:
    topic, out, group = world.topic(1, records=5), world.topic(1), world.group()
    consumer = world.consumer(group_id=group, enable_auto_commit=False)
    consumer.subscribe([topic])
    records = take(consumer, 5)
    servers = world.cluster.bootstrap
    with (
        world.cluster.faults.fail("Fetch", "CORRUPT_MESSAGE", times=1_000, topic=topic),
        Producer(bootstrap_servers=servers, transactional_id=group) as producer,
    ):
        with pytest.raises(CorruptRecordError):
            until(lambda: False, consumer)
        producer.init_transactions()
        with producer.transaction():
            for value in records:
                producer.send(out, value)
            producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
    tp = TopicPartition(topic, 0)
    assert known(consumer.committed([tp])[tp]).offset == 5


def test_reading_goes_on_once_a_missing_right_is_there(world: World) -> None:
    """As in Java: each poll raises while it lasts, and nothing needs a seek."""
    topic = world.topic(1, records=5)
    consumer = world.consumer()
    consumer.assign([(topic, 0)])
    take(consumer, 5)
    with (
        world.cluster.faults.fail("Fetch", "TOPIC_AUTHORIZATION_FAILED", times=1_000, topic=topic),
        pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"),
    ):
        until(lambda: False, consumer)
    world.produce(topic, 1, range(5, 8))
    seen: list[bytes] = []

    def read() -> bool:
        with contextlib.suppress(BrokerError):  # it is raised once in a while, from before
            seen.extend(known(record.value) for record in consumer.poll(0.1))
        return len(seen) == 3

    until(read)
    assert seen == values(range(5, 8))


@pytest.mark.parametrize("way", ["subscribe", "assign"])
def test_what_follows_an_unsubscribe_that_was_cut_off_counts(world: World, way: str) -> None:
    """The wakeup comes before the network thread has carried it out."""
    topic = world.topic(1, records=3)
    consumer = world.consumer(group_id=world.group())
    consumer.subscribe([world.topic(1)])
    consumer.poll(0.05)
    core, release = fake(consumer)._core, threading.Event()
    core.post(release.wait)  # the network thread is busy
    consumer.wakeup()
    try:
        with pytest.raises(WakeupError):
            consumer.unsubscribe()
        threading.Timer(0, release.set).start()
        if way == "subscribe":
            consumer.subscribe([topic])
        else:
            consumer.assign([(topic, 0)])
    finally:
        release.set()
    done = threading.Event()
    core.post(done.set)
    assert done.wait(30)
    assert bool(core.subscription)
    assert take(consumer, 3) == values(range(3))
