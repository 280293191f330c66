"""The clients of Python beside one another, on the embedded broker and on Apache Kafka's: a table.

    python -m benchmarks.bench_clients [--only consume|produce] [--cells 100-none-1,1000-zstd-100]
    python -m benchmarks.bench_clients --broker embedded [--scale 0.1] [--runs 3]

Values of 100 bytes and 1 KB; none, lz4 and zstd; 1 and 100 partitions; both brokers keep records in
files (`os`) and have a process of their own. It is the short form of `bench_consume --apache` and
`bench_produce --apache`, whose clients and settings it uses: one run of about a second each (in a
tenth of a second a fast client would only be seen to begin), so that the whole table is there
within ten minutes on a machine that does nothing else. A cell says records a second, in thousands;
CPU seconds of the client's process for a million records; and its largest memory in MB. **Ratios**
are those of rates to confluent-kafka's in the same cell.

One run of a second may be off by a third. With `--runs` the clients of a cell take so many turns, a
cell says what the run of the median rate came to, and the ratio is that of the medians, with the
least and the largest of all rounds behind it; the two clients that nobody takes for fast run once.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from benchmarks import apache, bench_consume, bench_produce
from benchmarks.load import embedded
from kohort.errors import KafkaTimeoutError, KohortError

Case = tuple[int, str, int]
"""Size of values, codec, partitions."""
CASES: list[Case] = [
    (size, codec, partitions)
    for size in (100, 1_000)
    for codec in ("none", "lz4", "zstd")
    for partitions in (1, 100)
]
RECORDS = 4_000_000
"""Of 100 bytes; a fifth of 1 KB."""
CONSUME = {
    "confluent_tuned": ("confluent-kafka", 0.3),
    "kohort_arrow": ("poll_arrow", 1.0),
    "kohort_records": ("poll", 1.0),
    "aiokafka_getmany": ("aiokafka", 0.05),
    "kafka_python_poll": ("kafka-python", 0.02),
}
"""Client -> its title, and how much of what there is it reads."""
PRODUCE = {
    "confluent": ("confluent-kafka", 1.0),
    "arrow": ("produce_arrow", 2.0),
    "send": ("send", 1.0),
    "aiokafka": ("aiokafka", 0.3),
    "kafka-python": ("kafka-python", 0.3),
}
"""Client -> its title, and its part of `bench_produce.COUNTS`."""
ONCE = {"aiokafka_getmany", "kafka_python_poll", "aiokafka", "kafka-python"}
"""Clients that run once, however often the others do."""


GONE_S = 60.0
"""So long a deleted topic may still be known of."""


Figures = dict[str, Any] | None
"""What one run came to; None: it failed, and said why."""
Run = tuple[str, Figures]
"""A client, and what it came to."""


def consume(bootstrap: str, case: Case, scale: float, runs: int) -> Iterator[Run]:
    """Fill a topic, and let each client read it."""
    size, codec, partitions = case
    topic = f"bench-{size}-{codec}-{partitions}"
    records = int(scale * (RECORDS if size == 100 else RECORDS // 5))
    bench_consume.fill(bootstrap, topic, size, codec, records)
    for name in turns(CONSUME, runs):
        least = max(int(records * CONSUME[name][1]), bench_consume.LEAST)
        yield name, bench_consume.one(name, bootstrap, topic, least)
    delete(bootstrap, topic)


def produce(bootstrap: str, case: Case, scale: float, runs: int) -> Iterator[Run]:
    """Let each client fill a topic of its own."""
    for name in turns(PRODUCE, runs):
        os.sync()  # what the client before has left to be written is not this one's to wait for
        share = PRODUCE[name][1] * scale
        yield name, bench_produce.one(nullcontext(bootstrap), name, case, share)
        delete(bootstrap, bench_produce.TOPIC)


def turns(clients: dict[str, tuple[str, float]], runs: int) -> Iterator[str]:
    """Who runs, one after another."""
    for turn in range(runs):
        yield from (name for name in clients if not turn or name not in ONCE)


def delete(bootstrap: str, topic: str) -> None:
    """Take a topic away, and wait until nobody knows of it."""
    from kohort import Admin

    end = time.monotonic() + GONE_S
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.delete_topics([topic])
        while topic in [each.name for each in admin.list_topics()]:
            if time.monotonic() > end:
                raise KafkaTimeoutError(f"topic {topic} is still there after {GONE_S:.0f} s")
            time.sleep(0.02)


def table(
    title: str,
    clients: dict[str, tuple[str, float]],
    run: Callable[[Case], Iterator[Run]],
    cases: list[Case],
) -> None:
    """One table in Markdown, a row as soon as it is measured; what went wrong goes to stderr."""
    heads = [head for head, _ in clients.values()]
    print(f"\n{title}\n\n| values, codec, partitions | {' | '.join(heads)} |")
    print("|---" * (len(heads) + 1) + "|", flush=True)
    for case in cases:
        size, codec, partitions = case
        found: dict[str, list[Figures]] = {name: [] for name in clients}
        try:
            for name, figures in run(case):
                found[name].append(figures)
        except KohortError as error:  # the broker's part; the other cells are measured all the same
            print(f"{title}, {case}: {error}", file=sys.stderr, flush=True)
        base, *others = found.values()
        cells = [cell(base, []), *(cell(figures, base) for figures in others)]
        print(f"| {size} B, {codec}, {partitions} | {' | '.join(cells)} |", flush=True)


def cell(runs: list[Figures], base: list[Figures]) -> str:
    """What a client came to, beside the one that ran before it."""
    figures, beside = median(runs), median(base)
    if figures is None:
        return "failed"
    ratio = f"**{figures['rate'] / beside['rate']:.1f}** " if beside else ""
    rounds = [a["rate"] / b["rate"] for a, b in zip(runs, base, strict=False) if a and b]
    if len(rounds) > 1:
        ratio += f"({min(rounds):.1f}-{max(rounds):.1f}) "
    return f"{ratio}{figures['rate'] / 1e3:,.0f} k; {figures['cpu']:.2f}; {figures['memory']:.0f}"


def median(runs: list[Figures]) -> Figures:
    """The run of the median rate; of two the slower one."""
    by_rate = sorted((run for run in runs if run), key=lambda run: run["rate"])
    return by_rate[(len(by_rate) - 1) // 2] if by_rate else None


@contextmanager
def apache_kafka() -> Iterator[str]:
    """A fresh one."""
    with apache.apache() as served:
        yield served.bootstrap


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["consume", "produce"])
    parser.add_argument("--cells", default="", help="for example 100-none-1,1000-zstd-100")
    parser.add_argument("--broker", choices=["embedded", "apache"], help="this one alone")
    parser.add_argument("--scale", type=float, default=1.0, help="of the records; 0.1: a rehearsal")
    parser.add_argument("--runs", type=int, default=1, help="so often each client takes its turn")
    given = parser.parse_args()
    wanted = {name for name in given.cells.split(",") if name}
    cases = [c for c in CASES if not wanted or f"{c[0]}-{c[1]}-{c[2]}" in wanted]
    brokers: dict[str, Callable[[], AbstractContextManager[str]]] = {}
    if given.broker != "apache":
        brokers["the embedded broker"] = lambda: embedded("os")
    if given.broker != "embedded" and (why := apache.lack()):
        print(f"SKIPPED: Apache Kafka: {why}")
    elif given.broker != "embedded":
        brokers["Apache Kafka 4.3"] = apache_kafka
    began = time.monotonic()
    for broker, start in brokers.items():
        with start() as bootstrap:
            reading = partial(consume, bootstrap, scale=given.scale, runs=given.runs)
            writing = partial(produce, bootstrap, scale=given.scale, runs=given.runs)
            if given.only != "produce":
                table(f"Reading from {broker}", CONSUME, reading, cases)
            if given.only != "consume":
                table(f"Writing to {broker}", PRODUCE, writing, cases)
    print(f"\nin {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
