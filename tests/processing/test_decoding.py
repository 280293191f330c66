"""Schemas that are asked for hold up no event loop, and a registry that is away no record."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest

from kohort import AsyncConsumer, Producer
from kohort.errors import ConfigError, ConnectionFailedError
from kohort.processing.app import App
from kohort.retry import headers as h
from kohort.retry.handling import UNANSWERED, decode_all
from kohort.serdes import JsonSchemaSerde, SchemaRegistry, Serde, Serdes
from tests.known import of_type
from tests.processing.conftest import PATIENCE_S, Until
from tests.processing.test_exact import wait_for
from tests.reading import read_committed
from tests.serdes.fake_registry import Registry, running

SCHEMA = {"type": "object"}


@pytest.fixture
def fake() -> Iterator[Registry]:
    with running() as registry:
        yield registry


class Held(SchemaRegistry):
    """A registry whose answers wait, on whichever thread they are asked for."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked_on: list[threading.Thread] = []
        self.go = threading.Event()

    def _call(self, path, body=None, *, everywhere=False):
        self.asked_on.append(threading.current_thread())
        assert self.go.wait(PATIENCE_S)
        return super()._call(path, body, everywhere=everywhere)


def produce_framed(fake: Registry, bootstrap: str, topic: str, number: int) -> None:
    serde = JsonSchemaSerde(SchemaRegistry(fake.url), SCHEMA)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for n in range(number):
            producer.send(topic, serde.serialize(topic, {"n": n}))


def test_tasks_go_on_while_a_schema_is_asked_for(fake, cluster, topic, app, start) -> None:
    """Records of a calm topic are done while all of another one's wait for the registry."""
    calm = f"{topic}-calm"
    cluster.create_topic(calm, partitions=1)
    produce_framed(fake, cluster.bootstrap, topic, 20)
    registry, framed, other = Held(fake.url), Until(20), Until(1)
    program: App = app()

    @program.handler(topic, decode=JsonSchemaSerde(registry))
    async def handle(record) -> None:
        assert record.data["n"] >= 0
        framed.count()

    @program.handler(calm)
    async def at_once(record) -> None:
        other.count()

    process = start(program)
    wait_for(lambda: registry.asked_on, "nobody asks")
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send(calm, b"")
    other.wait()
    registry.go.set()
    framed.wait()
    process.stop()
    assert process.error is None
    assert len(registry.asked_on) == 1, "one question, whoever waits for its answer"
    assert registry.asked_on[0].name != "kohort-tasks"


def test_an_async_consumers_loop_goes_on(fake, cluster, topic) -> None:
    produce_framed(fake, cluster.bootstrap, topic, 5)
    registry = Held(fake.url)
    serdes = Serdes(value=JsonSchemaSerde(registry))

    async def main() -> list[int]:
        found: list[int] = []
        async with AsyncConsumer(
            bootstrap_servers=cluster.bootstrap, group_id="g", auto_offset_reset="earliest"
        ) as consumer:
            await consumer.subscribe([topic])
            asyncio.get_running_loop().call_later(0.01, freed)
            async for decoded in serdes.each(consumer):
                found.append(of_type(decoded.value, dict)["n"])
                if len(found) == 5:
                    return found
        return found

    def freed() -> None:  # on the loop: it would never come to this if it waited itself
        if registry.asked_on:
            registry.go.set()
        else:
            asyncio.get_running_loop().call_later(0.01, freed)

    assert sorted(asyncio.run(main())) == list(range(5))
    assert len(registry.asked_on) == 1


def test_a_registry_that_is_away_fails_no_record_for_good(fake, cluster, topic, app, start) -> None:
    """It has to be asked again; what does not decode is another matter."""
    produce_framed(fake, cluster.bootstrap, topic, 3)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send(topic, b"not framed")
    fake.fail_with = 503
    program: App = app(retries="50ms 50ms 50ms 50ms 50ms 200ms 200ms 1s 10s 60s")
    done = Until(3)
    program.handler(topic, decode=JsonSchemaSerde(SchemaRegistry(fake.url)))(
        lambda record: done.count()
    )
    process = start(program)
    wait_for(lambda: program.counts().get("to_retry", 0) >= 3, "nothing waits for its next try")
    fake.fail_with = None
    done.wait()
    process.stop()
    failed = read_committed(cluster.bootstrap, program.topics[topic].dead_letter)
    assert [(r.value, h.parse(r.headers).reason) for r in failed] == [
        (b"not framed", "undecodable")
    ]


def test_the_pipeline_tries_again_too() -> None:
    def away(data: bytes) -> object:
        raise ConnectionFailedError("no schema registry answers")

    (found,) = decode_all(away, [b"x"])
    assert (found.failure.permanent, found.failure.reason) == (False, UNANSWERED)


def test_processes_cannot_share_a_registry(app, topic) -> None:
    with pytest.raises(ConfigError, match="decode in the handler"):
        app().handler(topic, workers="processes", decode=Serde(bytes, bytes))(print)


@pytest.mark.parametrize(
    "value",
    [
        b'{"a": [1, 2.5, null, "x"]}',
        b"123456789012345678901234567890",
        b"18446744073709551616",
        b"1e400",
        b'"\\ud800"',
        b'{"a": 1, "a": 2}',
        b"\xef\xbb\xbf{}",
        b"-0",
        b"-0.0",
        b" [1] ",
        '"ü"'.encode("utf-16"),
    ],
)
def test_json_is_what_the_standard_library_makes_of_it(value: bytes) -> None:
    """Whatever decodes it faster: no integer becomes a float, nothing else is refused."""
    expected = json.loads(value)
    (found,) = decode_all("json", [value])
    assert repr(found) == repr(expected)
    for bad in (b"", b"[1", b"[01]", b'"\xff"'):
        (undecodable,) = decode_all("json", [bad])
        with pytest.raises(ValueError, match=r".") as caught:
            json.loads(bad)
        assert undecodable.failure.message == str(caught.value)
