"""Today's code on what each earlier release left: docs/versioning.md, "Formats on disk"."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kohort import Admin, Consumer, Producer, TopicPartition
from kohort.errors import AuthenticationError, BrokerError
from kohort.retry.stores import open_store
from tests.patience import PATIENCE_S, until
from tests.upgrade import release

ORDERS = TopicPartition("orders", 0)


@pytest.fixture(params=release.versions(), name="home")
def _home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return release.unpack(request.param, tmp_path)


@pytest.fixture(name="expected")
def _expected(home: Path) -> dict[str, Any]:
    return json.loads((home / "expected.json").read_text())


def test_there_is_a_recorded_release() -> None:
    """Without one, every test of this file would be skipped in silence."""
    assert "0.1.0" in release.versions()


def records(servers: str) -> dict[str, list[list[Any]]]:
    return {topic: release.everything(servers, topic) for topic in release.READ}


def test_a_data_directory_is_read_written_and_opened_again(
    home: Path, expected: dict[str, Any]
) -> None:
    """Records, topics and committed offsets are those that the release saw, then and later."""
    with release.broker(home) as cluster:
        servers = cluster.bootstrap
        with Admin(bootstrap_servers=servers) as admin:
            topics = {t.name: t.partition_count for t in admin.list_topics()}
            assert topics == expected["topics"]
            for group, offsets in expected["groups"].items():
                found = admin.list_group_offsets(group)
                assert {f"{p.topic}/{p.partition}": o.offset for p, o in found.items()} == offsets
            assert admin.describe_configs("segments")["segment.bytes"].value == "1048576"
            quota = admin.describe_quotas({"user": "ada"})
            assert list(quota.values()) == [{"producer_byte_rate": 1e6}]
            # by its time, which comes after a minute where the release was recorded just now
            ongoing = lambda: admin.list_transactions(states=["Ongoing", "PrepareAbort"])  # noqa: E731
            until(lambda: not ongoing(), "the end of the transaction that was left open")
        assert records(servers) == expected["records"]
        with Producer(bootstrap_servers=servers, compression_type="lz4") as producer:
            for topic in release.READ:
                producer.send(topic, b"new", b"new", 0)
        written = records(servers)
    with release.broker(home) as cluster:
        assert records(cluster.bootstrap) == written
    for topic in release.READ:
        assert len(written[topic]) == len(expected["records"][topic]) + 1


def test_transactions_and_groups_continue(home: Path, expected: dict[str, Any]) -> None:
    """The id whose transaction was open fences it; a group reads on from its offsets."""
    with release.broker(home) as cluster:
        servers = cluster.bootstrap
        with Producer(bootstrap_servers=servers, transactional_id="left") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("transactions", b"after", b"d")
        values = [row[4] for row in release.everything(servers, "transactions")]
        assert values == [release.text(b"committed"), release.text(b"after")]
        for group in ("classic", "consumer"):
            committed = sum(expected["groups"][group].values())
            left = len(expected["records"]["codecs"]) - committed
            with Consumer(
                bootstrap_servers=servers,
                group_id=group,
                group_protocol=group,
                group_instance_id="static-1",
            ) as consumer:
                consumer.subscribe(["codecs"])
                seen = 0
                while seen < left:
                    seen += len(consumer.poll(PATIENCE_S))
                assert seen == left
                assert consumer.poll(0) == []


def test_users_and_access_control_hold(home: Path) -> None:
    """Ada logs in with the password of then, and may read what she might read then."""
    with release.secured_broker(home) as cluster:
        where = {"bootstrap_servers": cluster.bootstrap}
        ada = release.login("ada", "adas-word")
        with Consumer(**where, **ada) as consumer:
            consumer.assign([("codecs", 0)])
            consumer.seek_to_beginning()
            assert consumer.poll(PATIENCE_S)
        with Consumer(**where, **ada) as consumer:
            consumer.assign([("segments", 0)])
            consumer.seek_to_beginning()
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                consumer.poll(PATIENCE_S)
        with (
            pytest.raises(AuthenticationError),
            Admin(**where, **release.login("ada", "wrong")) as admin,
        ):
            admin.list_topics()


def app_continues(home: Path, group: str, store: str) -> None:
    """Loaded, waiting and failed of then, and a new order: each counts once."""
    with release.broker(home) as cluster:
        servers = cluster.bootstrap
        with Producer(bootstrap_servers=servers) as producer:
            producer.send("orders", b'{"name": "ada", "amount": 9}').result(PATIENCE_S)
        reader = open_store(store)
        try:
            loaded = lambda: sorted(reader.query("SELECT name, amount FROM bills"))  # noqa: E731
            assert loaded() == [("ada", 5)]
            with release.running(release.bills(group, servers, store, "ada", "eve")):
                until(lambda: loaded() == [("ada", 5), ("ada", 9), ("eve", 7)], "the bills")
            statuses = "SELECT status, count(*) FROM kohort_ledger GROUP BY status"
            assert dict(reader.query(statuses)) == {"done": 1, "failed": 1}
        finally:
            reader.close()
        failed = release.everything(servers, f"orders.{group}.dlt")
        assert [row[4] for row in failed] == [release.text(b'{"name": "ada", "amount": 0}')]
        with Admin(bootstrap_servers=servers) as admin:
            assert admin.list_group_offsets(group)[ORDERS].offset == 4


@pytest.mark.slow
def test_an_app_continues_on_its_store(home: Path) -> None:
    """E: SQLite's ledger and fence. The retry was due a minute after it was recorded."""
    app_continues(home, "bills", f"sqlite:///{home}/bills.db")


@pytest.mark.slow
@pytest.mark.postgres
def test_an_app_continues_on_postgresql(home: Path, database: str) -> None:
    """The same, with the tables as PostgreSQL's dump has them."""
    import psycopg

    dump = (home / "bills.sql").read_text()
    statements = "\n".join(line for line in dump.splitlines() if not line.startswith("\\"))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(statements.encode())
    app_continues(home, "bills-pg", database)


def test_another_format_is_refused(home: Path) -> None:
    """What a newer version wrote is not touched."""
    from kohort.errors import StorageError

    path = home / "data" / "topics.json"
    newer = path.read_text().replace('"format": 1', '"format": 2')
    path.write_text(newer)
    with pytest.raises(StorageError, match="use the version of Kohort"), release.broker(home):
        pass
    assert path.read_text() == newer
    with closing(sqlite3.connect(home / "bills.db")) as books:
        assert books.execute("SELECT count(*) FROM bills").fetchall()
