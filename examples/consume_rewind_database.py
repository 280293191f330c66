"""Rewind a group whose offsets are in a database (usage 8): one transaction, a rolling restart.

The members run `consume_exactly_once.py`, where the database decides where each partition
continues. One transaction withdraws the bad deployment, puts the positions back and deletes the
results from there on. Members may be running meanwhile: those of the withdrawn deployment store
nothing any more and end, those of another continue from the database's positions. Then restart the
members one by one, as a new deployment.

A partition that has not reached the time stays where it is: a rewind only ever moves back.

python examples/consume_rewind_database.py TOPIC TIME_MS BAD_DEPLOYMENT FILE.db [BOOTSTRAP]
"""

from __future__ import annotations

import sqlite3
import sys

from kohort import Admin, Consumer, TopicPartition

MOVE_BACK = "UPDATE positions SET next = ? WHERE topic = ? AND partition = ? AND next > ?"
DELETE = 'DELETE FROM results WHERE topic = ? AND partition = ? AND "offset" >= ?'


def rewind(topic: str, time_ms: int, bad: str, file: str, bootstrap: str = "localhost:9092") -> int:
    """Withdraw the deployment `bad` and go back to `time_ms`; how many positions moved."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        count = len(admin.describe_topics([topic])[topic].partitions)
    partitions = [TopicPartition(topic, number) for number in range(count)]
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        offsets = consumer.offsets_for_times(dict.fromkeys(partitions, time_ms))
    database = sqlite3.connect(file, timeout=30)
    moved = 0
    with database:
        database.execute("INSERT OR IGNORE INTO withdrawn VALUES (?)", (bad,))
        for tp, at in offsets.items():
            if at is not None:  # None: no record is as young as that
                moved += database.execute(MOVE_BACK, (at.offset, *tp, at.offset)).rowcount
                database.execute(DELETE, (*tp, at.offset))
    database.close()
    return moved


if __name__ == "__main__":
    moved = rewind(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
    print(moved, "positions were put back")
