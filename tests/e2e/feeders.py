"""Producers that go on, whatever happens to the broker, each make in a process of its own.

`python -m tests.e2e.feeders MAKE SERVERS TOPIC` sends 0, 1, 2, ... to partition 0 until standard
input ends, and writes a line of numbers for what the broker has acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.e2e.makes import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, KOHORT, PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
STEP = 20
PAUSE_S = 0.01
"""A short rest after each step leaves the machine to others; nothing waits for it."""


class Feeder:
    """Starts one and counts; `acked` are the numbers that the broker has acknowledged."""

    def __init__(self, make: str, servers: str, topic: str, directory: Path) -> None:
        self.acked: list[int] = []
        self._errors = directory / "source.stderr"
        self._more = threading.Condition()
        with self._errors.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.feeders", make, servers, topic],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._more:
                self.acked += map(int, line.split())
                self._more.notify_all()
        with self._more:
            self._more.notify_all()

    def await_acked(self, count: int) -> None:
        """Until so many more than now are acknowledged."""
        with self._more:
            goal = len(self.acked) + count
            end = time.monotonic() + PATIENCE_S
            while len(self.acked) < goal:
                left = end - time.monotonic()
                going = left > 0 and self._reader.is_alive()
                assert going, f"{len(self.acked)} of {goal}\n{self._stderr_tail()}"
                self._more.wait(min(left, 1))

    def finish(self) -> None:
        """It sends what it has begun, and ends without an error."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(2 * PATIENCE_S) == 0, self._stderr_tail()
        self._reader.join()

    def _stderr_tail(self) -> str:
        return self._errors.read_text(errors="replace")[-4_000:]

    def __enter__(self) -> Feeder:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Source:
    """Inside the process: what to send next, and whether to go on."""

    def __init__(self, servers: str, topic: str) -> None:
        self.servers, self.topic = servers, topic
        self._sent = 0
        self._stop = threading.Event()
        threading.Thread(target=self._await_end, daemon=True).start()

    def _await_end(self) -> None:
        sys.stdin.read()
        self._stop.set()

    @property
    def stopping(self) -> bool:
        return self._stop.wait(PAUSE_S)

    def step(self) -> range:
        """The next numbers to send."""
        first, self._sent = self._sent, self._sent + STEP
        return range(first, self._sent)

    def ack(self, numbers: Iterable[int]) -> None:
        os.write(1, b" ".join(b"%d" % n for n in numbers) + b"\n")


def _feed_confluent(source: Source) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": source.servers, "enable.idempotence": True, "log_level": 0}
    )

    failed: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(str(error))
        else:
            source.ack([int(message.value())])

    while not source.stopping:
        for n in source.step():
            producer.produce(source.topic, b"%d" % n, partition=0, on_delivery=delivered)
        while len(producer) > 10 * STEP:
            producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def _feed_aiokafka(source: Source) -> None:
    from aiokafka import AIOKafkaProducer

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=source.servers, enable_idempotence=True)
        async with producer:
            while not source.stopping:
                numbers = source.step()
                futures = [
                    await producer.send(source.topic, b"%d" % n, partition=0) for n in numbers
                ]
                await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)
                source.ack(numbers)

    asyncio.run(run())


def _feed_kafka_python(source: Source) -> None:
    from kafka import KafkaProducer

    with contextlib.closing(
        KafkaProducer(
            bootstrap_servers=source.servers,
            enable_idempotence=True,
            reconnect_backoff_max_ms=500,
        )
    ) as producer:
        while not source.stopping:
            numbers = source.step()
            futures = [producer.send(source.topic, b"%d" % n, partition=0) for n in numbers]
            for future in futures:
                future.get(PATIENCE_S)
            source.ack(numbers)


def _feed_kohort(source: Source) -> None:
    from kohort import Producer

    with Producer(bootstrap_servers=source.servers, reconnect_backoff_max_ms=500) as producer:
        while not source.stopping:
            numbers = source.step()
            futures = [producer.send(source.topic, b"%d" % n, partition=0) for n in numbers]
            for future in futures:
                future.result(PATIENCE_S)
            source.ack(numbers)


FEED: dict[str, Callable[[Source], None]] = {
    CONFLUENT: _feed_confluent,
    AIOKAFKA: _feed_aiokafka,
    KAFKA_PYTHON: _feed_kafka_python,
    KOHORT: _feed_kohort,
}

if __name__ == "__main__":
    FEED[sys.argv[1]](Source(*sys.argv[2:]))
