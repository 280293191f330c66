"""One Kafka transaction over several connections, ended once (spec 6.4; ADR 0019)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from kohort.client.common.types import OffsetAndMetadata, TopicPartition
from kohort.client.producer.plan.transaction_requests import Identity
from kohort.client.shared.transaction import (
    EncodedBatch,
    SharedTransaction,
    TransactionLostError,
)
from kohort.client.shared.writer import SharedWriter, WriteQueue
from kohort.errors import BrokerError, RecordTooLargeError
from kohort.records import BatchBuilder, Compression, read_batch_header
from kohort.testing import Cluster
from tests.known import known
from tests.reading import read_committed

numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as made:
        yield made


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"shared{next(numbers)}"
    cluster.create_topic(name, partitions=4)
    return name


def transaction(cluster: Cluster, name: str, timeout_ms: int = 60_000) -> SharedTransaction:
    return SharedTransaction(name, timeout_ms, {"bootstrap_servers": cluster.bootstrap})


def encoded(topic: str, partition: int, *values: bytes) -> EncodedBatch:
    builder = BatchBuilder(Compression.NONE, 1 << 20)
    for value in values:
        builder.append(1, None, value)
    payload = builder.build(transactional=True)
    return EncodedBatch(topic, partition, len(values), payload)


def committed(cluster: Cluster, topic: str) -> list[bytes]:
    return sorted(r.value or b"" for r in read_committed(cluster.bootstrap, topic, 4))


def test_what_several_writers_wrote_appears_together(cluster: Cluster, topic: str) -> None:
    config = {"bootstrap_servers": cluster.bootstrap}
    at = TopicPartition(topic, 0)
    with (
        transaction(cluster, topic) as driver,
        SharedWriter(config) as one,
        SharedWriter(config) as two,
    ):
        for number, commit in [(0, True), (1, False), (2, True)]:
            identity = driver.init()
            driver.add(identity, [(topic, p) for p in range(4)])
            mark = b"%d" % number
            counts = one.write(identity, [encoded(topic, 0, mark, mark), encoded(topic, 2, mark)])
            assert counts == {(topic, 0): 2, (topic, 2): 1}
            two.write(identity, [encoded(topic, p, mark) for p in (1, 3, 1, 3)])
            driver.set_offset(identity, topic, at, OffsetAndMetadata(number, "checkpoint"))
            before = driver.offsets("nobody's")
            driver.end(identity, commit=commit)
            assert before == {}
        assert driver.offsets(topic) == {at: OffsetAndMetadata(2, "checkpoint")}
        driver.end(identity, commit=True)  # asked again after an answer was lost
    assert committed(cluster, topic) == [b"0"] * 7 + [b"2"] * 7


def test_a_second_driver_ends_the_first(cluster: Cluster, topic: str) -> None:
    config = {"bootstrap_servers": cluster.bootstrap}
    with (
        transaction(cluster, topic) as first,
        transaction(cluster, topic) as second,
        SharedWriter(config) as writer,
    ):
        old = first.init()
        first.add(old, [(topic, 0), (topic, 1)])
        writer.write(old, [encoded(topic, 0, b"old")])
        new = second.init()
        with pytest.raises(TransactionLostError, match="another process has taken over") as lost:
            first.end(old, commit=True)
        assert not lost.value.expired
        with pytest.raises(TransactionLostError):
            writer.write(old, [encoded(topic, 0, b"zombie")])
        second.add(new, [(topic, 0)])
        writer.write(new, [encoded(topic, 0, b"new")])
        second.end(new, commit=True)
        with pytest.raises(TransactionLostError, match="one driver of a query at a time"):
            first.init()
    assert committed(cluster, topic) == [b"new"]


def test_a_commit_is_found_done_by_whoever_asks_again(cluster: Cluster, topic: str) -> None:
    """The driver died after EndTxn; the next one knows the identity from the database."""
    config = {"bootstrap_servers": cluster.bootstrap}
    with transaction(cluster, topic) as first, SharedWriter(config) as writer:
        identity = first.init()
        first.add(identity, [(topic, 0)])
        writer.write(identity, [encoded(topic, 0, b"x")])
        first.end(identity, commit=True)
    with transaction(cluster, topic) as second:
        second.end(identity, commit=True)
        second.init()
        with pytest.raises(TransactionLostError):
            second.end(identity, commit=True)
    assert committed(cluster, topic) == [b"x"]


def test_a_transaction_that_was_open_too_long_says_so(topic: str, cluster: Cluster) -> None:
    with transaction(cluster, topic, timeout_ms=1) as driver:
        identity = driver.init()
        driver.add(identity, [(topic, 0)])
        with transaction(cluster, topic) as other:  # raises the epoch, as the coordinator does
            other.init()
        with pytest.raises(TransactionLostError, match="raise transaction_timeout") as lost:
            driver.end(identity, commit=True)
        assert lost.value.expired
        assert driver.init().epoch > identity.epoch


def test_what_brokers_refuse_is_named(cluster: Cluster, topic: str) -> None:
    config = {"bootstrap_servers": cluster.bootstrap}
    with transaction(cluster, topic, timeout_ms=1 << 30) as driver:
        with pytest.raises(BrokerError, match=r"transaction\.max\.timeout\.ms"):
            driver.init()
        with pytest.raises(BrokerError, match="create it before the query starts"):
            driver.partition_counts(["absent"])
    with transaction(cluster, topic) as driver, SharedWriter(config) as writer:
        identity = driver.init()
        driver.add(identity, [(topic, 0)])
        with pytest.raises(RecordTooLargeError, match=rf"{topic}-0.*batch_bytes"):
            writer.write(identity, [encoded(topic, 0, bytes(2 << 20))])
        writer.write(identity, [encoded(topic, 0, b"1", b"2")])
        with pytest.raises(BrokerError, match="OUT_OF_ORDER"):  # a second attempt, other content
            writer.write(identity, [encoded(topic, 0, b"3")])
        driver.end(identity, commit=False)
    assert committed(cluster, topic) == []


def test_leaders_that_move_are_followed(topic: str) -> None:
    with Cluster(nodes=2) as two:
        two.create_topic(topic, partitions=2)
        with (
            transaction(two, topic) as driver,
            SharedWriter({"bootstrap_servers": two.bootstrap}) as writer,
        ):
            identity = driver.init()
            driver.add(identity, [(topic, 0), (topic, 1)])

            def moving() -> Iterator[EncodedBatch]:
                yield encoded(topic, 0, b"a")
                yield encoded(topic, 1, b"b")
                two.move_leader(topic, 0)
                two.move_leader(topic, 1)
                yield encoded(topic, 0, b"c")
                yield encoded(topic, 1, b"d")

            assert sum(writer.write(identity, moving()).values()) == 4
            driver.end(identity, commit=True)
        found = read_committed(two.bootstrap, topic, 2)
    assert sorted(r.value or b"" for r in found) == [b"a", b"b", b"c", b"d"]


def test_a_partition_has_one_batch_under_way_and_sequences_go_on() -> None:
    queue = WriteQueue(Identity("q", 7, 3))
    following = WriteQueue(Identity("q", 7, 3), {TopicPartition("t", 0): 12})
    following.add(encoded("t", 0, b"z"))
    for size in (2, 3):
        queue.add(encoded("t", 0, *[b"x"] * size))
    queue.add(encoded("t", 1, b"y"))
    at, other = TopicPartition("t", 0), TopicPartition("t", 1)
    assert queue.ready() == [at, other]

    def sequence() -> tuple[int, int, int]:
        header = read_batch_header(bytes(queue.take(at)), 0)
        return known(header).producer_id, known(header).producer_epoch, known(header).base_sequence

    assert sequence() == (7, 3, 0)
    assert queue.ready() == [other]
    queue.again(at)
    assert queue.is_retried(at)
    assert sequence() == (7, 3, 0)
    queue.stored(at)
    assert not queue.is_retried(at)
    assert sequence() == (7, 3, 2)
    queue.stored(at)
    queue.take(other)
    assert not queue.idle
    queue.stored(other)
    assert queue.idle
    assert queue.bytes == 0
    assert queue.records == {at: 5, other: 1}
    taken = read_batch_header(bytes(following.take(at)), 0)
    assert known(taken).base_sequence == 12, "behind what another writer of this epoch has written"
