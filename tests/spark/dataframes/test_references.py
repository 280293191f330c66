"""References read all that their topics hold, whatever becomes of these (spec 6.2)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kohort import Admin, Producer
from kohort.errors import DataLossError
from kohort.spark.dataframes.graph import Reference, ValueFormat
from kohort.spark.dataframes.references import ReferenceTable
from kohort.testing import Cluster


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
        return changed, {key for key, _ in self.table._rows.values() if key is not None}

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
