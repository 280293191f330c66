"""Rewind a whole group after a bad deployment (usage 7): a flag and a rolling restart.

Deployments are numbered. Each member starts with the number of its deployment and with a time, the
flag. It rewinds a partition to that time when the partition is assigned to it, unless the commit
says that this deployment, or a later one, has done so: each commit carries its deployment's number.

Old members may run meanwhile. If a rewound partition moves to one of them, its commits carry the
old number, so the new deployment rewinds that partition again. Records may be processed twice, but
none after the time is left to the bad deployment.

A partition whose commit is before the time stays where it is: a rewind only ever moves back.

python examples/consume_rewind.py TOPIC GROUP DEPLOYMENT TIME_MS [BOOTSTRAP]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from kohort import Consumer, OffsetAndMetadata, RebalanceListener, Record, TopicPartition
from kohort.errors import CommitFailedError


def deployment_of(commit: OffsetAndMetadata) -> int:
    """The number of the deployment that committed, 0 when the commit does not say."""
    return int(commit.metadata) if commit.metadata.isdecimal() else 0


class Rewind(RebalanceListener):
    """Moves partitions back to a time, unless this deployment or a later one did so."""

    def __init__(self, consumer: Consumer, deployment: int, time_ms: int) -> None:
        self._consumer, self._deployment, self._time_ms = consumer, deployment, time_ms

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        before = {
            tp: commit.offset
            for tp, commit in self._consumer.committed(partitions).items()
            if commit is not None and deployment_of(commit) < self._deployment
        }
        offsets = self._consumer.offsets_for_times(dict.fromkeys(before, self._time_ms))
        for tp, at in offsets.items():
            if at is not None and at.offset < before[tp]:
                self._consumer.seek(tp, at.offset)


def run(
    topic: str,
    group: str,
    deployment: int,
    time_ms: int,
    bootstrap: str,
    work: Callable[[Record], bool],
) -> None:
    """Run until `work` returns False."""
    with Consumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        consumer.subscribe([topic], Rewind(consumer, deployment, time_ms))
        going = True
        while going:
            done: dict[TopicPartition, OffsetAndMetadata] = {}
            for record in consumer.poll(1.0):
                going = work(record) and going
                tp = TopicPartition(record.topic, record.partition)
                done[tp] = OffsetAndMetadata(record.offset + 1, str(deployment))
            try:
                consumer.commit(done)
            except CommitFailedError as error:
                print(f"another member processes these records again: {error}", file=sys.stderr)


def show(record: Record) -> bool:
    """Print a record and ask for the next one."""
    print(record)
    return True


if __name__ == "__main__":
    topic, group, deployment, time_ms = sys.argv[1:5]
    servers = (sys.argv[5:] or ["localhost:9092"])[0]
    run(topic, group, int(deployment), int(time_ms), servers, show)
