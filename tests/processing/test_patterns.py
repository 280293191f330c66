"""Topics by pattern against the embedded broker: new topics join a running app (issue 18)."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kohort import Admin, App, Producer
from kohort.client.admin.types import NewTopic
from kohort.retry import Permanent, Temporary
from tests.clusters import Cluster
from tests.patience import until
from tests.processing.conftest import Running

CLIENT = {"heartbeat_interval_ms": 50, "retry_backoff_ms": 20, "metadata_max_age_ms": 100}


@pytest.fixture
def apps(cluster: Cluster) -> Callable[..., App]:
    def make(group: str, **more: Any) -> App:
        settings = {"retries": "50ms", "clock_skew": 0, "client": CLIENT} | more
        return App(group, bootstrap_servers=cluster.bootstrap, **settings)

    return make


def produce(cluster: Cluster, topic: str, values: range) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for n in values:
            producer.send(topic, b"%d" % n, b"k%d" % (n % 5))


def topics_of(cluster: Cluster) -> set[str]:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        return {listed.name for listed in admin.list_topics()}


@pytest.mark.parametrize("mode", [None, "kafka", "sqlite"])
def test_a_new_topic_joins_while_the_app_runs(cluster, apps, start, tmp_path, mode) -> None:
    """Its retry topics are made first; each record is done once; what was assigned stays."""
    name = f"join-{mode}"
    where = f"sqlite:///{tmp_path}/x.db" if mode == "sqlite" else mode
    app, done = apps(f"{name}-app", exactly_once=where), Counter[tuple[str, int]]()
    cluster.create_topic(f"{name}-a", partitions=2)
    produce(cluster, f"{name}-a", range(100))

    @app.handler(re.compile(f"{name}-.*"))
    def handle(record) -> None:
        number = int(record.value)
        if number % 10 == 3 and record.attempt == 0:
            raise Temporary("down")
        if number % 50 == 7:
            raise Permanent("bad")
        done[record.topic, number] += 1

    start(app)
    until(lambda: len(done) == 98)
    cluster.create_topic(f"{name}-b", partitions=3)
    produce(cluster, f"{name}-b", range(100))
    until(lambda: len(done) == 196, "the records of the new topic")
    assert list(app.topics) == [f"{name}-a", f"{name}-b"], "retry topics match and are left out"
    made = {t for t in topics_of(cluster) if t.startswith(f"{name}-b.")}
    assert made == {f"{name}-b.{name}-app.{s}" for s in ("retry.0s", "retry.50ms", "dlt")}
    until(lambda: app.counts()["to_dead_letter"] == 4)
    assert set(done.values()) == {1}
    assert {p.partition[0] for p in app.health().partitions} >= {f"{name}-a", f"{name}-b"}


def test_two_members_share_the_topics_that_join(cluster, apps, start) -> None:
    """The member that sees a topic first reads it; then its partitions are shared."""
    done = Counter[int]()
    programs = [apps("share-app") for _ in range(2)]
    for app in programs:
        app.handler(re.compile("share-.*"), "share")(lambda r: done.update([int(r.value)]))
    cluster.create_topic("share", partitions=2)
    for app in programs:
        start(app)
    until(lambda: all(app.health().partitions for app in programs))
    for name in ("share-1", "share-2"):
        cluster.create_topic(name, partitions=4)
    produce(cluster, "share-1", range(200))
    produce(cluster, "share-2", range(200, 400))

    def shared() -> bool:
        counts = [
            Counter(
                p.partition[0]
                for p in app.health().partitions
                if p.partition[0] in ("share-1", "share-2")
            )
            for app in programs
        ]
        return sum(counts, Counter()) == {"share-1": 4, "share-2": 4} and all(counts)

    until(shared)
    until(lambda: len(done) == 400)


def test_an_app_waits_for_the_first_topic_that_matches(cluster, apps, start) -> None:
    """It says so meanwhile, and can be stopped."""
    app, done = apps("first-app"), list[bytes]()
    app.handler(re.compile("first-.*"))(lambda record: done.append(record.value))
    start(app)
    until(lambda: app.troubles() == ["no topic matches first-.* yet"])
    cluster.create_topic("first-1", partitions=1)
    produce(cluster, "first-1", range(1))
    until(lambda: done == [b"0"])
    waits = apps("never-app")
    waits.handler(re.compile("never-.*"))(lambda record: None)
    running = Running(waits)
    until(lambda: bool(waits.troubles()))
    running.stop()
    assert running.error is None


def test_a_topic_that_cannot_join_does_not_end_the_app(cluster, apps, start, caplog) -> None:
    """Its retry topic is compacted, which loses failures: logged once, and it joins when mended."""
    caplog.set_level(logging.ERROR, "kohort.processing")
    app, done = apps("unfit-app"), list[bytes]()
    app.handler(re.compile("unfit-.*"))(lambda record: done.append(record.value))
    cluster.create_topic("unfit-1", partitions=1)
    start(app)
    produce(cluster, "unfit-1", range(1))
    until(lambda: done == [b"0"])
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        compacted = {"cleanup.policy": "compact"}
        admin.create_topics([NewTopic("unfit-2.unfit-app.retry.50ms", 1, configs=compacted)])
        admin.create_topics([NewTopic("unfit-2", 1)])
        produce(cluster, "unfit-2", range(1, 2))
        until(lambda: any("unfit-2 matches a pattern" in r.getMessage() for r in caplog.records))
        produce(cluster, "unfit-1", range(2, 3))
        until(lambda: done == [b"0", b"2"])
        mended = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
        admin.alter_configs("unfit-2.unfit-app.retry.50ms", mended)
    until(lambda: done == [b"0", b"2", b"1"])
    refused = [r for r in caplog.records if "cleanup.policy" in r.getMessage()]
    assert len(refused) == 1, "not each time that it looks"


def test_processes_get_the_records_of_new_topics(cluster, apps, start) -> None:
    """Their handlers were sent to them before the topic was there."""
    app = apps("process-app", processes=1)
    app.handler(re.compile("process-.*"), workers="processes", decode="text")(of_a_process)
    cluster.create_topic("process-1", partitions=1)
    produce(cluster, "process-1", range(1))
    start(app)
    until(lambda: app.counts().get("succeeded") == 1)
    cluster.create_topic("process-2", partitions=1)
    produce(cluster, "process-2", range(1, 3))
    until(lambda: app.counts().get("succeeded") == 3)


def of_a_process(record) -> None:
    assert record.data in ("0", "1", "2")
    assert record.topic == ("process-1" if record.data == "0" else "process-2")


def test_check_knows_the_topics_that_match(cluster, apps) -> None:
    app = apps("check-app")
    app.handler(re.compile("check-.*"))(lambda record: None)
    cluster.create_topic("check-1", partitions=1)
    assert [state.spec.name for state in app.check()] == [
        "check-1.check-app.retry.0s",
        "check-1.check-app.retry.50ms",
        "check-1.check-app.dlt",
    ]
