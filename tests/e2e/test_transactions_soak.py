"""Our transactional producers and a reader, while nodes die and leaders and coordinators move."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from kohort import Producer
from kohort.broker.apis import api_versions
from kohort.broker.base.config import TRANSACTIONS_TOPIC
from kohort.errors import AbortableTransactionError
from tests.clusters import Embedded as Cluster
from tests.effort import chiefly
from tests.reading import read_committed

PARTITIONS, WRITERS, SECONDS, WAIT_S = 3, 3, 4.0, 60


class Part(NamedTuple):
    """One record: the `at`-th of `total` that a transaction wrote to each partition."""

    writer: int
    number: int
    at: int
    total: int

    def value(self) -> bytes:
        return ":".join(map(str, self)).encode()

    @classmethod
    def of(cls, value: bytes) -> Part:
        return cls(*map(int, value.split(b":")))


class Writing(threading.Thread):
    """Transactions one after the other, some of which are aborted."""

    def __init__(self, servers: str, writer: int, ending: threading.Event) -> None:
        super().__init__(daemon=True)
        self._servers, self._writer, self._ending = servers, writer, ending
        self._chance = random.Random(writer)
        self.committed: dict[int, int] = {}
        self.aborted = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._write()
        except BaseException as error:  # it is for the test to see
            self.error = error

    def _write(self) -> None:
        chance = self._chance
        with Producer(
            bootstrap_servers=self._servers,
            transactional_id=f"soak-{self._writer}",
            linger_ms=chance.choice([0, 2]),
            batch_size=chance.choice([200, 16_384]),
        ) as producer:
            producer.init_transactions(WAIT_S)
            number = 0
            while not self._ending.is_set():
                number += 1
                count = chance.randrange(1, 30)
                try:
                    self._transact(producer, number, count, commit=chance.random() < 0.7)
                except AbortableTransactionError:
                    producer.abort_transaction(WAIT_S)
                    self.aborted += 1

    def _transact(self, producer: Producer, number: int, count: int, *, commit: bool) -> None:
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            for at in range(count):
                part = Part(self._writer, number, at, count)
                producer.send("t", part.value(), partition=partition)
        if commit:
            producer.commit_transaction(WAIT_S)
            self.committed[number] = count
            return
        if self._chance.random() < 0.5:
            producer.flush()
        producer.abort_transaction(WAIT_S)
        self.aborted += 1


@pytest.fixture(params=chiefly(["KIP-890"], ["before KIP-890", "KIP-890"]))
def nodes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    if request.param == "before KIP-890":
        monkeypatch.setattr(api_versions, "FEATURES", ())
        usual = api_versions._usual.__wrapped__  # keeps no answer for other tests
        monkeypatch.setattr(api_versions, "_usual", usual)
    with Cluster(nodes=3, broker_session_timeout_ms=50) as cluster:
        cluster.create_topic("t", PARTITIONS)
        yield cluster


def disturb(nodes: Cluster) -> None:
    """Kill, restart and move for a while."""
    chance, tick = random.Random(1), threading.Event()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        tick.wait(chance.random() * 0.3)
        what = chance.choice(["kill", "move", "coordinator", "prefer"])
        if what == "kill":
            node = chance.choice(nodes.nodes)
            nodes.kill_node(node)
            tick.wait(chance.random() * 0.2)
            nodes.restart_node(node)
        elif what == "move":
            nodes.move_leader("t", chance.randrange(PARTITIONS))
        elif what == "coordinator":
            nodes.move_leader(TRANSACTIONS_TOPIC, chance.randrange(8))
        else:
            nodes.elect_preferred()


def read(nodes: Cluster, partition: int) -> list[Part]:
    """What was committed to a partition."""
    found = read_committed(nodes.bootstrap, "t", [partition])
    return [Part.of(record.value or b"") for record in found]


@pytest.mark.slow
def test_every_transaction_is_there_whole_once_and_in_order_or_not_at_all(nodes: Cluster) -> None:
    """F2, L4, L8, over everything that can happen to a node."""
    ending = threading.Event()
    writers = [Writing(nodes.bootstrap, n, ending) for n in range(WRITERS)]
    for writer in writers:
        writer.start()
    disturb(nodes)
    ending.set()
    for writer in writers:
        writer.join(WAIT_S)
        assert not writer.is_alive()
        assert writer.error is None
        assert writer.committed
        assert writer.aborted
    for partition in range(PARTITIONS):
        found = read(nodes, partition)
        for n, writer in enumerate(writers):
            mine = [part for part in found if part.writer == n]
            assert mine == [
                Part(n, number, at, count)
                for number, count in writer.committed.items()
                for at in range(count)
            ]
