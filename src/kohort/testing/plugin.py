"""The pytest plugin: `kafka_cluster`, `kafka_topic`, `kafka_faults`, `kafka_clock`, `kafka_app`,
`kafka_pipeline`.

    def test_billing(kafka_cluster, kafka_topic, kafka_faults):
        kafka_faults.fail("OffsetCommit", "NOT_COORDINATOR")
        ...

    @pytest.mark.kafka(nodes=3, partitions=6, message_max_bytes=1000)
    def test_failover(kafka_cluster, kafka_topic): ...

Rules:
- pytest loads it with every run where Kohort is installed, so it imports nothing of Kohort before a
  fixture is used.
- One cluster of a shape serves all tests that ask for that shape, in any order: pytest ends a
  fixture whose parameter changes, so clusters are kept apart from it, to the end of the session.
- What a test did to a cluster is undone after the test: its faults are cleared, its requests
  forgotten, nodes that it stopped run again, and a broker whose time it advanced or whose settings
  it changed is restarted.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kohort.broker import Broker
    from kohort.processing.app import App
    from kohort.spark.pipeline import Pipeline
    from kohort.testing.app_harness import AppHarness
    from kohort.testing.clock import VirtualClock
    from kohort.testing.cluster import Cluster
    from kohort.testing.faults import ClusterFaults
    from kohort.testing.pipeline_harness import PipelineHarness

MARKER = (
    "kafka(nodes=1, partitions=1, **settings): the cluster of this test, with settings of the "
    "broker, as message_max_bytes=1000; partitions are those of kafka_topic"
)
_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", MARKER)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give tests with a marker of their own shape a cluster of that shape."""
    if "kafka_cluster" not in metafunc.fixturenames:
        return
    shape = _marked(metafunc.definition)
    shape.pop("partitions", None)
    if shape:
        label = _label(shape)
        metafunc.parametrize("kafka_cluster", [shape], indirect=True, ids=[label], scope="session")


def _label(shape: Mapping[str, Any]) -> str:
    return "-".join(f"{key}={value}" for key, value in sorted(shape.items()))


def _marked(node: Any) -> dict[str, Any]:
    """What the markers say, the closest first."""
    settings: dict[str, Any] = {}
    for mark in node.iter_markers("kafka"):
        settings = {**mark.kwargs, **settings}
    return settings


@pytest.fixture(scope="session")
def _kafka_clusters() -> Iterator[Callable[[Mapping[str, Any]], Cluster]]:
    """The cluster of a shape, started for the first test that asks for it."""
    from kohort.testing import Cluster

    clusters: dict[str, Cluster] = {}
    with contextlib.ExitStack() as started:

        def of(shape: Mapping[str, Any]) -> Cluster:
            label = _label(shape)
            if label not in clusters:
                clusters[label] = started.enter_context(Cluster(**shape))
            return clusters[label]

        yield of


@pytest.fixture(scope="session")
def kafka_cluster(
    request: pytest.FixtureRequest, _kafka_clusters: Callable[[Mapping[str, Any]], Cluster]
) -> Cluster:
    """An embedded broker in memory (`kohort.testing.Cluster`), shared by all tests of its shape."""
    return _kafka_clusters(getattr(request, "param", {}))


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest, kafka_cluster: Cluster) -> Iterator[str]:
    """The name of a fresh topic; it is deleted after the test."""
    from kohort.errors import BrokerError

    readable = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)[:100]
    name = f"{readable}-{next(_numbers)}"
    kafka_cluster.create_topic(name, partitions=_marked(request.node).get("partitions", 1))
    yield name
    _heal(kafka_cluster)
    with contextlib.suppress(BrokerError):  # the test has deleted it
        kafka_cluster.delete_topic(name)


@pytest.fixture
def kafka_faults(kafka_cluster: Cluster) -> Iterator[ClusterFaults]:
    """What goes wrong: `kafka_cluster.faults`. Cleared after the test."""
    yield kafka_cluster.faults
    _heal(kafka_cluster)


@pytest.fixture
def kafka_clock() -> Iterator[VirtualClock]:
    """Virtual time for this test: make the cluster with `Cluster(clock=kafka_clock)`, and clients
    in the test's own thread."""
    from kohort.testing import VirtualClock

    with VirtualClock() as clock:
        yield clock


@pytest.fixture
def kafka_app() -> Iterator[Callable[..., AppHarness]]:
    """Makes harnesses, `kafka_app(app, partitions=1)`: an App's handlers without a broker. They are
    closed after the test."""
    from kohort.testing import AppHarness

    with contextlib.ExitStack() as made:

        def make(app: App, **settings: Any) -> AppHarness:
            return made.enter_context(AppHarness(app, **settings))

        yield make


@pytest.fixture
def kafka_pipeline() -> Iterator[Callable[..., PipelineHarness]]:
    """Makes harnesses, `kafka_pipeline(pipeline, partitions=1)`: a Pipeline over records of the
    test. They are closed after the test."""
    from kohort.testing import PipelineHarness

    with contextlib.ExitStack() as made:

        def make(pipeline: Pipeline, **settings: Any) -> PipelineHarness:
            return made.enter_context(PipelineHarness(pipeline, **settings))

        yield make


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Undo what the test did to its cluster, before its fixtures end."""
    cluster: Cluster | None = getattr(item, "funcargs", {}).get("kafka_cluster")
    try:
        if cluster is not None:
            _heal(cluster)
    finally:
        result = yield
    return result


def _heal(cluster: Cluster) -> None:
    """Undo what a test did. Raises what functions of its faults have raised."""
    try:
        cluster.faults.clear()
    finally:
        _restore(cluster)
        cluster.requests.clear()


def _restore(cluster: Cluster) -> None:
    """Its first settings, real time, and all nodes."""
    first = cluster.first_config.replace(port=cluster.config.port)
    if not cluster.is_running or cluster.config != first or _has_jumped(cluster.broker):
        cluster.stop()
        cluster.config = first
        cluster.start()
    for node in set(cluster.nodes) - set(cluster.running):
        cluster.restart_node(node)


def _has_jumped(broker: Broker) -> bool:
    from kohort.testing.clock import JumpingBroker

    return isinstance(broker, JumpingBroker) and broker.has_jumped
