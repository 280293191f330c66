"""References read all that their topics hold, whatever becomes of these (spec 6.2)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kohort import Admin, Producer
from kohort.errors import DataLossError
from kohort.spark.dataframes.graph import Reference, ValueFormat
from kohort.spark.dataframes.references import ReferenceTable
from kohort.spark.formats import RowFormat
from kohort.testing import Cluster

STARTED_MS = time.time_ns() // 1_000_000


class Teams:
    """A topic of teams, and the reference that reads it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.create_topic("teams", partitions=1)
        values = ValueFormat.of("teams", "teams", {"format": "text"})
        reference = Reference("teams", "teams", values, (), 1 << 20)
        config = {"bootstrap.servers": cluster.bootstrap}
        self.table = ReferenceTable(reference, None, config)

    def write(self, partition: int, *teams: bytes) -> None:
        with Producer(bootstrap_servers=self.cluster.bootstrap) as producer:
            for team in teams:
                producer.send("teams", team, team, partition=partition)

    def read(self) -> tuple[bool, set[bytes]]:
        """Whether the table has changed, and its teams."""
        changed = self.table._refresh()
        return changed, {row.key for row in self.table._rows.values() if row.key is not None}

    def delete(self) -> None:
        with Admin(bootstrap_servers=self.cluster.bootstrap) as admin:
            admin.delete_topics(["teams"])


@pytest.fixture
def teams() -> Iterator[Teams]:
    with Cluster() as cluster:
        made = Teams(cluster)
        yield made
        made.table.close()


def test_partitions_that_are_added_are_read(teams: Teams) -> None:
    teams.write(0, b"reds")
    assert teams.read() == (True, {b"reds"})
    with Admin(bootstrap_servers=teams.cluster.bootstrap) as admin:
        admin.create_partitions({"teams": 3})
    teams.write(2, b"blues")
    assert teams.read() == (True, {b"reds", b"blues"})
    assert teams.read() == (False, {b"reds", b"blues"})


def test_a_topic_that_is_created_again_is_read_from_its_beginning(teams: Teams) -> None:
    """The deleted topic's rows were kept, and as many of the new one's were never read."""
    teams.write(0, b"reds", b"blues")
    assert teams.read() == (True, {b"reds", b"blues"})
    teams.delete()
    with pytest.raises(DataLossError, match="topic teams was deleted"):
        teams.read()
    teams.cluster.create_topic("teams", partitions=1)
    assert teams.read() == (True, set())
    teams.write(0, b"greens")
    assert teams.read() == (True, {b"greens"})


class Cities:
    """A topic of teams' cities, and references that read it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.create_topic("teams", partitions=2)
        options = {"format": "json", "schema": "team STRING, city STRING"}
        values = ValueFormat.of("teams", "teams", options)
        assert values.decoded is not None
        self.rows = RowFormat.of(values.decoded)
        self.reference = Reference("teams", "teams", values, ("team",), 1 << 20)
        self.tables = [self.table()]

    def table(self) -> ReferenceTable:
        config = {"bootstrap.servers": self.cluster.bootstrap}
        return ReferenceTable(self.reference, self.rows, config)

    def write(
        self, partition: int, at_ms: int, value: bytes | None, key: bytes | None = None
    ) -> None:
        with Producer(bootstrap_servers=self.cluster.bootstrap) as producer:
            when_ms = STARTED_MS + at_ms
            producer.send("teams", value, key, partition=partition, timestamp_ms=when_ms)

    def read(self, table: ReferenceTable) -> list[tuple[str, str]]:
        table._refresh()
        return sorted((row["team"], row["city"]) for row in table._latest().to_pylist())

    @property
    def running(self) -> list[tuple[str, str]]:
        """The rows of the driver that has run from the beginning."""
        return self.read(self.tables[0])

    @property
    def restarted(self) -> list[tuple[str, str]]:
        """The rows of a driver that starts now."""
        self.tables.append(self.table())
        return self.read(self.tables[-1])


@pytest.fixture
def cities() -> Iterator[Cities]:
    with Cluster() as cluster:
        made = Cities(cluster)
        yield made
        for table in made.tables:
            table.close()


def city(team: str, name: str) -> bytes:
    return f'{{"team": "{team}", "city": "{name}"}}'.encode()


def test_a_restart_finds_the_rows_that_were_there_before_it(cities: Cities) -> None:
    """The whole topic is read at once then: the partition that came last had the latest rows."""
    cities.write(0, 1000, city("blues", "old"))
    cities.write(1, 1000, city("reds", "old"))
    assert cities.running == [("blues", "old"), ("reds", "old")]
    cities.write(0, 2000, city("reds", "new"))
    cities.write(1, 2000, city("blues", "new"))
    assert cities.running == cities.restarted == [("blues", "new"), ("reds", "new")]
    cities.tables[0].close()
    assert cities.running == [("blues", "new"), ("reds", "new")]


def test_a_key_that_was_removed_in_another_partition_stays_removed(cities: Cities) -> None:
    """The topic got partitions. Read before the value, the null value removed nothing."""
    cities.write(0, 1000, city("reds", "old"), b"reds")
    cities.write(1, 1000, city("blues", "old"), b"blues")
    assert cities.running == [("blues", "old"), ("reds", "old")]
    cities.write(1, 2000, None, b"reds")
    cities.write(0, 2000, None, b"blues")
    assert cities.running == cities.restarted == []
    cities.write(0, 3000, city("reds", "new"), b"reds")
    assert cities.running == cities.restarted == [("reds", "new")]


def test_in_a_partition_the_later_record_is_the_latest_whatever_its_timestamp(
    cities: Cities,
) -> None:
    """Producers set timestamps, of an event for example; offsets are the topic's own order."""
    cities.write(1, 3000, city("reds", "old"), b"reds")
    cities.write(1, 1000, city("reds", "new"), b"reds")
    cities.write(1, 1000, city("blues", "new"))
    cities.write(0, 2000, city("blues", "old"))
    assert cities.running == cities.restarted == [("blues", "new"), ("reds", "new")]
