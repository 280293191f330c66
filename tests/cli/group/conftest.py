"""What tests of groups share: a topic with two records, an admin, `kohort group why`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kohort import Admin, Producer
from tests.cli.conftest import Run
from tests.cli.group.situations import Why
from tests.clusters import Cluster
from tests.e2e.makes import fresh


@pytest.fixture
def why(kohort: Run) -> Why:
    """`kohort group why GROUP -o json`."""
    return lambda group: kohort("group", "why", group, "--for", "1ms", "-o", "json")


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic with two records in one partition."""
    name = fresh("orders")
    cluster.create_topic(name, 1)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for value in (b"1", b"2"):
            producer.send(name, value)
        producer.flush()
    return name


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap) as running:
        yield running
