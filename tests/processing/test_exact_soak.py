"""Both exactly-once modes while processes die and hang, coordinators and leaders move (E2, X3, R1).

Every input's result is there once, or it has failed once; within a key what never failed keeps its
order, whatever failed around it (4.12, 5.4), also when the handler is slow now and then.
`KOHORT_APP_SOAK_S` is how long records are produced (default 30), `KOHORT_SOAK_SEED` decides what
happens.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kohort import Producer
from tests.clusters import Embedded as Cluster
from tests.e2e.broker_process import ROOT
from tests.known import known
from tests.processing.exact_program import OUT, TOPIC
from tests.processing.test_exact import rows, wait_for
from tests.processing.test_exact_kills import CONFIG, FAILED
from tests.reading import read_committed

LIFE_S = float(os.environ.get("KOHORT_APP_SOAK_S", "30"))
SEED = int(os.environ.get("KOHORT_SOAK_SEED", "1"))
PATIENCE_S = 120.0
PROCESSES = 3


class Programs:
    """Processes that are started, killed, stopped and left hanging."""

    def __init__(self, servers: str, mode: str, path: Path, chance: random.Random) -> None:
        self.arguments = (servers, "billing", mode)
        self.path, self.chance = path, chance
        self.running: list[subprocess.Popen[bytes]] = []
        self.hanging: list[subprocess.Popen[bytes]] = []
        self.started = 0

    def start(self) -> None:
        self.started += 1
        with (self.path / f"errors-{self.started}").open("wb") as errors:
            command = [
                sys.executable,
                "-m",
                "tests.processing.exact_program",
                *self.arguments,
                "-",
                "0",
            ]
            self.running.append(subprocess.Popen(command, cwd=ROOT, stderr=errors))

    def trouble(self) -> None:
        """Kill one, end one in order, or let one hang for a while."""
        for process in self.hanging:
            process.send_signal(signal.SIGCONT)
            self.running.append(process)
        self.hanging.clear()
        victim = self.running.pop(self.chance.randrange(len(self.running)))
        act = self.chance.random()
        if act < 0.5:
            victim.kill()
            victim.wait()
        elif act < 0.7:
            victim.send_signal(signal.SIGTERM)
            # One that has hardly been started ends as any program does.
            assert victim.wait(PATIENCE_S) in (0, 1, -signal.SIGTERM)
        else:
            victim.send_signal(signal.SIGSTOP)
            self.hanging.append(victim)
        while len(self.running) < PROCESSES:
            self.start()

    def end(self) -> None:
        for process in (*self.hanging, *self.running):
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        for errors in self.path.glob("errors-*"):
            if tail := errors.read_text()[-500:]:
                print(errors.name, tail)


@pytest.mark.nightly
@pytest.mark.timeout(LIFE_S + 3 * PATIENCE_S)
@pytest.mark.parametrize("mode", ["kafka", "store"])
def test_each_input_counts_once(mode: str, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    where = "kafka" if mode == "kafka" else f"sqlite:///{tmp_path}/results.db"
    broker = {"group_initial_rebalance_delay_ms": 100, "group_min_session_timeout_ms": 500}
    with Cluster(nodes=3, **broker) as cluster:
        for name in (TOPIC, OUT, FAILED):
            cluster.create_topic(name, 3, CONFIG if name == FAILED else None)
        programs = Programs(cluster.bootstrap, where, tmp_path, chance)
        try:
            produced = live(cluster, programs, chance)
            good = [n for n in range(produced) if n % 10 != 9]
            bad = [n for n in range(produced) if n % 10 == 9]
            counts = [len(good), len(bad)]
            wait_for(lambda: seen(cluster, where, True) == counts, "all is done", PATIENCE_S)
            assert seen(cluster, where) == [good, bad]
            if mode == "kafka":
                assert not out_of_order(cluster)
        finally:
            print(f"{programs.started} processes, seed {SEED}")
            programs.end()


def live(cluster: Cluster, programs: Programs, chance: random.Random) -> int:
    for _ in range(PROCESSES):
        programs.start()
    pause = threading.Event()
    produced, end, next_trouble = 0, time.monotonic() + LIFE_S, time.monotonic() + 3
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        while time.monotonic() < end:
            for _ in range(chance.randint(1, 10)):
                producer.send(TOPIC, b"%d" % produced, b"k%d" % (produced % 17))
                produced += 1
            producer.flush()
            pause.wait(0.05)
            if time.monotonic() > next_trouble:
                next_trouble = time.monotonic() + chance.uniform(1, 3)
                if chance.random() < 0.6:
                    programs.trouble()
                else:
                    cluster.move_coordinator("billing")
                    cluster.move_leader(TOPIC, chance.randrange(3))
    return produced


def out_of_order(cluster: Cluster) -> list[tuple[bytes | None, int, int]]:
    """Results of a key that stand behind a later one, of records that never failed."""
    last: dict[bytes | None, int] = {}
    wrong: list[tuple[bytes | None, int, int]] = []
    for record in read_committed(cluster.bootstrap, OUT):
        number = int(known(record.value))
        if number % 5 == 3:  # may have been in a retry topic, and what came behind it did not wait
            continue
        if number < last.get(record.key, -1):
            wrong.append((record.key, last[record.key], number))
        last[record.key] = number
    return wrong


def seen(cluster: Cluster, mode: str, counted: bool = False) -> list:
    """Results and failures, or how many, as a reader sees them."""
    if mode == "kafka":
        topics = (OUT, FAILED)
        found = [
            sorted(int(known(r.value)) for r in read_committed(cluster.bootstrap, t))
            for t in topics
        ]
    else:
        file = Path(mode.removeprefix("sqlite:///"))
        places = {
            (r.partition, r.offset): int(known(r.value))
            for r in read_committed(cluster.bootstrap, TOPIC)
        }
        failed = rows(
            file,
            "SELECT origin_partition, origin_offset FROM kohort_ledger WHERE status = 'failed'",
        )
        found = [
            sorted(n for (n,) in rows(file, "SELECT number FROM loaded")),
            sorted(places[place] for place in failed),
        ]
    return [len(each) for each in found] if counted else found
