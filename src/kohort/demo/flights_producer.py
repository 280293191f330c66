"""The demonstration's producer: a process of its own, which reads the year and produces it.

    python -m kohort.demo.flights_producer '{"bootstrap": "localhost:9092", ...}'

Rules:
- It prints the numbers of flights and observations once they are read, and ends with status 0 when
  all are produced.
- It ends when its standard input closes, so it never outlives the run that started it.
- The topics and the group's progress say where to continue; a resumed run starts another producer.

Shell: threads, clock, standard streams.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import gc
import json
import os
import select
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from kohort import Admin, Consumer, Producer, TopicPartition
from kohort.client.admin.types import OffsetSpec
from kohort.client.producer.plan.partitioner import for_key
from kohort.demo.flights_data import (
    FLIGHT_PARTITIONS,
    FLIGHTS,
    ORIGINS,
    REFERENCES,
    WEATHER,
    Event,
    load_year,
    table_events,
)
from kohort.demo.flights_feed import Feed, Produced, Stage
from kohort.errors import KohortError

FEED_INTERVAL_S = 0.25
STOP_TIMEOUT_S = 10.0
RESUME = "continue with: kohort demo flights --resume"


@dataclass(frozen=True)
class FeedSettings:
    """What is produced, and where.

    Args:
        bootstrap: the broker.
        group: the group of the pipeline, whose progress decides when late weather comes.
        limit: produce the first so many flights; None for all.
        handlers: for the pipeline of row handlers, which reads weather as an input.
        max_lateness_ms: no observation is later than this.
    """

    bootstrap: str
    group: str
    limit: int | None
    handlers: bool
    max_lateness_ms: int


class ProducerProcess:
    """The producer of one run, seen from the run. `log` gets its errors."""

    def __init__(self, settings: FeedSettings, log: Path) -> None:
        self._log = log
        self._counts: tuple[int, int] | None = None
        command = [sys.executable, "-m", __name__, json.dumps(asdict(settings))]
        with log.open("a") as errors:
            # A session of its own: an interrupt at the terminal is the driver's to handle.
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def counts(self) -> tuple[int, int] | None:
        """How many flights and observations there are; None until they are read."""
        output = self._child.stdout
        assert output is not None
        if self._counts is None and select.select([output], [], [], 0)[0]:
            line = output.readline()
            if line:  # else it has ended: `is_done` says how
                flights, weather = json.loads(line)
                self._counts = flights, weather
        return self._counts

    def is_done(self) -> bool:
        """Whether everything has been produced. Raises KohortError when it could not be."""
        status = self._child.poll()
        if status:
            raise self._failed()
        return status == 0

    def _failed(self) -> KohortError:
        tail = "\n".join(self._log.read_text().splitlines()[-5:])
        return KohortError(
            f"producing the flights failed (status {self._child.returncode}); {RESUME}\n"
            f"the end of {self._log}:\n{tail}"
        )

    def close(self) -> None:
        """End it, whether it is done or not."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        try:
            self._child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()


class FlightsProducer:
    """Produces the year from where the topics end."""

    def __init__(self, settings: FeedSettings) -> None:
        self._settings = settings
        self._servers = settings.bootstrap

    def run(self) -> None:
        """Read everything, report the counts, then produce."""
        year = load_year(for_key, limit=self._settings.limit)
        print(json.dumps([len(year.flights), len(year.weather) + len(year.late)]), flush=True)
        feed = Feed(year, self._produced(), self._settings.max_lateness_ms)
        with (
            Producer(bootstrap_servers=self._servers, linger_ms=20) as producer,
            Admin(bootstrap_servers=self._servers) as admin,
        ):
            if not self._settings.handlers:
                self._feed_references(producer)
            self._feed_stages(feed, producer, admin)
            while feed.held:
                self._feed_late(feed, producer, admin)

    def _produced(self) -> Produced:
        """The topics' contents: counted by offsets, and for the weather by its keys."""
        flights = [TopicPartition(FLIGHTS, p) for p in range(FLIGHT_PARTITIONS)]
        weather = [TopicPartition(WEATHER, p) for p in range(len(ORIGINS))]
        keys: set[bytes] = set()
        with Consumer(bootstrap_servers=self._servers, auto_offset_reset="earliest") as consumer:
            ends = consumer.end_offsets([*flights, *weather])
            consumer.assign(weather)
            while any(consumer.position(tp) < ends[tp] for tp in weather):
                batch = consumer.poll_arrow(5.0)
                if batch is not None:
                    keys.update(batch.column("key").to_pylist())
        return Produced({tp.partition: ends[tp] for tp in flights}, keys)

    def _feed_references(self, producer: Producer) -> None:
        """Planes and airports. A resumed run sends them again: the latest of a key counts."""
        for topic, key in REFERENCES.items():
            _send(producer, topic, list(table_events(topic, key)))

    def _feed_stages(self, feed: Feed, producer: Producer, admin: Admin) -> None:
        """Each month's weather, and its flights once that weather has been read.

        The pipeline of DataFrames reads weather as a reference: all weather produced before a
        flight is there when the flight is joined.
        """
        nothing = Stage([], [])
        _send(producer, WEATHER, (feed.stages or [nothing])[0].weather)
        for stage, following in zip(feed.stages, [*feed.stages, nothing][1:], strict=True):
            wanted = _ends(admin, WEATHER, len(ORIGINS)) if self._settings.handlers else {}
            while any(self._committed(admin, WEATHER).get(p, 0) < wanted[p] for p in wanted):
                self._feed_late(feed, producer, admin)
            _send(producer, FLIGHTS, stage.flights)
            _send(producer, WEATHER, following.weather)

    def _feed_late(self, feed: Feed, producer: Producer, admin: Admin) -> None:
        """Produce what is late enough by now, then wait a moment."""
        committed = self._committed(admin, FLIGHTS)
        _send(producer, WEATHER, feed.late(committed, int(time.monotonic() * 1000)))
        time.sleep(FEED_INTERVAL_S)

    def _committed(self, admin: Admin, topic: str) -> dict[int, int]:
        offsets = admin.list_group_offsets(self._settings.group)
        return {tp.partition: o.offset for tp, o in offsets.items() if tp.topic == topic}


def _ends(admin: Admin, topic: str, partitions: int) -> dict[int, int]:
    """The offset after the last record of every partition."""
    specs: dict[TopicPartition, OffsetSpec] = {
        TopicPartition(topic, partition): "latest" for partition in range(partitions)
    }
    return {tp.partition: found.offset for tp, found in admin.list_offsets(specs).items()}


def _send(producer: Producer, topic: str, events: list[Event]) -> None:
    if events:
        partitions, stamps, keys, values = zip(*events, strict=True)
        columns = {
            "partition": pa.array(partitions, pa.int32()),
            "timestamp": pa.array([stamp or None for stamp in stamps], pa.int64()),
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
        producer.produce_arrow(topic, pa.RecordBatch.from_pydict(columns))
    producer.flush()


def _end_with_the_run() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    gc.disable()  # a million objects are made to last, and no cycles
    threading.Thread(target=_end_with_the_run, daemon=True).start()
    FlightsProducer(FeedSettings(**json.loads(sys.argv[1]))).run()
