"""The smallest consumer (spec 4.10, usage 1): print what comes, for ever.

python examples/consume_smallest.py TOPIC GROUP [BOOTSTRAP]
"""

from __future__ import annotations

import sys

from kohort import Consumer


def main(topic: str, group: str, bootstrap: str = "localhost:9092") -> None:
    with Consumer(bootstrap_servers=bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            print(record.partition, record.offset, record.key, record.value)


if __name__ == "__main__":
    main(*sys.argv[1:])
