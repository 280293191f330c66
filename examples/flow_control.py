"""Flow control by pause and resume (spec 4.11): priorities, and two streams kept together.

python examples/flow_control.py URGENT BULK GROUP [BOOTSTRAP]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from kohort import Consumer, Record
from kohort.client.consumer.flow_control import Priorities, Together


def by_priority(
    urgent: str, bulk: str, group: str, bootstrap: str, work: Callable[[Record], bool]
) -> None:
    """Records of `bulk` only while nothing of `urgent` is left; until `work` returns False."""
    first = Priorities([[urgent], [bulk]])
    with Consumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        max_poll_records=10,
    ) as consumer:
        consumer.subscribe([urgent, bulk])
        going = True
        while going:
            for record in consumer.poll(0.2):
                going = work(record) and going
            first.apply(consumer)


def together(
    left: str, right: str, bound_ms: int, group: str, bootstrap: str, work: Callable[[Record], bool]
) -> None:
    """Two streams to be joined, never more than `bound_ms` of record time apart."""
    bound = Together([left, right], bound_ms)
    with Consumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        max_poll_records=10,
    ) as consumer:
        consumer.subscribe([left, right])
        going = True
        while going:
            records = consumer.poll(0.2)
            for record in records:
                going = work(record) and going
            bound.saw(records)
            bound.apply(consumer)


def show(record: Record) -> bool:
    print(record)
    return True


if __name__ == "__main__":
    servers = (sys.argv[4:] or ["localhost:9092"])[0]
    by_priority(sys.argv[1], sys.argv[2], sys.argv[3], servers, show)
