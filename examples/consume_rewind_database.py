"""Rewind a group whose offsets are in a database (usage 8): one update, then a rolling restart.

As in `consume_exactly_once.py` the database says where to go on. So the whole group is rewound by
one transaction that puts the positions back and removes what the bad deployment wrote; the members
are restarted one by one and seek to where the database stands.

python examples/consume_rewind_database.py TOPIC TIME_MS FILE.db [BOOTSTRAP]
"""

from __future__ import annotations

import sqlite3
import sys

from kohort import Admin, Consumer, TopicPartition


def rewind(topic: str, time_ms: int, file: str, bootstrap: str = "localhost:9092") -> int:
    """Put every position back to `time_ms` and empty the results; how many were moved.

    Members that are at work meanwhile find that their positions have moved, and roll back.
    """
    with Admin(bootstrap_servers=bootstrap) as admin:
        count = len(admin.describe_topics([topic])[topic].partitions)
    partitions = [TopicPartition(topic, number) for number in range(count)]
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        ends = consumer.end_offsets(partitions)
        found = consumer.offsets_for_times(dict.fromkeys(partitions, time_ms))
    database = sqlite3.connect(file, timeout=30)
    moved = 0
    with database:
        database.execute("DELETE FROM sums")
        for tp in partitions:
            at = found[tp]
            moved += database.execute(
                "UPDATE positions SET next = ? WHERE topic = ? AND partition = ? AND next > ?",
                (offset := ends[tp] if at is None else at.offset, *tp, offset),
            ).rowcount
    database.close()
    return moved


if __name__ == "__main__":
    print(rewind(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]), "positions were put back")
