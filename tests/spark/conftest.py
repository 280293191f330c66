"""One Spark session and one broker for all tests that need them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.java import skip_without

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster

_numbers = itertools.count()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session of the test run; the tests are skipped, visibly, where there is no Java."""
    skip_without()
    from kohort.spark import session

    made = session("kohort tests", master="local[2]", profile="test")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A broker in this process, in memory."""
    from kohort.testing import Cluster

    with Cluster() as made:
        yield made


@pytest.fixture
def topic(cluster: Cluster) -> Callable[..., str]:
    """Make a topic of its own for a test."""

    def make(partitions: int = 2, name: str = "t") -> str:
        unique = f"{name}{next(_numbers)}"
        cluster.create_topic(unique, partitions=partitions)
        return unique

    return make


@pytest.fixture
def produce(cluster: Cluster) -> Callable[..., None]:
    """Produce records: tuples of (partition, key, value) and maybe headers."""

    def send(topic: str, *records: tuple[Any, ...]) -> None:
        from kohort.client.producer.producer import Producer

        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for partition, key, value, *headers in records:
                producer.send(topic, value, key, partition, headers=headers[0] if headers else ())
            producer.flush()

    return send
