"""The groups page of the console on a large cluster: `python -m benchmarks.bench_console`.

2,000 groups with 50 partitions each on one embedded broker, then `kohort console` as it is
installed. Times count from the line "console on": until the page has its first row, and until
every group has its figures (lag in records and in time). Then the console samples on: its memory
after the first and after the last sample, and the size of the page. CPU time is that of all threads
of both processes, from /proc.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from benchmarks.load import Served, ask, broker, cpu_s, frame_of, memory_mb
from kohort import Admin, NewTopic, Producer
from kohort.wire import decode_response
from kohort.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kohort.wire.messages.offset_commit_response import OffsetCommitResponse

PARTITIONS = 50
READERS = 20
"""Groups that read the same topic."""


@dataclass(frozen=True)
class Page:
    """An answer of the console."""

    seconds: float
    size: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True)
class Console:
    """A running `kohort console`."""

    host: str
    pid: int

    def get(self, path: str) -> Page:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        began = time.perf_counter()
        connection.request("GET", path)
        text = connection.getresponse().read().decode()
        connection.close()
        return Page(time.perf_counter() - began, len(text), text)


def fill(served: Served, groups: int) -> None:
    """Topics with records, and groups that have committed in all partitions of one of them."""
    topics = -(-groups // READERS)
    with Admin(bootstrap_servers=served.bootstrap) as admin:
        admin.create_topics([NewTopic(f"topic-{n:03}", PARTITIONS) for n in range(topics)])
    with Producer(bootstrap_servers=served.bootstrap) as producer:
        for n in range(topics):
            for partition in range(PARTITIONS):
                producer.send(f"topic-{n:03}", b"value", None, partition)
    for n in range(groups):
        parts = [
            OffsetCommitRequestPartition(partition_index=p, committed_offset=p % 2)
            for p in range(PARTITIONS)
        ]
        topic = OffsetCommitRequestTopic(name=f"topic-{n // READERS:03}", partitions=parts)
        request = OffsetCommitRequest(group_id=f"group-{n:04}", topics=[topic])
        answer = decode_response(OffsetCommitResponse, 8, ask(served.address, frame_of(request, 8)))
        assert not any(part.error_code for part in answer[1].topics[0].partitions), answer


@contextmanager
def console(bootstrap: str, every_s: int) -> Iterator[Console]:
    """`kohort console` from the line that says where it listens."""
    command = [sys.executable, "-m", "kohort", "console", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--every", f"{every_s}s", "-b", bootstrap], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().split()[2]
        yield Console(urlsplit(url).netloc, process.pid)
    finally:
        process.terminate()
        process.wait()


def known(page: Page) -> bool:
    """Whether every group has its figures: those without are counted as not exact."""
    return page.json["sampled_ms"] is not None


def measure(bootstrap: str, broker_pid: int, groups: int, samples: int) -> None:
    """Start a console, and print what it took."""
    broker_before = cpu_s(broker_pid)
    with console(bootstrap, 2) as one:
        began = time.perf_counter()
        page = one.get("/groups")
        first_s = time.perf_counter() - began
        assert "group-" in page.text
        while not known(one.get("/groups?format=json")):
            time.sleep(0.2)
        all_s = time.perf_counter() - began
        rows = one.get("/groups?format=json").json["paging"]["total"]
        assert rows == groups, rows
        cpu, memory = cpu_s(one.pid), memory_mb(one.pid)
        print(
            f"first row {first_s:.2f} s, all {groups:,} groups {all_s:.2f} s; CPU: console "
            f"{cpu:.2f} s, broker {cpu_s(broker_pid) - broker_before:.2f} s; {memory:.0f} MB",
            flush=True,
        )
        seen = one.get("/groups?format=json").json["sampled_ms"]
        for _ in range(samples):
            while (now := one.get("/groups?format=json").json["sampled_ms"]) == seen:
                time.sleep(1)
            seen = now
        used = (cpu_s(one.pid) - cpu) / max(1, samples)
        pages = [one.get(f"/groups?page={n}") for n in range(1, 21)]
        print(
            f"after {samples} samples: {memory_mb(one.pid):.0f} MB, {used:.2f} CPU s a sample; a "
            f"page {1e3 * statistics.median(p.seconds for p in pages):.0f} ms, at most "
            f"{max(p.size for p in pages) / 1e3:.0f} kB",
            flush=True,
        )


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=2_000)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    with broker(durability="memory") as served:
        began = time.perf_counter()
        fill(served, args.groups)
        print(
            f"{args.groups:,} groups x {PARTITIONS} partitions made in "
            f"{time.perf_counter() - began:.1f} s",
            flush=True,
        )
        for run in range(args.runs):
            measure(served.bootstrap, served.pid, args.groups, args.samples if not run else 0)


if __name__ == "__main__":
    main()
