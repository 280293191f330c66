"""`for record in consumer` and `async for`: the same promises, between any two records."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from kohort import AsyncConsumer, Consumer, OffsetAndMetadata, TopicPartition
from kohort.errors import WakeupError
from tests.client.consumer_world import World, take, values
from tests.clusters import Cluster
from tests.known import known
from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


class Iterating:
    """An iteration of either face, record by record."""

    def __init__(self, world: World, runner: asyncio.Runner, tasks: bool, **config: Any) -> None:
        settings: dict[str, Any] = {
            "bootstrap_servers": world.cluster.bootstrap,
            "auto_offset_reset": "earliest",
            "fetch_max_wait_ms": 50,
            **config,
        }
        self.consumer: Any = AsyncConsumer(**settings) if tasks else Consumer(**settings)
        self._runner, self._tasks = runner, tasks
        self._records: Any = None

    def call(self, name: str, *args: object) -> Any:
        done = getattr(self.consumer, name)(*args)
        return self._runner.run(awaited(done)) if inspect.isawaitable(done) else done

    def next(self) -> bytes:
        if self._records is None:
            self._records = aiter(self.consumer) if self._tasks else iter(self.consumer)
        if self._tasks:
            return self._runner.run(awaited(anext(self._records))).value
        return next(self._records).value

    def leave(self) -> None:
        """As `break` does."""
        if self._tasks:
            self._runner.run(self._records.aclose())
        else:
            self._records.close()


async def awaited(done: Awaitable[Any]) -> Any:
    return await done


@pytest.fixture(params=[False, True], ids=["threads", "tasks"])
def iterating(request, world: World) -> Iterator[Callable[..., Iterating]]:
    """Makes an `Iterating` of the face in turn."""
    made: list[Iterating] = []
    with asyncio.Runner() as runner:

        def make(**config: Any) -> Iterating:
            made.append(Iterating(world, runner, request.param, **config))
            return made[-1]

        yield make
        for each in made:
            each.call("close", 5)


def test_an_iteration_that_the_collector_ends_waits_for_no_lock(world: World) -> None:
    """C9: that may be on the network thread, which holds the consumer's lock; nothing is lost."""
    topic = world.topic(1, records=6)
    consumer = world.consumer()
    consumer.assign([(topic, 0)])
    consumer.seek_to_beginning()
    records = iter(consumer)
    assert [next(records).value for _ in range(3)] == values(range(3))
    collector = threading.Thread(target=records.close, daemon=True)
    with consumer._core.lock:
        collector.start()
        collector.join(PATIENCE_S)
        assert not collector.is_alive()
    assert take(consumer, 3) == values(range(3, 6))


def test_a_seek_within_an_iteration_holds_from_the_next_record_on(world: World, iterating) -> None:
    """Spec 4.4, 4.6: what lies ready from before the seek is not handed out any more."""
    topic = world.topic(1, records=30)
    reading = iterating()
    reading.call("assign", [(topic, 0)])
    assert [reading.next() for _ in range(10)] == values(range(10))
    reading.call("seek", (topic, 0), 3)
    assert [reading.next() for _ in range(27)] == values(range(3, 30))


def test_a_wakeup_ends_an_iteration_at_its_next_record(world: World, iterating) -> None:
    """Spec 4.9, C9: whatever wants attention comes before what lies ready; nothing is lost."""
    topic = world.topic(1, records=30)
    reading = iterating()
    reading.call("assign", [(topic, 0)])
    assert reading.next() == b"0"
    reading.call("wakeup")
    with pytest.raises(WakeupError):
        reading.next()
    reading._records = None
    assert [reading.next() for _ in range(29)] == values(range(1, 30))


def test_the_record_with_which_an_iteration_is_left_is_open(world: World, iterating) -> None:
    """Spec 4.5, C4: it has been handed out and not returned from; those before it are done."""
    topic, group = world.topic(1, records=30), world.group()
    reading = iterating(group_id=group)
    reading.call("assign", [(topic, 0)])
    assert [reading.next() for _ in range(3)] == values(range(3))
    reading.leave()
    reading.call("close", 20)
    reader = iterating(group_id=group)
    assert reader.call("committed", [(topic, 0)])[topic, 0].offset == 2


@pytest.mark.parametrize("how", ["break", "error"])
def test_an_async_for_that_is_left_commits_what_was_dealt_with(world: World, how: str) -> None:
    """C4: asyncio closes its generator later, when the consumer may be closed already."""
    topic, group = world.topic(1, records=30), world.group()
    settings: dict[str, Any] = {
        "bootstrap_servers": world.cluster.bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
    }

    async def read() -> None:
        async with AsyncConsumer(**settings) as consumer:
            await consumer.assign([(topic, 0)])
            seen = 0
            async for _ in consumer:
                seen += 1
                if seen == 3 and how == "break":
                    break
                if seen == 3:
                    raise LookupError

    with contextlib.suppress(LookupError):
        asyncio.run(read())
    with Consumer(**settings) as reader:
        at = TopicPartition(topic, 0)
        assert known(reader.committed([at])[at]).offset == 2


def test_each_record_of_an_iteration_counts_as_a_poll(world: World, iterating) -> None:
    """Spec 1.3: `max.poll.interval.ms` passes between two records, not from piece to piece."""
    topic = world.topic(1, records=30)
    reading = iterating()
    reading.call("assign", [(topic, 0)])
    reading.next()
    beats = reading.consumer._core.beats
    for _ in range(9):
        reading.next()
    assert reading.consumer._core.beats == beats + 9


@pytest.mark.parametrize("ready", [True, False], ids=["data is ready", "data is waited for"])
def test_the_next_fetch_goes_out_before_records_are_handed_out(
    world: World, iterating, ready: bool
) -> None:
    """Spec 4.2: the network works while the user does, who need not call again for that."""
    topic = world.topic(1)
    reading = iterating()
    reading.call("assign", [(topic, 0)])
    core = reading.consumer._core
    reading.call("position", (topic, 0))
    position = core.positions.get(TopicPartition(topic, 0))
    if ready:
        world.produce(topic, 1, range(10))
        eventually(lambda: not core.reader.empty)
    else:
        threading.Timer(0.1, world.produce, (topic, 1, range(10))).start()
    count = 0
    while count < 10:  # they may come in two answers
        count += len(reading.call("poll", PATIENCE_S))
    eventually(lambda: position.in_flight is not None)


def eventually(met: Callable[[], bool]) -> None:
    """Wait, without a call of the consumer."""
    deadline = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def test_an_exception_leaves_the_records_of_the_last_poll_open(world: World) -> None:
    """Spec 4.5, of tasks; of threads `test_close_commits_and_an_exception_does_not` says it."""
    topic, group = world.topic(1, records=10), world.group()
    settings: dict[str, Any] = {
        "bootstrap_servers": world.cluster.bootstrap,
        "auto_offset_reset": "earliest",
    }

    async def read(fails: bool) -> None:
        async with AsyncConsumer(group_id=group, **settings) as consumer:
            await consumer.assign([(topic, 0)])
            while not await consumer.poll(1, max_records=4):
                continue
            while len(await consumer.poll(1, max_records=2)) < 2:
                continue
            if fails:
                raise ZeroDivisionError

    async def committed() -> int:
        async with AsyncConsumer(group_id=group, **settings) as consumer:
            return known((await consumer.committed([(topic, 0)]))[TopicPartition(topic, 0)]).offset

    with pytest.raises(ZeroDivisionError):
        asyncio.run(read(fails=True))
    assert asyncio.run(committed()) == 4
    asyncio.run(read(fails=False))
    assert asyncio.run(committed()) == 10


def test_assigning_others_commits_what_was_read_of_those_before(world: World, iterating) -> None:
    """Spec 4.1, 4.5: they are given up by it, so it is as before a rebalance."""
    topic, group = world.topic(2, records=20), world.group()
    reading = iterating(group_id=group)
    reading.call("assign", [(topic, 0)])
    reading.call("position", (topic, 0))
    count = 0
    while count < 10:
        count += len(reading.call("poll", 1))
    reading.call("assign", [(topic, 1)])
    found = reading.call("committed", [(topic, 0)])[topic, 0]
    for _ in range(1_000):
        if found is not None:
            break
        found = reading.call("committed", [(topic, 0)])[topic, 0]
    assert found is not None
    assert found.offset == 10


def test_a_seek_takes_the_epoch_of_its_place(world: World, iterating) -> None:
    """Spec 4.6, 4.7 (KIP-320): so that a log truncated since is noticed from there on."""
    topic = world.topic(1, records=10)
    reading = iterating()
    reading.call("assign", [(topic, 0)])
    reading.call("position", (topic, 0))
    reading.call("seek", (topic, 0), OffsetAndMetadata(4, "", 0))
    assert reading.consumer._core.positions.get(TopicPartition(topic, 0)).offset_epoch == 0
    assert reading.next() == b"4"
