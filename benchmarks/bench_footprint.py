"""Start-up times and memory, beside the peers': import, `kohort --help`, broker ready, at rest.

Each figure is the best of several runs in fresh processes; memory is the resident set.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNS = 7


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def best_ms(*command: str) -> float:
    """The shortest wall time of a command, in milliseconds."""
    times: list[float] = []
    for _ in range(RUNS):
        started = time.perf_counter()
        subprocess.run(command, env=environment(), check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return 1000 * min(times)


def rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+)", status)
    assert match is not None
    return int(match[1]) / 1024


def broker_ready() -> tuple[float, float]:
    """(milliseconds from the start of the process to its being ready, MB at rest)."""
    with tempfile.TemporaryDirectory() as data:
        started = time.perf_counter()
        command = [sys.executable, "-m", "kohort", "broker", "run", "--port", "0"]
        process = subprocess.Popen(
            [*command, "--data-dir", data], env=environment(), stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "ready" in line:
                    break
            took = 1000 * (time.perf_counter() - started)
            return took, rss_mb(process.pid)
        finally:
            process.terminate()
            process.wait(10)


IDLE = """
import gc, re, sys, threading
from pathlib import Path
from kohort import Consumer, Producer

def rss_kb():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

def joined(number):
    consumer = Consumer(bootstrap_servers=sys.argv[1], group_id=f"g{number}")
    consumer.subscribe(["t"])
    while not consumer.assignment():
        consumer.poll(0.05)
    return consumer

with Producer(bootstrap_servers=sys.argv[1]) as producer:
    producer.send("t", b"x").result()
first = [joined(-1 - n) for n in range(5)]
gc.collect()
threads, before = threading.active_count(), rss_kb()
more = [joined(n) for n in range(60)]
gc.collect()
print((rss_kb() - before) / len(more), threading.active_count() - threads)
for consumer in first + more:
    consumer.close()
"""


def idle_consumer() -> tuple[float, int]:
    """(KB, threads) that one more consumer of a group costs, assigned and with nothing to read."""
    command = [sys.executable, "-m", "kohort", "broker", "run", "--port", "0"]
    broker = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        address = broker.stdout.readline().split()[2]
        ran = subprocess.run(
            [sys.executable, "-c", IDLE, address],
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        kb, threads = ran.stdout.split()
        return float(kb), int(threads)
    finally:
        broker.terminate()
        broker.wait(10)


def show(name: str, ours: float, peers: dict[str, float], unit: str, target: str) -> None:
    print(f"{name:<28}{ours:>9.1f} {unit}   target {target}")
    for peer, figure in peers.items():
        print(f"  {peer:<26}{figure:>9.1f} {unit}   {figure / ours:5.1f} x ours")


def main() -> None:
    bare = best_ms(sys.executable, "-c", "pass")
    print(f"{'bare interpreter':<28}{bare:>9.1f} ms")

    def importing(statement: str) -> float:
        return best_ms(sys.executable, "-c", statement)

    measures: dict[str, Callable[[], float]] = {
        "confluent_kafka": lambda: importing("import confluent_kafka"),
        "aiokafka": lambda: importing("import aiokafka"),
        "kafka-python": lambda: importing("import kafka"),
    }
    peers = {name: measure() for name, measure in measures.items()}
    show("import kohort", importing("import kohort"), {}, "ms", "<= 40 ms over nothing")
    ours = importing("from kohort import Consumer, Producer")
    show("import Consumer, Producer", ours, peers, "ms", "<= 40 ms over the interpreter")
    show("kohort --help", best_ms(sys.executable, "-m", "kohort", "--help"), {}, "ms", "< 150 ms")
    kb, threads = idle_consumer()
    show(f"idle consumer, {threads} threads", kb, {}, "KB", "<= 100 KB, no thread of its own")
    runs = [broker_ready() for _ in range(5)]
    show("broker ready", min(took for took, _ in runs), {}, "ms", "< 500 ms")
    show("broker at rest", min(mb for _, mb in runs), {}, "MB", "< 60 MB")


if __name__ == "__main__":
    main()
