"""A network thread, scripted brokers, and clients on them; everything is closed and checked."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from kohort import Admin
from kohort.client.cluster.client import ClusterClient
from kohort.client.cluster.network_thread import NetworkThread
from kohort.client.common.config import ClientConfig
from kohort.errors import KohortError
from tests.client.consumer_world import World
from tests.client.scripted import ScriptedBroker, ScriptedCluster
from tests.clusters import Cluster
from tests.patience import PATIENCE_S

ONCE = {
    f"test_{name}.py"
    for name in [
        "acls",
        "admin",
        "admin_cluster",
        "automatic_commits",
        "config",
        "configuration_page",
        "consumer_close",
        "commit_queue",
        "consumer_exchange",
        "fetch_planner",
        "consumer_model",
        "positions",
        "consumer_protocol_e2e",
        "docs",
        "dropped",
        "fetch_session",
        "arguments",
        "group_descriptions",
        "group_timeline",
        "health",
        "left_behind",
        "network_thread",
        "public_names",
        "metadata_and_versions",
        "security_config",
        "transactions",
    ]
}
"""Files that the second run of `make test`, without the compiled modules, leaves out: they are
about groups, time, positions, settings and texts, which are the same Python in both. What is
compiled (records, messages, the producer's hot path, the broker's lane, the assignors' loops) does
for them only what it does for the other files, too."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.name in ONCE:
        item.add_marker("once")


class Client:
    """A ClusterClient and a way to wait for what it tells."""

    def __init__(self, thread: NetworkThread, *addresses: str, **config) -> None:
        config = {"reconnect_backoff_ms": 5, "retry_backoff_ms": 5, **config}
        self.thread = thread
        self.config = ClientConfig(bootstrap_servers=addresses, **config)
        self.cluster = thread.call(ClusterClient, thread.loop, self.config).result(PATIENCE_S)

    def start(self, *args, **kwargs) -> queue.SimpleQueue:
        answers: queue.SimpleQueue = queue.SimpleQueue()
        target, message = args
        self.thread.call(
            lambda: self.cluster.request(target, message, answers.put, **kwargs)
        ).result(PATIENCE_S)
        return answers

    def ask(self, *args, **kwargs):
        answer = self.start(*args, **kwargs).get(timeout=PATIENCE_S)
        if isinstance(answer, KohortError):
            raise answer
        return answer

    def refresh(self, **kwargs):
        answers: queue.SimpleQueue = queue.SimpleQueue()
        self.thread.call(lambda: self.cluster.refresh(answers.put, **kwargs)).result(PATIENCE_S)
        answer = answers.get(timeout=PATIENCE_S)
        if isinstance(answer, KohortError):
            raise answer
        return answer

    def do(self, fn, *args):
        return self.thread.call(fn, *args).result(PATIENCE_S)

    def close(self) -> None:
        if self.thread.alive:
            self.do(self.cluster.close)


@pytest.fixture
def thread() -> Iterator[NetworkThread]:
    thread = NetworkThread.shared()
    yield thread
    thread.release()


@pytest.fixture
def brokers() -> Iterator[ScriptedCluster]:
    """An empty scripted cluster; brokers added to it are stopped and checked."""
    cluster = ScriptedCluster()
    yield cluster
    for broker in cluster.brokers:
        broker.stop()
        assert broker.errors == []


@pytest.fixture
def broker(brokers) -> ScriptedBroker:
    return ScriptedBroker(brokers)


@pytest.fixture
def client(thread):
    made: list[Client] = []

    def make(*addresses, **config) -> Client:
        made.append(Client(thread, *addresses, **config))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def world(cluster: Cluster) -> Iterator[World]:
    """Consumers and topics on the module's own `cluster`, ended with the test."""
    world = World(cluster)
    yield world
    world.close()


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    """Of the module's own `cluster`."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        yield admin
