"""Commit after the insert (usage 3): a batch of records is in the database before it is committed.

At least once: a crash between the two inserts a batch again, which the primary key makes harmless.

python examples/consume_into_database.py TOPIC GROUP FILE.db [BOOTSTRAP]
"""

from __future__ import annotations

import sqlite3
import sys

from kohort import Consumer

SCHEMA = """CREATE TABLE IF NOT EXISTS orders (
    topic TEXT, partition INTEGER, "offset" INTEGER, value BLOB,
    PRIMARY KEY (topic, partition, "offset"))"""
INSERT = "INSERT OR IGNORE INTO orders VALUES (?, ?, ?, ?)"


def run(topic: str, group: str, file: str, bootstrap: str, until: int | None = None) -> None:
    """Run for ever, or until this many rows are stored."""
    database = sqlite3.connect(file)
    database.execute(SCHEMA)
    with Consumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        consumer.subscribe([topic])
        rows = 0
        while until is None or rows < until:
            records = consumer.poll(1.0)
            if records:
                with database:
                    database.executemany(
                        INSERT, [(r.topic, r.partition, r.offset, r.value) for r in records]
                    )
                consumer.commit()
            rows = database.execute("SELECT count(*) FROM orders").fetchone()[0]
    database.close()


if __name__ == "__main__":
    servers = (sys.argv[4:] or ["localhost:9092"])[0]
    run(sys.argv[1], sys.argv[2], sys.argv[3], servers)
