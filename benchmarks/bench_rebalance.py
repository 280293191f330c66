"""How long a group takes to settle over real sockets: `python -m benchmarks.bench_rebalance`.

An embedded broker in a process of its own, at the durability that is named. First groups of 10, 100
and 1,000 raw members (`benchmarks/herd.py`), each with a connection and a heartbeat of its own
every 100 ms, the phases spread at random and anew for each change; in the classic protocol (the
leader assigns ranges) and in that of KIP-848 (the broker assigns, `uniform`), two partitions a
member. At a random moment one member joins, then one leaves: the time until every member has its
assignment in the new generation, or epoch, with every partition owned once. Nobody can hear of a
change before its next heartbeat: 91, 99 and 100 ms of the figures are waiting for the last one.

Then ten of our own consumers with default settings, in both protocols and, in the classic one,
with `cooperative-sticky`, whose change takes two rebalances (KIP-429); and with fewer partitions
than consumers, so that some stand by, whom no fetch that ends early can tell of news.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import statistics
import tempfile
import time
from typing import Any

from benchmarks.herd import ClassicHerd, ConsumerHerd, Herd
from benchmarks.load import Served, ask, broker, frame_of
from kohort.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest

BEAT_MS = 100
ROUNDS = 9
SIZES = (10, 100, 1_000)
PARTITIONS, FEW = 22, 8
OURS: dict[str, tuple[dict[str, Any], int]] = {
    "classic": ({}, PARTITIONS),
    "cooperative": ({"partition_assignment_strategy": "cooperative-sticky"}, PARTITIONS),
    "consumer": ({"group_protocol": "consumer"}, PARTITIONS),
    "classic, two stand by": ({}, FEW),
    "consumer, two stand by": ({"group_protocol": "consumer"}, FEW),
}
"""Settings, and how many partitions there are."""


def create(served: Served, topic: str, partitions: int) -> None:
    """A topic."""
    wanted = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
    ask(served.address, frame_of(CreateTopicsRequest(topics=[wanted]), 7))


def raw(served: Served, kind: type[Herd], size: int) -> str:
    """The median and the longest time to settle with one member more, and with one less."""
    topic = f"{kind.__name__}-{size}"
    create(served, topic, 2 * size)
    herd = kind(served.address, topic, 2 * size, BEAT_MS / 1e3)
    formed = herd.form(size)
    more, less, cpu_s, ours_s = [], [], 0.0, 0.0
    for _ in range(ROUNDS):
        for spans, change in ((more, herd.add), (less, herd.remove)):
            herd.spread()
            herd.run_for(random.uniform(1, 2) * BEAT_MS / 1e3)
            before, ours = served.cpu_s(), time.process_time()
            spans.append(herd.timed(change) * 1e3)
            cpu_s, ours_s = cpu_s + served.cpu_s() - before, ours_s + time.process_time() - ours
            herd.verify()
    herd.close()
    a_change = 1e3 / (2 * ROUNDS)
    return (
        f"{formed * 1e3:>8.0f} {statistics.median(more):>8.0f} {max(more):>6.0f} "
        f"{statistics.median(less):>8.0f} {max(less):>6.0f} {cpu_s * a_change:>10.0f} "
        f"{ours_s * a_change:>10.0f}"
    )


def real(name: str, settings: dict[str, Any], partitions: int, served: Served) -> str:
    """The same with ten of our consumers and default settings, apart from `settings`.

    It is always the consumer that was made first that leaves, and so one that owns something.
    """
    from kohort import Consumer

    topic = f"t-{name.replace(', ', '-').replace(' ', '-')}"
    group = f"real-{topic}"
    create(served, topic, partitions)

    def make() -> Consumer:
        consumer = Consumer(
            bootstrap_servers=f"{served.address[0]}:{served.address[1]}",
            group_id=group,
            auto_offset_reset="earliest",
            **settings,
        )
        consumer.subscribe([topic])
        return consumer

    def settle(consumers: list[Consumer], began: float) -> float:
        while True:
            for consumer in consumers:
                consumer.poll(0.001)
            owned = [consumer.assignment() for consumer in consumers]
            counts = [len(each) for each in owned]
            whole = sum(counts) == partitions == len(set[Any]().union(*owned))
            if whole and max(counts) - min(counts) <= 1:
                return time.perf_counter() - began

    consumers = [make() for _ in range(10)]
    settle(consumers, 0)
    more, less = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        consumers.append(make())
        more.append(settle(consumers, began))
        began = time.perf_counter()
        consumers.pop(0).close()
        less.append(settle(consumers, began))
    for consumer in consumers:
        consumer.close()
    return "".join(
        f"{statistics.median(spans) * 1e3:>9.0f} {max(spans) * 1e3:>6.0f}" for spans in (more, less)
    )


def run(durability: str, sizes: list[int]) -> None:
    """All of it, on one broker for the raw members and on another one for ours."""
    print(f"durability {durability}; ms; CPU: ms of the broker, and of all members, for one change")
    print(f"{'':<28}  formed       +1    max       -1    max        CPU    members")
    limits: dict[str, object] = {
        "group_initial_rebalance_delay_ms": 0,
        "max_connections": 4_000,
        "group_max_size": 2_000,
        "group_consumer_max_size": 2_000,
    }
    beats = {
        "group_consumer_heartbeat_interval_ms": BEAT_MS,
        "group_consumer_min_heartbeat_interval_ms": BEAT_MS,
    }
    with (
        tempfile.TemporaryDirectory(prefix="kohort-bench-") as directory,
        broker(durability=durability, data_dir=directory, **limits, **beats) as served,
    ):
        for kind in (ClassicHerd, ConsumerHerd):
            for size in sizes:
                name = f"{kind.PROTOCOL}, {size} raw members"
                print(f"{name:<28}{raw(served, kind, size)}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="kohort-bench-") as directory,
        broker(durability=durability, data_dir=directory, **limits) as served,
    ):
        for name, (settings, partitions) in OURS.items():
            figures = real(name, settings, partitions, served)
            print(f"{f'{name}, 10 of ours':<36}{figures}", flush=True)


def main() -> None:
    """Run all sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--durability", default="fsync", choices=("fsync", "os", "memory"))
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8_192, hard), hard))
    gc.freeze()
    gc.disable()  # a pause of the members' process would look like one of the broker's
    run(args.durability, args.sizes)


if __name__ == "__main__":
    main()
