"""Results and offsets in one database transaction (usage 5): exactly once, across rebalances too.

The database decides where each partition continues. The group's commits only serve lag tools.

Two members may read one partition at the same time: a member that lost its coordinator keeps
reading while the new owner works. So each member remembers the position that it read from the
database or stored itself, and a transaction commits only if the database still has that position.
Otherwise the member drops the records and continues from the database's position. Comparing with
the offset of the first record instead would skip records that were never stored.

`consume_rewind_database.py` withdraws a bad deployment. From then on its members store nothing.

python examples/consume_exactly_once.py TOPIC GROUP FILE.db [BOOTSTRAP [DEPLOYMENT]]
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing

from kohort import Consumer, RebalanceListener, Record, TopicPartition

SCHEMA = """
CREATE TABLE IF NOT EXISTS results (
    topic TEXT, partition INTEGER, "offset" INTEGER, key BLOB, amount INTEGER NOT NULL,
    PRIMARY KEY (topic, partition, "offset"));
CREATE VIEW IF NOT EXISTS sums AS SELECT key, sum(amount) AS total FROM results GROUP BY key;
CREATE TABLE IF NOT EXISTS positions (
    topic TEXT, partition INTEGER, next INTEGER NOT NULL, PRIMARY KEY (topic, partition));
CREATE TABLE IF NOT EXISTS withdrawn (deployment TEXT PRIMARY KEY);
"""
ADD = "INSERT INTO results VALUES (?, ?, ?, ?, ?)"
ADVANCE = """UPDATE positions SET next = ? WHERE topic = ? AND partition = ? AND next = ?
    AND NOT EXISTS (SELECT 1 FROM withdrawn WHERE deployment = ?)"""


class Overtaken(Exception):
    """The database no longer has the position that this member continued from."""


class Withdrawn(Exception):
    """A rewind withdrew this deployment."""


class DatabasePositions(RebalanceListener):
    """The positions that this member continues from, always those of the database."""

    def __init__(self, consumer: Consumer, database: sqlite3.Connection) -> None:
        self._consumer, self._database = consumer, database
        self.next: dict[TopicPartition, int] = {}

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            with self._database:
                self._database.execute("INSERT OR IGNORE INTO positions VALUES (?, ?, 0)", tp)
            self.seek(tp)

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            self.next.pop(tp, None)

    def seek(self, tp: TopicPartition) -> None:
        """Continue at the database's position."""
        self.next[tp] = self._database.execute(
            "SELECT next FROM positions WHERE topic = ? AND partition = ?", tp
        ).fetchone()[0]
        self._consumer.seek(tp, self.next[tp])


def load(
    database: sqlite3.Connection, records: Sequence[Record], position: int, deployment: str
) -> None:
    """Store one partition's records and its new position, together or not at all."""
    first, last = records[0], records[-1]
    place = (first.topic, first.partition)
    with database:
        advanced = database.execute(ADVANCE, (last.offset + 1, *place, position, deployment))
        if advanced.rowcount != 1:
            raise Overtaken(f"{first.topic}-{first.partition} is no longer at {position}")
        database.executemany(
            ADD, [(*place, r.offset, r.key, int(r.value or b"0")) for r in records]
        )


def check(database: sqlite3.Connection, deployment: str) -> None:
    """Raise Withdrawn when a rewind withdrew this deployment."""
    query = "SELECT 1 FROM withdrawn WHERE deployment = ?"
    if database.execute(query, (deployment,)).fetchone():
        raise Withdrawn(f"deployment {deployment} is withdrawn: start a later one")


def by_partition(records: Iterable[Record]) -> dict[TopicPartition, list[Record]]:
    """One chunk for each partition, so that a dropped chunk leaves nothing to jump to."""
    chunks: dict[TopicPartition, list[Record]] = {}
    for record in records:
        chunks.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
    return chunks


def run(
    topic: str,
    group: str,
    file: str,
    bootstrap: str,
    until: int | None = None,
    deployment: str = "1",
) -> None:
    """Run for ever, or until all members together have stored so many records."""
    with (
        closing(sqlite3.connect(file, timeout=30)) as database,
        Consumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
    ):
        database.executescript(SCHEMA)
        check(database, deployment)
        positions = DatabasePositions(consumer, database)
        consumer.subscribe([topic], positions)
        stored = 0
        while until is None or stored < until:
            for tp, records in by_partition(consumer.poll(0.5)).items():
                try:
                    load(database, records, positions.next[tp], deployment)
                    positions.next[tp] = records[-1].offset + 1
                except Overtaken:
                    check(database, deployment)
                    positions.seek(tp)
            consumer.commit_async()
            query = "SELECT coalesce(sum(next), 0) FROM positions"
            stored = database.execute(query).fetchone()[0]


if __name__ == "__main__":
    topic, group, file = sys.argv[1:4]
    servers = (sys.argv[4:] or ["localhost:9092"])[0]
    try:
        run(topic, group, file, servers, deployment=(sys.argv[5:] or ["1"])[0])
    except Withdrawn as reason:
        sys.exit(str(reason))
