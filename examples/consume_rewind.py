"""Rewind a whole group after a bad deployment (usage 7): a flag and a rolling restart.

Each member starts with --rewind-to TIME. When partitions are assigned to it for the first time, it
seeks them to that time, so that after the rolling restart the whole group has gone back, once. A
partition that comes later, from a member that has rewound it already, is left where it is: the
commit tells, because it carries the deployment's name.

python examples/consume_rewind.py TOPIC GROUP DEPLOYMENT TIME_MS [BOOTSTRAP]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from kohort import Consumer, OffsetAndMetadata, RebalanceListener, Record, TopicPartition


class Rewind(RebalanceListener):
    """Seeks each partition to a time unless its commit says that this deployment did so."""

    def __init__(self, consumer: Consumer, deployment: str, time_ms: int) -> None:
        self._consumer, self._deployment, self._time_ms = consumer, deployment, time_ms

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        committed = self._consumer.committed(partitions)
        old = [
            tp
            for tp in partitions
            if (last := committed.get(tp)) is None or last.metadata != self._deployment
        ]
        ends = self._consumer.end_offsets(old)
        for tp, found in self._consumer.offsets_for_times(
            dict.fromkeys(old, self._time_ms)
        ).items():
            self._consumer.seek(tp, ends[tp] if found is None else found.offset)


def run(
    topic: str, group: str, deployment: str, time_ms: int, bootstrap: str,
    work: Callable[[Record], bool],
) -> None:  # fmt: skip
    """Until `work` returns False."""
    with Consumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        consumer.subscribe([topic], Rewind(consumer, deployment, time_ms))
        going = True
        while going:
            for record in consumer.poll(1.0):
                going = work(record) and going
            consumer.commit(
                {
                    tp: OffsetAndMetadata(offset, deployment)
                    for tp, offset in consumer.positions().items()
                }
            )


def show(record: Record) -> bool:
    print(record)
    return True


if __name__ == "__main__":
    named = sys.argv[1:4]
    servers = (sys.argv[5:] or ["localhost:9092"])[0]
    run(
        named[0],
        named[1],
        named[2],
        int(sys.argv[4]),
        servers,
        show,
    )
