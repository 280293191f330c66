"""Topics, a database and drivers of one example, on a cluster that a test kills them on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kohort import Producer
from kohort.retry.stores import open_store
from kohort.testing import Cluster
from tests.patience import until
from tests.reading import read_committed

Row = dict[str, Any]


class ClusterRun:
    """One run of an example.

    Args:
        file: the example.
        store: the environment variable that names its database.
        topics: its topics, with the number of their partitions.
        options: further arguments of `kohort pipeline run`.
    """

    def __init__(
        self,
        cluster: Cluster,
        url: str,
        directory: Path,
        *,
        file: Path,
        store: str,
        topics: Mapping[str, int],
        options: Iterable[str] = (),
    ) -> None:
        self.cluster, self.url, self.directory = cluster, url, directory
        self._file, self._store, self._topics, self._options = file, store, topics, (*options,)
        for topic, partitions in topics.items():
            cluster.create_topic(topic, partitions=partitions)

    def send(self, topic: str, rows: Iterable[Row], key: str) -> None:
        """Produce rows as JSON, keyed by one of their columns."""
        with Producer(bootstrap_servers=self.cluster.bootstrap) as producer:
            for row in rows:
                producer.send(topic, json.dumps(row).encode(), row[key].encode())

    def begin(self, master: str) -> subprocess.Popen[bytes]:
        """Start a driver."""
        command = ["pipeline", "run", str(self._file), "--master", master, "--mode", "until_idle"]
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "kohort", *command, *self._options],
                cwd=self.directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={
                    **os.environ,
                    self._store: self.url,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "KOHORT_BOOTSTRAP_SERVERS": self.cluster.bootstrap,
                    "PYTHONPATH": os.pathsep.join(sys.path),
                },
            )

    def kill_when_filled(self, master: str, table: str, patience_s: float) -> None:
        """Run a driver until a table has rows, then kill -9."""
        driver = self.begin(master)
        try:
            until(
                lambda: self.rows(table) or driver.poll() is not None,
                f"the first rows of {table}",
                patience_s,
            )
            assert driver.poll() is None, self.log()
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()

    def finish(self, master: str, patience_s: float) -> None:
        """Run a driver to its end."""
        assert self.begin(master).wait(patience_s) == 0, self.log()

    def log(self) -> str:
        """The end of what the drivers have printed."""
        return (self.directory / "log").read_text()[-4_000:]

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of the database."""
        store = open_store(self.url)
        try:
            return store.query(sql)
        finally:
            store.close()

    def rows(self, table: str) -> int:
        """How many rows a table has; 0 while it is not there."""
        if not self.query(f"SELECT 1 WHERE to_regclass('{table}') IS NOT NULL"):
            return 0
        return int(self.query(f"SELECT count(*) FROM {table}")[0][0])

    def committed(self, topic: str) -> Iterator[Row]:
        """The committed records of a topic."""
        for record in read_committed(self.cluster.bootstrap, topic, self._topics[topic]):
            yield json.loads(record.value or b"")
