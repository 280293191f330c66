"""Fixed partitions, read to their present end (usage 4): a batch job without a group.

python examples/consume_to_the_end.py TOPIC [BOOTSTRAP]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from kohort import Admin, Consumer, Record, TopicPartition


def read(topic: str, bootstrap: str = "localhost:9092") -> Iterator[Record]:
    """Every record that is in the topic now."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        count = len(admin.describe_topics([topic])[topic].partitions)
    partitions = [TopicPartition(topic, number) for number in range(count)]
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        for tp, end in ends.items():
            consumer.limit(tp, end)  # nothing at or beyond the end is fetched
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            yield from consumer.poll(1.0)


if __name__ == "__main__":
    print(sum(1 for _ in read(*sys.argv[1:])), "records")
