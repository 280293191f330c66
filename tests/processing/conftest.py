"""One embedded broker for the app's tests, and apps that end with their test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kohort import Producer
from kohort.processing.app import App
from tests.clusters import Cluster
from tests.patience import PATIENCE_S as PATIENCE_S
from tests.processing.exactly_once_world import opened


class Running:
    """An app in a thread of this process."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.app.run()
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self.app.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def ended(self) -> BaseException | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.error


class Until:
    """Counts up to a number from any thread; `wait` for it."""

    def __init__(self, number: int) -> None:
        self.left = number
        self._lock = threading.Lock()
        self._event = threading.Event()

    def count(self) -> None:
        with self._lock:
            self.left -= 1
            if self.left <= 0:
                self._event.set()

    def wait(self) -> None:
        assert self._event.wait(PATIENCE_S), f"{self.left} left after {PATIENCE_S} s"


@pytest.fixture(autouse=True)
def no_store_stays_open() -> Iterator[None]:
    """A process that is killed closes nothing, but the one that plays it has to."""
    yield
    while opened:
        opened.pop().close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(group_initial_rebalance_delay_ms=0) as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")[:100]
    cluster.create_topic(name, partitions=3)
    return name


@pytest.fixture
def produce(cluster: Cluster, topic: str) -> Callable[[int], None]:
    def some(number: int, keys: int = 7) -> None:
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for n in range(number):
                producer.send(topic, b"%d" % n, b"k%d" % (n % keys))

    return some


@pytest.fixture
def app(cluster: Cluster, topic: str) -> Callable[..., App]:
    def make(**settings: Any) -> App:
        client = {"heartbeat_interval_ms": 50, "retry_backoff_ms": 20}
        defaults: dict[str, Any] = {"retries": "100ms 100ms", "clock_skew": 0, "client": client}
        return App(f"group-{topic}", bootstrap_servers=cluster.bootstrap, **(defaults | settings))

    return make


@pytest.fixture
def start() -> Iterator[Callable[[App], Running]]:
    started: list[Running] = []

    def begin(app: App) -> Running:
        running = Running(app)
        started.append(running)
        return running

    yield begin
    for running in started:
        running.stop()
