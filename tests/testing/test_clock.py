"""Virtual time: session timeouts, poll intervals and retention pass in milliseconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from kohort import Admin, App, Consumer, Producer, RebalanceListener, TopicPartition
from kohort.client.common import completion
from kohort.errors import KafkaTimeoutError, KohortError, UsageError
from kohort.testing import Cluster, VirtualClock

TENANT: ContextVar[str] = ContextVar("TENANT", default="nobody")


@pytest.fixture
def clock() -> Iterator[VirtualClock]:
    with VirtualClock() as made:
        yield made


@pytest.fixture
def cluster(clock: VirtualClock) -> Iterator[Cluster]:
    with Cluster(clock=clock) as made:
        made.create_topic("orders", partitions=2)
        yield made


def member(cluster: Cluster, name: str, **settings: Any) -> Consumer:
    made = Consumer(
        bootstrap_servers=cluster.bootstrap,
        group_id="g",
        client_id=name,
        auto_offset_reset="earliest",
        **settings,
    )
    made.subscribe(["orders"])
    return made


def test_records_go_through(clock: VirtualClock, cluster: Cluster):
    with (
        Producer(bootstrap_servers=cluster.bootstrap) as producer,
        member(cluster, "a") as consumer,
    ):
        for n in range(10):
            producer.send("orders", str(n).encode(), partition=n % 2)
        producer.flush()
        read: list[bytes] = []
        while len(read) < 10:
            read += [record.value or b"" for record in consumer.poll(1)]
        assert sorted(read) == [str(n).encode() for n in range(10)]


def test_a_poll_of_a_minute_takes_a_moment(clock: VirtualClock, cluster: Cluster):
    with member(cluster, "a") as consumer:
        began, before = time.monotonic(), clock.elapsed_s
        assert consumer.poll(60) == []
        assert 59 < clock.elapsed_s - before < 61
        assert time.monotonic() - began < 50, "virtual time is no time at all"


def test_a_member_that_is_cut_off_is_replaced_after_its_session(
    clock: VirtualClock, cluster: Cluster
):
    """The default session timeout of 45 s, to the second, in milliseconds."""
    with member(cluster, "a") as a, member(cluster, "b") as b:
        while not (a.assignment() and b.assignment()):
            a.poll(0.1)
            b.poll(0.1)
        cluster.faults.cut(client_id="a", times=1_000_000)
        before = clock.elapsed_s
        while len(b.assignment()) < 2:
            b.poll(1)
            assert clock.elapsed_s - before < 60
        assert 40 < clock.elapsed_s - before < 50
        cluster.faults.clear()
        while len(a.assignment()) < 1:
            a.poll(1)
            b.poll(1)


def test_who_does_not_poll_leaves_after_max_poll_interval(clock: VirtualClock, cluster: Cluster):
    lost: list[object] = []

    class Listener(RebalanceListener):
        def on_partitions_lost(self, partitions: object) -> None:
            lost.append(partitions)

    with member(cluster, "a") as consumer:
        consumer.subscribe(["orders"], Listener())
        while not consumer.assignment():
            consumer.poll(1)
        clock.advance(299)
        assert not cluster.requests.of("LeaveGroup")
        clock.advance(2)
        assert cluster.requests.of("LeaveGroup", client_id="a")
        while not consumer.assignment() or not lost:
            consumer.poll(1)


def test_a_topic_with_committed_offsets_is_deleted(clock: VirtualClock, cluster: Cluster):
    with (
        Producer(bootstrap_servers=cluster.bootstrap) as producer,
        member(cluster, "a") as consumer,
    ):
        producer.send("orders", b"1", partition=0).result()
        while not consumer.poll(1):
            pass
        consumer.commit()
        consumer.unsubscribe()
        cluster.delete_topic("orders")
        with pytest.raises(KohortError, match="UNKNOWN_TOPIC"):
            cluster.leader_of("orders", 0)


def test_waits_for_faults_and_requests(clock: VirtualClock, cluster: Cluster):
    with member(cluster, "a") as consumer:
        while not consumer.assignment():
            consumer.poll(1)
        with cluster.faults.fail("Heartbeat", "COORDINATOR_LOAD_IN_PROGRESS") as fault:
            fault.wait(timeout_s=30)
        cluster.requests.clear()
        cluster.requests.wait("Heartbeat", count=5, timeout_s=60)
        with pytest.raises(KafkaTimeoutError):
            cluster.requests.wait("DeleteTopics", timeout_s=60)


def test_retention_passes(clock: VirtualClock):
    """A week of retention, and the broker's look at it every five minutes."""
    with (
        Cluster(clock=clock, log_segment_bytes=200) as cluster,
        Producer(bootstrap_servers=cluster.bootstrap) as producer,
        Consumer(bootstrap_servers=cluster.bootstrap) as consumer,
    ):
        cluster.create_topic("t", config={"retention.ms": "3600000", "segment.bytes": "200"})
        for _ in range(5):
            producer.send("t", b"x" * 100).result()
        assert consumer.beginning_offsets([("t", 0)]) == {("t", 0): 0}
        clock.advance(2 * 3600)
        assert consumer.beginning_offsets([("t", 0)])[TopicPartition("t", 0)] >= 4


def test_records_of_any_age_stay_where_no_topic_says_otherwise(clock: VirtualClock):
    """Tests write records of 1970, and may take longer than until the broker's first look."""
    with (
        Cluster(clock=clock) as cluster,
        Producer(bootstrap_servers=cluster.bootstrap) as producer,
        Consumer(bootstrap_servers=cluster.bootstrap) as consumer,
    ):
        producer.send("t", b"x", timestamp_ms=0).result()
        clock.advance(3600)
        assert consumer.beginning_offsets([("t", 0)]) == {("t", 0): 0}


def test_nodes_fail_over(clock: VirtualClock):
    with Cluster(nodes=3, clock=clock) as cluster:
        cluster.create_topic("orders", partitions=3)
        with member(cluster, "a") as consumer, Admin(bootstrap_servers=cluster.bootstrap) as admin:
            while not consumer.assignment():
                consumer.poll(1)
            coordinator = cluster.coordinator_of("g")
            cluster.kill_node(coordinator)
            cluster.requests.wait("Heartbeat", node=coordinator % 3 + 1, timeout_s=60)
            cluster.restart_node(coordinator)
            assert len(admin.describe_cluster().nodes) >= 2
            consumer.commit()


def test_after_it_clients_have_their_thread_again():
    with VirtualClock():
        pass
    assert completion.driver is None
    with Cluster() as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.describe_cluster()


def test_mistakes_are_explained(clock: VirtualClock):
    with pytest.raises(UsageError, match="in memory"):
        Cluster(durability="os", clock=clock)
    with pytest.raises(UsageError, match="make a new one"), clock:
        pass


def test_the_brokers_clock_jumps_for_any_client():
    """A member of another make that says nothing more is expelled without 40 s of waiting."""
    with Cluster() as cluster:
        cluster.create_topic("orders", partitions=2)
        settings = {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "g",
            "session.timeout.ms": 40_000,
            "client.id": "theirs",
            "heartbeat.interval.ms": 200,
        }
        theirs = confluent_kafka.Consumer(settings)
        theirs.subscribe(["orders"])
        while not theirs.assignment():
            theirs.poll(0.1)
        with (
            cluster.faults.cut(client_id="theirs", times=1_000_000),
            member(cluster, "ours") as ours,
        ):
            cluster.requests.wait("JoinGroup", client_id="ours", answered=False)
            began = time.monotonic()
            cluster.advance(41)
            while len(ours.assignment()) < 2:
                ours.poll(0.1)
            assert time.monotonic() - began < 35
        theirs.close()


def test_retention_of_a_broker_that_jumps():
    with (
        Cluster() as cluster,
        Producer(bootstrap_servers=cluster.bootstrap) as producer,
        Consumer(bootstrap_servers=cluster.bootstrap) as consumer,
    ):
        cluster.create_topic("t", config={"retention.ms": "3600000", "segment.bytes": "200"})
        for _ in range(5):
            producer.send("t", b"x" * 100).result()
        cluster.advance(2 * 3600)
        while consumer.beginning_offsets([("t", 0)])[TopicPartition("t", 0)] < 4:
            consumer.poll(0.05)


@pytest.mark.parametrize("promise", [None, "kafka", "sqlite"])
def test_an_app_runs_and_ends_cleanly(
    clock: VirtualClock, cluster: Cluster, tmp_path: Path, promise: str | None
) -> None:
    """Issue 19, item 5: with each promise, a plain handler and a coroutine; all is committed."""
    cluster.create_topic("bills", partitions=1)
    url = f"sqlite:///{tmp_path}/app.db" if promise == "sqlite" else promise
    app, done = (
        App(
            "billing",
            bootstrap_servers=cluster.bootstrap,
            retries="2s 3s",
            exactly_once=url,
            clock_skew=0,
        ),
        list[tuple[bytes, int]](),
    )

    @app.handler("orders")
    def bill(record):
        if record.value != b"1" and record.attempt < 2:
            raise TimeoutError("no answer")
        record.send("copies", record.value)
        done.append((record.value, record.attempt))

    @app.handler("bills")
    async def note(record):
        done.append((record.value, record.attempt))

    cluster.create_topic("copies", partitions=1)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for topic, value in (("orders", b"1"), ("orders", b"2"), ("bills", b"3")):
            producer.send(topic, value)
    before = clock.elapsed_s
    ended = clock.run_app(app, until=lambda: len(done) == 3, seconds=60)
    assert ended.clean
    assert sorted(done) == [(b"1", 0), (b"2", 2), (b"3", 0)]
    assert 5 <= clock.elapsed_s - before < 40
    with Consumer(bootstrap_servers=cluster.bootstrap, isolation_level="read_committed") as copies:
        copies.assign([("copies", 0)])
        copies.seek_to_beginning(("copies", 0))
        found: list[bytes | None] = []
        while len(found) < 2:
            found += [record.value for record in copies.poll(5)]
    assert sorted(v for v in found if v) == [b"1", b"2"]


def test_an_app_ends_after_its_seconds(clock: VirtualClock, cluster: Cluster) -> None:
    app = App("billing", bootstrap_servers=cluster.bootstrap)
    app.handler("orders")(lambda record: None)
    before = clock.elapsed_s
    assert clock.run_app(app, seconds=30).clean
    assert 30 <= clock.elapsed_s - before < 60


def test_the_time_of_an_admin_call_is_virtual(clock: VirtualClock) -> None:
    """Its limit and its pauses are by one clock: a broker that never comes is waited for as long as
    was said, in milliseconds."""
    with Admin(bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=30_000) as admin:
        began_s, began_ns = clock.elapsed_s, time.monotonic_ns()
        with pytest.raises(KohortError):
            admin.list_topics()
    assert 20 <= clock.elapsed_s - began_s <= 31
    assert time.monotonic_ns() - began_ns < 20 * 10**9


@pytest.mark.parametrize(
    "client",
    [
        {"group_protocol": "consumer"},
        {"session_timeout_ms": 10_000},
        {"heartbeat_interval_ms": 1_000, "fetch_max_wait_ms": 100},
        {"request_timeout_ms": 20_000},
    ],
    ids=lambda client: "-".join(client),
)
def test_an_app_keeps_the_settings_that_it_names(
    clock: VirtualClock, cluster: Cluster, client: dict[str, Any]
) -> None:
    """The clock's own settings do not go with some of them, and were refused as if the user had
    written them."""
    app = App("billing", bootstrap_servers=cluster.bootstrap, client=client)
    done: list[bytes | None] = []
    app.handler("orders")(lambda record: done.append(record.value))
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send("orders", b"1")
    assert clock.run_app(app, until=lambda: done != [], seconds=60).clean
    assert done == [b"1"]
    assert client.items() <= app.client_settings.client.items()


def test_a_stopped_app_is_not_run_again(clock: VirtualClock, cluster: Cluster) -> None:
    """It did nothing, and reported a clean end."""
    app = App("billing", bootstrap_servers=cluster.bootstrap)
    app.handler("orders")(lambda record: None)
    assert clock.run_app(app, seconds=10).clean
    for again in (clock.run_app, App.run):
        with pytest.raises(UsageError, match="make a new App for another run"):
            again(app)


def test_an_app_that_ended_by_an_error_runs_again(clock: VirtualClock, cluster: Cluster) -> None:
    """The clock went on asking `until`, and stopped the app that had ended already."""
    app, done, asked = App("billing", bootstrap_servers=cluster.bootstrap), list[object](), [0]

    @app.handler("orders")
    def bill(record):
        done.append(record.value)
        if len(done) == 1:
            raise SystemExit(3)

    def until() -> bool:
        asked[0] += 1
        return len(done) > 1

    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send("orders", b"1")
    with pytest.raises(SystemExit):
        clock.run_app(app, until=until, seconds=60)
    before = asked[0]
    clock.advance(100)
    assert asked[0] == before
    assert clock.run_app(app, until=until).clean
    assert done == [b"1", b"1"]


def lifespan_app(cluster: Cluster, story: list[Any]) -> App:
    """An app with a coroutine handler that tells its story, and one record for it."""
    app = App("billing", bootstrap_servers=cluster.bootstrap, retries="none")

    @app.handler("orders")
    async def bill(record):
        story.append((asyncio.get_running_loop(), TENANT.get()))

    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send("orders", b"1")
    return app


def test_lifespans_are_open_while_handlers_run(clock: VirtualClock, cluster: Cluster) -> None:
    """Handlers found nothing of what `@app.lifespan` opens. As a real app: one task opens and
    closes, what it started works until then, and handlers see its context."""
    story: list[Any] = []
    app = lifespan_app(cluster, story)

    @app.lifespan
    async def session():
        async with asyncio.TaskGroup() as group:
            flushed = asyncio.Event()
            task = group.create_task(flushed.wait())
            TENANT.set("opened")
            story.append((asyncio.get_running_loop(), TENANT.get()))
            yield
            flushed.set()
            await task
            story.append((asyncio.get_running_loop(), "closed"))

    assert clock.run_app(app, until=lambda: len(story) == 2, seconds=60).clean
    loops, events = {one[0] for one in story}, [one[1] for one in story]
    assert events == ["opened", "opened", "closed"]
    assert len(loops) == 1


@pytest.mark.parametrize("at", ["start", "end"])
def test_what_a_lifespan_raises_ends_the_app(
    clock: VirtualClock, cluster: Cluster, at: str
) -> None:
    story: list[object] = []
    app = lifespan_app(cluster, story)

    @app.lifespan
    async def outer():
        try:
            yield
        finally:
            story.append("closed")

    @app.lifespan
    async def session():
        if at == "start":
            raise OSError("no such host")
        yield
        raise OSError("could not flush")

    with pytest.raises(OSError, match="no such host" if at == "start" else "could not flush"):
        clock.run_app(app, until=lambda: story != [], seconds=60)
    assert len(story) == (1 if at == "start" else 2)
    assert story[-1] == "closed"


def test_a_lifespan_that_does_not_close_is_given_up(clock: VirtualClock, cluster: Cluster) -> None:
    """In real time, as what it waits for is: after what is left of `drain`."""
    story: list[object] = []
    app = lifespan_app(cluster, story)
    app.configure(drain="1ms")

    @app.lifespan
    async def session():
        yield
        try:
            await asyncio.Event().wait()
        finally:
            story.append("cancelled")

    clock.run_app(app, until=lambda: story != [], seconds=60)
    assert story[1:] == ["cancelled"]
