"""The main job, from an empty directory to balanced books, and on from wherever a kill left it.

Rules:
- The state is in the topics, the database and the checkpoint; nothing is counted in passing.
  `--resume` therefore needs no notes of its own but the run's settings (`run.json`).
- The data are read and produced by a process of their own, while Spark starts and the pipeline
  runs: a thread would hold up every call of Spark's.
- When the broker dies the run ends with what to do; it is not restarted behind the user's back.

Shell: threads, clock, files, processes.
"""

# pyarrow carries no complete types, so strict checking would only speak of it.
# pyright: basic
from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kohort.demo
from kohort import Admin, Consumer, NewTopic, TopicPartition, __version__
from kohort.demo.broker_process import BrokerProcess
from kohort.demo.flights_data import (
    FLIGHT_PARTITIONS,
    FLIGHTS,
    ORIGINS,
    REFERENCES,
    WEATHER,
    carrier_names,
    data_directory,
)
from kohort.demo.flights_outputs import Outputs, expected_hours, look_at
from kohort.demo.flights_producer import FeedSettings, ProducerProcess
from kohort.demo.flights_report import Facts
from kohort.errors import ConfigError
from kohort.retry.ledger_view import without_password
from kohort.retry.policy import RetryPolicy
from kohort.retry.store import Store
from kohort.retry.stores import open_store
from kohort.spark import (
    Pipeline,
    Progress,
    load_pipeline,
    reconcile,
    retries_over_time,
    session,
)
from kohort.spark.sessions import ensure_java

DEPARTURES = "departures"
DEFAULT_RETRIES = "1s 1s 3s 3s 3s 6s"
NEW_YORK_MS = 5 * 3_600_000
"""Standard time. In summer a day begins an hour late, when nothing flies."""
_SPARK = {
    # A run of a minute or two ends before the optimising compiler has paid for itself, and before
    # a heap that begins small has grown.
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": (
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+IgnoreUnrecognizedVMOptions "
        "-Xms1g -Xmn400m -XX:MetaspaceSize=256m"
    ),
    # Spark sums the bytes of an Arrow batch at each row; ten thousand flights are two megabytes.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run; a resumed run continues with the same.

    `store` is a URL, or None for an SQLite file beside the broker; `limit` keeps the first so many
    flights; `handlers` runs the example with row handlers instead of the one with DataFrames.
    """

    store: str | None = None
    retries: str = DEFAULT_RETRIES
    limit: int | None = None
    master: str = "local[2]"
    started_at: float = 0.0
    handlers: bool = False


class FlightsRun:
    """One run in one directory. Call `prepare`, then `run`, then `facts`."""

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self.directory = directory.resolve()
        self.say = say
        self.broker = BrokerProcess(self.directory / "broker")
        self.settings = RunSettings()
        self.bootstrap = ""
        self._note = self.directory / "run.json"

    # -- before

    def prepare(self, settings: RunSettings, *, resume: bool) -> None:
        """Start a run, or continue the existing one. Starts the broker; makes the topics.

        Requirements that this machine lacks are reported before anything is touched.
        """
        RetryPolicy.parse(settings.retries)
        if settings.store is not None:
            open_store(settings.store)
        ensure_java()
        data_directory()
        if resume:
            self.settings = self._noted()
        else:
            self._refuse_to_clear_what_is_not_ours()
            self.broker.stop()
            if self.directory.exists():
                shutil.rmtree(self.directory)
            self.directory.mkdir(parents=True)
            self.settings = RunSettings(**{**asdict(settings), "started_at": time.time()})
            self._note.write_text(json.dumps(asdict(self.settings)))
        self.bootstrap = self.broker.ensure()
        self.say(f"broker at {self.bootstrap}, log in {self.broker.data}")
        self.say(f"watch it: {console_command(self.bootstrap, self.store_url)}")
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            missing = {FLIGHTS: FLIGHT_PARTITIONS, WEATHER: len(ORIGINS)}
            if not self.settings.handlers:
                missing |= {DEPARTURES: FLIGHT_PARTITIONS, **dict.fromkeys(REFERENCES, 1)}
            for topic in admin.list_topics():
                missing.pop(topic.name, None)
            if missing:
                # The events are of 2013: a retention by time would delete them on arrival.
                keep = {"retention.ms": "-1"}
                admin.create_topics([NewTopic(t, n, configs=keep) for t, n in missing.items()])
        self.pipeline = self._load_pipeline()

    def _refuse_to_clear_what_is_not_ours(self) -> None:
        there = self.directory
        if there.exists() and any(there.iterdir()) and not self._note.exists():
            raise ConfigError(
                f"{there} has other files than those of an earlier run; name an empty directory"
            )

    def _noted(self) -> RunSettings:
        try:
            return RunSettings(**json.loads(self._note.read_text()))
        except OSError:
            raise ConfigError(
                f"there is no run to resume in {self.directory}; start one without --resume"
            ) from None

    @property
    def store_url(self) -> str:
        return self.settings.store or f"sqlite:///{self.directory / 'flights.db'}"

    def _load_pipeline(self) -> Pipeline:
        os.environ["FLIGHTS_STORE"] = self.store_url
        os.environ["FLIGHTS_RETRIES"] = self.settings.retries
        os.environ["FLIGHTS_CHECKPOINT"] = str(self.directory / "checkpoint")
        os.environ["KOHORT_BOOTSTRAP_SERVERS"] = self.bootstrap
        return load_pipeline(pipeline_file(handlers=self.settings.handlers))

    # -- the run

    def run(self, on_progress: Callable[[Progress, int | None], None]) -> None:
        """Feed and load until everything has ended.

        `on_progress(progress, expected)` is called about twice a second; `expected` is the number
        of inputs when all have been produced, None until the data are read.
        """
        self.broker.watch(self._broker_gone)
        self.say("reading the year of flights")
        latest_ms = sum(RetryPolicy.parse(self.settings.retries).delays_ms) // 4
        settings = FeedSettings(
            self.bootstrap,
            self.pipeline.group,
            self.settings.limit,
            self.settings.handlers,
            latest_ms,
        )
        producer = ProducerProcess(settings, self.directory / "producer.log")
        try:
            self._run(producer, on_progress)
        finally:
            producer.close()

    def _run(
        self, producer: ProducerProcess, on_progress: Callable[[Progress, int | None], None]
    ) -> None:
        spark_log = self.directory / "spark.log"
        self.say(f"starting Spark; its output is in {spark_log}")
        with _standard_error_to(spark_log):
            spark = session("kohort demo flights", master=self.settings.master, config=_SPARK)
        expected: int | None = None

        def show(progress: Progress) -> None:
            nonlocal expected
            counts = producer.counts()
            if counts is not None and expected is None:
                flights, weather = counts
                self.say(f"{flights:,} flights and {weather:,} hours of weather")
                expected = flights + (weather if self.settings.handlers else 0)
            on_progress(progress, expected)

        self.pipeline.run("until_idle", spark=spark, until=producer.is_done, on_progress=show)

    def _broker_gone(self) -> None:
        self.say(
            "the broker's process is gone; nothing that it acknowledged is lost.\n"
            "continue with: kohort demo flights --resume"
        )
        sys.stdout.flush()
        os._exit(1)  # Spark's threads would keep a driver without a broker alive for minutes

    # -- after

    def facts(self) -> Facts:
        """The reconciliation, read from the database and the topics."""
        flights = reconcile(self.pipeline).of(FLIGHTS)
        store = self.pipeline.open_store()
        try:
            return Facts(
                inputs=flights.inputs,
                loaded=flights.loaded or 0,
                failed=flights.failed,
                duplicates=flights.duplicates + flights.both,
                retrying=flights.retrying,
                loaded_after_retry=flights.loaded_after_retry,
                seconds=time.time() - self.settings.started_at,
                arrivals=self._arrivals(),
                retries=self._retries(store),
                loaded_over_time=self._loaded_over_time(store),
                delay_by_carrier=_delay_by_carrier(store),
                carriers=carrier_names(),
                about=self._about(),
                outputs=None if self.settings.handlers else self._outputs(store),
            )
        finally:
            store.close()

    def _about(self) -> dict[str, str]:
        """What this run was: its command, settings, versions and machine."""
        from importlib.metadata import version

        settings = self.settings
        words = ["kohort", "demo", "flights", "--dir", str(self.directory)]
        words += ["--store", without_password(settings.store)] if settings.store else []
        words += ["--limit", str(settings.limit)] if settings.limit else []
        words += ["--handlers"] if settings.handlers else []
        if settings.retries != DEFAULT_RETRIES:
            words += ["--retries", settings.retries]
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        return {
            "Command": shlex.join(words),
            "Retries": settings.retries,
            "Store": without_password(self.store_url),
            "Spark": f"{version('pyspark')}, {settings.master}",
            "Versions": f"Kohort {__version__}, Python {platform.python_version()}",
            "Machine": f"{os.cpu_count()} cores, {memory:.0f} GiB, "
            f"{platform.system()} {platform.machine()}",
        }

    def _outputs(self, store: Store) -> Outputs:
        wanted = expected_hours(self.settings.limit)
        return look_at(store, self.bootstrap, DEPARTURES, FLIGHT_PARTITIONS, wanted)

    def _arrivals(self) -> dict[str, list[tuple[str, int]]]:
        """Records a day in event time, from the timestamps in the topics.

        Days are in New York time: in UTC the last evening of the year is a day of its own.
        """
        found: dict[str, list[tuple[str, int]]] = {}
        for topic, count in ((FLIGHTS, FLIGHT_PARTITIONS), (WEATHER, len(ORIGINS))):
            partitions = [TopicPartition(topic, p) for p in range(count)]
            days: Counter[int] = Counter()
            with Consumer(
                bootstrap_servers=self.bootstrap, auto_offset_reset="earliest"
            ) as consumer:
                ends = consumer.end_offsets(partitions)
                consumer.assign(partitions)
                while any(consumer.position(tp) < ends[tp] for tp in partitions):
                    batch = consumer.poll_arrow(5.0, columns=["timestamp"])
                    if batch is not None:
                        days.update(_days(batch))
            found[topic] = [
                (datetime.fromtimestamp(day * 86_400, UTC).date().isoformat(), days[day])
                for day in sorted(days)
            ]
        return found

    def _retries(self, store: Store) -> dict[str, list[tuple[float, int]]]:
        found: dict[str, list[tuple[float, int]]] = {}
        for retry_topic, points in retries_over_time(self.pipeline, store).items():
            found[retry_topic] = [(ms / 1000 - self.settings.started_at, n) for ms, n in points]
        return found

    def _loaded_over_time(self, store: Store) -> list[tuple[float, int]]:
        rows = store.query(
            "SELECT CAST(loaded_at AS INTEGER) AS second, count(*) FROM flights "
            "GROUP BY CAST(loaded_at AS INTEGER) ORDER BY 1"
        )
        return [(second - self.settings.started_at, count) for second, count in rows]

    def close(self) -> None:
        """Stop the broker."""
        self.broker.stop()


def console_command(bootstrap: str, store_url: str) -> str:
    """What shows this run in the console, at http://127.0.0.1:8088/."""
    return shlex.join(
        ["kohort", "console", "-b", bootstrap, "--store", without_password(store_url)]
    )


def pipeline_file(*, handlers: bool = False) -> Path:
    """`examples/flights_pipeline.py` or `flights_handlers.py`, which the package carries too."""
    name = "flights_handlers.py" if handlers else "flights_pipeline.py"
    return Path(kohort.demo.__file__).parent / name


@contextlib.contextmanager
def _standard_error_to(path: Path) -> Iterator[None]:
    """Processes started meanwhile write their standard error to a file; ours is put back."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _days(batch: Any) -> dict[int, int]:
    """How many records of a batch fall on each day since 1970, in New York time."""
    import pyarrow as pa
    import pyarrow.compute

    compute: Any = pyarrow.compute
    local = compute.subtract(batch.column("timestamp").cast(pa.int64()), NEW_YORK_MS)
    days = compute.divide(local, 86_400_000)
    return {pair["values"]: pair["counts"] for pair in compute.value_counts(days).to_pylist()}


def _delay_by_carrier(store: Store) -> list[tuple[str, float, int]]:
    rows = store.query(
        "SELECT carrier, avg(arr_delay), count(*) FROM flights WHERE arr_delay IS NOT NULL "
        "GROUP BY carrier ORDER BY carrier"
    )
    return [(carrier, float(minutes), int(count)) for carrier, minutes, count in rows]
