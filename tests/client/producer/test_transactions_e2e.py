"""Transactions of our producers and consumers on the embedded broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from kohort import AsyncProducer, Consumer, Producer, TopicPartition
from kohort.broker.apis import api_versions
from kohort.client.producer import transactions_api as producer_transactions
from kohort.errors import (
    AbortableTransactionError,
    BrokerError,
    ConfigError,
    ErrorCode,
    FencedError,
    KafkaTimeoutError,
    KohortError,
    RecordTooLargeError,
    TransactionAbortedError,
    UsageError,
)
from tests.clusters import APACHE, Cluster
from tests.known import known
from tests.patience import PATIENCE_S, until
from tests.reading import read_committed

T0 = TopicPartition("t", 0)
PARTITIONS = {"t": 1, "out": 2}


@pytest.fixture(params=["before KIP-890", "KIP-890"])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    if request.param == "before KIP-890":
        if APACHE:
            pytest.skip("Apache Kafka's features are not to be taken from it")
        monkeypatch.setattr(api_versions, "FEATURES", ())
        usual = api_versions._usual.__wrapped__  # keeps no answer for other tests
        monkeypatch.setattr(api_versions, "_usual", usual)
    with Cluster() as made:
        for name, partitions in PARTITIONS.items():
            made.create_topic(name, partitions)
        yield made


def producer(cluster: Cluster, name: str = "tx", **settings: Any) -> Producer:
    made = Producer(bootstrap_servers=cluster.bootstrap, transactional_id=name, **settings)
    made.init_transactions(PATIENCE_S)
    return made


def fail(p: Producer, value: bytes) -> None:
    """A transaction whose record is stored, and which then fails."""
    with p.transaction():
        p.send("t", value)
        p.flush()
        raise ZeroDivisionError


def read(cluster: Cluster, topic: str = "t", *, committed: bool = True) -> list[bytes]:
    """Every record that is there now, as far as it may be seen."""
    level = "read_committed" if committed else "read_uncommitted"
    found = read_committed(cluster.bootstrap, topic, PARTITIONS[topic], isolation_level=level)
    return [known(record.value) for record in found]


def shows(cluster: Cluster, wanted: list[bytes], topic: str = "t") -> bool:
    """Whether these are committed, partitions in any order. Apache Kafka answers the end of a
    transaction before its markers stand, so a reader may have to come back."""
    in_order = sorted if PARTITIONS[topic] > 1 else list
    end = time.monotonic() + PATIENCE_S
    while in_order(found := read(cluster, topic)) != in_order(wanted):
        assert time.monotonic() < end, f"{found} instead of {wanted}"
    return True


def test_nothing_of_an_aborted_transaction_is_ever_seen(cluster: Cluster) -> None:
    """F2, with our own consumer: it reads to what is stable and leaves out what was aborted."""
    with producer(cluster) as p:
        with p.transaction():
            p.send("t", b"a")
        with pytest.raises(ZeroDivisionError):
            fail(p, b"b")
        with p.transaction():
            p.send("t", b"c")
        p.begin_transaction()
        p.send("t", b"open")
        p.flush()
        assert shows(cluster, [b"a", b"c"])
        assert read(cluster, committed=False) == [b"a", b"b", b"c", b"open"]
        p.commit_transaction()
        assert shows(cluster, [b"a", b"c", b"open"])


def test_records_that_were_not_sent_are_dropped_by_an_abort(cluster: Cluster) -> None:
    with producer(cluster, linger_ms=60_000, delivery_timeout_ms=120_000) as p:
        p.begin_transaction()
        future = p.send("t", b"a")
        p.abort_transaction()
        assert isinstance(future.error(PATIENCE_S), TransactionAbortedError)
        with p.transaction():
            p.send("t", b"b")
        p.flush()
    assert read(cluster, committed=False) == [b"b"]


def test_writing_outside_of_a_transaction_is_refused(cluster: Cluster) -> None:
    with producer(cluster) as p:
        with pytest.raises(UsageError, match="begin_transaction"):
            p.send("t", b"x")
        with pytest.raises(UsageError, match="begin_transaction"):
            p.send_many("t", [b"x"])
        with p.transaction():
            p.send("t", b"y")
        with pytest.raises(UsageError, match="begin_transaction"):
            p.send("t", b"x")
        with pytest.raises(UsageError):
            p.init_transactions()
        with pytest.raises(UsageError):
            p.commit_transaction()
    plain = Producer(bootstrap_servers=cluster.bootstrap)
    with plain, pytest.raises(UsageError, match="transactional_id"):
        plain.begin_transaction()
    assert read(cluster, committed=False) == [b"y"]


def test_configurations_that_cannot_work() -> None:
    with pytest.raises(ConfigError, match="enable_idempotence"):
        Producer(transactional_id="tx", enable_idempotence=False)
    with pytest.raises(ConfigError, match="transactional_id"):
        Producer(transactional_id="")


def test_a_timeout_that_the_broker_does_not_allow(cluster: Cluster) -> None:
    made = Producer(
        bootstrap_servers=cluster.bootstrap, transactional_id="tx", transaction_timeout_ms=900_001
    )
    with pytest.raises(BrokerError, match="INVALID_TRANSACTION_TIMEOUT"):
        made.init_transactions(PATIENCE_S)
    made.close()


def test_a_second_producer_fences_the_first(cluster: Cluster) -> None:
    old = producer(cluster)
    old.begin_transaction()
    old.send("t", b"old")
    old.flush()
    with producer(cluster) as new:
        error = old.send("t", b"more").error(PATIENCE_S)
        assert isinstance(error, BrokerError)
        assert error.name == "INVALID_PRODUCER_EPOCH"
        with pytest.raises(AbortableTransactionError):
            old.commit_transaction()
        with pytest.raises(FencedError):
            old.abort_transaction()
        with pytest.raises(FencedError):
            old.begin_transaction()
        with new.transaction():
            new.send("t", b"new")
    old.close()
    assert shows(cluster, [b"new"])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consume_transform_produce(cluster: Cluster, protocol: str) -> None:
    """Records and the offsets they were made from go together (KIP-447)."""
    with Producer(bootstrap_servers=cluster.bootstrap) as plain:
        plain.send_many("t", [b"%d" % n for n in range(100)])
    settings: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap,
        "group_id": "g",
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "isolation_level": "read_committed",
        "max_poll_records": 10,
        "group_protocol": protocol,
    }
    with producer(cluster) as p, Consumer(**settings) as consumer:
        consumer.subscribe(["t"])
        done, failed = 0, 0
        while done < 100:
            records = consumer.poll(PATIENCE_S)
            try:
                with p.transaction():
                    for record in records:
                        p.send("out", record.value, record.value)
                    p.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
                    if records and failed < 3:
                        failed += 1
                        raise InterruptedError
            except InterruptedError:
                found = consumer.committed([T0])[T0]
                consumer.seek(T0, 0 if found is None else found.offset)
                continue
            done += len(records)
        found = consumer.committed([T0])[T0]
        assert found is not None
        assert found.offset == 100
    assert shows(cluster, [b"%d" % n for n in range(100)], "out")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_left_behind_cannot_commit_its_transaction(
    cluster: Cluster, protocol: str
) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap) as plain:
        plain.send("t", b"x").result(PATIENCE_S)
    settings: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap,
        "group_id": "g",
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "group_protocol": protocol,
    }
    with producer(cluster) as p:
        with Consumer(**settings) as consumer:
            consumer.subscribe(["t"])
            while not consumer.poll(PATIENCE_S):
                continue
            positions, who = consumer.positions(), consumer.group_metadata()
        p.begin_transaction()
        p.send("out", b"x")
        with pytest.raises(AbortableTransactionError):
            p.send_offsets_to_transaction(positions, who)
        p.abort_transaction()
        with p.transaction():
            p.send("out", b"y")
    assert shows(cluster, [b"y"], "out")


def test_a_transaction_that_its_broker_gave_up(cluster: Cluster) -> None:
    """It took longer than transaction_timeout_ms: the producer learns it at commit."""
    with producer(cluster, transaction_timeout_ms=100) as p:
        p.begin_transaction()
        p.send("t", b"x")
        with suppress(KohortError):  # a slow machine comes too late for this already
            p.flush()
        with producer(cluster, "other") as other, other.transaction():
            other.send("t", b"y")
        with Consumer(
            bootstrap_servers=cluster.bootstrap, isolation_level="read_committed"
        ) as consumer:
            consumer.assign([T0])
            consumer.seek_to_beginning()
            seen = [r.value for r in consumer.poll(PATIENCE_S)]
        assert seen == [b"y"]
        with pytest.raises(KohortError, match=r"FENCED|EPOCH|INVALID_TXN_STATE"):
            p.commit_transaction()  # Apache Kafka says INVALID_TXN_STATE, the embedded one fences


def test_the_broker_restarts_within_a_transaction(cluster: Cluster) -> None:
    with producer(cluster) as p:
        with p.transaction():
            p.send("t", b"a")
            p.flush()
            cluster.restart()
            p.send("t", b"b")
        with p.transaction():
            p.send("t", b"c")
    assert shows(cluster, [b"a", b"b", b"c"])


@pytest.mark.skipif(APACHE, reason="tells the broker to refuse")
@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction"])
def test_an_end_that_is_refused_for_ever_says_why(cluster: Cluster, call: str) -> None:
    """What a call was not answered in time for is in its error; the same call again ends it."""
    with producer(cluster, retry_backoff_ms=20) as p:
        p.begin_transaction()
        p.send("t", b"x").result(PATIENCE_S)
        with cluster.faults.fail("EndTxn", "COORDINATOR_LOAD_IN_PROGRESS", times=100_000):
            until(lambda: "'tx' is refused with COORDINATOR_LOAD" in timeout_message(p, call), call)
        getattr(p, call)(PATIENCE_S)
        with p.transaction():
            p.send("t", b"y")
    assert shows(cluster, [b"x", b"y"] if call == "commit_transaction" else [b"y"])


def timeout_message(p: Producer, call: str) -> str:
    """What a call that has hardly any time says of it."""
    with pytest.raises(KafkaTimeoutError) as raised:
        getattr(p, call)(0.01)
    return str(raised.value)


@pytest.mark.skipif(APACHE, reason="tells the broker to refuse")
def test_with_asyncio_a_call_that_is_refused_for_ever_says_why(cluster: Cluster) -> None:
    async def run() -> None:
        async with AsyncProducer(bootstrap_servers=cluster.bootstrap, transactional_id="tx") as p:
            message = ""
            with cluster.faults.fail("InitProducerId", "NOT_COORDINATOR", times=100_000):
                while "'tx' is refused with NOT_COORDINATOR" not in message:
                    with pytest.raises(KafkaTimeoutError) as raised:
                        await p.init_transactions(0.01)
                    message = str(raised.value)
            await p.init_transactions(PATIENCE_S)

    asyncio.run(run())


@pytest.mark.skipif(APACHE, reason="stops the broker")
def test_who_cannot_be_reached_is_named(cluster: Cluster) -> None:
    """No answer at all: the addresses that were tried."""
    with producer(cluster) as p:
        p.begin_transaction()
        p.send("t", b"x").result(PATIENCE_S)
        cluster.stop()
        until(
            lambda: "no broker could be reached" in timeout_message(p, "abort_transaction"), "told"
        )
        cluster.start()
        p.abort_transaction(PATIENCE_S)


async def fail_slowly(p: AsyncProducer) -> None:
    async with p.transaction():
        await (await p.send("t", b"b"))
        raise ZeroDivisionError


def send_more_and_commit(p: Producer) -> None:
    p.send_many("t", [b"x" * 1_000] * 2_000)  # which hears of it if the answer is fast
    p.commit_transaction(PATIENCE_S)


def test_a_broken_transaction_is_told_at_once(cluster: Cluster) -> None:
    """Nothing more of it is sent, and nobody waits for what was not."""
    cluster.create_topic("small", 1, {"max.message.bytes": "1000"})
    with producer(cluster, max_in_flight_requests_per_connection=1) as p:
        p.begin_transaction()
        refused = p.send("small", b"x" * 2_000)
        with pytest.raises(AbortableTransactionError, match="too large"):
            send_more_and_commit(p)
        assert isinstance(refused.error(PATIENCE_S), RecordTooLargeError)
        p.abort_transaction(PATIENCE_S)
        with p.transaction():
            p.send("t", b"z")
    assert shows(cluster, [b"z"])


def test_a_broken_transaction_is_told_once_with_asyncio(cluster: Cluster) -> None:
    """Its end tells of what failed; the flush of the next one does not tell it again."""
    cluster.create_topic("small", 1, {"max.message.bytes": "1000"})

    async def run() -> None:
        async with AsyncProducer(bootstrap_servers=cluster.bootstrap, transactional_id="tx") as p:
            await p.init_transactions(PATIENCE_S)
            p.begin_transaction()
            await p.send("small", b"x" * 2_000)
            with pytest.raises(AbortableTransactionError, match="too large"):
                await p.commit_transaction(PATIENCE_S)
            await p.abort_transaction(PATIENCE_S)
            async with p.transaction():
                await p.send("t", b"z")
                await p.flush(PATIENCE_S)

    asyncio.run(run())
    assert shows(cluster, [b"z"])


def test_closing_aborts_what_is_open(cluster: Cluster) -> None:
    """Else those who read committed records would wait for it until its time is over."""
    p = producer(cluster)
    p.begin_transaction()
    p.send("t", b"a").result(PATIENCE_S)
    p.close()
    with producer(cluster, "other") as other, other.transaction():
        other.send("t", b"b")
    assert shows(cluster, [b"b"])


def fail_in_the_block(cluster: Cluster, face: str) -> None:
    """An error leaves the producer's block while a transaction is open."""
    settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap, "transactional_id": "tx"}

    def fails() -> None:
        with Producer(**settings) as p:
            p.init_transactions(PATIENCE_S)
            p.begin_transaction()
            p.send("t", b"a").result(PATIENCE_S)
            raise ZeroDivisionError

    async def fails_too() -> None:
        async with AsyncProducer(**settings) as p:
            await p.init_transactions(PATIENCE_S)
            p.begin_transaction()
            await (await p.send("t", b"a"))
            raise ZeroDivisionError

    fails() if face == "Producer" else asyncio.run(fails_too())


@pytest.mark.parametrize("face", ["Producer", "AsyncProducer"])
def test_an_error_out_of_the_block_aborts_what_is_open(cluster: Cluster, face: str) -> None:
    """Else readers of committed records would wait for it until its time is over."""
    with pytest.raises(ZeroDivisionError):
        fail_in_the_block(cluster, face)
    with producer(cluster, "other") as other, other.transaction():
        other.send("t", b"b")
    assert shows(cluster, [b"b"])


@pytest.mark.skipif(APACHE, reason="tells the broker to refuse")
@pytest.mark.parametrize("face", ["Producer", "AsyncProducer"])
def test_an_error_out_of_the_block_does_not_wait_for_ever(
    cluster: Cluster, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised as it is, and says that the transaction could not be aborted."""
    monkeypatch.setattr(producer_transactions, "LAST_ABORT_S", 0.05)
    with (
        cluster.faults.fail("EndTxn", "COORDINATOR_LOAD_IN_PROGRESS", times=1_000_000),
        pytest.raises(ZeroDivisionError) as raised,
    ):
        fail_in_the_block(cluster, face)
    assert "could not be aborted" in raised.value.__notes__[0]


def test_closing_aborts_what_is_open_with_asyncio(cluster: Cluster) -> None:
    async def run() -> None:
        p = AsyncProducer(bootstrap_servers=cluster.bootstrap, transactional_id="tx")
        await p.init_transactions(PATIENCE_S)
        p.begin_transaction()
        await (await p.send("t", b"a"))
        await p.close()

    asyncio.run(run())
    with producer(cluster, "other") as other, other.transaction():
        other.send("t", b"b")
    assert shows(cluster, [b"b"])


def test_with_asyncio(cluster: Cluster) -> None:
    async def run() -> None:
        async with AsyncProducer(bootstrap_servers=cluster.bootstrap, transactional_id="tx") as p:
            await p.init_transactions(PATIENCE_S)
            async with p.transaction():
                await p.send("t", b"a")
            with pytest.raises(ZeroDivisionError):
                await fail_slowly(p)
            with pytest.raises(UsageError):
                await p.abort_transaction()
            with pytest.raises(UsageError):
                await p.init_transactions()
            async with p.transaction():
                await p.send("t", b"c")
                who = Consumer(bootstrap_servers=cluster.bootstrap, group_id="g")
                await p.send_offsets_to_transaction({T0: 5}, who.group_metadata())
                who.close()

    asyncio.run(run())
    assert shows(cluster, [b"a", b"c"])
    with Consumer(bootstrap_servers=cluster.bootstrap, group_id="g") as consumer:
        found = consumer.committed([T0])[T0]
        assert found is not None
        assert found.offset == 5


def test_with_asyncio_a_refused_commit_is_aborted(cluster: Cluster) -> None:
    """As of threads: the block ends with the error, and the next transaction may begin."""
    cluster.create_topic("small", 1, {"max.message.bytes": "1000"})

    async def run() -> None:
        async with AsyncProducer(bootstrap_servers=cluster.bootstrap, transactional_id="tx") as p:
            await p.init_transactions(PATIENCE_S)
            with pytest.raises(AbortableTransactionError, match="too large"):
                await too_large(p)
            async with p.transaction():
                await p.send("t", b"after")

    asyncio.run(run())
    assert shows(cluster, [b"after"])


async def too_large(p: AsyncProducer) -> None:
    async with p.transaction():
        await p.send("t", b"before")
        await p.send("small", b"x" * 2_000)


def test_who_is_fenced_is_not_told_to_do_it_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache Kafka may name the old epoch first, and the fence only when the abort is tried."""
    old = AbortableTransactionError("INVALID_PRODUCER_EPOCH")
    fenced = FencedError(90, "another one has begun")

    def refuse(error: Exception):
        def refused() -> None:
            raise error

        return refused

    with producer(cluster) as p:
        with monkeypatch.context() as patched:
            patched.setattr(p, "commit_transaction", refuse(old))
            patched.setattr(p, "abort_transaction", refuse(fenced))
            with pytest.raises(FencedError) as raised, p.transaction():
                pass
            assert raised.value.__cause__ is old
        p.abort_transaction()
        with monkeypatch.context() as patched:
            patched.setattr(p, "abort_transaction", refuse(fenced))
            with pytest.raises(ZeroDivisionError) as own, p.transaction():
                _ = 1 // 0
            assert "could not be aborted" in own.value.__notes__[0]
        p.abort_transaction()


def test_who_hears_of_the_fence_before_it_aborts_is_not_told_to_do_it_again(
    cluster: Cluster,
) -> None:
    """The coordinator's answer comes between the partition leader's, which breaks the transaction,
    and the abort: there is nothing left to abort then."""

    def fence(p: Producer | AsyncProducer) -> None:
        tx = p._core.transactional
        assert tx is not None
        with tx._lock:
            tx._tx._break(
                BrokerError(ErrorCode.INVALID_PRODUCER_EPOCH, "its transaction has ended")
            )
            broken = tx._tx.broken_error()
            tx._tx._die(FencedError(ErrorCode.PRODUCER_FENCED, "another one has begun"))
        raise broken

    with producer(cluster) as p:
        with pytest.raises(FencedError, match="another one has begun") as raised, p.transaction():
            fence(p)
        assert isinstance(raised.value.__cause__, AbortableTransactionError)

    async def run() -> None:
        async with AsyncProducer(bootstrap_servers=cluster.bootstrap, transactional_id="tx") as p:
            await p.init_transactions(PATIENCE_S)
            async with p.transaction():
                fence(p)

    with pytest.raises(FencedError, match="another one has begun"):
        asyncio.run(run())
