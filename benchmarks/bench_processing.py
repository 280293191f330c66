"""Handlers and workers, side by side: `python -m benchmarks.bench_processing`.

One embedded broker (memory, its own process) holds the same records for everybody: 8 partitions,
100-byte values, 8-byte keys, 10,000 different ones. Each program runs in a process of its own, in a
group from the beginning, and commits as it goes. The clock runs from the first record to the last;
CPU is that of the program and its children.

- no-op: a handler that does nothing, by ordering mode, beside the plain consumer loop, aiokafka
  with a hand-written pool of workers by key, and FastStream (when it is installed).
- wait: a handler that waits 1 ms, async and in threads, by number of workers; ideal is workers
  divided by the wait, or one processor. `asyncio alone` is tasks that only wait in asyncio's own
  loop, whose timers are late.
- cpu: a handler that computes for about 0.2 ms, in threads and in processes.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import importlib.util
import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.bench_consume import fill
from benchmarks.load import embedded

WAIT_S = 0.001
WAIT_WORKERS = 20
Program = Callable[["Clock", str, str], None]


class Clock:
    """From the first record to the last, counted from any thread."""

    def __init__(self, records: int) -> None:
        self.records = records
        self.left = records
        self.done = threading.Event()
        self.started = 0.0
        self.seconds = 0.0

    def count(self, number: int = 1) -> None:
        if not self.started:
            self.started = time.perf_counter()
        self.left -= number
        if self.left <= 0 and not self.done.is_set():
            self.seconds = time.perf_counter() - self.started
            self.done.set()


def run_app(
    clock: Clock, bootstrap: str, topic: str, register: Callable[[Any], None], workers: int = 8
) -> None:
    """An App until all records are done."""
    from kohort import App

    app = App(
        f"g-{time.time_ns()}",
        bootstrap_servers=bootstrap,
        retries="none",
        tasks=workers,
        threads=workers,
    )
    register(app)
    thread = threading.Thread(target=app.run, kwargs={"signals": False})
    thread.start()
    clock.done.wait()
    app.stop()
    thread.join()


def noop(order: str) -> Program:
    def run(clock: Clock, bootstrap: str, topic: str) -> None:
        def register(app: Any) -> None:
            @app.handler(topic, order=order)
            def handle(record: Any) -> None:
                clock.count()

        run_app(clock, bootstrap, topic, register)

    return run


def waiting(workers: int) -> Program:
    def run(clock: Clock, bootstrap: str, topic: str) -> None:
        def register(app: Any) -> None:
            @app.handler(topic, order="none")
            async def handle(record: Any) -> None:
                await asyncio.sleep(WAIT_S)
                clock.count()

        run_app(clock, bootstrap, topic, register, workers)

    return run


def waiting_threads(workers: int) -> Program:
    def run(clock: Clock, bootstrap: str, topic: str) -> None:
        def register(app: Any) -> None:
            @app.handler(topic, order="none")
            def handle(record: Any) -> None:
                time.sleep(WAIT_S)
                clock.count()

        run_app(clock, bootstrap, topic, register, workers)

    return run


def only_waiting(workers: int) -> Program:
    """No Kafka, no records: what asyncio's own loop makes of such waits."""

    def run(clock: Clock, bootstrap: str, topic: str) -> None:
        async def worker() -> None:
            while clock.left > 0:
                await asyncio.sleep(WAIT_S)
                clock.count()

        async def main() -> None:
            await asyncio.gather(*(worker() for _ in range(workers)))

        asyncio.run(main())

    return run


def work(value: bytes) -> None:
    """About 0.2 ms of one processor."""
    hashlib.pbkdf2_hmac("sha256", value, b"salt", 300)


def compute_in_process(record: Any) -> None:
    """At the top of the module, so that a process can find it."""
    work(record.value)


def computing(workers: str) -> Program:
    def run(clock: Clock, bootstrap: str, topic: str) -> None:
        from kohort import App

        app = App(f"g-{time.time_ns()}", bootstrap_servers=bootstrap, retries="none", threads=2)
        app.handler(topic, workers=workers)(compute_in_process)
        thread = threading.Thread(target=app.run, kwargs={"signals": False})
        thread.start()
        while clock.left > 0:  # handlers cannot count across processes: the app's own figure does
            clock.done.wait(0.02)
            clock.count(app.counts().get("succeeded", 0) - (clock.records - clock.left))
        app.stop()
        thread.join()

    return run


def plain_loop(clock: Clock, bootstrap: str, topic: str) -> None:
    from kohort import Consumer

    with Consumer(
        bootstrap_servers=bootstrap, group_id=f"g-{time.time_ns()}", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe([topic])
        while not clock.done.is_set():
            for _ in consumer.poll(1.0, max_records=2_000):
                clock.count()


def aiokafka_pool(
    clock: Clock, bootstrap: str, topic: str, wait: bool = False, workers: int = WAIT_WORKERS
) -> None:
    """What people write by hand: a queue for each worker, chosen by key; commits now and then."""
    from aiokafka import AIOKafkaConsumer

    async def main() -> None:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=f"g-{time.time_ns()}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        queues: list[asyncio.Queue[Any]] = [asyncio.Queue(1_000) for _ in range(workers)]

        async def worker(queue: asyncio.Queue[Any]) -> None:
            while True:
                await queue.get()
                if wait:
                    await asyncio.sleep(WAIT_S)
                clock.count()
                queue.task_done()

        async with consumer:
            tasks = [asyncio.create_task(worker(queue)) for queue in queues]
            while not clock.done.is_set():
                polled = await consumer.getmany(timeout_ms=200, max_records=2_000)
                for records in polled.values():
                    for record in records:
                        await queues[hash(record.key) % len(queues)].put(record)
                await asyncio.gather(*(queue.join() for queue in queues))
                if polled:
                    await consumer.commit()
            for each in tasks:
                each.cancel()

    asyncio.run(main())


def aiokafka_waiting(workers: int) -> Program:
    def run(clock: Clock, bootstrap: str, topic: str) -> None:
        aiokafka_pool(clock, bootstrap, topic, wait=True, workers=workers)

    return run


def faststream(wait: bool, workers: int = 1) -> Program:
    """As its pages say; with workers it has one queue for all of them, and no order."""

    def run(clock: Clock, bootstrap: str, topic: str) -> None:
        from faststream import FastStream
        from faststream.kafka import KafkaBroker

        broker = KafkaBroker(bootstrap, logger=None)

        @broker.subscriber(
            topic,
            group_id=f"g-{time.time_ns()}",
            auto_offset_reset="earliest",
            max_workers=workers,
        )
        async def handle(body: bytes) -> None:
            if wait:
                await asyncio.sleep(WAIT_S)
            clock.count()
            if clock.done.is_set():
                app.exit()

        app = FastStream(broker, logger=None)
        asyncio.run(app.run())

    return run


PROGRAMS: dict[str, tuple[str, Program]] = {
    "kohort app, by key": ("noop", noop("key")),
    "kohort app, by partition": ("noop", noop("partition")),
    "kohort app, no order": ("noop", noop("none")),
    "kohort plain loop": ("noop", plain_loop),
    "aiokafka, pool by key": ("noop", aiokafka_pool),
    "faststream": ("noop", faststream(wait=False)),
    "asyncio alone, 10 x 1 ms": ("wait", only_waiting(10)),
    "kohort app, 10 x 1 ms async": ("wait", waiting(10)),
    "asyncio alone, 20 x 1 ms": ("wait", only_waiting(20)),
    "kohort app, 20 x 1 ms async": ("wait", waiting(20)),
    "aiokafka, 20 x 1 ms async": ("wait", aiokafka_waiting(20)),
    "faststream, 20 x 1 ms async": ("wait", faststream(wait=True, workers=20)),
    "asyncio alone, 100 x 1 ms": ("wait", only_waiting(100)),
    "kohort app, 100 x 1 ms async": ("wait", waiting(100)),
    "aiokafka, 100 x 1 ms async": ("wait", aiokafka_waiting(100)),
    "asyncio alone, 1000 x 1 ms": ("wait", only_waiting(1_000)),
    "kohort app, 1000 x 1 ms async": ("wait", waiting(1_000)),
    "kohort app, 8 x 1 ms threads": ("wait", waiting_threads(8)),
    "kohort app, 20 x 1 ms threads": ("wait", waiting_threads(20)),
    "kohort app, cpu in threads": ("cpu", computing("threads")),
    "kohort app, cpu in processes": ("cpu", computing("processes")),
}
SLOW = {"aiokafka, pool by key": 5, "faststream": 20, "faststream, 20 x 1 ms async": 10}
"""These get so many times fewer records: the rate is the same, the wait is not."""


def workers_of(name: str) -> int:
    """The workers of a program that waits, as its name says."""
    return int(name.partition(", ")[2].partition(" x ")[0])


def topic_of(kind: str) -> str:
    """As `bench_consume` names them: with the number of partitions at the end."""
    return f"{kind}-8"


def measure(name: str, bootstrap: str, topic: str, records: int) -> None:
    """One program, in this process; prints its figures."""
    clock = Clock(records)
    before = _cpu_s()
    PROGRAMS[name][1](clock, bootstrap, topic)
    print(json.dumps({"seconds": clock.seconds, "cpu": _cpu_s() - before}))


def _cpu_s() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(kind) for kind in kinds]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    """Run them all, or some."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="part of a name, or several with | between")
    parser.add_argument("--measure", nargs=4)
    given = parser.parse_args()
    if given.measure:
        name, bootstrap, topic, records = given.measure
        measure(name, bootstrap, topic, int(records))
        return
    with embedded() as bootstrap:
        compare(given, bootstrap)


def compare(given: argparse.Namespace, bootstrap: str) -> None:
    """A line for each program."""
    sizes = {"noop": given.records, "wait": given.records // 4, "cpu": given.records // 50}
    for kind, records in sizes.items():
        fill(bootstrap, topic_of(kind), 100, "none", records)
    base = 0.0
    print(f"{'':<32} {'records/s':>12} {'CPU s/M':>9} {'to plain loop':>14}")
    for name, (kind, _) in PROGRAMS.items():
        if not any(part in name for part in given.only.split("|")):
            continue
        if name.startswith("faststream") and importlib.util.find_spec("faststream") is None:
            print(f"{name:<32} not installed (pip install 'faststream[kafka]')")
            continue
        records = sizes[kind] // SLOW.get(name, 1)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks.bench_processing",
                "--measure",
                name,
                bootstrap,
                topic_of(kind),
                str(records),
            ],
            capture_output=True,
            text=True,
            timeout=600,
        )
        if done.returncode:
            print(f"{name:<32} failed: {done.stderr[-500:]}")
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        rate = records / found["seconds"]
        base = rate if name == "kohort plain loop" else base
        ideal = ""
        if kind == "wait":
            ideal = f"  {rate * WAIT_S / workers_of(name):.0%} of ideal"
        ratio = f"{rate / base:.2f}" if base and kind == "noop" else ""
        print(f"{name:<32} {rate:>12,.0f} {found['cpu'] * 1e6 / records:>9.2f} {ratio:>14}{ideal}")


if __name__ == "__main__":
    main()
