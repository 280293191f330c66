"""Make the archive of Spark's classes: run a small pipeline, and let its JVM write what it loaded.

Shell: processes, files.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from kohort.broker import Broker, BrokerConfig
from kohort.client.admin.admin import Admin
from kohort.client.admin.types import NewTopic
from kohort.client.producer.producer import Producer
from kohort.errors import KohortError
from kohort.spark import Pipeline, session
from kohort.spark.class_archive import USE, WRITE, path
from kohort.spark.sessions import ensure_java

TIMEOUT_S: Final = 600.0
_ROWS: Final = 200
_LAST_LINES: Final = 20


def make_archive() -> Path:
    """Write the archive for this Java and Spark, in place of an older one.

    Returns:
        Its path.

    Raises:
        KohortError: the JVM wrote none, with its output; or it took too long.
    """
    target = path(ensure_java())
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    written = target.with_name(f"{target.name}.{os.getpid()}")
    environment = {**os.environ, WRITE: str(written)}
    environment.pop(USE, None)
    try:
        run = subprocess.run(
            [sys.executable, "-m", __name__],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        if run.returncode or not written.is_file():
            lines = (run.stdout + run.stderr).splitlines()[-_LAST_LINES:]
            raise KohortError(
                "Java wrote no archive of Spark's classes. Spark runs without one; its sessions "
                "only start more slowly. What was printed:\n" + "\n".join(lines)
            )
        written.replace(target)
    except subprocess.TimeoutExpired:
        raise KohortError(
            f"a small pipeline took more than {TIMEOUT_S:.0f} s, so no archive of Spark's classes "
            "was written. Spark runs without one; try again when the machine is less busy"
        ) from None
    finally:
        written.unlink(missing_ok=True)
    return target


def main() -> None:
    """A pipeline that needs most of what pipelines need: sources, joins, windows, outputs."""
    spark = session("kohort class archive", master="local[2]", profile="local")
    with tempfile.TemporaryDirectory() as work:
        config = BrokerConfig(port=0, data_dir=str(Path(work) / "broker"))
        with Broker(config) as broker:
            _run(spark, broker.bootstrap, work)
    gateway: Any = type(spark.sparkContext)._gateway
    process = gateway.proc
    spark.stop()
    process.stdin.close()  # the JVM ends with its caller, and writes the archive
    process.wait(TIMEOUT_S)


def _run(spark: Any, bootstrap: str, work: str) -> None:
    from pyspark.sql import functions as F

    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(t, 2) for t in ("orders", "prices", "priced")])
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send("prices", b'{"item": "tea", "price": 3}', b"tea")
        for number in range(_ROWS):
            item = "tea" if number % 50 else "ink"
            value = f'{{"id": {number}, "item": "{item}", "at": "2026-01-01T00:00:00Z"}}'
            producer.send("orders", value.encode(), str(number).encode())
    pipeline = Pipeline(
        "class-archive",
        bootstrap_servers=bootstrap,
        store=f"sqlite:///{work}/store.db",
        checkpoint=f"{work}/checkpoint",
        retries="1s",
    )
    schema = "id BIGINT, item STRING, at TIMESTAMP"
    pipeline.source("orders", event_time="at", schema=schema)
    pipeline.reference("prices", key="item", schema="item STRING, price INT")

    @pipeline.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE loaded (id BIGINT PRIMARY KEY, item TEXT, price BIGINT)")
        store.run("CREATE TABLE hours (item TEXT PRIMARY KEY, orders BIGINT)")

    @pipeline.step
    def joined(orders: Any, prices: Any) -> Any:
        both = orders.join(prices, "item", "left")
        return both.transform(pipeline.retry(F.col("price").isNull(), "no_price"))

    @pipeline.table("loaded", key="id")
    def loaded(joined: Any) -> Any:
        return joined.select("id", "item", "price")

    @pipeline.topic("priced", key="id")
    def priced(joined: Any) -> Any:
        return joined.select("id", "price")

    @pipeline.table("hours", key="item")
    def hours(joined: Any) -> Any:
        windows = joined.withWatermark("at", "1 hour").groupBy(F.window("at", "1 hour"), "item")
        return windows.agg(F.count("*").alias("orders")).select("item", "orders")

    pipeline.run("available_now", spark=spark)


if __name__ == "__main__":
    main()
