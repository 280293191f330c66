"""Every call cut at its every suspension point, one after the other: nothing is lost (spec 4.9).

A story (join, read, commit, ask, seek, leave) is told again and again; the k-th telling is cut at
the k-th wait, by `wakeup()` in a thread, by a cancel in a task, and the call that was cut is made
again. Whatever k, each record comes once and in order, and what was committed is what was read.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest

from kohort import AsyncConsumer, TopicPartition
from kohort.errors import ForkedError, WakeupError
from tests.client.consumer_world import Listener, World, take, values
from tests.clusters import Cluster
from tests.known import fake, known
from tests.patience import PATIENCE_S

RECORDS = 30
MOST_WAITS = 60
"""A story has far fewer waits; on a very slow machine the last ones may not be tried."""
FACES = ["Consumer", "AsyncConsumer", "Producer", "AsyncProducer", "Admin"]


@pytest.fixture(scope="module")
def world():
    with Cluster(group_initial_rebalance_delay_ms=0) as cluster:
        made = World(cluster)
        yield made
        made.close()


class CutBell:
    """A consumer's bell that wakes its consumer up instead of the `cut`-th wait."""

    def __init__(self, consumer, cut: int) -> None:
        self.real, self.consumer, self.left, self.waits = consumer._bell, consumer, cut, 0

    def ring(self) -> None:
        self.real.ring()

    def wait(self, timeout_s: float) -> bool:
        self.waits += 1
        if self.waits == self.left:
            self.consumer.wakeup()
        return self.real.wait(timeout_s)


def again(call, *args, **options):
    """Make a call until it is not cut."""
    while True:
        try:
            return call(*args, **options)
        except WakeupError:
            continue


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_wakeup_at_every_wait_of_a_thread(world: World, protocol: str) -> None:
    topic = world.topic(1, records=RECORDS)
    tp = TopicPartition(topic, 0)
    for cut in range(1, MOST_WAITS):
        group = world.group()
        consumer = world.consumer(group_id=group, group_protocol=protocol)
        bell = CutBell(consumer, cut)
        consumer._bell = fake(bell)
        listener, seen = Listener(), list[bytes]()
        until_s = time.monotonic() + PATIENCE_S
        again(consumer.subscribe, [topic], listener)
        while len(seen) < RECORDS:
            assert time.monotonic() < until_s, f"{len(seen)} records, cut at wait {cut}"
            seen += [r.value for r in again(consumer.poll, PATIENCE_S, max_records=11)]
            again(consumer.commit)
        assert seen == values(range(RECORDS)), cut
        assert again(consumer.position, tp) == RECORDS
        assert known(again(consumer.committed, [tp])[tp]).offset == RECORDS
        again(consumer.seek, tp, 25)
        assert [r.value for r in again(consumer.poll, PATIENCE_S)] == values(range(25, 30))
        again(consumer.unsubscribe)
        consumer.close(PATIENCE_S)
        assert [what for what, tps in listener.calls if tps] == ["assigned", "revoked"], cut
        if bell.waits < cut:
            return


def test_a_cancel_at_every_wait_of_a_task(world: World) -> None:
    topic = world.topic(1, records=RECORDS)
    tp = TopicPartition(topic, 0)

    async def story(cut: int) -> int:
        waits = 0
        async with AsyncConsumer(
            bootstrap_servers=world.cluster.bootstrap,
            group_id=world.group(),
            auto_offset_reset="earliest",
            fetch_max_wait_ms=50,
            enable_auto_commit=False,
        ) as consumer:
            real = consumer._bell.wait

            async def wait(timeout_s: float) -> None:
                nonlocal waits
                waits += 1
                if waits == cut:
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                await real(timeout_s)

            consumer._bell.wait = wait  # type: ignore[method-assign]

            async def again(call, *args, **options):
                while True:
                    task = asyncio.create_task(call(*args, **options))
                    try:
                        return await task
                    except asyncio.CancelledError:
                        mine = asyncio.current_task()
                        if mine is None or mine.cancelling():
                            raise  # it is the test that ends

            seen: list[bytes] = []
            until_s = time.monotonic() + PATIENCE_S
            await again(consumer.subscribe, [topic])
            while len(seen) < RECORDS:
                assert time.monotonic() < until_s, f"{len(seen)} records, cut at wait {cut}"
                seen += [r.value for r in await again(consumer.poll, PATIENCE_S, max_records=11)]
                await again(consumer.commit)
            assert seen == values(range(RECORDS)), cut
            assert await again(consumer.position, tp) == RECORDS
            assert (await again(consumer.committed, [tp]))[tp].offset == RECORDS
            await again(consumer.unsubscribe)
            del consumer._bell.wait  # type: ignore[method-assign]
        return waits

    for cut in range(1, MOST_WAITS):
        if asyncio.run(story(cut)) < cut:
            return


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    "face", ["Consumer", "AsyncConsumer", "Producer", "AsyncProducer", "Admin", "AsyncAdmin"]
)
def test_every_face_refuses_to_work_in_the_child_of_a_fork(world: World, face: str) -> None:
    """C14: sockets do not survive a fork; the child is told, at once, and the parent goes on."""
    import kohort

    topic = world.topic(1, records=1)
    settings = {"bootstrap_servers": world.cluster.bootstrap}
    client = getattr(kohort, face)(**settings)

    def use() -> None:
        if face == "Consumer":
            client.assign([(topic, 0)])
            client.poll(0.1)
        elif face == "Producer":
            client.send(topic, b"1").result(PATIENCE_S)
        elif face == "Admin":
            client.list_topics()
        else:
            asyncio.run(use_async())

    async def use_async() -> None:
        if face == "AsyncConsumer":
            await client.assign([(topic, 0)])
            await client.poll(0.1)
        elif face == "AsyncAdmin":
            await client.list_topics()
        else:
            await (await client.send(topic, b"1"))

    use()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            use()
        except ForkedError:
            code = 0
        finally:
            os._exit(code)
    child = threading.Timer(PATIENCE_S, os.kill, (pid, 9))
    child.start()
    status = os.waitpid(pid, 0)[1]
    child.cancel()
    assert os.waitstatus_to_exitcode(status) == 0
    use()
    closed = client.close()
    if closed is not None and asyncio.iscoroutine(closed):
        asyncio.run(_awaited(closed))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("way", ["poll", "iterate", "poll_arrow"])
def test_the_child_of_a_fork_is_handed_nothing_that_the_parent_has_fetched(
    world: World, way: str
) -> None:
    """C14: what lies ready in memory is copied by a fork; it stays the parent's."""
    topic = world.topic(1, records=RECORDS)
    consumer = world.consumer()
    consumer.assign([(topic, 0)])
    seen = take(consumer, 5)
    ways = {
        "poll": lambda: consumer.poll(0.1),
        "iterate": lambda: next(iter(consumer)),
        "poll_arrow": lambda: consumer.poll_arrow(0.1),
    }
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ways[way]()
        except ForkedError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert seen + take(consumer, RECORDS - 5) == values(range(RECORDS))


async def _awaited(what):
    return await what
