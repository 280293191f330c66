"""Clients that nobody closed: told of, and ended as well as can be (issue C; invariant C14)."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import kohort
from kohort import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer, TopicPartition
from kohort.client.cluster.network_thread import NetworkThread
from tests.client.consumer_world import take, until, values
from tests.clusters import Cluster
from tests.patience import PATIENCE_S

SRC = Path(kohort.__file__).parent.parent
LONG_MS = 600_000


@pytest.fixture(scope="module")
def cluster():
    sessions = {  # so long that nobody is replaced who has not left
        "group_consumer_session_timeout_ms": LONG_MS,
        "group_consumer_max_session_timeout_ms": LONG_MS,
    }
    with Cluster(group_initial_rebalance_delay_ms=0, **sessions) as running:
        yield running


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a dropped client has begun is done within seconds, unless the machine stands still."""
    for client in ("consumer", "producer"):
        monkeypatch.setattr(f"kohort.client.{client}.finalizer.LAST_MS", 60_000)


def drop(what: list) -> None:
    """Let go of the one thing in the list, and collect it."""

    def collect() -> None:
        what.clear()
        gc.collect()

    with pytest.warns(ResourceWarning, match="was dropped without close"):
        collect()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_dropped_consumer_leaves_its_group_and_commits(world, protocol):
    """Others get its partitions at once, and go on where it stood."""
    topic, group = world.topic(1, records=20), world.group()
    settings = {"bootstrap_servers": world.cluster.bootstrap, "auto_offset_reset": "earliest"}
    if protocol == "classic":
        settings["session_timeout_ms"] = LONG_MS
    dropped = [Consumer(group_id=group, group_protocol=protocol, **settings)]
    dropped[0].subscribe([topic])
    assert take(dropped[0], 10) == values(range(10))
    dropped[0].poll(0, max_records=1)  # comes back, so that the ten have been dealt with
    drop(dropped)
    successor = world.consumer(group_id=group, group_protocol=protocol)
    successor.subscribe([topic])
    assert take(successor, 10)[0] == b"10"


def test_a_dropped_producer_sends_what_it_holds(world):
    topic = world.topic(1)
    dropped = [Producer(bootstrap_servers=world.cluster.bootstrap, linger_ms=60_000)]
    future = dropped[0].send(topic, b"0")
    drop(dropped)
    assert future.result(PATIENCE_S).offset == 0


def test_dropped_clients_of_tasks_and_admins_end_the_thread(world, monkeypatch):
    """The last one's end is the end of the network thread."""
    # One of their own: what was interrupted in a test before may still hold the other.
    monkeypatch.setattr(NetworkThread, "_shared", None)
    bootstrap = world.cluster.bootstrap

    async def use() -> None:
        producer = AsyncProducer(bootstrap_servers=bootstrap)
        await producer.send(world.topic(1), b"0")

    with pytest.warns(ResourceWarning, match="AsyncProducer was dropped"):
        asyncio.run(use())
    gc.collect()
    admin = [Admin(bootstrap_servers=bootstrap)]
    consumer = [AsyncConsumer(bootstrap_servers=bootstrap)]
    networks = (admin[0]._thread, consumer[0]._network)
    drop(admin)
    drop(consumer)
    for network in networks:
        network._thread.join(PATIENCE_S)
        assert not network._thread.is_alive()


def test_a_closed_client_is_not_spoken_of(world):
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (Consumer, Producer, Admin):
            with kind(bootstrap_servers=world.cluster.bootstrap):
                pass
        gc.collect()


def test_a_producer_that_is_open_at_the_end_of_the_program_loses_nothing(world):
    """Bounded by five seconds; a cluster that is gone does not keep the program alive."""
    topic, group = world.topic(1), world.group()
    world.produce(topic, 1, range(3))
    code = f"""
import kohort.client.cluster.network_thread
kohort.client.cluster.network_thread.LAST_MS = 60_000  # a machine may stand still
producer = kohort.Producer(bootstrap_servers={world.cluster.bootstrap!r}, linger_ms=60_000)
consumer = kohort.Consumer(bootstrap_servers={world.cluster.bootstrap!r}, group_id={group!r},
                           auto_offset_reset="earliest")
consumer.subscribe([{topic!r}])
while not consumer.poll(0.1):
    pass
producer.send({topic!r}, b"last")
"""
    ran = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", code],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert "a Producer was dropped without close()" in ran.stderr
    assert "a Consumer was dropped without close()" in ran.stderr
    reader = world.consumer(group_id=group)
    reader.subscribe([topic])
    assert take(reader, 4)[-1] == b"last"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_in_the_child_of_a_fork_nothing_is_ended(world):
    """The client is the parent's; the child only lets go of its copy."""
    topic = world.topic(1, records=5)
    clients = [
        Consumer(bootstrap_servers=world.cluster.bootstrap, auto_offset_reset="earliest"),
        Producer(bootstrap_servers=world.cluster.bootstrap),
    ]
    clients[0].assign([(topic, 0)])
    until(lambda: clients[0].position(TopicPartition(topic, 0)) == 5, clients[0])
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                clients.clear()
                gc.collect()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    clients[1].send(topic, b"5").result(PATIENCE_S)
    assert take(clients[0], 1) == [b"5"]
    for client in clients:
        client.close()
