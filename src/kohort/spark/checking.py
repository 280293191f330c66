"""`kohort pipeline check`: whether every executor can run a pipeline, before it is started.

Shell: sockets, disks and clocks of executors; the driver's clock.

Rules:
- One task on each executor at least: a barrier stage with a task for every core. The probe is
  shipped by value and uses only the standard library, because it looks for missing packages.
- It returns plain data; `problems` judges it and says what to do.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import importlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from kohort.config import format_duration
from kohort.retry.stores import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.spark.pipeline import Pipeline

PACKAGES: Final = ("kohort", "pyspark", "pyarrow", "pandas")
NEEDED: Final = ("kohort", "pyarrow")
DISK_LEAST: Final = 1 << 30
"""Below one GiB the shuffle files of a small job may not fit."""
CONNECT_S: Final = 5.0
DEFAULT_POSTGRES_PORT: Final = 5432


@dataclass(frozen=True)
class Report:
    """What one executor tells.

    Attributes:
        host: the machine's name; `directory` makes executors of one machine distinct.
        python: its version, as `3.11.7`.
        versions: the version of each package; None where it is missing.
        unreachable: what it could not connect to, with the error.
        offset_ms: how far its clock is from the driver's, at most `within_ms` wrong.
        free_bytes: free disk space where Spark keeps its files.
    """

    host: str
    directory: str
    python: str
    versions: Mapping[str, str | None]
    unreachable: Mapping[str, str]
    offset_ms: int
    within_ms: int
    free_bytes: int

    def as_row(self) -> dict[str, Any]:
        """For tables and JSON."""
        return {
            "host": self.host,
            "python": self.python,
            **{name: self.versions.get(name) for name in PACKAGES},
            "unreachable": ", ".join(self.unreachable) or None,
            "clock_offset_ms": self.offset_ms,
            "clock_within_ms": self.within_ms,
            "free_gib": round(self.free_bytes / (1 << 30), 1),
            "directory": self.directory,
        }


def check_executors(pipeline: Pipeline, spark: SparkSession) -> list[Report]:
    """Ask every executor of a session.

    Args:
        pipeline: whose brokers and store must be reached.
        spark: a classic session.

    Returns:
        A report of each executor, by host. Raises what Spark raises when no task runs at all.
    """
    addresses = addresses_of(pipeline)
    context = spark.sparkContext
    _run(context, [])  # workers start, and take their time; the clock is looked at when they run
    began_ms = time.time() * 1000
    answers = _run(context, addresses)
    ended_ms = time.time() * 1000
    return sorted(
        {
            (one["host"], one["directory"]): _report(one, began_ms, ended_ms) for one in answers
        }.values(),
        key=lambda report: (report.host, report.directory),
    )


def addresses_of(pipeline: Pipeline) -> list[tuple[str, str, int]]:
    """What executors connect to: a name, a host, a port."""
    found: list[tuple[str, str, int]] = []
    for server in pipeline.servers.split(","):
        host, _, port = server.strip().rpartition(":")
        found.append((f"broker {server.strip()}", host.strip("[]"), int(port)))
    url = urlsplit(open_store(pipeline.store).url)
    if url.scheme.startswith("postgres") and url.hostname:
        port = url.port or DEFAULT_POSTGRES_PORT
        found.append((f"store {url.hostname}:{port}", url.hostname, port))
    return found


def problems(
    reports: Iterable[Report], expected: Report, clock_skew_ms: int, *, local: bool, store: str
) -> list[str]:
    """What is wrong, and what to do.

    Args:
        reports: of the executors.
        expected: what the driver has itself.
        clock_skew_ms: how far clocks may differ.
        local: executors are on the driver's machine.
        store: the pipeline's store, as it was given.
    """
    found: list[str] = []
    if not local and store.startswith("sqlite"):
        found.append(
            f"the store {store} is a file of the driver's machine, which executors do not reach; "
            "use PostgreSQL"
        )
    for one in reports:
        found += [f"{one.host}: {problem}" for problem in _problems(one, expected, clock_skew_ms)]
    return found


def driver_report() -> Report:
    """What the driver has."""
    answer = _probe([])
    return _report(answer, answer["at_ms"], answer["at_ms"])


def _problems(one: Report, expected: Report, clock_skew_ms: int) -> Iterator[str]:
    if one.python.split(".")[:2] != expected.python.split(".")[:2]:
        yield (
            f"Python {one.python}, and the driver has {expected.python}: handlers are pickled, so "
            "both need the same minor version. Set PYSPARK_PYTHON"
        )
    for name in PACKAGES:
        theirs, ours = one.versions.get(name), expected.versions.get(name)
        if theirs is None and name in NEEDED:
            yield f"{name} is not installed: install it there, or run with --ship"
        elif theirs is not None and ours is not None and theirs != ours:
            yield f"{name} {theirs}, and the driver has {ours}: use the same, or run with --ship"
    for what, error in one.unreachable.items():
        yield f"{what} is not reached ({error}): look at names, firewalls and listeners"
    if abs(one.offset_ms) - one.within_ms > clock_skew_ms:
        yield (
            f"its clock is {format_duration(abs(one.offset_ms))} "
            f"{'ahead' if one.offset_ms > 0 else 'behind'}: set it by NTP, or raise clock_skew"
        )
    if one.free_bytes < DISK_LEAST:
        yield f"{one.free_bytes / (1 << 30):.1f} GiB of disk are free in {one.directory}"


def _run(context: Any, addresses: Sequence[tuple[str, str, int]]) -> list[dict[str, Any]]:
    """The probe, on every core of every executor at once."""
    cloudpickle: Any = importlib.import_module("pyspark.cloudpickle")
    module = importlib.import_module(__name__)
    cloudpickle.register_pickle_by_value(module)
    try:
        tasks = max(1, context.defaultParallelism)
        rdd = context.parallelize(range(tasks), tasks)
        return rdd.barrier().mapPartitions(_task(list(addresses))).collect()
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _task(addresses: list[tuple[str, str, int]]) -> Any:
    """A function for executors that refers to `_probe` alone: kohort may be missing there."""
    probe = _probe

    def run(_: Iterator[int]) -> Iterator[dict[str, Any]]:
        yield probe(addresses)

    return run


def _probe(addresses: Sequence[tuple[str, str, int]]) -> dict[str, Any]:
    """Runs on an executor, so it imports everything itself."""
    import importlib.metadata
    import os
    import platform
    import shutil
    import socket
    import time

    versions: dict[str, str | None] = {}
    for name in ("kohort", "pyspark", "pyarrow", "pandas"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            try:
                versions[name] = getattr(__import__(name), "__version__", "unknown")
            except ImportError:
                versions[name] = None
    unreachable: dict[str, str] = {}
    for what, host, port in addresses:
        try:
            socket.create_connection((host, port), timeout=5.0).close()
        except OSError as error:
            unreachable[what] = str(error)
    directory = os.environ.get("SPARK_LOCAL_DIRS", os.getcwd()).split(",")[0]
    place = directory if os.path.isdir(directory) else os.getcwd()
    return {
        "host": socket.gethostname(),
        "directory": directory,
        "python": platform.python_version(),
        "versions": versions,
        "unreachable": unreachable,
        "at_ms": time.time() * 1000,
        "free_bytes": shutil.disk_usage(place).free,
    }


def _report(answer: Mapping[str, Any], began_ms: float, ended_ms: float) -> Report:
    """The executor's time lies between the two of the driver, so the middle is at most so wrong."""
    middle, within = (began_ms + ended_ms) / 2, (ended_ms - began_ms) / 2
    return Report(
        host=answer["host"],
        directory=answer["directory"],
        python=answer["python"],
        versions=answer["versions"],
        unreachable=answer["unreachable"],
        offset_ms=round(answer["at_ms"] - middle),
        within_ms=round(within),
        free_bytes=answer["free_bytes"],
    )
