"""Results and offsets in one database transaction (usage 5): exactly once, across rebalances too.

The database says where to go on. When partitions are assigned, the consumer seeks there; what is
committed to the group is for lag tools only, and never decides. A former owner that is still at
work finds that the offset has moved on, and its transaction is rolled back.

python examples/consume_exactly_once.py TOPIC GROUP FILE.db [BOOTSTRAP]
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence
from itertools import groupby

from kohort import Consumer, RebalanceListener, Record, TopicPartition

SCHEMA = """
CREATE TABLE IF NOT EXISTS sums (key BLOB PRIMARY KEY, total INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS positions (
    topic TEXT, partition INTEGER, next INTEGER NOT NULL, PRIMARY KEY (topic, partition));
"""
ADD = """INSERT INTO sums VALUES (?, ?)
    ON CONFLICT (key) DO UPDATE SET total = total + excluded.total"""


class Overtaken(Exception):
    """Somebody else has gone on with this partition."""


class FromDatabase(RebalanceListener):
    """Starts every new partition where the database stands."""

    def __init__(self, consumer: Consumer, database: sqlite3.Connection) -> None:
        self._consumer, self._database = consumer, database

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            with self._database:
                self._database.execute("INSERT OR IGNORE INTO positions VALUES (?, ?, 0)", tp)
            row = self._database.execute(
                "SELECT next FROM positions WHERE topic = ? AND partition = ?", tp
            ).fetchone()
            self._consumer.seek(tp, row[0])


def load(database: sqlite3.Connection, records: Sequence[Record]) -> None:
    """One partition's records and its new position, together or not at all."""
    first, last = records[0], records[-1]
    with database:
        for record in records:
            database.execute(ADD, (record.key, int(record.value or b"0")))
        moved = database.execute(
            "UPDATE positions SET next = ? WHERE topic = ? AND partition = ? AND next <= ?",
            (last.offset + 1, first.topic, first.partition, first.offset),
        )
        if moved.rowcount != 1:
            raise Overtaken(f"{first.topic}-{first.partition} has gone on beyond {first.offset}")


def run(topic: str, group: str, file: str, bootstrap: str, until: int | None = None) -> None:
    """For ever, or until so many records have been read by all members together."""
    database = sqlite3.connect(file, timeout=30)
    database.executescript(SCHEMA)
    with Consumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        consumer.subscribe([topic], FromDatabase(consumer, database))
        read = 0
        while until is None or read < until:
            for _, records in groupby(consumer.poll(0.5), key=lambda record: record.partition):
                chunk = list(records)
                try:
                    load(database, chunk)
                    consumer.commit_async()
                except Overtaken:
                    pass  # a rebalance is on its way to us
            read = database.execute("SELECT coalesce(sum(next), 0) FROM positions").fetchone()[0]
    database.close()


if __name__ == "__main__":
    servers = (sys.argv[4:] or ["localhost:9092"])[0]
    run(sys.argv[1], sys.argv[2], sys.argv[3], servers)
