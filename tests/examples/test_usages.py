"""Every example runs (spec 4.10 to 4.12): the eight usages, both threading models, flow control."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples import (
    app_exactly_once,
    consume_auto_commit,
    consume_exactly_once,
    consume_into_database,
    consume_seek_back,
    consume_to_the_end,
    flow_control,
    threads_app,
    threads_one_consumer_each,
)
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.flow_control import Priorities, Together
from kohort.errors import ConfigError
from kohort.records import Record
from tests.examples.conftest import Collect, committed, fill, one_of, total
from tests.known import known
from tests.processing.conftest import Running, Until
from tests.processing.test_exact import rows, wait_for
from tests.reading import read_committed

ROOT = Path(__file__).resolve().parents[2]


def test_1_smallest(cluster, topic) -> None:
    """Spec 4.10, the first usage."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-u",
            "examples/consume_smallest.py",
            topic,
            "smallest",
            cluster.bootstrap,
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    seen: list[str] = []
    stop = threading.Event()

    def produce() -> None:
        number = 0
        while not stop.is_set():  # it starts at the end, as Kafka's default is
            fill(cluster, topic, 3, 100 + number)
            number += 3
            stop.wait(0.05)

    producing = threading.Thread(target=produce)
    producing.start()
    assert process.stdout is not None
    while len(seen) < 6:
        seen.append(process.stdout.readline())
    stop.set()
    producing.join()
    process.kill()
    process.wait()
    process.stdout.close()
    assert all(len(line.split()) == 4 for line in seen)


def test_2_auto_commit(cluster, topic) -> None:
    """Spec 4.10, the second: auto commit."""
    some = Collect(60)
    consume_auto_commit.run(topic, "auto", cluster.bootstrap, some)
    assert sorted(some.values) == list(range(60))
    assert committed(cluster, "auto") == 60


def test_3_into_a_database(cluster, topic, tmp_path) -> None:
    """Spec 4.10, the third: committed by hand after a database insert."""
    file = str(tmp_path / "orders.db")
    consume_into_database.run(topic, "database", file, cluster.bootstrap, until=60)
    assert committed(cluster, "database") == 60
    fill(cluster, topic, 6, 60)
    consume_into_database.run(topic, "database", file, cluster.bootstrap, until=66)
    assert one_of(file, "SELECT count(DISTINCT value) FROM orders") == 66


def test_4_to_the_end(cluster, topic) -> None:
    """Spec 4.10, the fourth: fixed partitions, read to their present end."""
    values = [
        int(known(record.value)) for record in consume_to_the_end.read(topic, cluster.bootstrap)
    ]
    assert sorted(values) == list(range(60))


def test_5_exactly_once_over_a_rebalance(cluster, topic, tmp_path) -> None:
    """Spec 4.10, the fifth: results and offsets in one transaction of the database."""
    file = str(tmp_path / "sums.db")
    consume_exactly_once.run(topic, "exactly", file, cluster.bootstrap, until=60)
    fill(cluster, topic, 240, 60)
    members = [
        threading.Thread(
            target=consume_exactly_once.run, args=(topic, "exactly", file, cluster.bootstrap, 300)
        )
        for _ in range(2)
    ]
    for member in members:
        member.start()
    for member in members:
        member.join()
    assert total(file) == sum(range(300))


def test_6_seek_back(cluster, topic) -> None:
    """Spec 4.10, the sixth: back to the last good offset after a failure."""
    tries: Counter[int] = Counter()
    done: dict[int, list[int]] = defaultdict(list)

    def work(record) -> None:
        number = int(record.value)
        tries[number] += 1
        if number in (10, 31) and tries[number] < 3:
            raise ValueError("not yet")
        done[record.partition].append(number)

    consume_seek_back.run(topic, "seek", cluster.bootstrap, work, until=60)
    assert done == {p: list(range(p, 60, 3)) for p in range(3)}
    assert committed(cluster, "seek") == 60


def test_one_consumer_each(cluster, topic) -> None:
    """Spec 4.12: one consumer a thread."""
    seen, until = [], Until(60)

    def work(record) -> None:
        seen.append(int(record.value))
        until.count()

    workers = threads_one_consumer_each.Workers(topic, "threads", 3, cluster.bootstrap, work)
    until.wait()
    workers.stop()
    assert sorted(set(seen)) == list(range(60))
    assert committed(cluster, "threads") == 60


def test_apart_from_processing(cluster, topic) -> None:
    """Spec 4.12: consuming apart from processing."""
    until = Until(60)
    running = Running(
        threads_app.make(topic, "apart", cluster.bootstrap, lambda record: until.count())
    )
    until.wait()
    running.stop()
    assert running.error is None


@pytest.mark.parametrize("mode", ["kafka", "store"])
def test_results_that_count_exactly_once(cluster, tmp_path, mode) -> None:
    topic, file = f"orders-{mode}", tmp_path / "bills.db"
    cluster.create_topic(topic, partitions=3)
    cluster.create_topic(f"{topic}.bills", partitions=3)
    fill(cluster, topic, 60)
    if mode == "kafka":
        app = app_exactly_once.into_kafka(topic, mode, cluster.bootstrap)
    else:
        app = app_exactly_once.into_database(topic, mode, f"sqlite:///{file}", cluster.bootstrap)
    running = Running(app)
    wait_for(lambda: committed(cluster, mode) == 60, "all 60 are done")
    running.stop()
    assert running.error is None
    if mode == "kafka":
        bills = [int(known(r.value)) for r in read_committed(cluster.bootstrap, f"{topic}.bills")]
    else:
        bills = [amount for (amount,) in rows(file, "SELECT amount FROM bills")]
    assert sorted(bills) == list(range(60))


def test_priorities(cluster, topic) -> None:
    """Spec 4.11: between topics."""
    bulk = f"{topic}-bulk"
    cluster.create_topic(bulk, partitions=3)
    fill(cluster, bulk, 60, 1_000)
    some = Collect(120)
    flow_control.by_priority(topic, bulk, "priority", cluster.bootstrap, some)
    urgent = [at for at, number in enumerate(some.values) if number < 1_000]
    assert len(urgent) == 60
    before = sum(number >= 1_000 for number in some.values[: urgent[-1]])
    assert before <= 30, "no more of bulk than what two polls had before the first decision"


def test_streams_stay_together(cluster, topic) -> None:
    """Spec 4.11: two streams within a bound of each other."""
    other = f"{topic}-other"
    cluster.create_topic(other, partitions=3)
    fill(cluster, other, 60, 1_000)
    with pytest.raises(ConfigError, match="two topics"):
        Together([topic], 10)
    some = Collect(120)
    flow_control.together(topic, other, 50, "together", cluster.bootstrap, some)
    assert len(some.values) == 120
    # Their times are 1,000 apart, far more than the bound: one waits until the other is read.
    early = [n for n in some.values[: some.values.index(59)] if n >= 1_000]
    assert len(early) <= 30, "no more of the later one than what two polls had before a decision"


class Reading:
    """A consumer as flow control sees it."""

    def __init__(self, lags: dict[TopicPartition, int | None]) -> None:
        self.lags = lags
        self.now_paused: set[TopicPartition] = set()

    def health(self) -> Any:
        return SimpleNamespace(
            partitions=[SimpleNamespace(partition=tp, lag=lag) for tp, lag in self.lags.items()]
        )

    def assignment(self):
        return frozenset(self.lags)

    def paused(self):
        return frozenset(self.now_paused)

    def pause(self, *partitions):
        assert set(partitions) <= self.lags.keys(), "what is not assigned cannot be paused"
        assert not self.now_paused & set(partitions), "only what has changed is told"
        self.now_paused.update(partitions)

    def resume(self, *partitions):
        assert self.now_paused >= set(partitions)
        self.now_paused.difference_update(partitions)


def test_what_is_paused_is_resumed_and_the_rest_left_alone() -> None:
    """Spec 4.11: both utilities, step by step; also over a rebalance, which forgets pauses."""
    a, b, other = (TopicPartition(name, 0) for name in ("a", "b", "other"))
    consumer = Reading({a: 5, b: 5, other: 5})
    consumer.now_paused = {other}  # by somebody else
    urgent_first = Priorities([["a"], ["b"]])
    for _ in range(2):
        assert urgent_first.apply(consumer) == {b}
        assert consumer.now_paused == {b, other}
    consumer.now_paused = {other}
    assert urgent_first.apply(consumer) == {b}
    consumer.lags[a] = 0
    assert urgent_first.apply(consumer) == set()
    assert consumer.now_paused == {other}

    both = Together(["a", "b"], 100)
    consumer.lags[a] = 5
    both.saw([Record("a", 0, 0, timestamp=1_000), Record("b", 0, 0, timestamp=2_000)])
    for _ in range(2):
        assert both.apply(consumer) == {b}
        assert consumer.now_paused == {b, other}
    both.saw([Record("a", 0, 1, timestamp=1_900)])
    assert both.apply(consumer) == set()
    assert consumer.now_paused == {other}
    both.saw([Record("b", 0, 1, timestamp=3_000)])
    assert both.apply(consumer) == {b}
    consumer.lags[a] = 0  # read to its end: nothing can be waited for
    assert both.apply(consumer) == set()
    del consumer.lags[b]
    assert both.apply(consumer) == set()


def test_a_partition_that_lags_is_waited_for_beside_another_of_its_topic() -> None:
    """Issue 14, item 17: the newest time of a topic hid the partition that lags behind."""
    both = Together(["a", "b"], 100)
    slow, fast, b = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
    both.saw([Record("a", 0, 0, timestamp=1_000), Record("a", 1, 0, timestamp=9_000)])
    both.saw([Record("b", 0, 0, timestamp=9_000)])
    consumer = Reading({slow: 5, fast: 5, b: 5})
    assert both.apply(consumer) == {fast, b}
    both.saw([Record("a", 0, 1, timestamp=8_950)])
    assert both.apply(consumer) == set()
    new = TopicPartition("b", 1)
    consumer.lags[new] = None  # nothing of it has been read: nobody runs ahead of it
    assert both.apply(consumer) == {slow, fast, b}
    consumer.lags[new] = 0
    assert both.apply(consumer) == set()


def test_who_waits_for_whom() -> None:
    """Pure: the stream ahead waits, unless the other has nothing left to read."""
    both = Together(["a", "b"], 100)
    a, b = TopicPartition("a", 0), TopicPartition("b", 0)
    both.saw([Record("a", 0, 0, timestamp=1_000), Record("b", 0, 0, timestamp=1_050)])
    assert both.ahead({a: True, b: True}) == set()
    both.saw([Record("b", 0, 1, timestamp=1_101)])
    assert both.ahead({a: True, b: True}) == {b}
    assert both.ahead({a: False, b: True}) == set()
    first = Priorities([["a"], ["b", "c"], ["d"]], max_lag=5)
    lags = {TopicPartition(t, 0): lag for t, lag in (("a", 5), ("b", 9), ("c", None), ("d", 0))}
    assert first.paused(lags) == {TopicPartition("d", 0)}
    lags[TopicPartition("a", 0)] = 6
    assert {tp.topic for tp in first.paused(lags)} == {"b", "c", "d"}
    with pytest.raises(ConfigError, match="in two levels"):
        Priorities([["a"], ["a"]])
