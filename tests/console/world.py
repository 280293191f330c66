"""A cluster with something on every screen, and a console on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kohort import Admin, App, Consumer, NewTopic, Permanent, Producer, Temporary, TopicPartition
from kohort.console.web.server import ConsoleOptions, ConsoleServer
from tests.clusters import Embedded

HOSTILE = b'{"note": "<script>document.title = \'taken\'</script><img src=x onerror=alert(1)>"}'
LONG = "a-group-with-a-very-long-name-" + "x" * 90
TOKEN = "a-token-of-some-length"


@dataclass(frozen=True)
class World:
    """A running console."""

    cluster: Embedded
    server: ConsoleServer

    @property
    def url(self) -> str:
        return self.server.url.rstrip("/")

    def sample(self) -> None:
        """Take a sample now, so that pages show what is."""
        self.server.sampler.sample()


@contextmanager
def console(cluster: Embedded, **options: Any) -> Iterator[ConsoleServer]:
    """A console that samples only when a test asks for it."""
    settings = {"bootstrap_servers": cluster.bootstrap}
    with ConsoleServer(settings, ConsoleOptions(port=0, interval_s=3600, **options)) as server:
        server.desk.overview()
        yield server


@contextmanager
def world(**options: Any) -> Iterator[World]:
    """A cluster with readers, failures, retries, and hostile records."""
    with Embedded(nodes=2) as cluster:
        fill(cluster)
        with console(cluster, **options) as server:
            made = World(cluster, server)
            made.sample()
            yield made


def fill(cluster: Embedded) -> None:
    """Topics, groups, an App whose records have failed or wait, a group that has rebalanced."""
    bootstrap = cluster.bootstrap
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic("orders", 3, 2), NewTopic("clicks", 2, 1)])
        with Producer(bootstrap_servers=bootstrap) as producer:
            for n in range(30):
                producer.send("orders", HOSTILE, b"<b>key</b>", n % 3, None, [("<i>", b"<u>")])
                producer.send("clicks", b"v", None, n % 2)
        admin.alter_group_offsets("exporter", {TopicPartition("clicks", n): 4 for n in (0, 1)})
        admin.alter_group_offsets(LONG, {TopicPartition("clicks", 0): 15})
    with Consumer(
        bootstrap_servers=bootstrap, group_id="billing", client_id="<em>till</em>",
        auto_offset_reset="earliest", enable_auto_commit=False,
    ) as consumer:  # fmt: skip
        consumer.subscribe(["orders"])
        left = 30
        while left > 0:
            left -= len(consumer.poll(0.2))
        consumer.commit()
    fail_some(bootstrap)


def fail_some(bootstrap: str) -> None:
    """An App of which ten records have failed and ten wait for their next try."""
    app = App(bootstrap_servers=bootstrap, group="fulfilment", retries="1h")
    seen, all_seen = set[tuple[int, int]](), threading.Event()

    @app.handler("orders")
    def handle(record: Any) -> None:
        seen.add((record.partition, record.offset))
        if len(seen) == 30:
            all_seen.set()
        if record.offset < 3:
            raise Permanent("no such customer <script>alert(1)</script>")
        if record.offset < 6:
            raise Temporary("the warehouse is down")

    def stop() -> None:
        all_seen.wait()
        app.stop()

    threading.Thread(target=stop, daemon=True).start()
    app.run()
