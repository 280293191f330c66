"""Consuming, side by side with the Python peers: `python -m benchmarks consume`.

One embedded broker (memory, its own process) holds the same batches for everybody: 8 partitions
(or as many as `--partitions` says), about 98 KB a batch, 8-byte keys. With `--apache` the same is
done again with Apache Kafka's broker, and both keep their records in files (`os`). Each client runs
in a process of its own, assigns all partitions from the beginning, and touches the value of every
record. The clock runs from the first records to the last; CPU is the client process's, start-up
excluded; memory is its largest resident set, with interpreter, libraries and what was fetched
ahead. Ratios are to confluent-kafka's `consume(10000)`, tuned: of rates (best runs) and of CPU
seconds (least), how much less it is. Rates move with the machine's load; CPU seconds per million
records move less.

    python -m benchmarks.bench_consume --records 500000 --only kohort,confluent
    python -m benchmarks.bench_consume --apache --partitions 1,100
    python -m benchmarks.bench_consume --apache --quick     a choice of these, within 3 minutes
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks.load import embedded, memory_mb

CASES = [(100, "none"), (100, "lz4"), (100, "zstd"), (1000, "none"), (1000, "lz4"), (1000, "zstd")]
QUICK = [
    (100, "none", 1),
    (100, "none", 100),
    (100, "lz4", 100),
    (100, "zstd", 100),
    (1000, "none", 100),
]
QUICK_CLIENTS = {"confluent_tuned", "kohort_arrow", "kohort_records", "aiokafka", "kafka_python"}
LEAST = 40_000  # the first poll, which is not timed, may return 10,000
Count = Callable[[], Iterator[int]]


# -- what there is to read ------------------------------------------------------------------------


def partitions_of(topic: str) -> int:
    """The name of a topic ends with the number of its partitions."""
    return int(topic.rpartition("-")[2])


def fill(bootstrap: str, topic: str, size: int, codec: str, records: int) -> None:
    """Produce `records` records in large batches; text-like values give codecs work."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    partitions = partitions_of(topic)
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 200,
            "batch.size": 100_000,
            "batch.num.messages": 100_000,
            "compression.codec": codec,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    block = b"".join(b"%06d,LGA,ORD,N%05d,2013;" % (n, n * 7919 % 99999) for n in range(4000))
    for n in range(records):
        at = n * 37 % (len(block) - size)
        while True:
            try:
                producer.produce(topic, block[at : at + size], b"%08d" % n, n % partitions)
                break
            except BufferError:
                producer.poll(0.05)
        if n % 10_000 == 0:
            producer.poll(0)
    producer.flush()


# -- the clients: each yields how many records it has touched, batch by batch ---------------------


def kohort_records(bootstrap: str, topic: str) -> Iterator[int]:
    from kohort import Consumer

    with Consumer(bootstrap_servers=bootstrap) as consumer:
        assign_all(consumer, topic)
        while True:
            records = consumer.poll(1.0)
            for record in records:
                record.value  # noqa: B018
            yield len(records)


def kohort_records_10000(bootstrap: str, topic: str) -> Iterator[int]:
    from kohort import Consumer

    with Consumer(bootstrap_servers=bootstrap) as consumer:
        assign_all(consumer, topic)
        while True:
            records = consumer.poll(1.0, max_records=10_000)
            for record in records:
                record.value  # noqa: B018
            yield len(records)


def kohort_iterate(bootstrap: str, topic: str) -> Iterator[int]:
    from kohort import Consumer

    with Consumer(bootstrap_servers=bootstrap) as consumer:
        assign_all(consumer, topic)
        n = 0
        for record in consumer:
            record.value  # noqa: B018
            n += 1
            if n == 1000:
                yield n
                n = 0


def kohort_arrow(bootstrap: str, topic: str) -> Iterator[int]:
    import pyarrow  # noqa: F401  (numpy's BLAS threads spin for a while when they are made)

    from kohort import Consumer

    columns = ("offset", "timestamp", "key", "value")
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        assign_all(consumer, topic)
        while True:
            yield consumer.poll_arrow(1.0, columns=columns).num_rows


def kohort_arrow_all(bootstrap: str, topic: str) -> Iterator[int]:
    import pyarrow  # noqa: F401  (as above)

    from kohort import Consumer

    with Consumer(bootstrap_servers=bootstrap) as consumer:
        assign_all(consumer, topic)
        while True:
            yield consumer.poll_arrow(1.0).num_rows


def assign_all(consumer, topic: str) -> None:
    from kohort import TopicPartition

    consumer.assign([TopicPartition(topic, n) for n in range(partitions_of(topic))])
    consumer.seek_to_beginning()


def confluent(bootstrap: str, topic: str, **tuned: object) -> Iterator[int]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, **tuned}
    )
    consumer.assign([TopicPartition(topic, n, 0) for n in range(partitions_of(topic))])
    while True:
        records = consumer.consume(10_000, 1.0)
        for record in records:
            record.value()
        yield len(records)


def confluent_tuned(bootstrap: str, topic: str) -> Iterator[int]:
    tuned = {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 5}
    return confluent(bootstrap, topic, **tuned)


def confluent_defaults(bootstrap: str, topic: str) -> Iterator[int]:
    return confluent(bootstrap, topic)


def aiokafka_getmany(bootstrap: str, topic: str) -> Iterator[int]:
    import asyncio

    from aiokafka import AIOKafkaConsumer, TopicPartition

    loop = asyncio.new_event_loop()

    async def start() -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        await consumer.start()
        tps = [TopicPartition(topic, n) for n in range(partitions_of(topic))]
        consumer.assign(tps)
        await consumer.seek_to_beginning(*tps)
        return consumer

    consumer = loop.run_until_complete(start())
    while True:
        found = loop.run_until_complete(consumer.getmany(timeout_ms=1000, max_records=10_000))
        n = 0
        for records in found.values():
            for record in records:
                record.value  # noqa: B018
            n += len(records)
        yield n


def kafka_python_poll(bootstrap: str, topic: str) -> Iterator[int]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    tps = [TopicPartition(topic, n) for n in range(partitions_of(topic))]
    consumer.assign(tps)
    consumer.seek_to_beginning(*tps)
    while True:
        n = 0
        for records in consumer.poll(timeout_ms=1000, max_records=10_000).values():
            for record in records:
                record.value  # noqa: B018
            n += len(records)
        yield n


CLIENTS: dict[str, tuple[Callable[[str, str], Iterator[int]], str, float]] = {
    # name -> (function, title, share of the records it is given: slow ones would take minutes)
    "confluent_tuned": (confluent_tuned, "confluent-kafka consume(10000), tuned", 1.0),
    "confluent_defaults": (confluent_defaults, "confluent-kafka consume(10000), defaults", 0.25),
    "kohort_arrow": (kohort_arrow, "kohort poll_arrow, 4 columns", 1.0),
    "kohort_arrow_all": (kohort_arrow_all, "kohort poll_arrow, all columns", 1.0),
    "kohort_records": (kohort_records, "kohort poll (500)", 1.0),
    "kohort_records_10000": (kohort_records_10000, "kohort poll (10000)", 1.0),
    "kohort_iterate": (kohort_iterate, "kohort for record in consumer", 1.0),
    "aiokafka_getmany": (aiokafka_getmany, "aiokafka getmany(10000)", 0.5),
    "kafka_python_poll": (kafka_python_poll, "kafka-python poll(10000)", 0.1),
}


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(name: str, bootstrap: str, topic: str, records: int) -> None:
    """Run one client here and print its figures as JSON."""
    batches = CLIENTS[name][0](bootstrap, topic)
    first = 0
    while not first:
        first = next(batches)
    started, cpu, seen = time.perf_counter(), cpu_s(), 0
    while seen < records - first:
        seen += next(batches)
    wall, used = time.perf_counter() - started, cpu_s() - cpu
    memory = memory_mb(os.getpid(), "VmHWM")
    figures = {"rate": seen / wall, "cpu": used / seen * 1e6, "memory": memory}
    print(json.dumps(figures), flush=True)
    os._exit(0)  # clients that close slowly are not the subject


# -- the tables ----------------------------------------------------------------------------------


def one(name: str, bootstrap: str, topic: str, records: int) -> dict[str, float] | None:
    command = [sys.executable, "-m", "benchmarks.bench_consume", "--client", name, bootstrap, topic]
    try:
        out = subprocess.run(
            [*command, str(records)], capture_output=True, text=True, timeout=120, check=True
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        lines = str(error.stderr or error).strip().splitlines()
        print(f"  {CLIENTS[name][1]:44} {lines[-1][:200]}", file=sys.stderr, flush=True)
        return None
    return json.loads(out.stdout.splitlines()[-1])


def table(bootstrap: str, topic: str, size: int, records: int, only: set[str], runs: int) -> None:
    """Fill a topic, and let every client that is wanted read it."""
    print(
        f"  {'client':44} {'records/s':>12} {'MB/s':>8} {'CPU-s/M':>8} {'MB peak':>8} "
        f"{'rate':>7} {'CPU':>7}"
    )
    base: tuple[float, float] | None = None
    for name, (_, title, share) in CLIENTS.items():
        if only and not any(name.startswith(prefix) for prefix in only):
            continue
        found: list[dict[str, float]] = []
        for _ in range(runs):
            figures = one(name, bootstrap, topic, max(int(records * share), LEAST))
            if figures is None:
                break
            found.append(figures)
        if not found:
            continue
        best = max(found, key=lambda f: f["rate"])
        cpu, memory = (min(f[what] for f in found) for what in ("cpu", "memory"))
        base = (best["rate"], cpu) if name == "confluent_tuned" else base
        ratio = f"{best['rate'] / base[0]:6.2f}x {base[1] / cpu:6.2f}x" if base else ""
        mb = best["rate"] * (size + 8) / 1e6
        print(
            f"  {title:44} {best['rate']:12,.0f} {mb:8,.0f} {cpu:8.3f} {memory:8.0f} {ratio}",
            flush=True,
        )


def compare(args: argparse.Namespace, cases: list[tuple[int, str, int]], only: set[str]) -> None:
    """Every case on the embedded broker, then with `--apache` on Apache Kafka's."""
    from benchmarks import apache

    def run(broker: str, bootstrap: str, case: tuple[int, str, int]) -> None:
        size, codec, partitions = case
        topic = f"bench-{size}-{codec}-{partitions}"
        records = args.records if size == 100 else args.records // 5
        print(
            f"\n{broker}: {size} B values, {codec}, {partitions} partitions, {records:,} records, "
            f"best of {args.runs}",
            flush=True,
        )
        fill(bootstrap, topic, size, codec, records)
        table(bootstrap, topic, size, records, only, args.runs)

    for case in cases:
        with embedded("os" if args.apache else "memory") as bootstrap:
            run("embedded broker", bootstrap, case)
    if not args.apache:
        return
    if why := apache.lack():
        print(f"\nSKIPPED: Apache Kafka: {why}")
        return
    with apache.apache() as served:
        for case in cases:
            run("Apache Kafka", served.bootstrap, case)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000, help="of 100 bytes")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="names of clients (prefixes), with commas")
    parser.add_argument("--cases", default="", help="for example 100-none,1000-lz4")
    parser.add_argument("--partitions", default="8", help="for example 1,100")
    parser.add_argument("--apache", action="store_true", help="Apache Kafka's broker too")
    parser.add_argument("--quick", action="store_true", help="few cases, one run, 400,000 records")
    parser.add_argument("--client", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        name, bootstrap, topic, records = args.client
        measure(name, bootstrap, topic, int(records))
        return
    only = {name for name in args.only.split(",") if name}
    wanted = {case for case in args.cases.split(",") if case}
    counts = [int(count) for count in args.partitions.split(",")]
    cases = [(*case, count) for count in counts for case in CASES]
    if args.quick:
        args.records, args.runs, cases, only = 400_000, 1, QUICK, only or QUICK_CLIENTS
    cases = [c for c in cases if not wanted or f"{c[0]}-{c[1]}" in wanted]
    compare(args, cases, only)


if __name__ == "__main__":
    main()
