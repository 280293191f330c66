"""Reading the broker's files, and over the connection: `python -m benchmarks.bench_local_reads`.

Two embedded brokers (`os`, processes of their own) hold the same batches; one of them offers its
files to consumers on its machine (ADR 0015), the other does not. A consumer with our defaults reads
all of one, then of the other, in turns; medians of CPU seconds per million records of the
consumer's process (start-up excluded) and of the broker's, and of the rate.

    python -m benchmarks.bench_local_reads --cases 100-none,1000-none --partitions 1,8,100 --runs 5
    python -m benchmarks.bench_local_reads --client kohort_records
"""

from __future__ import annotations

import argparse
import tempfile
from statistics import median

from benchmarks.bench_consume import CLIENTS, fill, one
from benchmarks.load import Served, broker

Figures = list[tuple[float, float, float]]
"""Of each run: CPU of the client, CPU of the broker, records a second."""


def turn(served: Served, client: str, topic: str, records: int) -> tuple[float, float, float]:
    """One run of one client."""
    before = served.cpu_s()
    figures = one(client, served.bootstrap, topic, records)
    if figures is None:
        raise SystemExit("the client failed")
    return figures["cpu"], (served.cpu_s() - before) / records * 1e6, figures["rate"]


def compare(client: str, size: int, codec: str, partitions: int, records: int, runs: int) -> None:
    """One line of the table."""
    topic = f"local-{partitions}"
    with (
        tempfile.TemporaryDirectory(prefix="kohort-bench-") as sent,
        tempfile.TemporaryDirectory(prefix="kohort-bench-") as read,
        broker(durability="os", data_dir=sent, local_reads=False) as sending,
        broker(durability="os", data_dir=read) as lending,
    ):
        found: list[tuple[Served, Figures]] = [(sending, []), (lending, [])]
        for served, _ in found:
            fill(served.bootstrap, topic, size, codec, records)
        for _ in range(runs):
            for served, figures in found:
                figures.append(turn(served, client, topic, records))
    line, sums = f"  {size:5} B {codec:5} {partitions:4}", list[float]()
    for _, figures in found:
        cpu, serving, rate = (median(column) for column in zip(*figures, strict=True))
        sums.append(median(each[0] + each[1] for each in figures))
        line += f"   {cpu:6.4f} + {serving:6.4f} {rate / 1e6:6.2f} M/s"
    print(f"{line}   {1 - sums[1] / sums[0]:4.0%} less", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--client", default="kohort_arrow", choices=list(CLIENTS))
    parser.add_argument("--cases", default="100-none,1000-none", help="for example 100-lz4")
    parser.add_argument("--partitions", default="1,8,100")
    parser.add_argument("--records", type=int, default=2_000_000, help="of 100 bytes")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    print(f"{args.client}, CPU-s/M of client + broker, over the connection and from the files")
    for case in args.cases.split(","):
        size, _, codec = case.partition("-")
        for partitions in args.partitions.split(","):
            records = args.records if int(size) < 1000 else args.records // 5
            compare(args.client, int(size), codec, int(partitions), records, args.runs)


if __name__ == "__main__":
    main()
