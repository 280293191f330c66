"""One cluster for the examples, topics with 60 numbers, and what a test asks of their databases."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from kohort import Admin, Producer
from tests.clusters import Cluster


@pytest.fixture(scope="module")
def cluster():
    with Cluster(group_initial_rebalance_delay_ms=0) as running:
        yield running


@pytest.fixture
def topic(cluster, request) -> str:
    name = request.node.name
    cluster.create_topic(name, partitions=3)
    fill(cluster, name, 60)
    return name


def fill(cluster, topic: str, count: int, start: int = 0) -> None:
    """Number n to partition n % 3, key n % 5, at time 1000 + n."""
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for n in range(start, start + count):
            producer.send(topic, b"%d" % n, b"k%d" % (n % 5), n % 3, 1_000 + n)


def committed(cluster, group: str) -> int:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        return sum(o.offset for o in admin.list_group_offsets(group).values())


class Collect:
    """Takes records until there are enough."""

    def __init__(self, enough: int) -> None:
        self.enough = enough
        self.values: list[int] = []

    def __call__(self, record) -> bool:
        self.values.append(int(record.value))
        return len(self.values) < self.enough


def one_of(file: str, query: str) -> int:
    with closing(sqlite3.connect(file)) as base:
        return base.execute(query).fetchone()[0]


def total(file: str) -> int:
    return one_of(file, "SELECT sum(total) FROM sums")
