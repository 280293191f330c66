"""What a reader of a topic sees of it, from its beginning to its present end."""

from __future__ import annotations

from collections.abc import Iterable

from kohort import Consumer, Record


def read_committed(
    servers: str,
    topic: str,
    partitions: int | Iterable[int] = 3,
    *,
    isolation_level: str = "read_committed",
) -> list[Record]:
    """The records of these partitions (or of so many), without those of open transactions.

    A partition that does not exist is an error: reading creates no topic.
    """
    numbers = range(partitions) if isinstance(partitions, int) else partitions
    found: list[Record] = []
    with Consumer(
        bootstrap_servers=servers,
        isolation_level=isolation_level,
        allow_auto_create_topics=False,
    ) as consumer:
        tps = [(topic, number) for number in numbers]
        consumer.assign(tps)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(tps)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            found += [record.detach() for record in consumer.poll(1)]
    return found
