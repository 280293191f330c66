"""Minutes of `App` in processes that are killed, on brokers whose nodes and coordinators move.

Every input is done at least once or in the dead-letter topic (R1), keys that never fail keep their
order whatever fails around them (4.12, 5.4), and after a clean stop the group's commits are the
ends of all topics and retry topics. `KOHORT_APP_SOAK_S` is how long records are produced (default
60), `KOHORT_SOAK_SEED` decides what happens.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kohort import Admin, Consumer, NewTopic, Producer
from kohort.retry import headers as h
from kohort.retry.policy import RetryPolicy, RetryTopics
from tests.clusters import Embedded as Cluster
from tests.e2e.broker_process import ROOT, BrokerProcess
from tests.processing.soak_program import HEALTHY_KEYS, KEYS, TOPICS

LIFE_S = float(os.environ.get("KOHORT_APP_SOAK_S", "60"))
SEED = int(os.environ.get("KOHORT_SOAK_SEED", "1"))
PATIENCE_S = 240.0
PARTITIONS, PROCESSES, GROUP = 4, 3, "soak"
ROUTES = {t: RetryTopics(t, GROUP, RetryPolicy.parse("1s 1s 2s")) for t in TOPICS.values()}
BROKER = {"group_initial_rebalance_delay_ms": 100}


class Apps:
    """The processes of the app, and what they have written down."""

    def __init__(self, servers: str, directory: Path) -> None:
        self.servers, self.directory = servers, directory
        self.running: list[subprocess.Popen[bytes]] = []
        self.started = 0

    def start(self) -> None:
        self.started += 1
        log = self.directory / f"calls-{self.started}"
        with (self.directory / f"errors-{self.started}").open("wb") as errors:
            self.running.append(
                subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "tests.processing.soak_program",
                        self.servers,
                        GROUP,
                        str(log),
                    ],
                    cwd=ROOT,
                    stderr=errors,
                )
            )

    def kill(self, number: int) -> None:
        process = self.running.pop(number)
        process.kill()
        process.wait()

    def stop(self, number: int) -> None:
        process = self.running.pop(number)
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(PATIENCE_S)
        finally:
            process.kill()
        # One that has hardly been started ends as any program does, before it has begun anything.
        assert code in (0, -signal.SIGTERM), self.error_text()

    def error_text(self) -> str:
        texts = [path.read_text()[-2_000:] for path in self.directory.glob("errors-*")]
        return "\n----\n".join(text for text in texts if text)

    def calls(self) -> Iterator[tuple[int, str, int, int, int, str]]:
        """(time, topic, number, key, attempt, outcome) of every call, in order of time."""
        lines = [
            line.split()
            for path in self.directory.glob("calls-*")
            for line in path.read_text().splitlines()
        ]
        for at, topic, number, key, attempt, outcome in sorted(lines, key=lambda x: int(x[0])):
            yield int(at), topic, int(number), int(key), int(attempt), outcome


@contextmanager
def one_process(directory: Path) -> Iterator[tuple[str, Callable[[random.Random], None]]]:
    broker = BrokerProcess(directory, **BROKER)
    broker.start()
    try:
        yield broker.bootstrap, lambda chance: None
    finally:
        broker.stop()


@contextmanager
def three_nodes(directory: Path) -> Iterator[tuple[str, Callable[[random.Random], None]]]:
    del directory
    with Cluster(nodes=3, **BROKER) as cluster:
        down: list[int] = []

        def trouble(chance: random.Random) -> None:
            """One node is down at most; coordinators and leaders move."""
            if down:
                cluster.restart_node(down.pop())
            elif chance.random() < 0.5:
                down.append(chance.choice(cluster.nodes))
                print(f"node {down[0]} is killed")
                cluster.kill_node(down[0])
            else:
                moved = chance.choice(list(ROUTES)), chance.randrange(PARTITIONS)
                print(f"the coordinator moves, and the leader of {moved}")
                cluster.move_coordinator(GROUP)
                cluster.move_leader(*moved)

        yield cluster.bootstrap, trouble
        # What was down is started again by the test before it checks.


@pytest.mark.nightly
@pytest.mark.timeout(LIFE_S + 4 * PATIENCE_S)
@pytest.mark.parametrize("place", [one_process, three_nodes])
def test_killed_apps_lose_nothing_and_keep_order(place, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with place(tmp_path) as (servers, trouble):
        with Admin(bootstrap_servers=servers) as admin:
            # With one replica nobody leads the partitions of a node that is down.
            replicas = len(admin.describe_cluster().nodes)
            admin.create_topics([NewTopic(t, PARTITIONS, replicas) for t in ROUTES])
        apps = Apps(servers, tmp_path)
        try:
            produced = live(apps, servers, chance, trouble)
            until_settled(apps, servers)
            while apps.running:
                apps.stop(0)
            check(apps, servers, produced)
        finally:
            while apps.running:
                apps.kill(0)


def live(
    apps: Apps, servers: str, chance: random.Random, trouble: Callable[[random.Random], None]
) -> int:
    """Produce while things go wrong; how many records each topic has got."""
    pause, troubles, produced = threading.Event(), 0, 0
    for _ in range(PROCESSES):
        apps.start()
    end, next_trouble = time.monotonic() + LIFE_S, time.monotonic() + 5
    with Producer(bootstrap_servers=servers, acks="all") as producer:
        while time.monotonic() < end:
            for _ in range(chance.randint(1, 40)):
                for topic in ROUTES:
                    producer.send(topic, b"%d" % produced, b"%d" % (produced % KEYS))
                produced += 1
            producer.flush()
            pause.wait(0.1)
            if time.monotonic() > next_trouble:
                next_trouble = time.monotonic() + chance.uniform(2, 5)
                troubles += 1
                dead = [p.args for p in apps.running if p.poll() is not None]
                assert not dead, apps.error_text()
                if chance.random() < 0.5:
                    victim = chance.randrange(PROCESSES)
                    (apps.kill if chance.random() < 0.7 else apps.stop)(victim)
                    apps.start()
                else:
                    trouble(chance)
    print(f"{troubles} troubles, {produced} records in each topic, seed {SEED}")
    return produced


def places(servers: str) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
    """Commits and ends of everything that the group reads."""
    names = [name for route in ROUTES.values() for name in (route.topic, *route.delays_ms)]
    with Admin(bootstrap_servers=servers) as admin:
        found = admin.list_group_offsets(GROUP)
        counts = {topic.name: topic.partition_count for topic in admin.list_topics()}
    tps = [(name, number) for name in names for number in range(counts[name])]
    with Consumer(bootstrap_servers=servers) as consumer:
        ends = {(tp.topic, tp.partition): end for tp, end in consumer.end_offsets(tps).items()}
    at = {(tp.topic, tp.partition): offset.offset for tp, offset in found.items()}
    return {tp: at.get(tp, 0) for tp in ends}, ends


def until_settled(apps: Apps, servers: str) -> None:
    until, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while True:
        at, ends = places(servers)
        if at == ends:
            return
        behind = {tp: (at[tp], end) for tp, end in ends.items() if at[tp] != end}
        assert time.monotonic() < until, f"(committed, end) {behind}\n{apps.error_text()}"
        pause.wait(0.5)


def check(apps: Apps, servers: str, produced: int) -> None:
    at, ends = places(servers)
    assert at == ends
    done: dict[str, set[int]] = defaultdict(set)
    begun: dict[tuple[str, int], list[int]] = defaultdict(list)
    seen: set[tuple[str, int]] = set()
    for _, topic, number, key, attempt, outcome in apps.calls():
        if outcome == "done":
            done[topic].add(number)
        if key < HEALTHY_KEYS:
            assert not attempt, f"{topic} {number} never failed and was retried"
            if (topic, number) not in seen:
                seen.add((topic, number))
                begun[topic, key].append(number)
    for topic, route in ROUTES.items():
        failed = numbers_of(servers, route.dead_letter)
        missing = set(range(produced)) - done[topic] - failed.keys()
        assert not missing, f"{topic}: {sorted(missing)[:20]} were lost"
        wrong = {n: why for n, why in failed.items() if why not in ("bad", "down")}
        assert not wrong, f"{topic}: in the dead-letter topic for nothing: {wrong}"
    for place, numbers in begun.items():
        assert numbers == sorted(numbers), f"{place} was begun out of order"


def numbers_of(servers: str, topic: str) -> dict[int, str]:
    """Records of a dead-letter topic, and why they are there."""
    found: dict[int, str] = {}
    with Consumer(bootstrap_servers=servers) as consumer:
        with Admin(bootstrap_servers=servers) as admin:
            counts = {t.name: t.partition_count for t in admin.list_topics()}
        tps = [(topic, number) for number in range(counts[topic])]
        consumer.assign(tps)
        consumer.seek_to_beginning()
        left = sum(consumer.end_offsets(tps).values())
        while left > 0:
            page = consumer.poll(5)
            assert page, f"{topic}: {left} records did not come"
            left -= len(page)
            found |= {int(r.value): h.parse(r.headers).reason for r in page if r.value}
    return found
