"""Several topics of one handler, and what is open while coroutine handlers run (issue 18)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kohort import App, Producer
from kohort.errors import ConfigError
from tests.clusters import Cluster
from tests.processing.conftest import Running, Until


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
