"""Automatic commits (usage 2): what one poll returned is committed after the next one has begun.

At least once: a crash repeats what was being worked on, and loses nothing.

python examples/consume_auto_commit.py TOPIC GROUP [BOOTSTRAP]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from kohort import Consumer, Record


def run(topic: str, group: str, bootstrap: str, work: Callable[[Record], bool]) -> None:
    """Run until `work` returns False."""
    with Consumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=1_000,
    ) as consumer:
        consumer.subscribe([topic])
        going = True
        while going:
            for record in consumer.poll(1.0):
                going = work(record) and going


if __name__ == "__main__":
    servers = (sys.argv[3:] or ["localhost:9092"])[0]

    def show(record: Record) -> bool:
        print(record)
        return True

    run(sys.argv[1], sys.argv[2], servers, show)
