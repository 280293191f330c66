"""Nothing acknowledged is lost when the power is cut (issue D), on a real file system.

`make power-cut`. The shadow file layer of `test_crash.py` does the same in every `make test`, with
every order of writes; here it is the kernel that forgets.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kohort import Admin, Consumer, NewTopic, OffsetAndMetadata, Producer, TopicPartition
from kohort.errors import KohortError
from tests.broker.power import PowerCutDisk, why_not
from tests.broker.server.test_server import SERVE

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=f"no power can be cut here: {why_not()}"),
]
PARTITIONS = 3
CUTS = 8


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerCutDisk]:
    made = PowerCutDisk(tmp_path)
    yield made
    made.unmount()


class Life:
    """One life of a broker on the disk."""

    def __init__(self, disk: PowerCutDisk, durability: str) -> None:
        command = [sys.executable, "-c", SERVE, durability, str(disk.path / "data"), "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.bootstrap = self._process.stdout.readline().strip()
        assert self.bootstrap, "the broker did not start"

    def freeze(self) -> None:
        """Nothing that it does is seen by anybody from now on, as when its machine is dead.

        The disk dies after that: `fdatasync` may return without an error when the file system is
        shut down while it waits for its data (4 % of cuts, also without any broker), because the
        transaction that it would wait for next is dropped. No client can hear of that on a machine
        whose power is gone.
        """
        self._process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self._process.pid}/task")
        while any(_state(task) not in "TtD" for task in tasks.iterdir()):
            """One that waits for the disk stops before it is back in the broker's code."""

    def end(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


def _state(task: Path) -> str:
    """The letter of a thread's state; see proc(5)."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


class Truth:
    """What was acknowledged, ever."""

    def __init__(self) -> None:
        self.records: dict[tuple[int, int], bytes] = {}
        self.committed = -1


def work(bootstrap: str, truth: Truth, stop: threading.Event, enough: threading.Event) -> None:
    """Send records and commit offsets, and note what is acknowledged, until the end.

    To one partition and to all of them in turns: the broker's lane takes requests of one.
    """
    tp, number, rounds = TopicPartition("t", 0), len(truth.records), 0
    with (
        suppress(KohortError),
        Producer(
            bootstrap_servers=bootstrap,
            delivery_timeout_ms=5_000,
            request_timeout_ms=2_000,
            linger_ms=0,
        ) as producer,
        Consumer(
            bootstrap_servers=bootstrap,
            group_id="g",
            enable_auto_commit=False,
            default_api_timeout_ms=3_000,
        ) as consumer,
    ):
        consumer.assign([tp])
        while not stop.is_set():
            futures = []
            rounds += 1
            for _ in range(20):
                number += 1
                value = b"%d" % number
                partition = (number if rounds % 2 else rounds) % PARTITIONS
                futures.append((producer.send("t", value, partition=partition), value))
            for future, value in futures:
                stored = future.result(5)
                truth.records[stored.partition, stored.offset] = value
            offset = truth.committed + 1
            consumer.commit({tp: OffsetAndMetadata(offset, f"step {offset}")}, timeout=3)
            truth.committed = offset
            enough.set()


def what_is_missing(bootstrap: str, truth: Truth) -> list[str]:
    """Everything acknowledged that is not there, or is not what it was."""
    found: dict[tuple[int, int], bytes | None] = {}
    tps = [TopicPartition("t", number) for number in range(PARTITIONS)]
    with Consumer(
        bootstrap_servers=bootstrap,
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        consumer.assign(tps)
        consumer.seek_to_beginning(*tps)
        ends = consumer.end_offsets(tps)
        while any(consumer.position(tp) < ends[tp] for tp in tps):
            for record in consumer.poll(5):
                found[record.partition, record.offset] = record.value
        committed = consumer.committed(tps[:1])[tps[0]]
    wrong = [
        f"t-{partition} offset {offset}: {value!r} was acknowledged, found "
        f"{found.get((partition, offset))!r}"
        for (partition, offset), value in truth.records.items()
        if found.get((partition, offset)) != value
    ]
    held = -1 if committed is None else committed.offset
    if held < truth.committed:
        wrong.append(f"offset {truth.committed} was committed, found {held}")
    return wrong


def cuts(disk: PowerCutDisk, durability: str, times: int, seed: int) -> tuple[Truth, list[str]]:
    pick, truth = random.Random(seed), Truth()
    life = Life(disk, durability)
    with Admin(bootstrap_servers=life.bootstrap) as admin:
        admin.create_topics([NewTopic("t", PARTITIONS)])
    wrong: list[str] = []
    for _ in range(times):
        stop, enough = threading.Event(), threading.Event()
        worker = threading.Thread(target=work, args=(life.bootstrap, truth, stop, enough))
        worker.start()
        assert enough.wait(60), "nothing was acknowledged"
        stop.wait(pick.random())  # the moment of the cut: somewhere in the work
        life.freeze()
        disk.cut()
        stop.set()
        life.end()
        worker.join(60)
        disk.unmount()
        disk.mount()
        life = Life(disk, durability)
        wrong = what_is_missing(life.bootstrap, truth)
        if wrong:
            break
    life.end()
    return truth, wrong


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_loses_nothing_acknowledged(disk: PowerCutDisk, seed: int) -> None:
    truth, wrong = cuts(disk, "fsync", CUTS, seed)
    assert not wrong, f"seed {seed}: {len(wrong)} lost, first {wrong[0]}"
    print(f"seed {seed}: {CUTS} cuts, {len(truth.records)} records acknowledged, all there")


def test_without_flushing_the_loss_would_be_found(disk: PowerCutDisk) -> None:
    """With `os` a power cut may lose what was acknowledged, as its name says: the test can fail."""
    _, wrong = cuts(disk, "os", 3, 1)
    assert wrong
