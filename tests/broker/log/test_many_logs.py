"""Issue 5: thousands of partitions cost about linearly, to end and to begin with."""

from __future__ import annotations

import logging
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kohort.broker import Broker, BrokerConfig
from kohort.broker.log.files import MemoryFiles, Syncable
from kohort.broker.server import server
from tests.broker.harness import FakeEnv, Harness, batch_of
from tests.broker.shadow_files import ShadowFiles
from tests.known import fake
from tests.patience import PATIENCE_S

OS: dict[str, Any] = {"durability": "os", "log_index_interval_bytes": 4_096}


def filled(partitions: int, disk: ShadowFiles, **stamp: Any) -> Harness:
    harness = Harness(disk, FakeEnv(), **OS)
    harness.create("t", partitions)
    for n in range(partitions):
        harness.produce("t", batch_of([b"%d" % n], **stamp), n)
    return harness


def test_a_short_log_leaves_its_records_and_epochs_alone() -> None:
    """Reading 4 KB again is as fast as reading an index and a snapshot of them."""
    disk = ShadowFiles(random.Random(1))
    filled(3, disk).state.close()
    assert disk.list("t-0") == ["00000000000000000000.log"]
    again = Harness(disk, FakeEnv(), **OS)
    assert again.state.directory.clean
    assert again.read_all("t", 2) == [(0, b"2")]
    partition = again.node.topics.partition("t", 2)
    assert partition is not None
    assert (partition.end_offset, partition.leader_epoch) == (1, 0)


def test_a_short_log_remembers_its_producers() -> None:
    """KIP-98: a batch that is sent again after an orderly restart is the same one."""
    disk = ShadowFiles(random.Random(1))
    stamp: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    filled(1, disk, **stamp).state.close()
    again = Harness(disk, FakeEnv(), **OS)
    assert again.produce("t", batch_of([b"0"], **stamp)).base_offset == 0
    assert again.read_all("t") == [(0, b"0")]


def test_a_long_log_leaves_index_and_snapshot_and_writes_them_once() -> None:
    disk = ShadowFiles(random.Random(1))
    harness = filled(1, disk)
    for _ in range(10):
        harness.produce("t", batch_of([b"x" * 2_000]))
    harness.state.close()
    names = disk.list("t-0")
    assert "00000000000000000000.index" in names
    assert "00000000000000000011.snapshot" in names
    before = {name: disk._live[f"t-0/{name}"] for name in names}
    Harness(disk, FakeEnv(), **OS).state.close()
    assert {name: disk._live[f"t-0/{name}"] for name in disk.list("t-0")} == before


@pytest.mark.parametrize("written", [False, True])
def test_an_orderly_end_touches_what_has_changed(written: bool) -> None:
    """Nothing is written for logs that nobody wrote to since the start."""
    calls: list[int] = []
    for partitions in (10, 40):
        disk = ShadowFiles(random.Random(1))
        filled(partitions, disk).state.close()
        harness = Harness(disk, FakeEnv(), **OS)
        if written:
            for n in range(10):
                harness.produce("t", batch_of([b"more"]), n)
        disk.calls = 0
        harness.state.close()
        calls.append(disk.calls)
    assert calls[0] == calls[1]


class SlowFiles(MemoryFiles):
    """A disk that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.go_on.set()

    def sync_all(self, files: Sequence[Syncable]) -> None:
        assert self.go_on.wait(30)


def test_an_orderly_end_takes_as_long_as_the_disk(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It used to give up after 30 s and to close files under the thread that still wrote them: the
    next start recovered as after a crash, which took 41 s with 10,000 partitions."""
    monkeypatch.setattr(server, "_STOP_TIMEOUT_S", 0.01)
    files = SlowFiles()
    broker = Broker(BrokerConfig(port=0, durability="os", data_dir="unused"), files=fake(files))
    broker.start()
    files.go_on.clear()

    class EndWatcher(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "ending" in record.getMessage():
                files.go_on.set()

    handler = EndWatcher()
    logging.getLogger("kohort.broker").addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, "kohort.broker"):
            broker.stop()
    finally:
        logging.getLogger("kohort.broker").removeHandler(handler)
    assert "ending: flushing, 0 logs are closed so far" in caplog.text
    assert ".kafka_cleanshutdown" in files.list("")


def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    """Whoever cannot wait for an orderly end need not look for the process's number."""
    code = (
        "import signal, sys, threading\n"
        "from kohort.broker import BrokerConfig, serve\n"
        "from kohort.broker.server import server\n"
        "def hang(self, closed):\n"
        "    print('ending', flush=True)\n"
        "    threading.Event().wait()\n"
        "server.Broker._await = hang\n"
        "serve(BrokerConfig(port=0, durability='memory'), lambda b: print('ready', flush=True))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in ("ready\n", "ending\n"):
            assert run.stdout.readline() == line
            run.send_signal(signal.SIGTERM)
        assert run.wait(PATIENCE_S) == -signal.SIGTERM


def test_a_broker_wants_as_many_descriptors_as_its_limits_come_to(tmp_path: Path) -> None:
    """With a soft limit of 64 it could not even import what a request asks for first; with a hard
    one it says what to do, and keeps half for others than its files."""
    code = (
        "import resource, sys\n"
        "from kohort.broker import BrokerConfig, serve\n"
        "soft, hard = map(int, sys.argv[2:])\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))\n"
        "def ready(broker):\n"
        "    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], broker._files._max_open)\n"
        "    import os, signal\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "serve(BrokerConfig(port=0, data_dir=sys.argv[1], max_connections=100), ready)\n"
    )
    for soft, hard, granted, files, warning in (
        (64, 4_000, 676, 338, ""),
        (64, 80, 80, 40, "80 fil"),
    ):
        ran = subprocess.run(
            [sys.executable, "-c", code, tmp_path, str(soft), str(hard)],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )
        assert ran.stdout.split() == [str(granted), str(files)]
        assert warning in ran.stderr
