"""The program that `test_exact_kills` starts, and that ends itself in the midst of a transaction.

`python -m tests.processing.exact_program SERVERS GROUP MODE PLACE NUMBER [INSTANCE]`: MODE is
"kafka" or the URL of a store; at the NUMBER-th time that it comes to PLACE it is killed, or stopped
(`stop:PLACE`) as a machine that hangs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from itertools import count
from typing import Any

from kohort import App, Permanent, Producer, Temporary
from kohort.processing.runtime import exactly_once as exactly
from kohort.retry.progress import Progress
from kohort.retry.store import Store

TOPIC, OUT = "in", "out"
HUNG_MS = 5_000
"""So long a process that hangs keeps its partitions and its transaction: longer than a busy machine
lets one wait that does not hang, or nobody comes to an end."""


def at(place: str, number: int) -> None:
    """Die, or hang, when this place is reached for the `number`-th time."""
    how = signal.SIGSTOP if place.startswith("stop:") else signal.SIGKILL
    owner, name, after = {
        "begun": (Producer, "begin_transaction", True),
        "offsets": (Producer, "send_offsets_to_transaction", True),
        "committed": (Producer, "commit_transaction", True),
        "published": (Store, "advance", False),
        "inside": (Progress, "_look_for_revived", True),
        "stored": (Store, "advance", True),
    }[place.removeprefix("stop:")]
    real, times = getattr(owner, name), count(1)

    def watched(*args, **more):
        found = real(*args, **more) if after else None
        if next(times) == number:
            os.kill(os.getpid(), how)
            threading.Event().wait(0.2)  # the signal may take a moment; nothing more may be begun
        return found if after else real(*args, **more)

    setattr(owner, name, watched)


def decide(record) -> None:
    number = int(record.value)
    if number % 40 == 0:
        threading.Event().wait(0.03)  # something outside is slow, now and then
    if number % 10 == 9:
        raise Permanent("bad")
    if number % 5 == 3 and record.attempt <= number % 2:
        raise Temporary("not_yet")


def into_kafka(record) -> None:
    record.send(OUT, record.value, record.key)
    decide(record)


def into_store(record):
    decide(record)
    return {"number": int(record.value)}


def main(servers: str, group: str, mode: str, place: str, number: str, instance: str = "") -> None:
    exactly.TRANSACTION_TIMEOUT_MS = HUNG_MS
    if place != "-":
        at(place, int(number))
    client: dict[str, Any] = {
        "heartbeat_interval_ms": 100,
        "session_timeout_ms": HUNG_MS,
        "max_poll_records": 20,
    }
    if instance:
        client["group_instance_id"] = instance
    app = App(
        group,
        bootstrap_servers=servers,
        retries="200ms 300ms",
        clock_skew=0,
        exactly_once=mode,
        commit_interval="20ms",
        client=client,
        threads=2,
        crash_guard=False,
        max_records=10,  # so that all of them cannot be done in fewer transactions than NUMBER
    )
    if mode == "kafka":
        app.handler(TOPIC)(into_kafka)
    else:
        app.setup(lambda s: s.run("CREATE TABLE IF NOT EXISTS loaded (number INTEGER NOT NULL)"))
        app.handler(TOPIC, table="loaded")(into_store)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
