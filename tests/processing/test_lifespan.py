"""Several topics of one handler, and what is open while coroutine handlers run (issue 18)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from queue import SimpleQueue

import pytest

from kohort import App, Producer
from kohort.errors import ConfigError
from kohort.processing.engine.engine import Engine
from kohort.processing.runtime.runner import LAST_WAIT_S, Runner
from kohort.processing.workers.handlers import HandlerSpec, Invoker, Kind
from kohort.processing.workers.task_pool import TaskPool
from kohort.processing.workers.worker_pools import Finished
from tests.clusters import Cluster
from tests.known import fake
from tests.processing.conftest import PATIENCE_S, Running, Until
from tests.processing.test_ending import Member
from tests.processing.world import route


def test_one_handler_reads_several_topics(cluster: Cluster) -> None:
    """Each topic has retry topics of its own."""
    app = App("many-app", bootstrap_servers=cluster.bootstrap, retries="5m")
    done, seen = Until(2), set[tuple[str, bytes | None]]()

    @app.handler("many-a", "many-b")
    def handle(record) -> None:
        seen.add((record.topic, record.value))
        done.count()

    assert list(app.topics) == ["many-a", "many-b"]
    assert app.topics["many-b"].dead_letter == "many-b.many-app.dlt"
    with pytest.raises(ConfigError, match="'many-a' has a handler already"):
        app.handler("other", "many-a")(lambda record: None)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for topic in app.topics:
            if topic.startswith("many"):
                producer.send(topic, topic.encode())
    app2 = App("many-app", bootstrap_servers=cluster.bootstrap, retries="5m")
    app2.handler("many-a", "many-b")(handle)
    running = Running(app2)
    done.wait()
    running.stop()
    assert seen == {("many-a", b"many-a"), ("many-b", b"many-b")}


def test_a_session_is_open_on_the_loop_while_handlers_run(cluster: Cluster) -> None:
    app = App("life-app", bootstrap_servers=cluster.bootstrap, retries="none")
    done, story = Until(1), list[object]()

    @app.lifespan
    async def session() -> AsyncIterator[None]:
        story.append(asyncio.get_running_loop())
        yield  # without try: the end of the app is no error of the lifespan
        await asyncio.sleep(0)
        story.append("closed")

    @app.handler("life")
    async def handle(record) -> None:
        story.append(asyncio.get_running_loop())
        done.count()

    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send("life", b"v")
    running = Running(app)
    done.wait()
    running.stop()
    opened, used, closed = story
    assert opened is used
    assert closed == "closed"


def test_what_a_lifespan_raises_ends_the_app(cluster: Cluster) -> None:
    app = App("fall-app", bootstrap_servers=cluster.bootstrap, retries="none")

    @app.lifespan
    async def session() -> AsyncIterator[None]:
        raise OSError("no such host")
        yield

    @app.handler("life")
    async def handle(record) -> None:
        """Never called."""

    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send("life", b"v")
    assert isinstance(Running(app).ended(), OSError)


def test_what_the_end_of_a_lifespan_raises_ends_the_app(cluster: Cluster) -> None:
    """It went to an inbox that nobody read any more: what was to be flushed was lost in silence."""
    app = App("flush-app", bootstrap_servers=cluster.bootstrap, retries="none")
    done = Until(1)

    @app.lifespan
    async def session() -> AsyncIterator[None]:
        yield
        raise OSError("could not flush")

    @app.handler("flush")
    async def handle(record) -> None:
        done.count()

    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send("flush", b"v")
    running = Running(app)
    done.wait()
    running.stop()
    assert isinstance(running.error, OSError)


def pool_of(lifespan) -> tuple[TaskPool, SimpleQueue[Finished]]:
    """A started pool, and what it reports."""
    spec = HandlerSpec("t", len, Kind.ASYNC)
    pool, reports = (
        TaskPool(Invoker({"t": spec}), 2, [asynccontextmanager(lifespan)]),
        SimpleQueue(),
    )
    pool.start(reports.put)
    return pool, reports


def test_tasks_of_a_lifespan_work_while_it_closes() -> None:
    """The end cancelled them first, and closing code that waits for them waited for ever."""
    opened, written = threading.Event(), list[str]()

    async def writer(queue: asyncio.Queue[str]) -> None:
        while True:
            written.append(await queue.get())
            queue.task_done()

    async def lifespan() -> AsyncIterator[None]:
        queue: asyncio.Queue[str] = asyncio.Queue()
        task = asyncio.create_task(writer(queue))
        opened.set()
        yield
        queue.put_nowait("last")
        await queue.join()
        task.cancel()

    pool, _ = pool_of(lifespan)
    assert opened.wait(PATIENCE_S)
    assert pool.stop(PATIENCE_S)
    assert written == ["last"]


def test_tasks_that_a_lifespan_leaves_are_cancelled() -> None:
    opened, ended = threading.Event(), list[str]()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def lifespan() -> AsyncIterator[None]:
        tasks.append(asyncio.create_task(forever()))
        await asyncio.sleep(0)
        opened.set()
        yield

    tasks: list[asyncio.Task[None]] = []
    pool, _ = pool_of(lifespan)
    assert opened.wait(PATIENCE_S)
    assert pool.stop(PATIENCE_S)
    assert ended == ["cancelled"]


@pytest.mark.parametrize("hurried", [False, True])
def test_closing_code_has_what_is_left_of_drain(hurried) -> None:
    """It had half a second; a session with much to flush was cut off."""
    waited: list[float] = []

    class Pool:
        name, workers = "tasks", 1

        def start(self, report) -> None:
            pass

        def stop(self, timeout_s: float) -> bool:
            waited.append(timeout_s)
            return True

    engine = Engine([route()], crash_guard=False)
    now_ms, member = [0], Member()
    runner = Runner(engine, fake(member), [fake(Pool())], steady_ms=lambda: now_ms[0])
    end = runner._end
    runner._end = lambda: (end(), now_ms.__setitem__(0, 4_000))[0]
    runner.stop(at_once=hurried)
    runner.run(fake(None), None)
    assert waited == [LAST_WAIT_S if hurried else 6.0]


def test_a_lifespan_that_cannot_be_one_is_refused() -> None:
    app = App("no-app")
    with pytest.raises(ConfigError, match="async generator"):
        app.lifespan(lambda: None)

    @app.lifespan
    async def session() -> AsyncIterator[None]:
        yield

    app.handler("plain")(lambda record: None)
    with pytest.raises(ConfigError, match="this app has none"):
        app.run()
