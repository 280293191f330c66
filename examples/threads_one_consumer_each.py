"""Many threads, one consumer each (spec 4.12, first model): simple, and as parallel as partitions.

python examples/threads_one_consumer_each.py TOPIC GROUP THREADS [BOOTSTRAP]
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from kohort import Consumer, Record
from kohort.errors import WakeupError


class Workers:
    """`count` consumers of one group, each in a thread of its own."""

    def __init__(
        self, topic: str, group: str, count: int, bootstrap: str, work: Callable[[Record], object]
    ) -> None:
        self._work = work
        self._consumers = [
            Consumer(bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest")
            for _ in range(count)
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(consumer, topic))
            for consumer in self._consumers
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, consumer: Consumer, topic: str) -> None:
        with consumer:
            consumer.subscribe([topic])
            try:
                while True:
                    for record in consumer.poll(1.0):
                        self._work(record)
            except WakeupError:
                return  # stop() was called: close commits what was done

    def stop(self) -> None:
        """Stop all of them. Any thread."""
        for consumer in self._consumers:
            consumer.wakeup()
        for thread in self._threads:
            thread.join()


if __name__ == "__main__":
    servers = (sys.argv[4:] or ["localhost:9092"])[0]
    workers = Workers(sys.argv[1], sys.argv[2], int(sys.argv[3]), servers, print)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        workers.stop()
