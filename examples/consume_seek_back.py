"""Seek back after a failure (usage 6): the records after the last good one come again.

python examples/consume_seek_back.py TOPIC GROUP [BOOTSTRAP]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from kohort import Consumer, Record


def run(
    topic: str, group: str, bootstrap: str, work: Callable[[Record], None], until: int | None = None
) -> None:
    """Run for ever, or until this many records are processed."""
    with Consumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        consumer.subscribe([topic])
        done = 0
        while until is None or done < until:
            failed: set[tuple[str, int]] = set()
            for record in consumer.poll(1.0):
                place = (record.topic, record.partition)
                if place in failed:
                    continue  # read again, after the one that failed
                try:
                    work(record)
                    done += 1
                except Exception as error:
                    print(f"{record!r} failed ({error}); it is read again")
                    failed.add(place)
                    consumer.seek(place, record.offset)
            consumer.commit()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], (sys.argv[3:] or ["localhost:9092"])[0], print)
