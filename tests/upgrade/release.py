"""What a release leaves on disk: recorded once by `tools/record_release.py`, opened by later code.

An archive `releases/VERSION.tar.gz` holds:

- `data/`: a broker's data directory after a clean stop: records in every compression, several
  segments, a compacted topic, transactions (one of them open), groups of both protocols, users,
  access control, quotas, retry topics and dead-letter topics.
- `bills.db`, `bills.sql`: the store of an App that loads exactly once, with a record that waits for
  its retry and one that failed; in SQLite, and as PostgreSQL's dump.
- `sales.db`, `checkpoint/`: the store and the Spark checkpoint of a pipeline of handlers and of
  DataFrames that keep state.
- `expected.json`: what a reader of the release saw.

Nothing in it ends by time: a test opens it years later.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kohort import Admin, App, Consumer, Temporary, TopicPartition
from kohort.testing import Cluster
from tests.patience import PATIENCE_S

RELEASES = Path(__file__).parent / "releases"
FOREVER: dict[str, Any] = {"offsets_retention_minutes": 1 << 30, "log_retention_ms": -1}
READ = ("codecs", "segments", "compacted", "transactions")
"""The topics whose records `expected.json` lists."""
PIPELINE = """
from pyspark.sql import functions as F

from kohort.spark import Pipeline, Temporary

pipeline = Pipeline(
    "sales", store="sqlite:///{home}/sales.db", checkpoint="{home}/checkpoint", retries="1s 1m",
    bootstrap_servers="{servers}", ledger_retention="36500d",
)
pipeline.source("matches", schema="team STRING, goals INT")


@pipeline.setup
def tables(store):
    store.run("CREATE TABLE IF NOT EXISTS customers (name TEXT PRIMARY KEY)")
    store.run("CREATE TABLE IF NOT EXISTS sales (customer TEXT, amount INTEGER CHECK (amount > 0))")
    store.run("CREATE TABLE IF NOT EXISTS results (team TEXT, goals INTEGER)")
    store.run("CREATE TABLE IF NOT EXISTS standings (team TEXT PRIMARY KEY, goals BIGINT)")


@pipeline.handler("customers", table="customers", key=("name",))
def customer(record, store):
    return record.data


@pipeline.handler("sales", table="sales")
def sale(record, store):
    if store.one("SELECT 1 FROM customers WHERE name = ?", [record.data["customer"]]) is None:
        raise Temporary("unknown_customer")
    return record.data


@pipeline.table("results")
def results(matches):
    return matches.transform(pipeline.reject(F.col("goals") < 0, "negative_goals"))


@pipeline.table("standings", key="team")
def standings(results):
    return results.groupBy("team").agg(F.sum("goals").alias("goals"))
"""


def versions() -> list[str]:
    """The releases that are recorded."""
    return sorted(path.name.removesuffix(".tar.gz") for path in RELEASES.glob("*.tar.gz"))


def unpack(version: str, directory: Path) -> Path:
    """What the release left, in a directory of the test."""
    with tarfile.open(RELEASES / f"{version}.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    return directory


@contextlib.contextmanager
def broker(home: Path) -> Iterator[Cluster]:
    """A broker on the data directory of a release, open to everybody."""
    with Cluster(durability="os", data_dir=str(home / "data"), **FOREVER) as cluster:
        yield cluster


@contextlib.contextmanager
def secured_broker(home: Path) -> Iterator[Cluster]:
    """The same directory with logins and access control."""
    with Cluster(
        durability="os",
        data_dir=str(home / "data"),
        security_protocol="SASL_PLAINTEXT",
        acls=True,
        super_users=("User:admin",),
        **FOREVER,
    ) as cluster:
        yield cluster


def login(user: str, password: str) -> dict[str, Any]:
    """A client's settings to log in."""
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_username": user,
        "sasl_password": password,
    }


def bills(group: str, servers: str, store: str, *customers: str) -> App:
    """An App that loads orders of known customers; the others wait for their retry."""
    app = App(
        group,
        bootstrap_servers=servers,
        exactly_once=store,
        retries="1m 1m",
        clock_skew=0,
    )

    @app.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS customers (name TEXT PRIMARY KEY)")
        store.run("CREATE TABLE IF NOT EXISTS bills (name TEXT, amount INTEGER CHECK (amount > 0))")
        store.upsert("customers", [{"name": name} for name in customers], key=("name",))

    @app.handler("orders", decode="json", table="bills")
    def bill(record: Any) -> dict[str, Any]:
        order = record.data
        if record.store.one("SELECT 1 FROM customers WHERE name = ?", [order["name"]]) is None:
            raise Temporary("unknown_customer")
        return order

    return app


@contextlib.contextmanager
def running(app: App) -> Iterator[None]:
    """The app in a thread, stopped at the end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            app.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        app.stop()
        thread.join(PATIENCE_S)
    assert not errors, errors


def text(data: bytes | None) -> str | None:
    """Bytes as JSON can hold them; long ones by their length and digest."""
    if data is None:
        return None
    if len(data) > 1_000:
        return f"{len(data)} bytes, {hashlib.sha256(data).hexdigest()}"
    return base64.b64encode(data).decode()


def everything(servers: str, topic: str) -> list[list[Any]]:
    """The committed records of a topic: partition, offset, timestamp, key, value, headers."""
    found: list[list[Any]] = []
    with (
        Admin(bootstrap_servers=servers) as admin,
        Consumer(bootstrap_servers=servers, isolation_level="read_committed") as consumer,
    ):
        count = len(admin.describe_topics([topic])[topic].partitions)
        partitions = [TopicPartition(topic, number) for number in range(count)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            found += [
                [
                    record.partition,
                    record.offset,
                    record.timestamp,
                    text(record.key),
                    text(record.value),
                    [[name, text(value)] for name, value in record.headers],
                ]
                for record in consumer.poll(1)
            ]
    return sorted(found, key=lambda row: row[:2])


def write_pipeline(home: Path, servers: str) -> Path:
    """The pipeline's file, for the directory and the broker of now."""
    file = home / f"sales_pipeline_{os.getpid()}.py"
    file.write_text(PIPELINE.format(home=home, servers=servers))
    return file
