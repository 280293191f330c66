"""A cluster with something on every screen, and a console on it."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kohort import Admin, App, Consumer, NewTopic, Permanent, Producer, Temporary, TopicPartition
from kohort.broker.control.port import Control
from kohort.console.web.server import ConsoleOptions, ConsoleServer
from kohort.remote import Action, Agent
from kohort.remote.agent import Look
from kohort.remote.messages import Command
from kohort.retry.stores import open_store
from tests.clusters import Embedded
from tests.patience import until

HOSTILE = b'{"note": "<script>document.title = \'taken\'</script><img src=x onerror=alert(1)>"}'
LONG = "a-group-with-a-very-long-name-" + "x" * 90
TOKEN = "a-token-of-some-length"


@dataclass(frozen=True)
class World:
    """A running console."""

    cluster: Embedded
    server: ConsoleServer
    agent: Agent

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
    with Embedded(nodes=2, request_log=1_000) as cluster, tempfile.TemporaryDirectory() as folder:
        fill(cluster)
        url = f"sqlite:///{folder}/sales.db"
        keep_books(url)
        with (
            control_port(cluster) as control,
            console(cluster, stores=(url,), control=control, **options) as server,
            process(cluster) as agent,
        ):
            made = World(cluster, server, agent)
            made.sample()
            yield made


@contextmanager
def control_port(cluster: Embedded) -> Iterator[str]:
    """The control port of a cluster, which has a fault that meets nobody."""
    control = Control(cluster.broker, cluster._gate, 0)
    cluster.faults.hold("Heartbeat", group=LONG, client_id="<b>nobody</b>")
    try:
        yield str(control.port)
    finally:
        control.close()


@contextmanager
def process(cluster: Embedded) -> Iterator[Agent]:
    """A process that tells of itself, with hostile words, and can be paused."""
    state = ["running"]

    def pause(_: Command) -> str:
        state[0] = "paused"
        return "paused <b>now</b>"

    def resume(_: Command) -> str:
        state[0] = "running"
        return "resumed"

    row = {"topic": "orders", "partition": 1, "state": "working", "lag": 3, "why": "<i>slow</i>"}
    actions = {Action.PAUSE: pause, Action.RESUME: resume, Action.DRAIN: lambda _: "draining"}
    agent = Agent(
        "kohort",
        {"bootstrap_servers": cluster.bootstrap},
        "app",
        "fulfilment",
        lambda: Look(
            state[0],
            {"lag": 3, "partitions": 9, "last_failure": "<u>odd</u>"},
            [row],
            ["<script>alert('trouble')</script>", "half a pair: \ud83d"],
        ),
        actions,
    )
    agent.start()
    try:
        yield agent
    finally:
        agent.stop()


def keep_books(url: str) -> None:
    """The ledger of a pipeline with 10 records read, of which one has failed."""
    with contextlib.closing(open_store(url)) as store:
        store.prepare()
        store.open_fence("loader", "orders", "", 0, 0, 1_000)
    path = url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE kohort_fence SET next_offset = 10")
        connection.execute(
            "UPDATE kohort_counts SET read = 10, loaded = 8, filtered = 1, failed = 1"
        )


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
        bootstrap_servers=bootstrap,
        group_id="billing",
        client_id="<em>till</em>",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
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


@contextmanager
def waiting_app(cluster: Embedded, name: str) -> Iterator[list[bytes]]:
    """A running App of group NAME-app, five of whose records wait for an hour; what it handles."""
    handled, failed = list[bytes](), set[bytes]()
    app = App(f"{name}-app", bootstrap_servers=cluster.bootstrap, retries="1h", remote="kohort")

    @app.handler(name)
    def handle(record: Any) -> None:
        if record.value not in failed:
            failed.add(record.value)
            raise Temporary("the till is <b>closed</b>")
        handled.append(record.value)

    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1)])
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for n in range(5):
            producer.send(name, b'{"till": %d}' % n, b"k%d" % n)
    thread = threading.Thread(target=app.run, kwargs={"signals": False})
    thread.start()
    try:
        until(lambda: app.counts().get("to_retry") == 5)
        yield handled
    finally:
        app.stop()
        thread.join()
