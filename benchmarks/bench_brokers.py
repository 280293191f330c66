"""The embedded broker beside Apache Kafka, in turn: `python -m benchmarks.bench_brokers`.

The same load generator drives both: raw sockets, frames made before the clock starts. Produce and
fetch move bytes over two connections; small requests and the acknowledged-after-fsync case go over
64 connections with one request under way and 8 with 32. Of several runs of each the one that cost
the broker the least CPU time (rates: the best). Apache Kafka runs as its scripts start it and is
warmed up by the first runs. Bulk takes turns between the brokers, run by run, and deletes what it
has written (Kafka: at once, not after a minute). `fsync` is `durability=fsync` here and
`flush.messages=1` there, which flushes for every batch: Kafka has no group commit, and on its own
it acknowledges before the flush. "loop" is a plain socket from another process in the same run; it,
the generator and Kafka use the system's congestion control, our broker `reno` (ADR 0009). Ratios
above 1 are in our favour.

    python -m benchmarks.bench_brokers --quick            one short run of each
    python -m benchmarks.bench_brokers --only partitions  start-up and memory with many partitions
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from statistics import median

from benchmarks import apache, bench_start
from benchmarks.bench_broker import (
    Moved,
    await_leaders,
    batch_of,
    beside,
    create,
    delete,
    fetch,
    loopback,
    plain_disk,
    produce,
    produce_frame,
    touch_memory,
    unread,
)
from benchmarks.bench_small import CASES, best
from benchmarks.load import Rate, Served, broker, drive, memory_mb
from kohort.errors import KohortError

PARTS = ("start", "bulk", "fsync", "small", "partitions")


@dataclass
class Row:
    """One figure of both brokers."""

    unit: str
    target: str
    more_is_better: bool
    figures: dict[str, float] = field(default_factory=dict)


class Sheet:
    """The table: figures come broker by broker, lines are printed at the end."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self.notes: list[str] = []

    def put(self, who: str, what: str, figure: float, unit: str, target: str = "") -> None:
        """Keep a figure; CPU seconds, times and memory are better when they are less."""
        more = unit in ("MB/s", "k/s")
        row = self._rows.setdefault(what, Row(unit, target, more))
        row.figures[who] = figure
        print(f"  {who:8} {what:44} {figure:10.2f} {unit}", flush=True)

    def show(self) -> None:
        """Print all, ratios in our favour above 1."""
        print(f"\n{'':44} {'unit':>8} {'kohort':>10} {'Kafka':>10} {'ratio':>7}  target")
        for what, row in self._rows.items():
            ours, theirs = row.figures.get("kohort"), row.figures.get("Kafka")
            ratio = ""
            if ours and theirs:
                ratio = f"{ours / theirs if row.more_is_better else theirs / ours:6.2f}x"
            shown = [f"{f:10.2f}" if f is not None else " " * 9 + "-" for f in (ours, theirs)]
            print(f"{what:44} {row.unit:>8} {' '.join(shown)} {ratio:>7}  {row.target}")
        for note in self.notes:
            print(f"* {note}")


@dataclass(frozen=True)
class Amount:
    """How much is done in a run."""

    mb: int
    seconds: float
    runs: int


def start(sheet: Sheet, who: str, served: Served) -> None:
    ready_s, memory = served.ready_s, memory_mb(served.pid)
    if who == "kohort":  # as it is installed, `kohort broker run`
        ready_s, _, memory = bench_start.plain(5)
    sheet.put(who, "ready, from the process's start", ready_s, "s", "< 0.3 s")
    sheet.put(who, "memory at rest", memory, "MB", "< 60 MB")


def bulk(sheet: Sheet, served: dict[str, Served], amount: Amount, loop_mb: float) -> None:
    """Produce 100 KB batches, fetch them in answers of 1 MB; the brokers take turns run by run.

    A topic is deleted after its run, so that no run pays for the disk. What is read is 64 MB, a
    part of the page cache.
    """
    for who, broker_ in served.items():
        create(broker_.address, "read", 2)
        produce(broker_, "read", 100_000, 64)
        if who == "Kafka":  # its compilers need some of each first
            in_new_topic(broker_, amount.mb * 2)
            fetch(broker_, "read", 1_000_000, amount.mb * 2)
    targets = {
        "produce os, 100 KB batches": ">= 800, >= Kafka",
        "fetch, 1 MB answers": f">= 2500 or {0.6 * loop_mb:.0f} (60 % of loop)",
    }
    works: dict[str, Callable[[Served], Moved]] = {
        "produce os, 100 KB batches": lambda one: in_new_topic(one, amount.mb),
        "fetch, 1 MB answers": lambda one: fetch(one, "read", 1_000_000, amount.mb * 6),
    }
    for what, work in works.items():
        found: dict[str, list[Moved]] = {who: [] for who in served}
        for _ in range(amount.runs):
            for who, runs in found.items():
                runs.append(work(served[who]))
        for who, runs in found.items():
            sheet.put(who, what, max(run.mb_s for run in runs), "MB/s", targets[what])
            sheet.put(who, f"{what}, median", median(run.mb_s for run in runs), "MB/s")
            sheet.put(who, f"{what}, broker's CPU", min(run.cpu_gb for run in runs), "s/GB")
            sheet.put(
                who, f"{what}, its busiest thread", min(run.busiest_gb for run in runs), "s/GB"
            )
    beside_bulk(sheet, served, amount)


def in_new_topic(served: Served, mb: int) -> Moved:
    """Produce into a topic that is made for it and deleted after it."""
    name = f"written-{time.time_ns()}"
    create(served.address, name, 2)
    produce(served, name, 100_000, 10)  # opens the logs, and widens the windows of the streams
    moved = produce(served, name, 100_000, mb)
    delete(served.address, name)
    return moved


def beside_bulk(sheet: Sheet, served: dict[str, Served], amount: Amount) -> None:
    """What others feel of such fetches, and what a hundred clients cost that do not read them."""
    small: dict[str, list[Rate]] = {who: [] for who in served}
    for _ in range(amount.runs):
        for who, runs in small.items():
            runs.append(beside(served[who], "read", amount.seconds))
    for who, runs in small.items():
        what = "ApiVersions, 4 x 1, beside such fetches"
        sheet.put(who, f"{what}, p50", min(run.p50_ms for run in runs), "ms")
        sheet.put(who, f"{what}, p99", min(run.p99_ms for run in runs), "ms")
    for who, broker_ in served.items():
        sheet.put(who, "100 who do not read 20 MB each, memory", unread(broker_, "read"), "MB")


def fsync(sheet: Sheet, who: str, served: Served, amount: Amount) -> None:
    """One record a request, acknowledged after it is on the disk."""
    create(served.address, "durable", 1)
    frame = produce_frame("durable", 0, batch_of(200), acks=-1)
    for clients, depth in ((64, 1), (64, 16)):
        found = [
            drive(served, [frame] * clients, amount.seconds, depth) for _ in range(amount.runs)
        ]
        what = f"fsync, {clients} clients, {depth} under way"
        target = ">= 40 k/s" if depth == 1 else ""
        sheet.put(who, what, max(run.per_s for run in found) / 1e3, "k/s", target)
        sheet.put(who, f"{what}, CPU", min(run.server_us for run in found), "s/M")
        sheet.put(who, f"{what}, p99", min(run.p99_ms for run in found), "ms")


def small(sheet: Sheet, who: str, served: Served, amount: Amount) -> None:
    """Small requests: the rate of the whole machine, and the CPU time of the broker."""
    create(served.address, "small", 1)
    for case in CASES:
        for connections, depth in ((64, 1), (8, 32)):
            what = f"{case[0]}, {connections} x {depth}"
            try:
                found = best(served, case, connections, depth, amount.seconds)
            except (AssertionError, KohortError, OSError) as error:
                sheet.notes.append(f"{who}, {what}: not measured: {str(error)[:200]}")
                continue
            sheet.put(who, what, found.per_s / 1e3, "k/s")
            sheet.put(who, f"{what}, CPU", found.server_us, "s/M", "<= 16.7 (60 k/s a core)")


def many(sheet: Sheet, counts: list[int]) -> None:
    """How the embedded broker ends and begins with one topic of many partitions."""
    for partitions in counts:
        found = bench_start.many(partitions, "os")
        name = f"{partitions:,} partitions"
        sheet.put("kohort", f"{name}, a record in each", found.touch_s, "s")
        sheet.put("kohort", f"{name}, filled, orderly end", found.end_s, "s", "linear")
        sheet.put("kohort", f"{name}, filled, ready again", found.ready_s, "s", "linear")
        sheet.put("kohort", f"{name}, filled, memory", found.memory_mb, "MB", "linear")


def many_apache(sheet: Sheet, partitions: int) -> None:
    """The same of Apache Kafka, at one size."""
    kafka = apache.BenchedKafka()
    name = f"{partitions:,} partitions"
    with kafka:
        began = time.perf_counter()
        kafka.create_topic("wide", partitions)
        sheet.put("Kafka", f"{name}, created", time.perf_counter() - began, "s")
        kafka.stop()
        served = apache.served_by(kafka)
        sheet.put("Kafka", f"{name}, empty, ready again", served.ready_s, "s")
        sheet.put("Kafka", f"{name}, empty, memory", memory_mb(served.pid), "MB")
        await_leaders(served.address, "wide", partitions)  # it answers before it leads them all
        began = time.perf_counter()
        bench_start.touch(served, partitions)
        sheet.put("Kafka", f"{name}, a record in each", time.perf_counter() - began, "s")
        kafka.stop()
        served = apache.served_by(kafka)
        sheet.put("Kafka", f"{name}, filled, ready again", served.ready_s, "s")
        sheet.put("Kafka", f"{name}, filled, memory", memory_mb(served.pid), "MB")


def serving(who: str, durability: str, directory: str) -> AbstractContextManager[Served]:
    """A broker that runs until the end; Kafka frees deleted topics soon, as ours does."""
    if who == "kohort":
        return broker(durability=durability, data_dir=f"{directory}/{durability}")
    settings = {"log_segment_delete_delay_ms": 100}
    if durability == "fsync":
        settings["log_flush_interval_messages"] = 1
    return apache.apache(**settings)


def one(sheet: Sheet, who: str, parts: set[str], amount: Amount) -> None:
    """The parts that need one broker at a time; `fsync` has one of its own."""
    first: list[tuple[str, Callable[[Served], None]]] = [
        ("start", lambda served: start(sheet, who, served)),
        ("small", lambda served: small(sheet, who, served, amount)),
    ]
    with tempfile.TemporaryDirectory(prefix="kohort-bench-") as directory:
        if chosen := [work for name, work in first if name in parts]:
            with serving(who, "os", directory) as served:
                for work in chosen:
                    work(served)
        if "fsync" in parts:
            with serving(who, "fsync", directory) as served:
                fsync(sheet, who, served, amount)


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run of each")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas")
    parser.add_argument("--no-apache", action="store_true", help="only the embedded broker")
    args = parser.parse_args()
    parts = set(args.only.split(","))
    if unknown := parts - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    amount = Amount(300, 1.0, 1) if args.quick else Amount(1_000, 2.0, 3)
    sheet = Sheet()
    with tempfile.TemporaryDirectory(prefix="kohort-bench-") as directory:
        loop_mb = loopback()
        disk, flushed = plain_disk(directory)
    print(
        f"plain loopback {loop_mb:.0f} MB/s; plain file, not flushed / flushed {disk:.0f} / "
        f"{flushed:.0f} MB/s"
    )
    why = "--no-apache" if args.no_apache else apache.lack()
    if why:
        sheet.notes.append(f"SKIPPED: Apache Kafka: {why}")
    whos = ["kohort"] if why else ["kohort", "Kafka"]
    for who in whos:
        one(sheet, who, parts, amount)
    if "bulk" in parts:
        touch_memory(amount.mb * 4)
        with ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="kohort-bench-"))
            bulk(
                sheet,
                {who: stack.enter_context(serving(who, "os", directory)) for who in whos},
                amount,
                loop_mb,
            )
    if "partitions" in parts:
        many(sheet, [1_000, 2_000] if args.quick else list(bench_start.SIZES))
        if not why:
            many_apache(sheet, 1_000)
    sheet.show()


if __name__ == "__main__":
    main()
