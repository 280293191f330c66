"""The program that `test_soak` runs several times at once: three topics, three kinds of workers.

`python -m tests.processing.soak_program SERVERS GROUP LOG`: every call of a handler is a line of
LOG, `time_ns topic number key attempt outcome`, written in one piece before and after the work.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
import time

from kohort import App
from kohort.retry import Permanent, Temporary

TOPICS = {"threads": "soak-threads", "tasks": "soak-tasks", "processes": "soak-processes"}
HEALTHY_KEYS, KEYS = 20, 40
"""Keys below the first number never fail."""


def note(record, outcome: str) -> None:
    """One line, by one write: nothing is torn when the process is killed."""
    key, number = record.key.decode(), record.data.decode()
    line = f"{time.time_ns()} {record.topic} {number} {key} {record.attempt} {outcome}\n"
    log = os.open(os.environ["SOAK_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(log, line.encode())
    finally:
        os.close(log)


def decide(record) -> None:
    """Some keys fail at times, and some of their records for ever."""
    if int(record.key) < HEALTHY_KEYS:
        return
    if int(record.data) % 50 == 9:
        raise Permanent("bad")
    if random.random() < 0.3:
        raise Temporary("down")


def in_thread(record) -> None:
    note(record, "begin")
    threading.Event().wait(random.random() * 0.005)
    decide(record)
    note(record, "done")


async def in_task(record) -> None:
    note(record, "begin")
    await asyncio.to_thread(threading.Event().wait, random.random() * 0.005)
    decide(record)
    note(record, "done")


def in_process(record) -> None:
    note(record, "begin")
    decide(record)
    note(record, "done")


def main(servers: str, group: str, log: str) -> None:
    os.environ["SOAK_LOG"] = log
    app = App(
        group,
        bootstrap_servers=servers,
        retries="1s 1s 2s",
        clock_skew=0,
        processes=2,
        client={"heartbeat_interval_ms": 500, "session_timeout_ms": 6_000},
    )
    handlers = {"threads": in_thread, "tasks": in_task, "processes": in_process}
    for kind, handler in handlers.items():
        app.handler(TOPICS[kind], order="key", on_failure="pass", workers=kind)(handler)
    app.run()


if __name__ == "__main__":
    # By its name, so that worker processes find the handlers again.
    from tests.processing import soak_program

    soak_program.main(*sys.argv[1:])
