"""How a broker begins and ends: `python -m benchmarks.bench_start [--sizes 1000 10000] [--kill]`.

First `kohort broker run` on an empty directory, from the process's start to its line "ready": as it
is installed, with its bytecode at hand (kept apart, so that PYTHONDONTWRITEBYTECODE does not make
every start compile the sources again). Then one topic with a record in each of many partitions: an
orderly end or `kill -9`, and the start after it. CPU time is that of all threads, from /proc.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench_broker import batch_of, create
from benchmarks.load import Served, ask, cpu_s, frame_of, memory_mb
from kohort.wire import decode_response
from kohort.wire.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kohort.wire.messages.produce_response import ProduceResponse

SIZES = (1_000, 2_000, 5_000, 10_000)
_PARTITIONS_OF_A_REQUEST = 500


@dataclass(frozen=True)
class Ready:
    """A broker that answers."""

    process: subprocess.Popen[str]
    served: Served

    @property
    def descriptors(self) -> int:
        """Files and sockets that it holds open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self, number: int) -> float:
        """Seconds until it has ended by a signal."""
        began = time.perf_counter()
        self.process.send_signal(number)
        self.process.wait()
        return time.perf_counter() - began


@contextmanager
def started(directory: str, bytecode: str, *options: str) -> Generator[Ready]:
    """`kohort broker run`; killed at the end if it runs still."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = bytecode
    command = [sys.executable, "-m", "kohort", "broker", "run", "--port", "0"]
    began = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--data-dir", directory, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
        text=True,
    )
    assert process.stdout is not None
    try:
        host, _, port = process.stdout.readline().split()[2].rpartition(":")
        ready_s = time.perf_counter() - began
        yield Ready(process, Served((host, int(port)), process.pid, ready_s))
    finally:
        process.kill()
        process.wait()


def plain(runs: int) -> tuple[float, float, float]:
    """Seconds until `kohort broker run` is ready, CPU seconds by then, MB: medians."""
    wall: list[float] = []
    cpu: list[float] = []
    memory: list[float] = []
    with tempfile.TemporaryDirectory(prefix="kohort-bench-") as directory:
        for run in range(runs + 1):
            with started(f"{directory}/{run}", f"{directory}/bytecode") as ready:
                if run:  # the first one compiles
                    wall.append(ready.served.ready_s)
                    cpu.append(cpu_s(ready.process.pid))
                    memory.append(memory_mb(ready.process.pid))
                ready.end(signal.SIGTERM)
    return statistics.median(wall), statistics.median(cpu), statistics.median(memory)


def touch(served: Served, partitions: int) -> None:
    """One record into every partition: the embedded broker makes a log only then."""
    batch = batch_of(200)
    for first in range(0, partitions, _PARTITIONS_OF_A_REQUEST):
        last = min(first + _PARTITIONS_OF_A_REQUEST, partitions)
        parts = [PartitionProduceData(index=n, records=batch) for n in range(first, last)]
        topics = [TopicProduceData(name="wide", partition_data=parts)]
        request = ProduceRequest(acks=1, timeout_ms=60_000, topic_data=topics)
        answer = decode_response(ProduceResponse, 9, ask(served.address, frame_of(request, 9)))[1]
        codes = {part.error_code for part in answer.responses[0].partition_responses}
        assert codes == {0}, codes


@dataclass(frozen=True)
class Many:
    """What many partitions cost."""

    touch_s: float
    end_s: float
    ready_s: float
    ready_cpu_s: float
    memory_mb: float
    descriptors: int


def many(partitions: int, durability: str, ending: int = signal.SIGTERM) -> Many:
    """Fill, end, start again."""
    with tempfile.TemporaryDirectory(prefix="kohort-bench-") as directory:
        place = (f"{directory}/data", f"{directory}/bytecode", "--durability", durability)
        with started(*place) as ready:
            create(ready.served.address, "wide", partitions)
            began = time.perf_counter()
            touch(ready.served, partitions)
            touch_s = time.perf_counter() - began
            end_s = ready.end(ending)
        with started(*place) as ready:
            pid = ready.process.pid
            found = Many(
                touch_s, end_s, ready.served.ready_s, cpu_s(pid), memory_mb(pid), ready.descriptors
            )
            ready.end(signal.SIGTERM)
            if ending == signal.SIGTERM:
                assert Path(directory, "data", ".kafka_cleanshutdown").exists()
    return found


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7, help="plain starts")
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--durability", default="os", choices=["fsync", "os"])
    parser.add_argument("--kill", action="store_true", help="end by kill -9, not in order")
    args = parser.parse_args()
    if args.runs:
        wall, cpu, memory = plain(args.runs)
        print(f"ready {1e3 * wall:.0f} ms, {1e3 * cpu:.0f} ms CPU, {memory:.0f} MB")
    ending = signal.SIGKILL if args.kill else signal.SIGTERM
    how = "killed" if args.kill else "ended"
    print(
        f"{'partitions':>10} {'filled s':>9} {how + ' s':>9} {'ready s':>8} {'CPU s':>6} "
        f"{'MB':>5} {'descriptors':>12}"
    )
    for size in args.sizes:
        found = many(size, args.durability, ending)
        print(
            f"{size:10,} {found.touch_s:9.2f} {found.end_s:9.2f} {found.ready_s:8.2f} "
            f"{found.ready_cpu_s:6.2f} {found.memory_mb:5.0f} {found.descriptors:12}",
            flush=True,
        )


if __name__ == "__main__":
    main()
