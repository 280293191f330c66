"""The sampler against a real broker: figures, times of records, partial results (spec 8.1, 8.3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kohort import Admin, NewTopic, Producer, TopicPartition
from kohort.errors import StorageError
from kohort.observe.overview import Health
from kohort.observe.trend import Sample
from kohort.sampling.history import History
from kohort.sampling.sampler import Sampler
from tests.clusters import Cluster
from tests.databases import all_closed


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2) as running:
        yield running


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap) as found:
        yield found


def test_lag_and_the_age_of_the_oldest_record(cluster: Cluster, admin: Admin) -> None:
    admin.create_topics([NewTopic("aged", 2, 1)])
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for n in range(4):
            producer.send("aged", b"v", partition=0, timestamp_ms=1_000_000 + n)
    first, second = TopicPartition("aged", 0), TopicPartition("aged", 1)
    admin.alter_group_offsets("reader", {first: 1, second: 0})
    sampler = Sampler(admin, {"bootstrap_servers": cluster.bootstrap})
    try:
        assert sampler.sample() is not None
        found = sampler.sample()
        assert found is not None
        view = found.groups["reader"]
        assert view.line.lag.value == 3
        at = view.lags[first].time
        assert at.value == found.snapshot.at_ms - 1_000_001
        assert at.within == 0
        assert view.lags[second].time.value == 0
        assert sampler.number == 2
    finally:
        sampler.close()


def test_a_record_without_a_time_is_unread_all_the_same(
    cluster: Cluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other makes write records whose timestamp is -1, which our producer refuses."""
    monkeypatch.setattr("kohort.client.common.arguments.timestamp", lambda *_: None)
    admin.create_topics([NewTopic("timeless", 1, 1)])
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send("timeless", b"v", partition=0, timestamp_ms=-1)
    tp = TopicPartition("timeless", 0)
    admin.alter_group_offsets("waits", {tp: 0})
    sampler = Sampler(admin, {"bootstrap_servers": cluster.bootstrap})
    try:
        first, found = sampler.sample(), sampler.sample()
        assert first is not None
        assert found is not None
        view = found.groups["waits"]
        assert view.line.health is Health.WAITING
        assert view.line.lag.value == 1
        assert view.lags[tp].time.value is None
        with cluster.faults.fail("ListOffsets", "UNKNOWN_SERVER_ERROR", topic="timeless", times=9):
            part = sampler.sample()
        assert part is not None
        assert part.groups["waits"].line.lag.value is None
        again = sampler.sample()
        assert again is not None
        time = again.groups["waits"].lags[tp].time
        assert time.at_least == again.snapshot.at_ms - first.snapshot.at_ms, "the end's history"
    finally:
        sampler.close()


def test_a_broker_that_is_away_costs_its_own_groups_alone(cluster: Cluster, admin: Admin) -> None:
    names = [f"g{n}" for n in range(6)]
    admin.create_topics([NewTopic("spread", 1, 1)])
    for name in names:
        admin.alter_group_offsets(name, {TopicPartition("spread", 0): 0})
    homes = {name: cluster.coordinator_of(name) for name in names}
    away = next(iter(set(homes.values()) - {1}), 2)
    sampler = Sampler(admin, {"bootstrap_servers": cluster.bootstrap})
    try:
        assert sampler.sample() is not None
        whole = sampler.sample()
        assert whole is not None
        assert set(names) <= set(whole.groups)
        assert not whole.snapshot.troubles
        with cluster.faults.fail("ListGroups", "COORDINATOR_NOT_AVAILABLE", times=1, node=away):
            part = sampler.sample()
        assert part is not None
        assert any(f"broker {away}" in trouble for trouble in part.snapshot.troubles)
        kept = {name for name in names if homes[name] != away}
        assert kept <= set(part.groups)
        lines = {line.group: line for line in part.lines}
        for name in set(names) - kept:
            assert lines[name].health is Health.NOT_SEEN
            assert lines[name].error == f"broker {away} does not answer"
            assert sampler.history.series[name].samples
        with cluster.faults.fail("ListGroups", "COORDINATOR_NOT_AVAILABLE", times=1, node=away):
            assert sampler.sample() is not None
        back = sampler.sample()
        assert back is not None
        for name in names:
            assert back.groups[name].verdict is not None, "the look before the silence counts"
            assert back.groups[name].line.since_ms == whole.snapshot.at_ms
        admin.delete_groups(names)
        assert sampler.sample() is not None
        assert not sampler.history.series.keys() & set(names)
    finally:
        sampler.close()


def test_no_cluster_is_an_error_and_the_last_overview_stays(cluster: Cluster) -> None:
    quick: dict[str, Any] = {"default_api_timeout_ms": 1_000, "request_timeout_ms": 1_000}
    with Admin(bootstrap_servers=cluster.bootstrap, **quick) as admin:
        sampler = Sampler(admin, {"bootstrap_servers": cluster.bootstrap, **quick})
        try:
            first = sampler.sample()
            with cluster.faults.silence("Metadata", times=1_000):
                assert sampler.sample() is None
            assert sampler.error
            assert sampler.latest is first
            while sampler.sample() is None:  # a slow machine needs more than one try
                assert sampler.error
            assert not sampler.error
        finally:
            sampler.close()


def test_a_history_outlives_its_process_and_forgets_what_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.db"
    history = History(path, hours=1)
    history.load("cluster", 0)
    history.add({"g": Sample(1_000_000, 5, None, 10, 5)}, 1_000_000)
    history.add({"g": Sample(9_000_000, 7, 1_000, 12, 5)}, 9_000_000)
    history.close()
    again = History(path, hours=1)
    again.load("cluster", 9_000_001)
    assert again.series["g"].samples == [Sample(9_000_000, 7, 1_000, 12, 5)]
    again.load("another", 9_000_001)
    again.add({}, 9_000_002)
    assert "g" in again.series, "it is not known to be gone"
    again.forget(["g"])
    assert not again.series
    again.close()
    with pytest.raises(StorageError, match=r"history\.db/a cannot be made: .*--history"):
        History(path / "a" / "b.db")
    (tmp_path / "no.db").write_text("this is no database, but a text that is long enough")
    with all_closed(monkeypatch), pytest.raises(StorageError, match="--history"):
        History(tmp_path / "no.db")


def test_a_history_that_is_damaged_is_kept_in_memory_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.db"
    history = History(path)
    history.load("cluster", 0)
    samples = {f"g{n:04}": Sample(100_000, n, None, None, None) for n in range(2_000)}
    history.add(samples, 100_000)
    history.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\xff" * (len(whole) - 8192))
    again = History(path)
    again.load("cluster", 200_000)
    assert "in memory alone" in caplog.text
    again.add({"g": Sample(200_000, 1, None, None, None)}, 200_000)
    assert again.series["g"].samples
    again.close()


def test_health_words_have_an_order() -> None:
    assert next(iter(Health)) is Health.STUCK
    assert list(Health)[-1] is Health.READ
