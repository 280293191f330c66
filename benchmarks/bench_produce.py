"""Producing: Kohort beside confluent-kafka, aiokafka and kafka-python, on one broker and data.

    python -m benchmarks.bench_produce [--quick] [--sizes 100 1000] [--codecs none lz4 zstd]
    python -m benchmarks.bench_produce [--tuned] [--only send arrow confluent] [--forget]
    python -m benchmarks.bench_produce --apache --partitions 1 100

Each client runs in a process of its own against the embedded broker (memory) in another one; with
`--apache` then against Apache Kafka's too, and both keep their records in files (`os`). 8
partitions, or as many as `--partitions` says, no keys (`arrow-keys`: 5,000 of them). Kohort has its
defaults (acks=all, idempotent, linger 5 ms, batches of 16 KB that may grow); the others, and Kohort
with `--tuned`, acks=1, linger 20 ms and batches of 256 KB. With `--forget` the broker checks what
it gets and keeps nothing, which leaves more of the machine to the clients.
From the first record until everything is acknowledged. Memory is the client's largest resident set.
CPU is the client process's, all threads; it is the figure that does not depend on what else the
machine does. `--quick --apache` is a choice of cases that takes some three minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from benchmarks.load import embedded, memory_mb

TOPIC = "bench"
QUICK = [(100, "none", 1), (100, "none", 100), (100, "lz4", 100), (1_000, "zstd", 100)]
BATCH_BYTES, LINGER_MS = 262_144, 20
TUNED = "KOHORT_BENCH_TUNED"
"""In the environment of a client's process: Kohort has the others' settings."""
COUNTS = {"kohort": 2_000_000, "confluent": 1_000_000, "aiokafka": 150_000, "kafka-python": 60_000}


def values(size: int) -> list[bytes]:
    """A few thousand values that compress as text does: by half, not to nothing."""
    rng = random.Random(7)
    words = [rng.randbytes(6).hex().encode() for _ in range(400)]
    return [b" ".join(rng.choices(words, k=size // 13 + 1))[:size] for _ in range(4_096)]


def clocked(name: str, count: int, size: int, send: Callable[[], None]) -> dict[str, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    send()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "name": name,
        "rate": count / wall,
        "mb": count * size / wall / 1e6,
        "cpu": cpu / count * 1e6,
    }


def kohort_producer(address: str, codec: str) -> Any:
    from kohort import Producer

    own = {"acks": 1, "linger_ms": LINGER_MS, "batch_size": BATCH_BYTES}
    settings = own if os.environ.get(TUNED) else {}
    return Producer(bootstrap_servers=address, compression_type=codec, **settings)


def run_send(address: str, size: int, codec: str, count: int) -> dict[str, Any]:
    data = values(size)
    with kohort_producer(address, codec) as producer:
        producer.send(TOPIC, b"warm").result(30)

        def send() -> None:
            add = producer.send
            for n in range(count):
                add(TOPIC, data[n & 4095])
            producer.flush()

        return clocked("kohort send()", count, size, send)


def run_send_many(address: str, size: int, codec: str, count: int) -> dict[str, Any]:
    data = values(size)
    with kohort_producer(address, codec) as producer:
        producer.send(TOPIC, b"warm").result(30)

        def send() -> None:
            for _ in range(count // 4096):
                producer.send_many(TOPIC, data)
            producer.flush()

        return clocked("kohort send_many()", count // 4096 * 4096, size, send)


def run_arrow(
    address: str, size: int, codec: str, count: int, *, keys: bool = False
) -> dict[str, Any]:
    import pyarrow as pa

    columns = {"value": pa.array(values(size) * 16, pa.binary())}
    if keys:
        columns["key"] = pa.array([b"%08d" % (n % 5_000) for n in range(65_536)], pa.binary())
    batch = pa.record_batch(columns)
    batches = max(1, count // len(batch))
    with kohort_producer(address, codec) as producer:
        producer.send(TOPIC, b"warm").result(30)
        producer.produce_arrow(TOPIC, batch)[-1].result(30)

        def send() -> None:
            for _ in range(batches):
                producer.produce_arrow(TOPIC, batch)
            producer.flush()

        name = "kohort produce_arrow()" + (" keys" if keys else "")
        return clocked(name, batches * len(batch), size, send)


def run_arrow_keys(address: str, size: int, codec: str, count: int) -> dict[str, Any]:
    return run_arrow(address, size, codec, count, keys=True)


def run_confluent(address: str, size: int, codec: str, count: int) -> dict[str, Any]:
    from confluent_kafka import Producer

    data = values(size)
    producer = Producer(
        {
            "bootstrap.servers": address,
            "acks": 1,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "batch.num.messages": 100_000,
            "compression.type": codec,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 262_144,
        }
    )
    producer.produce(TOPIC, b"warm")
    producer.flush(30)

    def send() -> None:
        produce = producer.produce
        for n in range(count):
            while True:
                try:
                    produce(TOPIC, data[n & 4095])
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.flush()

    return clocked("confluent produce()", count, size, send)


def run_aiokafka(address: str, size: int, codec: str, count: int) -> dict[str, Any]:
    from aiokafka import AIOKafkaProducer

    data = values(size)

    async def main() -> dict[str, Any]:
        producer = AIOKafkaProducer(
            bootstrap_servers=address,
            acks=1,
            linger_ms=LINGER_MS,
            max_batch_size=BATCH_BYTES,
            compression_type=None if codec == "none" else codec,
        )
        await producer.start()
        await producer.send_and_wait(TOPIC, b"warm")
        wall, cpu = time.perf_counter(), time.process_time()
        for n in range(count):
            await producer.send(TOPIC, data[n & 4095])
        await producer.flush()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        await producer.stop()
        rate = count / wall
        return {
            "name": "aiokafka send()",
            "rate": rate,
            "mb": rate * size / 1e6,
            "cpu": cpu / count * 1e6,
        }

    return asyncio.run(main())


def run_kafka_python(address: str, size: int, codec: str, count: int) -> dict[str, Any]:
    from kafka import KafkaProducer

    data = values(size)
    producer = KafkaProducer(
        bootstrap_servers=address,
        acks=1,
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=False,
    )
    producer.send(TOPIC, b"warm").get(30)

    def send() -> None:
        for n in range(count):
            producer.send(TOPIC, data[n & 4095])
        producer.flush()

    found = clocked("kafka-python send()", count, size, send)
    producer.close()
    return found


RUNS: dict[str, tuple[str, Callable[[str, int, str, int], dict[str, Any]]]] = {
    "send": ("kohort", run_send),
    "send_many": ("kohort", run_send_many),
    "arrow": ("kohort", run_arrow),
    "arrow-keys": ("kohort", run_arrow_keys),
    "confluent": ("confluent", run_confluent),
    "aiokafka": ("aiokafka", run_aiokafka),
    "kafka-python": ("kafka-python", run_kafka_python),
}


def serve_forgetful() -> None:
    """A broker that checks and answers, and keeps nothing; ends with standard input."""
    from kohort.broker.log import files
    from kohort.testing import Cluster

    keep = files.MemoryFile.append

    def append(self: files.MemoryFile, buffers: Sequence[files.Buffer]) -> None:
        if self.path.startswith(TOPIC) and self.path.endswith(".log"):
            self.size += sum(len(buffer) for buffer in buffers)
        else:
            keep(self, buffers)

    files.MemoryFile.append = append
    with Cluster(request_log=0, durability="memory") as cluster:
        print(cluster.bootstrap, flush=True)
        sys.stdin.read()


@contextmanager
def forgetful() -> Iterator[str]:
    """The address of such a broker in a process of its own."""
    broker = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bench_produce", "--serve-forgetful"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert broker.stdin is not None
    assert broker.stdout is not None
    try:
        yield broker.stdout.readline().strip()
    finally:
        broker.stdin.close()
        broker.wait(30)


@contextmanager
def running_apache(address: str) -> Iterator[str]:
    """The one Apache Kafka of this run, its topic deleted at the end of each client."""
    from kohort import Admin

    yield address
    with Admin(bootstrap_servers=address) as admin:
        admin.delete_topics([TOPIC])


def one(
    broker: AbstractContextManager[str], name: str, case: tuple[int, str, int], scale: float
) -> dict[str, Any] | None:
    """One client with a fresh topic; None when it fails."""
    from kohort import Admin, NewTopic

    size, codec, partitions = case
    with broker as address:
        with Admin(bootstrap_servers=address) as admin:
            admin.create_topics([NewTopic(TOPIC, partitions, 1)])
        count = int(COUNTS[RUNS[name][0]] * scale * (0.25 if size >= 1_000 else 1))
        command = [sys.executable, "-m", "benchmarks.bench_produce", "--client", name, address]
        command += [str(size), codec, str(count)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            lines = str(error.stderr or error).strip().splitlines()
            print(f"  {name}: failed: {lines[-1][:200]}", file=sys.stderr, flush=True)
            return None
        return json.loads(done.stdout.splitlines()[-1])


def table(
    brokers: Callable[[], AbstractContextManager[str]],
    title: str,
    case: tuple[int, str, int],
    scale: float,
    names: Iterable[str],
) -> None:
    """The clients in one case."""
    size, codec, partitions = case
    print(
        f"\n{title}: {size} B values, {codec}, {partitions} partitions: "
        "records/s, MB/s, CPU-s per M, MB peak; times confluent",
        flush=True,
    )
    found = [r for n in names if (r := one(brokers(), n, case, scale))]
    base = next((r for r in found if r["name"].startswith("confluent")), None)
    for r in found:
        ratio = ""
        if base:
            ratio = f"{r['rate'] / base['rate']:6.2f}x wall {base['cpu'] / r['cpu']:6.2f}x CPU"
        print(
            f"  {r['name']:24}{r['rate'] / 1e6:8.3f} M/s {r['mb']:8.1f} MB/s"
            f"{r['cpu']:9.3f} {r['memory']:6.0f}   {ratio}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the records")
    parser.add_argument("--sizes", nargs="+", type=int, default=[100, 1_000])
    parser.add_argument("--codecs", nargs="+", default=["none", "lz4", "zstd"])
    parser.add_argument("--partitions", nargs="+", type=int, default=[8])
    parser.add_argument("--apache", action="store_true", help="Apache Kafka's broker too")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), help="clients")
    parser.add_argument("--tuned", action="store_true", help="Kohort with the others' settings")
    parser.add_argument("--forget", action="store_true", help="the broker keeps nothing")
    parser.add_argument("--serve-forgetful", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--client", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tuned:
        os.environ[TUNED] = "1"
    if args.serve_forgetful:
        serve_forgetful()
        return 0
    if args.client:
        name, address, size, codec, count = args.client
        figures = RUNS[name][1](address, int(size), codec, int(count))
        figures["memory"] = memory_mb(os.getpid(), "VmHWM")
        print(json.dumps(figures))
        return 0
    cases = [(s, c, p) for p in args.partitions for s in args.sizes for c in args.codecs]
    scale = 0.2 if args.quick else 1.0
    if args.quick and args.apache:
        cases, scale = QUICK, 0.1
    durability = "os" if args.apache else "memory"
    for case in cases:
        if args.forget:
            table(forgetful, "a broker that forgets", case, scale, args.only)
        else:
            table(lambda: embedded(durability), "embedded broker", case, scale, args.only)
    if args.apache:
        with_apache(cases, scale, args.only)
    return 0


def with_apache(cases: list[tuple[int, str, int]], scale: float, names: Iterable[str]) -> None:
    """The same cases on one Apache Kafka."""
    from benchmarks import apache

    if why := apache.lack():
        print(f"\nSKIPPED: Apache Kafka: {why}")
        return
    with apache.apache() as served:
        for case in cases:
            table(lambda: running_apache(served.bootstrap), "Apache Kafka", case, scale, names)


if __name__ == "__main__":
    sys.exit(main())
